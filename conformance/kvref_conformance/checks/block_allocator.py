"""Checks of block allocators: who may be given a block, and when it is free again."""

from kvref_conformance.checks.check import check
from kvref_conformance.programs.asking import at_length, beside, every, pools
from kvref_conformance.programs.expecting import expect_unbroken
from kvref_conformance.programs.walks import late, walks
from kvref_conformance.trial import Trial

ALLOCATOR = ("block_allocator",)
HANDS_OUT = ("allocate", "free")
COUNTS = (*HANDS_OUT, "num_free")
SHARES = (*HANDS_OUT, "touch")

#: Three allocations, of which the first and the last return, and then all; and the same block by block.
MIXED = "allocate 0 2; allocate 1 1; allocate 2 2; free 2; free 0; rest 3; free 1; free 3; rest 4; free 4"
SINGLES = "allocate 0 1; allocate 1 1; allocate 2 1; free 1; free 0; rest 3; free 2; free 3; rest 4"
#: No block is asked for, and none is named, beside blocks that are held.
NOTHING = "allocate_none; allocate 0 2; allocate_none; free_none; rest 1; free_none; free 1; allocate 2 1"
#: The same blocks are handed out and let go of, over and over.
STEADY = "; ".join(["allocate 0 2; allocate 1 1; free 0; free 1"] * 510) + "; drain"
#: A block has more holders than two bytes count, in as few calls as can be.
BEYOND_TWO_BYTES_OF_HOLDERS = f"allocate 0 1; {'touch_together 0 0 4095; ' * 17}free_often 0 0 4095; rest 1"
#: Pools with more blocks than a byte counts, and than two bytes count.
BEYOND_A_BYTE, BEYOND_TWO = (300,), (66_000,)


@check(
    "KV-BLOCK-001",
    verbs=ALLOCATOR,
    operations=HANDS_OUT,
    cases=every(
        pools(
            MIXED, SINGLES, "allocate 0 2; allocate 1 99; rest 2; allocate 3 1; free 0; allocate 4 3", NOTHING
        ),
        beside(pools(MIXED)),
        pools("rest 0; free 0; allocate 1 1; rest 2", num_blocks=BEYOND_A_BYTE),
        at_length(pools("rest 0; allocate 1 1", num_blocks=BEYOND_TWO)),
        walks(),
        late,
    ),
)
def blocks_are_different_and_nobodys(trial: Trial) -> None:
    """Allocations come and go until the pool is full, and beyond: no block is given to two."""
    expect_unbroken(trial, "KV-BLOCK-001")


@check(
    "KV-BLOCK-001",
    verbs=ALLOCATOR,
    operations=SHARES,
    cases=pools(
        "touch_idle 0 1; rest 1; free 0; rest 2",
        "allocate 0 2; free 0 0; touch_idle 1 0; touch 1; free 1; rest 2; free 1; rest 3",
        "touch_idle 0 0; touch_idle 1 1; rest 2; free 0; touch_idle 3 0; rest 4",
    ),
)
def held_again_is_held(trial: Trial) -> None:
    """A free block is held by whoever touches it, or the touch is refused: it is not given to two."""
    expect_unbroken(trial, "KV-BLOCK-001")


@check(
    "KV-BLOCK-002",
    verbs=ALLOCATOR,
    operations=HANDS_OUT,
    cases=every(
        pools(
            "allocate 0 4; allocate 1 99; free 0; allocate 2 99; rest 3",
            "allocate 0 1; allocate 1 2; free 0; allocate 2 99; free 1; allocate 3 99",
            "allocate 0 2; allocate 1 257; allocate 1 65537; rest 1; free 0",
        ),
        walks(),
    ),
)
def refused_allocation_takes_nothing(trial: Trial) -> None:
    """More blocks than are free are refused; all that were free can still be had."""
    expect_unbroken(trial, "KV-BLOCK-002")


@check(
    "KV-BLOCK-003",
    verbs=ALLOCATOR,
    operations=HANDS_OUT,
    cases=every(
        pools(
            "allocate 0 1; allocate 1 1; allocate 2 1; allocate 3 1; rest 4; free 0; free 2; allocate 5 2; "
            "free 4; free 5",
            "rest 0; free 0; allocate 1 5; rest 2",
        ),
        beside(pools(MIXED)),
        walks(),
        late,
    ),
)
def every_free_block_can_be_had(trial: Trial) -> None:
    """Every other block is free: an allocation of all of them succeeds."""
    expect_unbroken(trial, "KV-BLOCK-003")


@check(
    "KV-BLOCK-004",
    verbs=ALLOCATOR,
    operations=(*COUNTS, "touch"),
    cases=every(
        pools(
            "allocate 0 3; touch 0; free 0 1; allocate 1 2; free 0; free 0; free 1; rest 2; free 2",
            "allocate 0 2; touch_together 0 0 2; free_together 0 0; touch 0 1; free_together 0 1; rest 1",
        ),
        walks(),
    ),
)
def count_follows_holders(trial: Trial) -> None:
    """Blocks are shared, let go of one by one and all together: the count is exact at each step."""
    expect_unbroken(trial, "KV-BLOCK-004")


@check(
    "KV-BLOCK-004",
    verbs=ALLOCATOR,
    operations=COUNTS,
    cases=every(pools(MIXED, NOTHING), beside(pools(MIXED))),
)
def count_follows_allocations(trial: Trial) -> None:
    """Allocations come and go: the count is exact at each step."""
    expect_unbroken(trial, "KV-BLOCK-004")


@check(
    "KV-BLOCK-005",
    verbs=ALLOCATOR,
    operations=SHARES,
    cases=every(
        pools(
            "allocate 0 2; touch 0; free 0; rest 1; allocate 2 1; free 1; free 0; rest 2",
            "allocate 0 2; touch 0 1; touch 0 1; free 0; free 0 1; rest 1; allocate 2 1; free 0 1; rest 2",
            "allocate 0 2; touch 0 0; rest 1; free 0; allocate 2 1; free 1; allocate 3 1; free 0; rest 4",
            "allocate 0 1; touch_together 0 0 2; free 0; free 0; rest 1; allocate 2 1; free 0; rest 2",
        ),
        pools(
            "allocate 0 1; touch_often 0 0 300; free_often 0 0 300; rest 1; free 0; rest 2", num_blocks=(2,)
        ),
        at_length(pools(BEYOND_TWO_BYTES_OF_HOLDERS, num_blocks=(2,))),
        walks(),
        late,
    ),
)
def block_stays_until_the_last_holder_lets_go(trial: Trial) -> None:
    """A block held twice is let go of once, and the rest of the pool is handed out: it is not among it."""
    expect_unbroken(trial, "KV-BLOCK-005")


@check(
    "KV-BLOCK-006",
    verbs=ALLOCATOR,
    operations=HANDS_OUT,
    cases=every(
        walks(),
        pools(
            "allocate 0 2; free_twice 0 1; free 0; rest 1",
            "allocate 0 3; free 0; free_again 0 1; rest 1",
            "allocate 0 1; allocate 1 2; free 0; free_again 0 0; free 1; free_again 1 1",
            "free_idle 1; allocate 0 2; free_idle 0; rest 1; free 0; free_idle 0",
        ),
    ),
)
def what_nobody_holds_cannot_be_freed(trial: Trial) -> None:
    """A block is freed twice, in two calls and in one: both are refused, and it is not handed out twice."""
    expect_unbroken(trial, "KV-BLOCK-006")


@check(
    "KV-BLOCK-006",
    verbs=ALLOCATOR,
    operations=SHARES,
    cases=pools("allocate 0 2; touch 0; free_twice 0 1; free 0; free 0; rest 1"),
)
def shared_block_is_freed_as_often_as_held(trial: Trial) -> None:
    """A block held twice is named three times in one call: refused, and it can still be freed twice."""
    expect_unbroken(trial, "KV-BLOCK-006")


@check(
    "KV-BLOCK-007",
    verbs=ALLOCATOR,
    operations=HANDS_OUT,
    cases=every(
        pools(
            *(f"allocate 0 2; free_outside 0 {k}; rest 1; free_outside 2 {k}" for k in (0, 7, -1, -2)),
            "allocate 0 2; free_null 0; free_null 1; rest 2",
            "allocate 0 2; free_alias 0 1; free_alias 0 0; rest 1",
        ),
        beside(pools("allocate 0 2; free_outside 0 0; rest 1")),
    ),
)
def foreign_block_cannot_be_freed(trial: Trial) -> None:
    """Ids beyond the pool, before it, and the null block are refused, and blocks beside them stay held."""
    expect_unbroken(trial, "KV-BLOCK-007")


@check(
    "KV-BLOCK-007",
    verbs=ALLOCATOR,
    operations=SHARES,
    cases=pools(
        *(f"allocate 0 2; touch_outside 0 {k}; rest 1; touch_outside 0 {k}; free 1" for k in (0, -1, -2)),
        "allocate 0 2; touch_null 0; touch_null 1",
        "allocate 0 2; touch_alias 0 1; touch_alias 0 0; rest 1",
    ),
)
def foreign_block_cannot_be_touched(trial: Trial) -> None:
    """Ids outside the pool and the null block are refused, and blocks beside them are not held once more."""
    expect_unbroken(trial, "KV-BLOCK-007")


@check(
    "KV-BLOCK-008",
    verbs=ALLOCATOR,
    operations=HANDS_OUT,
    cases=pools("rest 0; free 0; rest 1; free 1", num_blocks=(6, 9, 1, 64)),
)
def null_block_is_as_declared(trial: Trial) -> None:
    """The whole capacity is handed out: block 0 is among it if it is no null block, and only then."""
    expect_unbroken(trial, "KV-BLOCK-008")


@check(
    "KV-BLOCK-009",
    verbs=ALLOCATOR,
    operations=HANDS_OUT,
    cases=every(
        pools("allocate 0 2; allocate 1 1; free 0; drain; allocate 0 3; drain", "rest 0; drain; drain"),
        beside(pools(MIXED)),
        pools("rest 0; drain; rest 0", num_blocks=BEYOND_A_BYTE),
        walks(),
    ),
)
def all_blocks_come_back(trial: Trial) -> None:
    """Everybody lets go: an allocation of the whole pool succeeds, and again."""
    expect_unbroken(trial, "KV-BLOCK-009")


@check("KV-BLOCK-009", verbs=ALLOCATOR, operations=HANDS_OUT, cases=pools(STEADY, num_blocks=(4,)))
def all_blocks_come_back_for_long(trial: Trial) -> None:
    """Blocks come and go more than a thousand times: none is lost, and none miscounted."""
    expect_unbroken(trial, "KV-BLOCK-009")


@check(
    "KV-BLOCK-009",
    verbs=ALLOCATOR,
    operations=SHARES,
    cases=pools(
        "allocate 0 2; touch 0; touch 0 1; free 0 0; allocate 1 1; touch 1; drain; drain",
        "allocate 0 2; touch 0 1; touch 0 1; free_together 0 1; free 0; drain",
        "allocate 0 2; touch_none; free 0; drain; allocate 0 1; touch 0; touch_none; free 0; drain",
    ),
)
def shared_blocks_come_back(trial: Trial) -> None:
    """Blocks held once, twice and three times are let go of: an allocation of the whole pool succeeds."""
    expect_unbroken(trial, "KV-BLOCK-009")


@check(
    "KV-BLOCK-013",
    verbs=ALLOCATOR,
    operations=HANDS_OUT,
    cases=pools(
        "allocate_negative 1; rest 0",
        "allocate 0 2; allocate_negative 3; rest 1",
        "allocate 0 2; allocate_negative 255; allocate_negative 65535; rest 1",
    ),
)
def fewer_than_none_is_refused(trial: Trial) -> None:
    """A negative number of blocks is refused, and all that were free can still be had."""
    expect_unbroken(trial, "KV-BLOCK-013")

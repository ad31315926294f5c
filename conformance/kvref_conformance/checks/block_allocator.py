"""Checks of block allocators: who may be given a block, and when it is free again."""

from kvref_conformance.cases import Case, Level
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.programs.asking import Lattice, expect_unbroken, pools
from kvref_conformance.trial import Trial

ALLOCATOR = ("block_allocator",)
HANDS_OUT = ("allocate", "free")
COUNTS = (*HANDS_OUT, "num_free")
SHARES = (*HANDS_OUT, "touch")
PINS = (*HANDS_OUT, "pin", "unpin")
STEPS = (*HANDS_OUT, "begin_step", "end_step")

#: Three allocations, of which the first and the last return, and then all; and the same block by block.
MIXED = "allocate 0 2; allocate 1 1; allocate 2 2; free 2; free 0; rest 3; free 1; free 3; rest 4; free 4"
SINGLES = "allocate 0 1; allocate 1 1; allocate 2 1; free 1; free 0; rest 3; free 2; free 3; rest 4"
#: Blocks are freed while a step may write them, before it begins, and after it has ended.
IN_FLIGHT = (
    "allocate 0 2; begin 0; free 0; end 0; rest 1; free 1",
    "allocate 0 2; free 0; begin 0; rest 1; end 0",
    "begin 0; allocate 0 2; end 0; free 0; rest 1",
    "allocate 0 1; allocate 1 1; begin 0; free 0; begin 1; end 0; free 1; end 1; begin 2; end 2; rest 2",
)


def _if_declared(lattice: Lattice) -> Lattice:
    """Return the cases of a lattice where an order is declared."""

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        return [] if claims.choice("free-order") == "unspecified" else lattice(claims, manager, level)

    return cases


@check(
    "KV-BLOCK-001",
    verbs=ALLOCATOR,
    operations=HANDS_OUT,
    cases=pools(MIXED, SINGLES, "allocate 0 2; allocate 1 99; rest 2; allocate 3 1; free 0; allocate 4 3"),
)
def blocks_are_different_and_nobodys(trial: Trial) -> None:
    """Allocations come and go until the pool is full, and beyond: no block is given to two."""
    expect_unbroken(trial, "KV-BLOCK-001")


@check(
    "KV-BLOCK-002",
    verbs=ALLOCATOR,
    operations=HANDS_OUT,
    cases=pools(
        "allocate 0 4; allocate 1 99; free 0; allocate 2 99; rest 3",
        "allocate 0 1; allocate 1 2; free 0; allocate 2 99; free 1; allocate 3 99",
    ),
)
def refused_allocation_takes_nothing(trial: Trial) -> None:
    """More blocks than are free are refused; all that were free can still be had."""
    expect_unbroken(trial, "KV-BLOCK-002")


@check(
    "KV-BLOCK-003",
    verbs=ALLOCATOR,
    operations=HANDS_OUT,
    cases=pools(
        "allocate 0 1; allocate 1 1; allocate 2 1; allocate 3 1; rest 4; free 0; free 2; allocate 5 2; "
        "free 4; free 5",
        "rest 0; free 0; allocate 1 5; rest 2",
    ),
)
def every_free_block_can_be_had(trial: Trial) -> None:
    """Every other block is free: an allocation of all of them succeeds."""
    expect_unbroken(trial, "KV-BLOCK-003")


@check("KV-BLOCK-003", verbs=ALLOCATOR, operations=STEPS, features=("steps",), cases=pools(*IN_FLIGHT))
def steps_hold_back_nothing_else(trial: Trial) -> None:
    """Blocks freed before a step began, or while it ran, can be had when it has ended."""
    expect_unbroken(trial, "KV-BLOCK-003")


@check(
    "KV-BLOCK-004",
    verbs=ALLOCATOR,
    operations=(*COUNTS, "touch"),
    cases=pools("allocate 0 3; touch 0; free 0 1; allocate 1 2; free 0; free 0; free 1; rest 2; free 2"),
)
def count_follows_holders(trial: Trial) -> None:
    """Blocks are shared, let go of one by one and all together: the count is exact at each step."""
    expect_unbroken(trial, "KV-BLOCK-004")


@check("KV-BLOCK-004", verbs=ALLOCATOR, operations=COUNTS, cases=pools(MIXED))
def count_follows_allocations(trial: Trial) -> None:
    """Allocations come and go: the count is exact at each step."""
    expect_unbroken(trial, "KV-BLOCK-004")


@check(
    "KV-BLOCK-004",
    verbs=ALLOCATOR,
    operations=(*STEPS, "num_free"),
    features=("steps",),
    cases=pools(*IN_FLIGHT),
)
def count_follows_steps(trial: Trial) -> None:
    """Blocks are freed while steps are in flight: the count is exact again when they have ended."""
    expect_unbroken(trial, "KV-BLOCK-004")


@check(
    "KV-BLOCK-004",
    verbs=ALLOCATOR,
    operations=(*PINS, "num_free"),
    features=("pin",),
    cases=pools(
        "allocate 0 3; pin 0; pin 0 1; free 0; unpin 0; unpin 0 1; allocate 1 2; pin 1 0; unpin 1; free 1"
    ),
)
def count_follows_pins(trial: Trial) -> None:
    """Blocks are pinned once and twice, before and after their request ends: the count is exact."""
    expect_unbroken(trial, "KV-BLOCK-004")


@check(
    "KV-BLOCK-005",
    verbs=ALLOCATOR,
    operations=SHARES,
    cases=pools(
        "allocate 0 2; touch 0; free 0; rest 1; allocate 2 1; free 1; free 0; rest 2",
        "allocate 0 2; touch 0 1; touch 0 1; free 0; free 0 1; rest 1; allocate 2 1; free 0 1; rest 2",
    ),
)
def block_stays_until_the_last_holder_lets_go(trial: Trial) -> None:
    """A block held twice is let go of once, and the rest of the pool is handed out: it is not among it."""
    expect_unbroken(trial, "KV-BLOCK-005")


@check(
    "KV-BLOCK-006",
    verbs=ALLOCATOR,
    operations=HANDS_OUT,
    cases=pools(
        "allocate 0 2; free_twice 0 1; free 0; rest 1",
        "allocate 0 3; free 0; free_again 0 1; rest 1",
        "allocate 0 1; allocate 1 2; free 0; free_again 0 0; free 1; free_again 1 1",
        "free_idle 1; allocate 0 2; free_idle 0; rest 1; free 0; free_idle 0",
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
    cases=pools(
        *(f"allocate 0 2; free_outside 0 {k}; rest 1; free_outside 2 {k}" for k in (0, 7, -1, -2)),
        "allocate 0 2; free_null 0; free_null 1; rest 2",
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
    ),
)
def foreign_block_cannot_be_touched(trial: Trial) -> None:
    """Ids outside the pool and the null block are refused, and blocks beside them are not held once more."""
    expect_unbroken(trial, "KV-BLOCK-007")


@check("KV-BLOCK-008", verbs=ALLOCATOR, operations=HANDS_OUT, cases=pools("rest 0; free 0; rest 1; free 1"))
def null_block_is_as_declared(trial: Trial) -> None:
    """The whole capacity is handed out: block 0 is among it if it is no null block, and only then."""
    expect_unbroken(trial, "KV-BLOCK-008")


@check(
    "KV-BLOCK-009",
    verbs=ALLOCATOR,
    operations=HANDS_OUT,
    cases=pools("allocate 0 2; allocate 1 1; free 0; drain; allocate 0 3; drain", "rest 0; drain; drain"),
)
def all_blocks_come_back(trial: Trial) -> None:
    """Everybody lets go: an allocation of the whole pool succeeds, and again."""
    expect_unbroken(trial, "KV-BLOCK-009")


@check(
    "KV-BLOCK-009",
    verbs=ALLOCATOR,
    operations=SHARES,
    cases=pools("allocate 0 2; touch 0; touch 0 1; free 0 0; allocate 1 1; touch 1; drain; drain"),
)
def shared_blocks_come_back(trial: Trial) -> None:
    """Blocks held once, twice and three times are let go of: an allocation of the whole pool succeeds."""
    expect_unbroken(trial, "KV-BLOCK-009")


@check(
    "KV-BLOCK-010",
    verbs=ALLOCATOR,
    operations=HANDS_OUT,
    cases=_if_declared(
        pools(
            "allocate 0 1; allocate 1 1; allocate 2 1; rest 3; free 1; free 0; free 2; "
            "allocate 4 1; allocate 5 1; allocate 6 1",
            "allocate 0 1; allocate 1 1; free 0; free 1; allocate 2 1; allocate 3 1; rest 4",
        )
    ),
)
def free_blocks_leave_in_the_declared_order(trial: Trial) -> None:
    """Blocks are freed one after another, and handed out one after another."""
    expect_unbroken(trial, "KV-BLOCK-010")


@check(
    "KV-BLOCK-011",
    verbs=ALLOCATOR,
    operations=STEPS,
    features=("steps",),
    cases=pools(
        "allocate 0 2; begin 0; free 0; rest 1; allocate 2 1; end 0; rest 2",
        "allocate 0 2; begin 0; begin 1; free 0; end 0; rest 1; allocate 2 1; end 1; rest 2",
        "begin 0; allocate 0 2; begin 1; end 0; free 0; rest 1; allocate 2 1; end 1; rest 2",
    ),
)
def block_of_a_step_in_flight_waits(trial: Trial) -> None:
    """A block is freed while one step or two may write it: it is handed out when the last has ended."""
    expect_unbroken(trial, "KV-BLOCK-011")


@check(
    "KV-BLOCK-012",
    verbs=ALLOCATOR,
    operations=PINS,
    features=("pin",),
    cases=pools(
        "allocate 0 3; pin 0 1; free 0; rest 1; allocate 2 1; unpin 0 1; rest 2",
        "allocate 0 2; pin 0; pin 0; free 0; unpin 0; rest 1; allocate 2 1; free 1; unpin 0; rest 2",
    ),
)
def pinned_block_stays(trial: Trial) -> None:
    """A block is pinned, once or twice, and its request ends: it is handed out after the last pin is gone."""
    expect_unbroken(trial, "KV-BLOCK-012")


@check(
    "KV-BLOCK-013",
    verbs=ALLOCATOR,
    operations=HANDS_OUT,
    cases=pools("allocate_negative 1; rest 0", "allocate 0 2; allocate_negative 3; rest 1"),
)
def fewer_than_none_is_refused(trial: Trial) -> None:
    """A negative number of blocks is refused, and all that were free can still be had."""
    expect_unbroken(trial, "KV-BLOCK-013")

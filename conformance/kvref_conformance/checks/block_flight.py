"""Checks of blocks that are still read or written when their request has ended: pins, steps in flight."""

from kvref_conformance.checks.block_allocator import ALLOCATOR, HANDS_OUT
from kvref_conformance.checks.check import check
from kvref_conformance.programs.asking import at_length, every, pools
from kvref_conformance.programs.expecting import expect_unbroken
from kvref_conformance.programs.walks import walks
from kvref_conformance.trial import Trial

PINS = (*HANDS_OUT, "pin", "unpin")
STEPS = (*HANDS_OUT, "begin_step", "end_step")

#: Blocks are freed while a step may write them, before it begins, and after it has ended.
IN_FLIGHT = (
    "allocate 0 2; begin 0; free 0; end 0; rest 1; free 1",
    "allocate 0 2; free 0; begin 0; rest 1; end 0",
    "begin 0; allocate 0 2; end 0; free 0; rest 1",
    "allocate 0 1; allocate 1 1; begin 0; free 0; begin 1; end 0; free 1; end 1; begin 2; end 2; rest 2",
    "allocate 0 2; begin 0; free 0 0; begin 1; free 0; begin 2; end 1; rest 1; end 2; rest 2",
)
#: A block is pinned more often than two bytes count, in as few calls as can be, and then once less.
BEYOND_TWO_BYTES_OF_PINS = f"allocate 0 1; {'pin_together 0 0 4095; ' * 17}free 0; unpin 0; rest 1"
#: A block is freed in each of more steps than a byte counts, two of which are in flight at once.
STEP_AFTER_STEP = "begin 0; " + "; ".join(
    f"allocate {at} 1; begin {at + 1}; free {at}; end {at}" + "; allocate 999 99" * (at > 250)
    for at in range(260)
)


@check(
    "KV-BLOCK-001",
    verbs=ALLOCATOR,
    operations=PINS,
    features=("pin",),
    cases=pools(
        "allocate 0 2; pin 0; unpin 0; rest 1; free 0; rest 2",
        "allocate 0 2; pin 0; pin 0 0; unpin 0; rest 1",
    ),
)
def unpinned_is_still_held(trial: Trial) -> None:
    """Pins are taken back while a request holds the blocks: they are given to nobody else."""
    expect_unbroken(trial, "KV-BLOCK-001")


@check("KV-BLOCK-003", verbs=ALLOCATOR, operations=STEPS, features=("steps",), cases=pools(*IN_FLIGHT))
def steps_hold_back_nothing_else(trial: Trial) -> None:
    """Blocks freed before a step began, or while it ran, can be had when it, or a later one, has ended."""
    expect_unbroken(trial, "KV-BLOCK-003")


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
        "allocate 0 3; pin 0; pin 0 1; free 0; unpin 0; unpin 0 1; allocate 1 2; pin 1 0; unpin 1; free 1",
        "pin_idle 0 1; allocate 1 1; free_pinned 0 0; unpin 0; rest 2",
    ),
)
def count_follows_pins(trial: Trial) -> None:
    """Blocks are pinned once and twice, before and after their request ends: the count is exact."""
    expect_unbroken(trial, "KV-BLOCK-004")


@check(
    "KV-BLOCK-009",
    verbs=ALLOCATOR,
    operations=PINS,
    features=("pin",),
    cases=pools(
        "allocate 0 3; pin 0; pin 0 1; free 0; drain; drain",
        "allocate 0 2; pin_none; unpin_none; free 0; drain; allocate 0 1; pin 0; unpin_none; unpin 0; drain",
    ),
)
def pinned_blocks_come_back(trial: Trial) -> None:
    """Blocks are pinned, and none is, and everybody lets go: an allocation of the whole pool succeeds."""
    expect_unbroken(trial, "KV-BLOCK-009")


@check(
    "KV-BLOCK-006",
    verbs=ALLOCATOR,
    operations=PINS,
    features=("pin",),
    cases=every(
        pools(
            "allocate 0 2; unpin_twice 0 0; rest 1",
            "allocate 0 3; pin 0 1; unpin_twice 0 1; pin 0; pin 0; unpin_twice 0 2; rest 1",
            "allocate 0 2; pin 0; pin 0 0; free 0; unpin_twice 0 0; unpin_twice 0 1; rest 1",
        ),
        walks(),
    ),
)
def pin_is_taken_back_as_often_as_put(trial: Trial) -> None:
    """A block is unpinned that nobody has pinned, and once too often in one call: both are refused."""
    expect_unbroken(trial, "KV-BLOCK-006")


@check(
    "KV-BLOCK-007",
    verbs=ALLOCATOR,
    operations=PINS,
    features=("pin",),
    cases=pools(
        *(f"allocate 0 2; pin_outside 0 {k}; rest 1; pin_outside 0 {k}" for k in (0, 7, -1, -2)),
        *(
            f"allocate 0 2; pin 0; unpin_outside 0 {k}; rest 1; pin 1 0; unpin_outside 1 {k}"
            for k in (0, 7, -1, -2)
        ),
        "allocate 0 2; pin_null 0; rest 1; pin 1; unpin_null 1; pin_null 0",
        "allocate 0 2; pin_alias 0 1; pin 0 0; unpin_alias 0 0; rest 1",
    ),
)
def foreign_block_cannot_be_pinned(trial: Trial) -> None:
    """Ids outside the pool and the null block are refused, and blocks beside them keep the pins they had."""
    expect_unbroken(trial, "KV-BLOCK-007")


@check(
    "KV-BLOCK-011",
    verbs=ALLOCATOR,
    operations=STEPS,
    features=("steps",),
    cases=every(
        pools(
            "allocate 0 2; begin 0; free 0; rest 1; allocate 2 1; end 0; rest 2",
            "allocate 0 2; begin 0; begin 1; free 0; end 0; rest 1; allocate 2 1; end 1; rest 2",
            "begin 0; allocate 0 2; begin 1; end 0; free 0; rest 1; allocate 2 1; end 1; rest 2",
            "allocate 0 2; begin 0; begin 1; end 0; begin 2; free 0; end 1; rest 1; allocate 2 1; end 2",
            "allocate 0 2; begin 0; begin 1; begin 2; free 0; end 1; rest 1; allocate 2 1; end 2; rest 2",
            "allocate 0 2; begin 0; begin 1; free 0; begin 2; rest 1; end 0; begin 3; allocate 2 1; end 1; "
            "rest 2; end 3",
        ),
        walks(),
    ),
)
def block_of_a_step_in_flight_waits(trial: Trial) -> None:
    """A block is freed while one step or more may write it: it is handed out when the last has ended."""
    expect_unbroken(trial, "KV-BLOCK-011")


@check(
    "KV-BLOCK-011",
    verbs=ALLOCATOR,
    operations=(*STEPS, "touch"),
    features=("steps",),
    cases=pools(
        "allocate 0 2; touch 0; begin 0; free 0; free 0; rest 1; allocate 2 1; end 0; rest 2",
        "allocate 0 2; touch 0 0; begin 0; free 0; free 0; begin 1; end 0; rest 1; end 1; rest 2",
        "allocate 0 1; begin 0; free 0; touch_waiting 0 0; free 0; rest 1; allocate 2 1; end 0; rest 2",
        "allocate 0 1; begin 0; touch 0; free 0; begin 1; free 0; end 0; rest 1; allocate 2 1; end 1; rest 2",
    ),
)
def shared_block_of_a_step_in_flight_waits(trial: Trial) -> None:
    """A block has had two holders, or is held again while it waits: it waits all the same."""
    expect_unbroken(trial, "KV-BLOCK-011")


@check(
    "KV-BLOCK-011",
    verbs=ALLOCATOR,
    operations=(*STEPS, "pin", "unpin"),
    features=("steps", "pin"),
    cases=pools(
        "allocate 0 2; pin 0; begin 0; free 0; unpin 0; rest 1; allocate 2 1; end 0; rest 2",
        "allocate 0 2; pin 0 0; begin 0; unpin 0; free 0; rest 1; allocate 2 1; end 0; rest 2",
        "allocate 0 2; pin 0; begin 0; begin 1; free 0; unpin 0; end 0; rest 1; allocate 2 1; end 1; rest 2",
    ),
)
def pinned_block_of_a_step_in_flight_waits(trial: Trial) -> None:
    """A block is freed and unpinned while a step may write it, in either order: it waits."""
    expect_unbroken(trial, "KV-BLOCK-011")


@check(
    "KV-BLOCK-011",
    verbs=ALLOCATOR,
    operations=STEPS,
    features=("steps",),
    cases=pools(
        "allocate 0 2; begin 0; end 0; begin 1; free 0; end_again 0; rest 1; end 1; rest 2",
        "allocate 0 2; begin 0; begin 1; end 1; begin 2; free 0; begin 3; end_again 0; end_again 1; end 2; "
        "end_again 2; rest 1; end 3",
    ),
)
def step_ends_once(trial: Trial) -> None:
    """A step is ended again: whoever does not refuse that ends no other step by it."""
    expect_unbroken(trial, "KV-BLOCK-011")


@check(
    "KV-BLOCK-011",
    verbs=ALLOCATOR,
    operations=STEPS,
    features=("steps",),
    cases=pools(STEP_AFTER_STEP, num_blocks=(4,)),
)
def steps_follow_each_other_for_long(trial: Trial) -> None:
    """Steps overlap, more than a byte counts: what was freed in each waits for it, and for no other."""
    expect_unbroken(trial, "KV-BLOCK-011")


@check(
    "KV-BLOCK-012",
    verbs=ALLOCATOR,
    operations=PINS,
    features=("pin",),
    cases=every(
        pools(
            "allocate 0 3; pin 0 1; free 0; rest 1; allocate 2 1; unpin 0 1; rest 2",
            "allocate 0 2; pin 0; pin 0; free 0; unpin 0; rest 1; allocate 2 1; free 1; unpin 0; rest 2",
            "allocate 0 2; pin 0; free 0; free_pinned 0 1; rest 1; unpin 0",
            "pin_idle 0 1; rest 1; allocate 2 1; unpin 0; rest 2",
            "allocate 0 2; pin_together 0 0 3; free 0; unpin 0 0; rest 1; unpin_together 0 0; rest 2",
            "allocate 0 2; pin 0; pin 0; pin 0; free 0; unpin_together 0 1; rest 1; unpin 0; unpin 0; rest 2",
        ),
        pools(
            "allocate 0 1; pin_often 0 0 300; free 0; unpin_often 0 0 44; rest 1; unpin_often 0 0 255; "
            "rest 2; unpin 0; rest 3",
            num_blocks=(3,),
        ),
        at_length(pools(BEYOND_TWO_BYTES_OF_PINS, num_blocks=(3,))),
        walks(),
    ),
)
def pinned_block_stays(trial: Trial) -> None:
    """A block is pinned, once or twice, and its request ends: it is handed out after the last pin is gone."""
    expect_unbroken(trial, "KV-BLOCK-012")


@check(
    "KV-BLOCK-012",
    verbs=ALLOCATOR,
    operations=(*PINS, "touch"),
    features=("pin",),
    cases=pools(
        "allocate 0 2; touch 0 0; pin 0 0; free 0; free 0; rest 1; allocate 2 1; unpin 0; rest 2",
        "allocate 0 2; pin 0; touch 0; unpin 0; free 0; rest 1; free 0; rest 2",
        "allocate 0 2; pin 0; touch 0; free 0; free 0; rest 1; allocate 2 1; unpin 0; rest 2",
        "allocate 0 2; pin 0; free 0; touch_pinned 0 0; unpin 0; rest 1; free 0; rest 2",
    ),
)
def shared_block_stays_while_it_is_pinned(trial: Trial) -> None:
    """A block has two holders and a pin, which go in either order: the last of the three keeps it."""
    expect_unbroken(trial, "KV-BLOCK-012")

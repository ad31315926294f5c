"""Checks of the order in which free blocks are handed out, where one is declared."""

from kvref_conformance.cases import Case, Level
from kvref_conformance.checks.block_allocator import ALLOCATOR, HANDS_OUT, SHARES
from kvref_conformance.checks.block_flight import PINS, STEPS
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.programs.asking import Lattice, every, pools
from kvref_conformance.programs.expecting import expect_unbroken
from kvref_conformance.programs.walks import walks
from kvref_conformance.trial import Trial

#: Three blocks are handed out one by one, and the others; and three again, when they have come back.
THREE_AND_REST = "allocate 0 1; allocate 1 1; allocate 2 1; rest 3"
THREE_AGAIN = "allocate 4 1; allocate 5 1; allocate 6 1"
#: Blocks leave one by one and in twos while others join, round after round.
ROUNDS = "; ".join(["allocate 0 1; allocate 1 2; free 0; free 1; allocate 2 1; free 2"] * 8)


def if_declared(lattice: Lattice) -> Lattice:
    """Return the cases of a lattice where an order is declared."""

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        return [] if claims.choice("free-order") == "unspecified" else lattice(claims, manager, level)

    return cases


@check(
    "KV-BLOCK-010",
    verbs=ALLOCATOR,
    operations=HANDS_OUT,
    cases=if_declared(
        every(
            pools(
                f"{THREE_AND_REST}; free 1; free 0; free 2; {THREE_AGAIN}",
                "allocate 0 1; allocate 1 1; free 0; free 1; allocate 2 1; allocate 3 1; rest 4",
                ROUNDS,
            ),
            walks(),
        )
    ),
)
def free_blocks_leave_in_the_declared_order(trial: Trial) -> None:
    """Blocks are freed one after another, and handed out one after another."""
    expect_unbroken(trial, "KV-BLOCK-010")


@check(
    "KV-BLOCK-010",
    verbs=ALLOCATOR,
    operations=SHARES,
    cases=if_declared(pools(f"{THREE_AND_REST}; touch 0; free 0; free 1; free 2; free 0; {THREE_AGAIN}")),
)
def shared_blocks_join_when_the_last_holder_lets_go(trial: Trial) -> None:
    """A block has two holders, and others become free between them: it comes behind those."""
    expect_unbroken(trial, "KV-BLOCK-010")


@check(
    "KV-BLOCK-010",
    verbs=ALLOCATOR,
    operations=STEPS,
    features=("steps",),
    cases=if_declared(
        pools(
            f"{THREE_AND_REST}; free 1; begin 0; free 0; end 0; free 2; {THREE_AGAIN}",
            f"{THREE_AND_REST}; begin 0; free 2; begin 1; free 0; end 0; end 1; free 1; {THREE_AGAIN}",
        )
    ),
)
def blocks_of_steps_keep_the_declared_order(trial: Trial) -> None:
    """Blocks are freed before a step, while it runs, and after it: they come back in that order."""
    expect_unbroken(trial, "KV-BLOCK-010")


@check(
    "KV-BLOCK-010",
    verbs=ALLOCATOR,
    operations=PINS,
    features=("pin",),
    cases=if_declared(
        pools(
            f"{THREE_AND_REST}; pin 1; free 0; free 1; free 2; unpin 1; {THREE_AGAIN}",
            f"{THREE_AND_REST}; pin 1; pin 0; free 1; free 0; unpin 0; free 2; unpin 1; {THREE_AGAIN}",
        )
    ),
)
def pinned_blocks_join_when_the_last_pin_is_gone(trial: Trial) -> None:
    """A block is pinned when its request ends, and others become free before the pin goes."""
    expect_unbroken(trial, "KV-BLOCK-010")

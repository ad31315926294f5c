"""Checks of eviction in a prefix cache: what stays, what goes first, and that room is made.

In the programs `b` is the block size, and `h` half of it.
"""

import random

from kvref_conformance.cases import Case, Level
from kvref_conformance.checks.check import check
from kvref_conformance.checks.prefix_hits import CACHE, DECODES, HITS
from kvref_conformance.claims import Claims
from kvref_conformance.programs.asking import Lattice, at_length, every
from kvref_conformance.programs.asking_caches import caches, crowds
from kvref_conformance.programs.expecting import expect_unbroken
from kvref_conformance.trial import Trial

COUNTED = (*HITS, "num_free")
#: Orders in which what survives can be foreseen.
DETERMINED = ("lru_tail_first", "lru_head_first", "lru_node", "lru_node_renewed", "all_at_once")
#: Requests of a drawn workload, and blocks of the cache under it.
WORKLOAD, ROOM = 40, 10


def _workload(seed: int, length: int = WORKLOAD, salts: int = 0) -> str:
    """Return requests that share beginnings and end with a block of their own, under some salts or none."""
    rng = random.Random(seed)
    prefixes = [f"{rng.randint(1, 3)} {rng.randint(1, 3)}b " for _ in range(length)]
    given = [f"salt {at} {rng.randint(1, salts)}; " if salts else "" for at in range(length)]
    return "; ".join(f"{given[at]}serve {at} {prefix}{10 + at} b" for at, prefix in enumerate(prefixes))


LONG = _workload(8, 400)


def _under(orders: tuple[str, ...], lattice: Lattice) -> Lattice:
    """Return the cases of a lattice where one of the orders is declared."""

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        declared = claims.choice("eviction-order") in orders
        return lattice(claims, manager, level) if declared else []

    return cases


@check(
    "KV-PREFIX-016",
    verbs=CACHE,
    operations=HITS,
    cases=every(
        caches(
            "admit 1 1 2b; commit 1; admit 2 2 2b; admit 3 3 b; commit 2; admit 4 4 2b; finish 2; "
            "admit 5 5 3b; admit 6 6 2b",
            "serve 0 1 2b; serve 1 2 2b; admit 3 1 2b 3 2b; admit 4 2 b",
            "serve 0 1 3b; serve 1 2 b; admit 3 1 2b+1; admit 4 1 3b+1; admit 5 5 2b",
            "serve 0 1 b; admit 1 1 b+1; admit 2 1 b+1; admit 3 1 b+1; commit 1; commit 2; commit 3; "
            "finish 1; finish 2; admit 4 2 3b",
            num_blocks=4,
        ),
        crowds("serve 0 1 b; admit 1 1 b+1; crowd 2 258 1 b+1; admit 2 2 300b; admit 3 3 299b"),
    ),
)
def held_blocks_stay(trial: Trial) -> None:
    """A full pool: what requests have computed or hit is held, and a hit is not evicted for its own tail.

    Nor is what three requests have hit, or hundreds, and all but one have let go of.
    """
    expect_unbroken(trial, "KV-PREFIX-016")


@check(
    "KV-PREFIX-017",
    verbs=CACHE,
    operations=HITS,
    cases=caches(
        "serve 0 1 2b; serve 1 2 4b; serve 2 1 2b+1; serve 3 3 3b; admit 8 2 3b; admit 9 1 b+1",
        "serve 0 1 3b; serve 1 2 3b+1; admit 7 1 3b",
        "serve 0 1 b; admit 1 2 3b; admit 2 1 2b+1; commit 1; finish 1; serve 3 3 4b; admit 2 1 2b+1",
        "serve 0 1 b 2 b; serve 1 3 b; serve 2 4 4b; serve 3 1 b 2 b 5 1; serve 4 3 b 6 1; admit 9 4 b 7 b",
        "admit 0 1 b+1; admit 1 1 b+1; commit 0; commit 1; finish 0; finish 1; serve 2 2 4b; admit 3 1 b+1",
        "admit 1 1 b; admit 2 1 b; commit 1; commit 2; finish 1; finish 2; serve 3 2 3b; admit 4 1 b+1; "
        "abort 4; serve 5 3 3b; admit 6 1 b+1",
        num_blocks=4,
    ),
)
def evicted_blocks_are_not_hit(trial: Trial) -> None:
    """Prompts push each other out, in part, as a whole and in two copies, and come again.

    Of two copies one is pushed out, and then the other.
    """
    expect_unbroken(trial, "KV-PREFIX-017")


@check(
    "KV-PREFIX-018",
    verbs=CACHE,
    operations=DECODES,
    cases=caches(
        "serve 0 1 4b; serve 1 2 4b; serve 2 1 b; serve 3 3 4b-1; serve 4 2 b+1",
        "serve 0 1 h; serve 1 2 2b; serve 2 3 4b; serve 3 1 b-1; serve 4 2 4b",
        "admit 1 1 2b+1; commit 1; admit 2 1 2b+1; commit 2; finish 1; admit 3 1 2b+1",
        "serve 0 1 2b; serve 1 2 b; admit 3 3 b; commit 3; decode 3 4 2b; commit 3; decode 3 5 b; "
        "abort 3; admit 4 4 4b",
        "serve 0 1 b 2 b; serve 1 1 b 3 b; admit 4 1 b 4 3b",
        "serve 0 1 3b; reset; serve 1 2 4b; serve 2 3 4b",
        "part 1 b+1 1 3b; abort 1; far 65537 1 b; far 257 2 b; admit 1 3 2b; commit 1; commit 257; "
        "commit 65537; decode 1 4 1; abort 257; decode 1 4 1; far 257 5 b",
        num_blocks=4,
    ),
)
def room_is_made_by_eviction(trial: Trial) -> None:
    """Requests that need the whole pool, all of what nobody holds, or all that a shared prefix leaves.

    One has the number of another that has ended, others have numbers with the same last bits.
    """
    expect_unbroken(trial, "KV-PREFIX-018")


@check(
    "KV-PREFIX-019",
    verbs=CACHE,
    operations=COUNTED,
    cases=caches(
        "serve 8 8 2b; reset; serve 0 1 2b; admit 2 2 b; commit 2; admit 3 1 2b 4 2b; admit 4 1 2b+1",
        "admit 1 1 2b; commit 1; admit 2 1 2b 2 3b; admit 3 1 2b 3 b; admit 4 4 4b; abort 3; finish 1; "
        "admit 5 1 2b+1",
        "serve 0 1 2b; admit 2 2 2b; admit 3 3 3b; admit 4 1 b 3 2b; commit 2; finish 2; admit 5 1 2b+1",
        "serve 0 1 b; serve 1 2 b; admit 2 3 2b; commit 2; admit 3 1 b 4 3b; serve 4 5 b; serve 5 2 b 6 b; "
        "finish 2; admit 3 1 b 7 2b",
        num_blocks=4,
    ),
)
def refused_admission_leaves_no_trace(trial: Trial) -> None:
    """Requests that hit something and do not fit are refused: counts and later hits are as before.

    What was hit in vain is no younger for it, and the request may come again.
    """
    expect_unbroken(trial, "KV-PREFIX-019")


@check(
    "KV-PREFIX-019",
    verbs=CACHE,
    operations=(*COUNTED, "extend"),
    cases=caches(
        "serve 0 1 b; admit 2 2 2b; commit 2; decode 2 3 3b; admit 3 1 b+1; decode 2 3 1; commit 2; finish 2",
        "admit 1 1 3b; part 2 1 2 b; commit 2; commit 1; decode 1 3 b; decode 1 3 b+1; finish 1; more 2 b",
        "admit 0 1 b; commit 0; admit 1 9 2b; decode 0 2 b 3 b; decode 0 5 b; commit 0; finish 0; abort 1; "
        "admit 2 1 b 2 b 3 b",
        num_blocks=4,
    ),
)
def refused_extension_leaves_no_trace(trial: Trial) -> None:
    """A request that cannot grow is refused, and goes on with fewer tokens, or with others."""
    expect_unbroken(trial, "KV-PREFIX-019")


@check(
    "KV-PREFIX-023",
    verbs=CACHE,
    operations=HITS,
    cases=_under(
        ("lru_tail_first", "unspecified"),
        caches(
            "serve 0 1 4b; serve 1 2 b; serve 2 3 b",
            "serve 0 1 2b 2 b; serve 1 1 2b 3 b; serve 2 4 b; serve 3 5 2b; serve 4 6 b",
            "admit 1 1 2b 2 b; commit 1; admit 2 1 2b 3 b; commit 2; finish 1; finish 2; serve 3 4 b",
            num_blocks=4,
        ),
    ),
)
def deeper_blocks_go_first(trial: Trial) -> None:
    """One prompt, and two that fork, lose one block after another: never one before what follows it."""
    expect_unbroken(trial, "KV-PREFIX-023")


@check(
    "KV-PREFIX-024",
    verbs=CACHE,
    operations=HITS,
    cases=_under(
        DETERMINED,
        caches(
            "serve 0 1 2b 10 b; serve 1 2 2b 11 b; serve 2 1 2b 12 b; serve 3 3 b 13 b; "
            "serve 4 2 2b 14 b; serve 5 1 2b 15 b",
            "serve 0 1 3b 10 b; serve 1 1 b 11 b; serve 2 2 b 12 b; serve 3 3 b 13 b; serve 4 1 3b 14 b; "
            "serve 5 1 b 15 b; serve 6 2 b 16 b",
            "serve 0 1 3b 10 b; serve 1 2 3b 11 b; serve 2 3 2b 12 b; serve 3 1 2b 13 b; serve 4 2 b 14 b",
            *(_workload(seed) for seed in range(4)),
            _workload(4, salts=2),
            num_blocks=ROOM,
        ),
    ),
)
def evictions_follow_the_declared_order(trial: Trial) -> None:
    """Requests one after another in a cache that is too small: each hits what it hits in the reference.

    They are of one namespace, or of two.
    """
    expect_unbroken(trial, "KV-PREFIX-024")


@check(
    "KV-PREFIX-024",
    verbs=CACHE,
    operations=HITS,
    cases=_under(
        DETERMINED, at_length(caches(*(_workload(seed) for seed in range(5, 8)), LONG, num_blocks=ROOM))
    ),
)
def order_is_kept_for_long(trial: Trial) -> None:
    """More requests of the same kind: more than a byte counts, and more uses than ten bits."""
    expect_unbroken(trial, "KV-PREFIX-024")

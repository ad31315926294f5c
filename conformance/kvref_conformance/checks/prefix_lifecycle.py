"""Checks of requests in a prefix cache: equal ones at one time, aborted ones, unknown ones, and resets.

In the programs `b` is the block size, and `h` half of it.
"""

from kvref_conformance.checks.check import check
from kvref_conformance.checks.prefix_evictions import COUNTED
from kvref_conformance.checks.prefix_hits import CACHE, DECODES
from kvref_conformance.programs.asking_caches import caches
from kvref_conformance.programs.expecting import expect_unbroken
from kvref_conformance.trial import Trial

EVERY = (*DECODES, "abort", "num_free")
#: Limits of tokens that are larger and smaller than what there is to schedule, behind a hit and with outputs.
LIMITS = (
    "serve 1 1 2b; part 2 2b+1 1 2b 2 3b; commit 2; more 2 9b; commit 2; join 2 1 3 2b+h; commit 2; "
    "more 2 9b; commit 2; finish 2; part 3 9b 1 2b 2 3b"
)


@check(
    "KV-PREFIX-015",
    verbs=CACHE,
    operations=(*COUNTED, "reset"),
    cases=caches(
        "serve 1 1 2b; reset; serve 2 1 2b+1; serve 3 1 2b+1; reset; serve 4 1 2b; reset; "
        "serve 5 1 2b; reset; reset; admit 6 1 2b+1",
        "serve 1 1 2b; admit 2 2 b; commit 2; reset; serve 3 1 2b+1; finish 2; admit 4 2 b+1; admit 5 1 2b+1",
        "admit 1 1 b; reset; commit 1; finish 1; reset; admit 2 1 b+1",
        "serve 1 1 3b; reset; serve 2 2 12b",
        "serve 1 1 2b; reset; admit 2 1 2b+1; commit 2; admit 3 2 8b; commit 3; admit 4 1 2b+1",
    ),
)
def reset_forgets_or_is_refused(trial: Trial) -> None:
    """Nothing is hit after a reset; one that comes while a request is live is refused and forgets nothing.

    What was cached before is evicted afterwards, too, and takes nothing along that was cached since.
    """
    expect_unbroken(trial, "KV-PREFIX-015")


@check(
    "KV-PREFIX-020",
    verbs=CACHE,
    operations=(*DECODES, "num_free"),
    cases=caches(
        "admit 1 1 2b+1; admit 2 1 2b+1; commit 1; commit 2; decode 1 2 b; commit 1; decode 2 3 b; "
        "commit 2; finish 1; serve 3 4 3b; decode 2 5 1; commit 2; admit 4 1 2b+1; finish 2",
        "admit 1 1 2b; admit 2 1 2b; commit 2; commit 1; finish 2; admit 3 3 4b; commit 3; decode 1 2 1; "
        "commit 1; finish 1; finish 3; admit 4 1 2b+1; admit 5 5 5b",
        "admit 1 1 2b; admit 2 1 2b; commit 1; commit 2; finish 2; admit 3 3 6b; decode 1 2 1; abort 3; "
        "finish 1; admit 4 1 2b 4 6b",
        "admit 1 1 2b 2 b; admit 2 1 2b 3 b; commit 1; commit 2; finish 1; finish 2; "
        "serve 3 1 2b 2 b 4 1; serve 4 1 2b 3 b 4 1; admit 5 5 8b",
        num_blocks=8,
    ),
)
def equal_requests_at_one_time(trial: Trial) -> None:
    """Two requests compute one prefix; each goes on, ends first or last, and all blocks return."""
    expect_unbroken(trial, "KV-PREFIX-020")


@check(
    "KV-PREFIX-021",
    verbs=CACHE,
    operations=EVERY,
    cases=caches(
        "part 1 b+1 1 3b; abort 1; admit 2 1 3b+1",
        "admit 1 1 3b; abort 1; serve 2 1 3b; admit 3 1 3b+1",
        "part 1 2b 1 4b; commit 1; more 1 b; abort 1; admit 2 1 4b",
        "admit 1 1 b; commit 1; decode 1 2 b; abort 1; admit 2 1 b 2 b 3 1",
    ),
)
def aborted_request_leaves_what_it_computed(trial: Trial) -> None:
    """Requests are aborted before their first step, between chunks and while they decode, and come again."""
    expect_unbroken(trial, "KV-PREFIX-021")


@check(
    "KV-PREFIX-022",
    verbs=CACHE,
    operations=EVERY,
    cases=caches(
        "serve 1 1 2b+1; admit 2 1 b+h 2 b; commit 2; decode 2 3 b; commit 2; finish 2; admit 3 1 2b+1; "
        "abort 3",
        "part 1 b+1 1 3b+1; commit 1; more 1 b; commit 1; more 1 2b; abort 1; part 2 1 1 b+1; abort 2",
        "serve 1 1 3b; admit 2 1 b+1; serve 3 1 2b+1 2 b; commit 2; abort 2",
        "admit 1 1 1; commit 1; decode 1 2 1; commit 1; decode 1 2 b; commit 1; finish 1; admit 2 1 1; "
        "abort 2",
        "serve 1 1 8b; admit 2 2 3b+1; commit 2; admit 3 1 4b+1; commit 3; abort 3; finish 2",
        LIMITS,
        "serve 1 1 2b; admit 2 1 2b; commit 2; decode 2 2 1; commit 2; finish 2; serve 3 1 2b; "
        "admit 4 1 2b+1; admit 5 1 2b+1; abort 5; commit 4; finish 4; admit 6 3 8b",
        num_blocks=8,
    ),
)
def count_is_exact_after_every_operation(trial: Trial) -> None:
    """Requests are admitted, extended, finished, aborted: what they hold and what is free is the capacity.

    Some are hit as a whole, some are aborted while others read what they have hit.
    """
    expect_unbroken(trial, "KV-PREFIX-022")


@check(
    "KV-PREFIX-026",
    verbs=CACHE,
    operations=(*DECODES, "slots"),
    cases=caches(
        "admit 1 1 2b+1; admit 2 1 2b+1; commit 1; commit 2; decode 2 3 b; commit 2; decode 1 2 b; commit 1",
        "part 1 b+h 1 3b; part 2 b 1 3b; commit 2; commit 1; more 1 b; more 2 b+1; commit 1; commit 2; "
        "more 2 b; commit 2",
        "serve 1 1 2b; admit 2 1 2b+1; commit 2; admit 3 1 b+h; commit 3; decode 3 1 1; decode 2 2 b",
        "admit 1 1 b; admit 2 1 b; commit 1; commit 2; decode 1 2 b; decode 2 2 b; commit 1; finish 1; "
        "commit 2; decode 2 3 b",
        LIMITS,
    ),
)
def slots_hold_the_requests_own_tokens(trial: Trial) -> None:
    """Slots are asked of every request after each operation: where they have moved, the same lies there."""
    expect_unbroken(trial, "KV-PREFIX-026")


@check(
    "KV-PREFIX-027",
    verbs=CACHE,
    operations=COUNTED,
    cases=caches(
        "admit 1 1 b+1; again 1; commit 1; again 1; finish 1; admit 2 1 b+1",
        "admit 1 1 1; again 1; commit 1; again 1; finish 1; admit 2 1 b",
        "stranger 1; admit 1 1 b; stranger 2; commit 1; finish 1; stranger 1; admit 1 1 2b; abort 1; "
        "stranger 1; admit 2 2 2b; commit 2; abort 2; stranger 2",
        "huge 1; admit 1 1 b; huge 2; commit 1; finish 1; huge 1",
        num_blocks=4,
    ),
)
def what_makes_no_sense_is_refused(trial: Trial) -> None:
    """Requests that are admitted twice, not admitted, or too large."""
    expect_unbroken(trial, "KV-PREFIX-027")


@check(
    "KV-PREFIX-028",
    verbs=CACHE,
    operations=DECODES,
    cases=caches(
        "serve 1 1 b+h; admit 2 1 b+h 2 1; admit 3 1 b+h 3 1; commit 2; commit 3; decode 2 4 b; decode 3 5 b",
        "admit 1 1 h; admit 2 1 h; commit 1; admit 3 1 h; commit 2; decode 1 2 b; decode 2 2 b; commit 1; "
        "decode 1 3 1",
        "serve 1 1 2b; admit 2 1 2b; admit 3 1 2b; commit 2; decode 2 2 1; commit 3; decode 3 3 1",
        "part 1 h 1 2b; part 2 h 2 2b; commit 1; more 1 1; commit 2; more 2 1; commit 1; more 1 2b; "
        "commit 2; more 2 2b",
    ),
)
def new_slots_are_nobody_elses(trial: Trial) -> None:
    """Requests that share a beginning write on, in blocks half full and behind hits, all at one time."""
    expect_unbroken(trial, "KV-PREFIX-028")

"""Checks of indexes over workers: which first blocks of a path each of them holds."""

from kvref_conformance.checks.check import check
from kvref_conformance.programs.asking import beside, every
from kvref_conformance.programs.asking_caches import prompts
from kvref_conformance.programs.expecting import expect_unbroken
from kvref_conformance.trial import Trial

INDEX = ("block_index",)
STORES = ("store", "match")
FORGETS = (*STORES, "remove")


@check(
    "KV-PREFIX-050",
    verbs=INDEX,
    operations=STORES,
    cases=prompts(
        "store 0 1 3; match 1 5; match 1 2; match 2 2; grow 0 3 1 5; match 1 6; match 1 3 2 1",
        "store 0 1 2 2 2; store 0 1 2 3 3; match 1 2 2 2; match 1 2 3 4; match 1 2; "
        "store 1 1 1; match 1 2 3 3",
        "store 0 1 300; match 1 310; match 1 290; grow 0 300 1 310; match 1 310; store 0 2 2; match 1002 2; "
        "store 0 1002 1; match 2 3; match 1002 3",
        "store 0 1 3; clear 0; store 0 1 2; match 1 3; store 0 2 1; match 2 1",
    ),
)
def longest_run_is_found(trial: Trial) -> None:
    """Paths that are shorter and longer than what is held, that fork, are long, and that nobody holds.

    Some have keys that are nearly alike; a worker is cleared, and stores again.
    """
    expect_unbroken(trial, "KV-PREFIX-050")


@check(
    "KV-PREFIX-051",
    verbs=INDEX,
    operations=FORGETS,
    cases=prompts(
        "store 0 1 4; remove 0 1 1 1 4; match 1 4; store 0 1 2; match 1 2; match 1 4",
        "store 0 1 4; remove 0 3 1 1 4; match 1 4; remove 0 0 1 1 4; match 1 4; store 1 1 4; "
        "remove 1 1 2 1 4; store 1 1 2; match 1 4",
        "store 0 1 2 2 2; store 0 1 2 3 2; remove 0 2 2 1 2 2 2; match 1 2 2 2; match 1 2 3 2",
    ),
)
def removed_block_cuts_the_run(trial: Trial) -> None:
    """A block in the middle, the last, the first, two at once, and one branch of two are removed."""
    expect_unbroken(trial, "KV-PREFIX-051")


@check(
    "KV-PREFIX-051",
    verbs=INDEX,
    operations=(*FORGETS, "clear"),
    cases=every(
        prompts("store 0 1 3; clear 0; match 1 3; store 0 1 1; match 1 3; match 1 1"),
        beside(prompts("store 0 1 3; clear 0; match 1 3; store 1 1 2; match 1 3")),
    ),
)
def cleared_worker_holds_nothing(trial: Trial) -> None:
    """A worker is cleared, and stores a part of what it had; another index that is open does not hear."""
    expect_unbroken(trial, "KV-PREFIX-051")


@check(
    "KV-PREFIX-052",
    verbs=INDEX,
    operations=FORGETS,
    cases=prompts(
        "store 0 1 3; store 0 1 3; match 1 3; match 1 5; remove 0 2 1 1 3; match 1 3",
        "store 0 1 2; store 0 1 4; match 1 4; remove 0 1 3 1 4; match 1 4",
    ),
)
def block_stored_twice_counts_once(trial: Trial) -> None:
    """A path is stored twice, as a whole and in part: it is as long as it is, and removed at once."""
    expect_unbroken(trial, "KV-PREFIX-052")


@check(
    "KV-PREFIX-053",
    verbs=INDEX,
    operations=(*FORGETS, "clear"),
    cases=prompts(
        "store 0 1 3; store 1 1 3; remove 0 0 3 1 3; match 1 3; store 0 1 1; match 1 3",
        "store 0 1 3; store 1 1 2; match 1 3; clear 1; match 1 3; store 2 1 3; clear 0; match 1 3",
        "store 0 1 2 2 1; store 1 1 2 3 1; match 1 2 2 1; match 1 2 3 1",
        "store 0 1 2; store 1 1 1; store 2 1 2; store 3 1 1; store 4 1 2; store 64 1 2; store 65536 1 1; "
        "match 1 2; remove 64 0 2 1 2; clear 65536; match 1 2; store 64 1 1; match 1 2",
    ),
)
def workers_are_apart(trial: Trial) -> None:
    """Workers hold the same path, and one of them removes it or is cleared; some have numbers far apart."""
    expect_unbroken(trial, "KV-PREFIX-053")

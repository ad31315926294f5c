"""Checks of what a prefix cache tells of itself: a mirror that is kept from its events equals the cache.

In the programs `b` is the block size.
"""

from kvref_conformance.checks.check import check
from kvref_conformance.checks.prefix_hits import CACHE, DECODES
from kvref_conformance.programs.asking import every
from kvref_conformance.programs.asking_caches import caches
from kvref_conformance.programs.expecting import expect_unbroken
from kvref_conformance.trial import Trial

TELLS = (*DECODES, "take_events")
FEATURES = ("events",)

#: Two requests compute one prefix, and go on.
TWICE = (
    "admit 1 1 2b; admit 2 1 2b 2 b; commit 1; commit 2; finish 1; finish 2; serve 3 1 2b 2 b 3 1; "
    "admit 4 1 2b 4 1"
)
#: Chunks, outputs, and prompts that fork.
GROWS = (
    "part 1 b+1 1 3b; commit 1; more 1 b; commit 1; more 1 b; commit 1; decode 1 2 b; commit 1; finish 1; "
    "serve 2 1 2b 3 b; admit 3 1 3b 2 b 4 1; admit 4 1 2b 3 b 4 1"
)
#: Prompts push each other out.
PUSHES = "serve 0 1 3b; serve 1 2 2b; serve 2 1 3b+1; serve 3 3 4b; serve 4 2 2b; serve 5 1 b; serve 6 1 3b+1"
#: Admissions, aborts and resets that come to nothing.
VAIN = (
    "admit 0 9 2b; abort 0; serve 1 1 2b; admit 2 2 2b; admit 3 3 3b; admit 4 1 b 4 2b; reset; commit 2; "
    "finish 2; admit 5 1 2b+1; abort 5; admit 6 9 b+1; abort 6; admit 7 2 2b+1"
)
#: The same prompts in several namespaces.
NAMESPACES = (
    "salt 1 1; serve 1 1 2b; salt 2 2; serve 2 1 2b; serve 3 1 2b; image 4 1 0 1; serve 4 0 2b; "
    "image 5 2 0 1; serve 5 0 2b; embed 6 1 0 1; serve 6 0 2b; serve 7 3 6b"
)
#: Two requests leave copies of one block, which are pushed out one after the other.
COPIES = (
    "admit 1 1 b; admit 2 1 b; commit 1; commit 2; finish 1; finish 2; serve 3 2 3b; admit 4 1 b+1; abort 4; "
    "serve 5 3 4b; admit 6 1 b+1"
)
#: Two requests compute one block at once; the first to be told of is pushed out while the other goes on.
ALONE = "admit 1 1 b; part 0 b 1 2b+1; commit 1; commit 0; finish 1; more 0 b+1; commit 0"
RESETS = "serve 1 1 2b; reset; serve 2 1 2b; admit 3 1 2b+1"
#: The events of all prompts that push each other out are taken together: before others, and at the end.
PILED, LATE = f"pile 21; {PUSHES}; admit 7 1 3b+1; admit 8 2 2b+1", f"pile 99; {PUSHES}"


@check(
    "KV-PREFIX-040",
    verbs=CACHE,
    operations=TELLS,
    features=FEATURES,
    cases=every(caches(GROWS, TWICE, PUSHES, PILED, num_blocks=8), caches(ALONE, num_blocks=3)),
)
def parent_is_stored_before_its_child(trial: Trial) -> None:
    """Chunks, outputs, forks and duplicates: what a stored block follows is stored by then.

    And so if the events of many steps are taken together.
    """
    expect_unbroken(trial, "KV-PREFIX-040")


@check(
    "KV-PREFIX-041",
    verbs=CACHE,
    operations=TELLS,
    features=FEATURES,
    cases=every(caches(TWICE, GROWS, PUSHES, NAMESPACES), caches(LATE, num_blocks=5)),
)
def block_is_stored_once(trial: Trial) -> None:
    """Prefixes are computed twice, extended and hit: no block is told again while it is there.

    Prompts in other namespaces are others. The events are taken after every step, or all at the end.
    """
    expect_unbroken(trial, "KV-PREFIX-041")


@check(
    "KV-PREFIX-042",
    verbs=CACHE,
    operations=TELLS,
    features=FEATURES,
    cases=caches(PUSHES, f"{TWICE}; abort 4; serve 5 5 4b; admit 6 6 4b", LATE, NAMESPACES, num_blocks=6),
)
def what_is_removed_was_stored(trial: Trial) -> None:
    """Prompts of whole blocks and of parts push each other out: only what was told to be there is removed.

    The events are taken after every step, or all at the end.
    """
    expect_unbroken(trial, "KV-PREFIX-042")


@check("KV-PREFIX-043", verbs=CACHE, operations=TELLS, features=FEATURES, cases=caches(GROWS, TWICE))
def span_of_tokens_fits_its_blocks(trial: Trial) -> None:
    """Chunks that end inside a block: each event has as many tokens as its blocks hold."""
    expect_unbroken(trial, "KV-PREFIX-043")


@check(
    "KV-PREFIX-044",
    verbs=CACHE,
    operations=TELLS,
    features=FEATURES,
    cases=caches(
        "serve 0 1 b 2 b; serve 1 3 b 2 b; serve 2 1 b 2 b; serve 3 2 b 1 b; serve 4 4 4b; "
        "serve 5 1 b 2 b; serve 6 3 b 2 b",
        TWICE,
        PUSHES,
        num_blocks=6,
    ),
)
def hash_has_one_meaning(trial: Trial) -> None:
    """Equal blocks behind different ones, stored, removed and stored again: a hash stays what it was."""
    expect_unbroken(trial, "KV-PREFIX-044")


@check(
    "KV-PREFIX-045",
    verbs=CACHE,
    operations=(*TELLS, "reset"),
    features=FEATURES,
    cases=caches(RESETS, f"{RESETS}; abort 3; reset; serve 4 4 4b", num_blocks=4),
)
def nothing_outlives_a_reset(trial: Trial) -> None:
    """The mirror is empty after a reset, and nothing is told afterwards of what was there before."""
    expect_unbroken(trial, "KV-PREFIX-045")


@check(
    "KV-PREFIX-046",
    verbs=CACHE,
    operations=TELLS,
    features=FEATURES,
    cases=caches(GROWS, TWICE, PUSHES, RESETS, PILED, num_blocks=8),
)
def mirror_predicts_every_hit(trial: Trial) -> None:
    """Whoever knows the events alone knows how much of each prompt is hit, if they are taken late as well."""
    expect_unbroken(trial, "KV-PREFIX-046")


@check(
    "KV-PREFIX-046",
    verbs=CACHE,
    operations=TELLS,
    features=FEATURES,
    cases=caches(PUSHES, VAIN, COPIES, num_blocks=4),
)
def mirror_predicts_hits_after_evictions(trial: Trial) -> None:
    """The same in a cache that is too small, where requests and resets are refused and copies go."""
    expect_unbroken(trial, "KV-PREFIX-046")

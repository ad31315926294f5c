"""Checks of namespaces in a prefix cache: what keeps requests with equal tokens apart, and what does not.

In the programs `b` is the block size; a document 0 is placeholders, so that only what stands in place of its
tokens tells two requests apart.
"""

from kvref_conformance.checks.check import check
from kvref_conformance.checks.prefix_hits import CACHE, HITS
from kvref_conformance.programs.asking import Lattice, expect_unbroken
from kvref_conformance.programs.asking_caches import caches
from kvref_conformance.trial import Trial


def _apart(*given: str, prompt: str = "1 2b+1") -> str:
    """Return a program in which requests of one prompt come one after another, each given something else."""
    steps = []
    for request, gifts in enumerate(given):
        steps += [gift.strip().replace(" r", f" {request}") for gift in gifts.split(",") if gift.strip()]
        steps.append(f"serve {request} {prompt}")
    return "; ".join(steps)


def _rows(*given: str, prompts: tuple[str, ...] = ("0 2b+1",)) -> Lattice:
    return caches(*(_apart(*given, prompt=prompt) for prompt in prompts), num_blocks=20)


@check(
    "KV-PREFIX-007",
    verbs=CACHE,
    operations=HITS,
    features=("adapter",),
    cases=caches(
        _apart("adapter r 1", "adapter r 2", "", "adapter r 4"),
        _apart("adapter r 1", "adapter r 2", "adapter r 2", "", "", "adapter r 4"),
        num_blocks=20,
    ),
)
def adapters_are_apart(trial: Trial) -> None:
    """One prompt under four adapters, of which one is none."""
    expect_unbroken(trial, "KV-PREFIX-007")


@check(
    "KV-PREFIX-008",
    verbs=CACHE,
    operations=HITS,
    features=("adapter", "adapter_version"),
    cases=caches(
        _apart("adapter r 1, version r 1", "adapter r 1, version r 2", "adapter r 1, version r 3"),
        _apart(*("adapter r 1, version r 1", *["adapter r 1, version r 2"] * 2, "adapter r 1, version r 3")),
        num_blocks=20,
    ),
)
def versions_of_an_adapter_are_apart(trial: Trial) -> None:
    """One prompt under three versions of the same adapter."""
    expect_unbroken(trial, "KV-PREFIX-008")


@check(
    "KV-PREFIX-009",
    verbs=CACHE,
    operations=HITS,
    features=("salt",),
    cases=caches(
        _apart("salt r 1", "salt r 2", "", "salt r 4", prompt="1 3b+1"),
        _apart("salt r 1", "salt r 2", "salt r 2", "", "", "salt r 4", prompt="1 3b+1"),
        num_blocks=20,
    ),
)
def salts_are_apart(trial: Trial) -> None:
    """One prompt under four salts, of which one is none: no block is shared, the first or a later one.

    A prompt that comes again finds its own first block, and what is behind it may be another's.
    """
    expect_unbroken(trial, "KV-PREFIX-009")


@check(
    "KV-PREFIX-010",
    verbs=CACHE,
    operations=HITS,
    features=("media",),
    cases=_rows(
        *(f"image r {digest} 1 b" for digest in (1, 2, 101, 5001)), "", prompts=("0 2b+1", "1 1 0 2b")
    ),
)
def media_are_apart(trial: Trial) -> None:
    """Images of equal size at one place, some with digests that differ in the first or last digits alone."""
    expect_unbroken(trial, "KV-PREFIX-010")


@check(
    "KV-PREFIX-011",
    verbs=CACHE,
    operations=HITS,
    features=("media",),
    cases=caches(
        _apart("image r 1 0 1, image r 2 1 1", "image r 1 0 1, image r 2 2 1", prompt="0 2b+3"),
        _apart("image r 1 b 2", "image r 1 b+1 2", prompt="0 2b+3"),
        _apart("image r 1 0 2, image r 2 2 2", "image r 1 1 2, image r 2 3 2", prompt="0 2b+5"),
        num_blocks=24,
    ),
)
def media_at_other_places_are_apart(trial: Trial) -> None:
    """The same images in the same order, one of them or both a token later."""
    expect_unbroken(trial, "KV-PREFIX-011")


@check(
    "KV-PREFIX-012",
    verbs=CACHE,
    operations=HITS,
    features=("embeddings",),
    cases=_rows(
        *("embed r 1 1 1", "embed r 2 1 1", "embed r 1 0 1", "embed r 101 1 1", "embed r 5001 1 1", ""),
        prompts=("1 2b+2", "0 2b+2"),
    ),
)
def embeddings_are_apart(trial: Trial) -> None:
    """Rows of prompt embeddings that differ, the same rows in place of another token, and none."""
    expect_unbroken(trial, "KV-PREFIX-012")


@check(
    "KV-PREFIX-013",
    verbs=CACHE,
    operations=HITS,
    features=("adapter", "salt"),
    cases=caches(
        _apart("adapter r 1", "salt r 1", "adapter r 5, salt r 3", "adapter r 1, salt r 9"),
        _apart("adapter r 4", "adapter r 1, salt r 1", "salt r 4"),
        num_blocks=20,
    ),
)
def fields_do_not_run_together(trial: Trial) -> None:
    """Adapter `a` without a salt, salt `a` without an adapter; `ab` and `c`, `a` and `bc`."""
    expect_unbroken(trial, "KV-PREFIX-013")


@check(
    "KV-PREFIX-013",
    verbs=CACHE,
    operations=HITS,
    features=("adapter", "adapter_version"),
    cases=caches(
        _apart("adapter r 5, version r 3", "adapter r 1, version r 9"),
        _apart("adapter r 1, version r 1", "adapter r 4"),
        num_blocks=20,
    ),
)
def names_and_versions_do_not_run_together(trial: Trial) -> None:
    """Adapter `ab` of version `c`, adapter `a` of version `bc`; `a` of version `a`, and `aa`."""
    expect_unbroken(trial, "KV-PREFIX-013")


@check(
    "KV-PREFIX-014",
    verbs=CACHE,
    operations=HITS,
    cases=caches(
        _apart("salt r 1", "salt r 2", "salt r 1", "salt r 2"),
        _apart("", "salt r 0", "adapter r 0, version r 0", ""),
        _apart("adapter r 1, version r 2, salt r 3", "adapter r 2", "adapter r 1, version r 2, salt r 3"),
        _apart("image r 1 1 b", "image r 2 1 b", "image r 1 1 b", prompt="0 2b+1"),
        _apart("embed r 1 b 1", "embed r 1 b 1", prompt="1 2b+1"),
        num_blocks=20,
    ),
)
def equal_namespaces_share(trial: Trial) -> None:
    """A prompt comes again with what it was given before, others between; empty texts are none."""
    expect_unbroken(trial, "KV-PREFIX-014")


@check(
    "KV-PREFIX-018",
    verbs=CACHE,
    operations=HITS,
    cases=caches(
        *(_apart(gift, gift) for gift in ("salt r 1", "adapter r 1", "adapter r 1, version r 1")),
        *(_apart(gift, gift, prompt="0 2b+1") for gift in ("image r 1 0 1", "embed r 1 0 1")),
        num_blocks=20,
    ),
)
def what_is_claimed_is_admitted(trial: Trial) -> None:
    """A request with each field of a namespace that is claimed, and room for all of it."""
    expect_unbroken(trial, "KV-PREFIX-018")

"""Checks of namespaces in a prefix cache: what keeps requests with equal tokens apart, and what does not.

In the programs `b` is the block size; a document 0 is placeholders, so that only what stands in place of its
tokens tells two requests apart.
"""

from kvref_conformance.checks.check import check
from kvref_conformance.checks.prefix_hits import CACHE, HITS
from kvref_conformance.programs.asking import Lattice, every
from kvref_conformance.programs.asking_caches import caches
from kvref_conformance.programs.expecting import expect_unbroken
from kvref_conformance.trial import Trial

#: Texts of 20 letters that differ in the last, and one that goes on behind it.
LONG = (1743392200, 1743392201)


def _apart(*given: str, prompt: str = "1 2b+1") -> str:
    """Return a program in which requests of one prompt come one after another, each given something else."""
    steps = []
    for request, gifts in enumerate(given):
        steps += [gift.strip().replace(" r", f" {request}") for gift in gifts.split(",") if gift.strip()]
        steps.append(f"serve {request} {prompt}")
    return "; ".join(steps)


def _continued(gift: str) -> str:
    """Return a program of a prompt in two chunks, and of outputs, that is given something.

    The same tokens come without it, and with it.
    """
    prompt = "0 b+1 2 b 3 1"
    return (
        f"{gift.replace(' r', ' 1')}; part 1 b 0 b+1; commit 1; more 1 1; commit 1; decode 1 2 b; "
        f"commit 1; finish 1; serve 2 0 b+1; admit 3 {prompt}; {gift.replace(' r', ' 4')}; admit 4 {prompt}"
    )


def _rows(*given: str, prompts: tuple[str, ...] = ("0 2b+1",)) -> Lattice:
    return caches(*(_apart(*given, prompt=prompt) for prompt in prompts), num_blocks=20)


@check(
    "KV-PREFIX-007",
    verbs=CACHE,
    operations=HITS,
    features=("adapter",),
    cases=caches(
        _apart("adapter r 1", "adapter r 2", "", "adapter r 4", *(f"adapter r {text}" for text in LONG)),
        _apart("adapter r 1", "adapter r 2", "adapter r 2", "", "", "adapter r 4"),
        _apart(*(f"adapter r {text}" for text in range(1, 20)), prompt="1 b+1"),
        _continued("adapter r 1"),
        _apart(
            *("image r 1 0 1, adapter r 1", "image r 1 0 1, adapter r 2"),
            *("embed r 1 0 1, salt r 1, adapter r 1", "embed r 1 0 1, salt r 1, adapter r 2"),
            prompt="0 2b+1",
        ),
        num_blocks=20,
    ),
)
def adapters_are_apart(trial: Trial) -> None:
    """One prompt under many adapters, of which one is none; names differ in a letter's case, or in their end.

    A prompt in chunks, and its outputs, under one.
    """
    expect_unbroken(trial, "KV-PREFIX-007")


@check(
    "KV-PREFIX-008",
    verbs=CACHE,
    operations=HITS,
    features=("adapter", "adapter_version"),
    cases=caches(
        _apart("adapter r 1, version r 1", "adapter r 1, version r 2", "adapter r 1, version r 3"),
        _apart(*("adapter r 1, version r 1", *["adapter r 1, version r 2"] * 2, "adapter r 1, version r 3")),
        _apart(
            *("salt r 1, adapter r 1, version r 1", "salt r 1, adapter r 1, version r 2"),
            *("image r 1 0 1, adapter r 1, version r 1", "image r 1 0 1, adapter r 1, version r 2"),
            prompt="0 2b+1",
        ),
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
        _apart("salt r 1", "salt r 2", "", "salt r 4", *(f"salt r {text}" for text in LONG), prompt="1 3b+1"),
        _apart("salt r 1", "salt r 2", "salt r 2", "", "", "salt r 4", prompt="1 3b+1"),
        _continued("salt r 1"),
        _apart(
            *("image r 1 0 1, salt r 1", "image r 1 0 1, salt r 2"),
            *("embed r 1 0 1, salt r 1", "embed r 1 0 1, salt r 2"),
            *("adapter r 1, salt r 1", "adapter r 1, salt r 2"),
            prompt="0 2b+1",
        ),
        "serve 1 1 2b; reset; salt 2 1; serve 2 1 2b; salt 3 2; admit 3 1 2b+1",
        num_blocks=24,
    ),
)
def salts_are_apart(trial: Trial) -> None:
    """One prompt under four salts, of which one is none: no block is shared, the first or a later one.

    A prompt that comes again finds its own first block, and what is behind it may be another's. Some
    salts differ in a letter's case, or in their end. A prompt in chunks, and its outputs, have one. A reset
    makes no difference.
    """
    expect_unbroken(trial, "KV-PREFIX-009")


@check(
    "KV-PREFIX-010",
    verbs=CACHE,
    operations=HITS,
    features=("media",),
    cases=every(
        _rows(*(f"image r {digest} 1 b" for digest in (1, 2, 101, 5001)), "", prompts=("0 2b+1", "1 1 0 2b")),
        caches(
            _apart("image r 1 0 1", "image r 2 0 1", "image r 2 0 1", prompt="0 2b+1"),
            _apart("image r 1 0 b+1", "image r 2 0 b+1", "image r 2 0 b+1", prompt="0 2b+1"),
            _continued("image r 1 b 1"),
            _apart(*(f"embed r 1 0 1, image r {n} b 1" for n in (1, 2)), prompt="0 2b+1"),
            num_blocks=20,
        ),
    ),
)
def media_are_apart(trial: Trial) -> None:
    """Images of equal size at one place, some with digests that differ in the first or last digits alone.

    One comes again: its own first block is there, and what is behind it may be another's. It lies in the
    first block, reaches into the second, or is in one that a later chunk and an output fill.
    """
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
    cases=every(
        _rows(
            *("embed r 1 1 1", "embed r 2 1 1", "embed r 1 0 1", "embed r 101 1 1", "embed r 5001 1 1", ""),
            *("image r 1 1 1",),
            prompts=("1 2b+2", "0 2b+2"),
        ),
        caches(
            _apart("embed r 1 0 b+1", "embed r 2 0 b+1", "embed r 2 0 b+1", prompt="0 2b+1"),
            _continued("embed r 1 b 1"),
            _apart(*(f"image r 1 0 1, embed r {n} b 1" for n in (1, 2)), prompt="0 2b+1"),
            num_blocks=20,
        ),
    ),
)
def embeddings_are_apart(trial: Trial) -> None:
    """Rows of prompt embeddings that differ, the same rows in place of another token, as a medium, and none.

    Some reach into a second block, or lie in one that a later chunk and an output fill.
    """
    expect_unbroken(trial, "KV-PREFIX-012")


@check(
    "KV-PREFIX-013",
    verbs=CACHE,
    operations=HITS,
    features=("adapter", "salt"),
    cases=caches(
        _apart("adapter r 1", "salt r 1", "adapter r 5, salt r 3", "adapter r 1, salt r 9"),
        _apart(
            *("adapter r 4", "adapter r 1, salt r 1", "salt r 4"),
            *("adapter r 1, salt r 2", "adapter r 2, salt r 1"),
        ),
        num_blocks=20,
    ),
)
def fields_do_not_run_together(trial: Trial) -> None:
    """Adapter `a` without a salt, salt `a` without an adapter; `aA` and `b`, `a` and `Ab`; two swapped."""
    expect_unbroken(trial, "KV-PREFIX-013")


@check(
    "KV-PREFIX-013",
    verbs=CACHE,
    operations=HITS,
    features=("adapter", "adapter_version"),
    cases=caches(
        _apart("adapter r 5, version r 3", "adapter r 1, version r 9"),
        _apart("adapter r 1, version r 1", "adapter r 4"),
        _apart(
            *("adapter r 1, version r 2", "adapter r 2, version r 1"),
            *(
                "adapter r 1, salt r 2",
                "adapter r 1, version r 1, salt r 2",
                "adapter r 1, version r 2, salt r 1",
            ),
        ),
        num_blocks=20,
    ),
)
def names_and_versions_do_not_run_together(trial: Trial) -> None:
    """Adapter `aA` of version `b`, adapter `a` of version `Ab`; `a` of version `a`, and `aa`.

    A name, a version and a salt that are swapped.
    """
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
        _continued("salt r 1"),
        _continued("image r 1 b 1"),
        num_blocks=20,
    ),
)
def equal_namespaces_share(trial: Trial) -> None:
    """A prompt comes again with what it was given before, others between; empty texts are none.

    So do prompts that were computed in chunks, and their outputs.
    """
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

"""Checks of hits in a prefix cache: what they hold, how far they reach, and that they happen.

In the programs `b` is the block size, and `h` half of it.
"""

from kvref_conformance.checks.check import check
from kvref_conformance.programs.asking import beside, every
from kvref_conformance.programs.asking_caches import caches, crowds
from kvref_conformance.programs.expecting import expect_unbroken
from kvref_conformance.trial import Trial

CACHE = ("prefix_cache",)
HITS = ("admit", "commit", "finish")
DECODES = (*HITS, "extend")

#: Tokens that differ in their last digits, blocks and tokens in another order.
SHUFFLED = (
    "serve 1 65537 2b; admit 2 65537 1 65537 2b; serve 3 1 b 2 b; serve 4 2 b 3 b; admit 5 2 b 1 b 4 1",
    "serve 1 1 1 2 1 3 2b; admit 2 2 1 1 1 3 2b; admit 3 1 1 4 1 3 2b",
)


@check(
    "KV-PREFIX-001",
    verbs=CACHE,
    operations=HITS,
    cases=every(
        caches(
            "serve 1 1 b 2 b; serve 2 3 b 2 b 4 1; admit 3 2 b 1 1",
            "serve 1 1 2b; serve 2 2 2b+1; admit 3 1 2b+1; admit 4 2 2b 3 1",
            "serve 1 1 b+1 2 b; serve 2 1 b+1 3 b; admit 3 1 b+1 2 b 4 1; admit 4 1 b+1 3 b 4 1",
            "serve 1 1 2b; admit 2 65537 2b 3 1",
            *SHUFFLED,
        ),
        crowds("serve 1 1 260b; serve 2 2 300b; admit 3 1 260b+1; admit 4 2 260b 1 1"),
    ),
)
def hit_holds_the_requests_own_prefix(trial: Trial) -> None:
    """Prompts with equal blocks after others, of equal length, and with tokens that are nearly alike.

    These are equal in their low bits, or in all but the last digits, or the same in another order.
    """
    expect_unbroken(trial, "KV-PREFIX-001")


@check(
    "KV-PREFIX-002",
    verbs=CACHE,
    operations=HITS,
    cases=caches(
        "serve 1 1 2b; serve 2 1 2b; admit 3 1 2b; admit 4 1 b; admit 5 1 1",
        "serve 1 1 3b-1; admit 2 1 3b-1; admit 3 1 2b+1; admit 4 1 b+h",
    ),
)
def a_token_is_left_to_compute(trial: Trial) -> None:
    """Prompts that are cached as a whole, and end with a block, behind one, and before the end of one."""
    expect_unbroken(trial, "KV-PREFIX-002")


@check(
    "KV-PREFIX-003",
    verbs=CACHE,
    operations=DECODES,
    cases=caches(
        "serve 1 1 2b+h; admit 2 1 2b+h 2 b",
        "admit 1 1 b; commit 1; decode 1 2 h; commit 1; finish 1; admit 2 1 b 2 h 3 b",
        "part 1 h 1 2b; commit 1; admit 2 1 2b; more 1 b; commit 1; admit 3 1 2b",
        "serve 1 1 3b-1; serve 2 1 3b-1; serve 3 1 3b-1 2 b",
    ),
)
def hits_are_whole_blocks(trial: Trial) -> None:
    """What a prompt, an output and a chunk leave in a block that is not full is hit only as declared."""
    expect_unbroken(trial, "KV-PREFIX-003")


@check(
    "KV-PREFIX-004",
    verbs=CACHE,
    operations=HITS,
    cases=caches(
        "serve 1 1 3b; serve 2 2 2b; serve 3 1 3b+1; serve 4 3 3b; admit 5 1 3b+1",
        num_blocks=4,
    ),
)
def hit_ends_at_the_first_missing_block(trial: Trial) -> None:
    """Other prompts evict one block of a cached one, then three of it."""
    expect_unbroken(trial, "KV-PREFIX-004")


@check(
    "KV-PREFIX-005",
    verbs=CACHE,
    operations=DECODES,
    cases=every(
        caches(
            "admit 1 1 2b; admit 2 1 2b+1; commit 1; commit 2",
            "part 1 b+h 1 3b; commit 1; admit 2 1 3b; more 1 h; admit 3 1 3b",
            "part 1 b+1 1 2b 2 b; commit 1; more 1 b; admit 2 1 2b 2 b; commit 1; admit 3 1 2b 2 b",
            "admit 1 1 b; commit 1; decode 1 2 b; admit 2 1 b 2 b 3 1",
            "admit 1 1 2b; admit 2 2 2b; commit 1; admit 3 2 2b+1; commit 2; admit 4 2 2b 1 1",
            num_blocks=16,
        ),
        beside(caches("serve 1 1 2b; admit 2 1 2b+1; abort 2; admit 3 2 2b; commit 3; admit 4 2 2b+1")),
    ),
)
def nothing_is_hit_before_it_is_published(trial: Trial) -> None:
    """A second request comes while the first has a step in flight, and after some of its chunks.

    Other requests, and another cache that is open, have computed by then what this one has not.
    """
    expect_unbroken(trial, "KV-PREFIX-005")


@check(
    "KV-PREFIX-006",
    verbs=CACHE,
    operations=DECODES,
    cases=caches(
        "serve 1 1 3b+1; serve 2 1 3b+1; admit 3 1 3b+1; admit 4 1 2b; admit 5 1 2b+1 2 b",
        "part 1 b+1 1 3b+h; commit 1; more 1 h; commit 1; more 1 2b; commit 1; more 1 b; commit 1; "
        "finish 1; admit 2 1 3b+h",
        "admit 1 1 b+h; commit 1; decode 1 2 1; commit 1; finish 1; serve 2 3 2b; admit 3 1 b+h; "
        "admit 4 3 2b 1 1",
        "part 1 2b 1 4b; commit 1; admit 2 1 2b+1; commit 2; more 1 9b; commit 1; admit 3 1 4b+1",
        "serve 1 1 b; serve 1 2 b; admit 2 2 b+1; part 1 b+1 3 2b; commit 1; abort 1; serve 1 4 2b; "
        "admit 1 4 2b+1; admit 3 1 b 5 1",
        "admit 1 1 b; admit 2 1 b; abort 1; commit 2; admit 3 1 b+1; admit 4 5 b; admit 5 5 b; commit 4; "
        "commit 5; abort 4; admit 6 5 b+1",
    ),
)
def repeated_prompt_is_hit(trial: Trial) -> None:
    """Prompts that were computed at once and in chunks come again, longer, shorter, and with another end.

    So do the numbers of requests that have ended. One of two that compute the same is aborted.
    """
    expect_unbroken(trial, "KV-PREFIX-006")


@check(
    "KV-PREFIX-006",
    verbs=CACHE,
    operations=HITS,
    cases=every(
        caches("serve 1 1 20b; serve 2 1 24b+1; admit 3 1 2b+1; admit 4 1 24b+1", num_blocks=48),
        crowds("serve 1 1 260b; serve 2 1 300b; admit 3 1 300b+1; crowd 4 260 1 b+1; admit 4 1 300b 2 1"),
    ),
)
def long_prompt_is_hit(trial: Trial) -> None:
    """Prompts of many blocks come again; one of few begins in the same way."""
    expect_unbroken(trial, "KV-PREFIX-006")


@check(
    "KV-PREFIX-025",
    verbs=CACHE,
    operations=DECODES,
    cases=caches(
        "admit 1 1 b+1; commit 1; decode 1 2 b; commit 1; decode 1 3 1; commit 1; finish 1; "
        "admit 2 1 b+1 2 b 3 1 4 1",
        "admit 1 1 b; commit 1; decode 1 2 2b; commit 1; finish 1; admit 2 1 b 2 2b 3 b; admit 3 1 b 2 b 4 1",
        "admit 1 1 b; commit 1; join 1 b+1 2 2b; commit 1; more 1 9b; commit 1; finish 1; "
        "admit 2 1 b 2 2b 3 1",
    ),
)
def outputs_are_cached_as_declared(trial: Trial) -> None:
    """The next turn of a conversation begins with the prompt and the outputs of the last."""
    expect_unbroken(trial, "KV-PREFIX-025")


@check(
    "KV-PREFIX-034",
    verbs=CACHE,
    operations=HITS,
    features=("weak_hash",),
    cases=every(
        caches(
            "; ".join(f"serve {d} {d} 2b+1" for d in range(1, 6)),
            "serve 1 1 b 2 b; admit 2 3 b 2 b 4 1; admit 3 5 b 2 b 4 1; admit 4 6 b 2 b 4 1",
            num_blocks=20,
            hash_bits=(1, 2),
        ),
        caches(
            "serve 1 1 b 2 b; serve 2 3 b 4 b; admit 2 3 b 2 b 4 1; salt 5 1; serve 5 1 2b; salt 6 2; "
            "serve 6 1 2b; adapter 7 1; serve 7 1 2b; adapter 8 2; admit 8 1 2b",
            "image 1 1 0 1; serve 1 0 2b; image 2 2 0 1; serve 2 0 2b; embed 3 1 0 1; serve 3 0 2b; "
            "embed 4 2 0 1; serve 4 0 2b; admit 5 0 2b+1",
            num_blocks=20,
            hash_bits=(1,),
        ),
    ),
)
def equal_keys_are_not_trusted(trial: Trial) -> None:
    """Keys of one bit and of two: prompts collide, and none is given another's blocks.

    They differ in their tokens, in the first block alone, or in their namespaces.
    """
    expect_unbroken(trial, "KV-PREFIX-034")

"""Checks of keys of blocks: what has the same key, in this process and in any other.

In the programs `b` is the block size, and `h` half of it.
"""

from kvref_conformance.cases import Case, Level, opening
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.programs.asking import Lattice
from kvref_conformance.programs.asking_caches import prompts
from kvref_conformance.programs.expecting import expect_unbroken
from kvref_conformance.programs.prompts import tokens_of
from kvref_conformance.trial import Trial

KEYS = ("block_keys",)
NAMED = ("keys",)


def _of_a_scheme(lattice: Lattice) -> Lattice:
    """Return the cases of a lattice where a scheme is declared."""

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        declared = claims.choice("key-scheme") != "unspecified"
        return lattice(claims, manager, level) if declared else []

    return cases


@check(
    "KV-PREFIX-030",
    verbs=KEYS,
    operations=NAMED,
    cases=prompts(
        "keys 1 1 3b; keys 2 1 2b 2 b; keys 3 2 b 1 2b; keys 4 1 b 2 b 1 b; keys 5 1 3b+h; keys 6 1 b",
        "keys 1 1 2b; keys 2 65537 2b; keys 3 0 2b; keys 4 0 3b; tokens 1 23; tokens 12 3; tokens 123",
        "tokens 1 23 4 56 7 8; tokens 12 3 45 6 7 8; tokens 123 4 5 6 7 8; tokens 8 7 6 56 4 1",
        "keys 1 65537 2b; keys 2 65537 1 65537 2b; keys 3 1 1 2 1 3 2b; keys 4 2 1 1 1 3 2b; "
        "keys 5 1 1 4 1 3 2b; keys 6 1 b 2 b; keys 7 2 b 1 b; keys 8 1 2b; keys 9 1 2b; keys 10 1 2b",
        "keys 1 1 2b+h; keys 2 1 b 2 h; keys 3 2 h; keys 4 1 h; keys 5 0 h; keys 6 0 b; keys 7 1 2b-1; "
        "keys 8 1 b",
        "keys 1 1 b 3 80b; keys 2 2 b 3 80b",
    ),
)
def key_stands_for_all_up_to_its_block(trial: Trial) -> None:
    """Prompts that begin alike, and equal blocks behind others: equal keys for equal prefixes alone.

    Tokens are nearly equal, or the same in another order; prompts end inside a block, and are long.
    """
    expect_unbroken(trial, "KV-PREFIX-030")


@check(
    "KV-PREFIX-030",
    verbs=KEYS,
    operations=NAMED,
    cases=prompts(
        "keys 1 1 2b; adapter 2 1; keys 2 1 2b; salt 3 1; keys 3 1 2b; adapter 4 5; salt 4 3; keys 4 1 2b; "
        "adapter 5 1; salt 5 9; keys 5 1 2b; salt 6 0; adapter 6 0; keys 6 1 2b; version 7 1; adapter 7 1; "
        "keys 7 1 2b; keys 8 1 2b; adapter 9 1743392200; keys 9 1 2b; adapter 10 1743392201; keys 10 1 2b; "
        "adapter 11 1; salt 11 2; keys 11 1 2b; adapter 12 2; salt 12 1; keys 12 1 2b; adapter 13 1; "
        "version 13 2; keys 13 1 2b; adapter 14 2; version 14 1; keys 14 1 2b; adapter 15 1; version 15 1; "
        "salt 15 2; keys 15 1 2b",
        "keys 1 0 3b; image 2 1 0 1; keys 2 0 3b; image 3 1 1 1; keys 3 0 3b; image 4 101 0 1; keys 4 0 3b; "
        "image 5 5001 0 1; keys 5 0 3b; image 6 1 2b 1; keys 6 0 3b; embed 7 1 0 1; keys 7 0 3b; "
        "embed 8 2 0 1; keys 8 0 3b; embed 9 1 1 1; keys 9 0 3b; keys 10 0 3b; image 11 1 0 b+1; "
        "keys 11 0 3b; image 12 2 0 b+1; keys 12 0 3b",
    ),
)
def key_stands_for_the_namespace(trial: Trial) -> None:
    """One prompt in every namespace that is claimed: equal keys in equal ones; the empty text is none.

    It comes again without what it was given.
    """
    expect_unbroken(trial, "KV-PREFIX-030")


@check("KV-PREFIX-031", verbs=KEYS, operations=NAMED, cases=prompts("keys 1 1 2b 2 b; keys 2 0 3b"))
def keys_are_the_same_after_a_restart(trial: Trial) -> None:
    """The subject is started again: the same prompts have the same keys."""
    found = []
    for _ in range(2):
        session = trial.open(trial.case.verb, **opening(trial.case))
        for document in (1, 2):
            tokens = tokens_of([document, 3 * trial.case.block_size])
            found.append(session.do("keys", tokens=tokens)["keys"])
        session.close()
        trial.restart()
    trial.expect(found[:2] == found[2:], "keys of the same tokens differ after a restart")


@check(
    "KV-PREFIX-032",
    verbs=KEYS,
    operations=NAMED,
    cases=prompts(
        "keys 1 1 b; keys 2 1 b+1; keys 3 1 2b-1; keys 4 1 2b; keys 5 1 1; keys 6 1 h; keys 7 1 9b+h; "
        "keys 8 2 b+h; keys 9 1 256b",
        "salt 1 1; keys 1 1 b; adapter 2 1; keys 2 1 b; adapter 3 1; version 3 1; keys 3 1 b; "
        "image 4 1 0 1; keys 4 0 b; embed 5 1 0 1; keys 5 1 b",
    ),
)
def only_full_blocks_have_keys(trial: Trial) -> None:
    """Prompts that end with a block, before its end and behind it: as many keys as full blocks.

    And so in every namespace that is claimed.
    """
    expect_unbroken(trial, "KV-PREFIX-032")


@check(
    "KV-PREFIX-033",
    verbs=KEYS,
    operations=NAMED,
    cases=_of_a_scheme(
        prompts(
            "keys 1 1 2b 2 2b+1; adapter 2 1; version 2 2; keys 2 1 3b; salt 3 3; keys 3 1 2b",
            "adapter 1 1; version 1 2; salt 1 3; image 1 7 1 2; image 1 8 3 1; keys 1 0 5b; "
            "tokens 1 23 24 255 256 65535 65536 999999999 1 1 1 1 1 1 1 1 1",
        )
    ),
)
def keys_are_those_of_the_scheme(trial: Trial) -> None:
    """Prompts under all that the subject tells apart: the very bytes of the declared scheme."""
    expect_unbroken(trial, "KV-PREFIX-033")

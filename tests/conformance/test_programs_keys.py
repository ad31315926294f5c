"""Tests of programs for keys and indexes: what is compared, and what a breach says."""

from typing import Any

import pytest

from kvref_conformance.cases import Case, opening
from kvref_conformance.claims import Claims
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.programs.index import path_of
from kvref_conformance.programs.prompts import digest_of, text_of, tokens_of
from kvref_conformance.programs.running import Run, run
from kvref_conformance.subjects.lists import OF_PREFIXES
from kvref_conformance.subjects.lists.index import IndexLists
from kvref_conformance.subjects.lists.keys import KeyLists

PATHS = (
    "store 0 1 3; store 1 1 2 2 2; grow 0 3 1 5; match 1 5; remove 0 1 1 1 3; match 1 5; store 0 1 2; "
    "match 1 5; clear 1; match 1 2 2 2"
)
KEYS = "keys 1 1 9; salt 2 1; keys 2 1 9; tokens 1 2 3 4 5; image 3 1 0 2; embed 3 2 2 1; keys 3 0 4"


def performed(manager: str, made: Any, program: str, **options: Any) -> Run:
    """Run a program in blocks of four."""
    case = Case(
        verb=manager, seq_lens=(), query_lens=(), block_size=4, options={"program": program, **options}
    )
    session = InProcessHost(type("Subject", (), {manager: made})()).open(manager, **opening(case))
    return run(program, session, case, Claims(features=OF_PREFIXES))


def messages(ran: Run) -> dict[str, str]:
    """Return what is said about each requirement."""
    return {breach.requirement: breach.message for breach in ran.breaches}


@pytest.mark.parametrize(
    ("manager", "made", "program"), [("block_keys", KeyLists, KEYS), ("block_index", IndexLists, PATHS)]
)
def test_honest_lists_breach_nothing(manager: str, made: Any, program: str) -> None:
    """Every step is performed, and so is any part of the program."""
    ran = performed(manager, made, program)
    assert ran.breaches == ()
    assert ran.performed == program.count(";") + 1
    steps = program.split("; ")
    for drop in range(len(steps)):
        assert performed(manager, made, "; ".join(steps[:drop] + steps[drop + 1 :])).breaches == ()


@pytest.mark.parametrize(
    "step", ["keys 1", "keys 1 1", "keys 1 1 0", "tokens", "tokens -1", "sing 1", "salt 1"]
)
def test_keys_of_nothing_are_not_asked(step: str) -> None:
    """Numbers are missing, or none of them is a token."""
    assert performed("block_keys", KeyLists, step).performed == 0


@pytest.mark.parametrize(
    "step",
    [
        "store 0",
        "grow 0 1 1 2",
        "remove 0 0 1 1 1",
        "clear 0",
        "match 1",
        "match 1 0",
        "match 1 513",
        "sing 1 1",
    ],
)
def test_paths_that_are_not_there_are_not_asked(step: str) -> None:
    """Nobody grows, removes or clears what was never stored."""
    assert performed("block_index", IndexLists, step).performed == 0


def test_keys_may_collide_where_they_are_opened_so() -> None:
    """One bit is not enough for three prefixes, and nobody says it is."""
    program = "keys 1 1 4; keys 2 2 4; keys 3 3 4"
    assert performed("block_keys", KeyLists, program, hash_bits=1).breaches == ()


def test_key_that_stands_for_two_prefixes_names_the_step() -> None:
    """And so does one that changes."""

    class OneForAll(KeyLists):
        def key(self, name: Any) -> str:
            return "ab" * 4

    assert (
        "of another prefix, from step 0"
        in messages(performed("block_keys", OneForAll, "keys 1 1 4; keys 2 2 4"))["KV-PREFIX-030"]
    )


def test_block_behind_a_removed_one_is_in_doubt() -> None:
    """An index may forget it or keep it, until it is stored again."""

    class Forgets(IndexLists):
        def remove(self, worker: int, keys: Any) -> None:
            gone = [self.held[worker].index(key) for key in keys if key in self.held.get(worker, [])]
            self.held[worker] = self.held[worker][: min(gone, default=None)]

    program = "store 0 1 4; remove 0 1 1 1 4; match 1 4; grow 0 1 1 2; match 1 4; store 0 1 4; match 1 4"
    assert performed("block_index", Forgets, program).breaches == ()
    assert performed("block_index", IndexLists, program).breaches == ()


@pytest.mark.parametrize("answer", [([0], [1, 2]), ([0, 0], [3, 3]), ([0], [-1]), ([9], [1])])
def test_match_that_makes_no_sense_is_a_breach(answer: Any) -> None:
    """Lists of unequal length, a worker twice, fewer blocks than none, a worker that never stored."""

    class Odd(IndexLists):
        def match(self, keys: Any) -> Any:
            return answer

    assert performed("block_index", Odd, "store 0 1 3; match 1 3").breaches


def test_paths_share_keys_as_far_as_they_share_blocks() -> None:
    """Equal blocks behind another one have another key."""
    assert path_of([1, 2, 2, 1])[:2] == path_of([1, 2])
    assert set(path_of([2, 1, 1, 2])).isdisjoint(path_of([1, 2]))


def test_documents_and_digests_differ_as_they_say() -> None:
    """Low bits of tokens, first and last digits of digests, texts that run together."""
    assert [token % 2**16 for token in tokens_of([65537, 3])] == [
        token % 2**16 for token in tokens_of([1, 3])
    ]
    assert tokens_of([65537, 3]) != tokens_of([1, 3])
    assert set(tokens_of([0, 5])) == {0}
    assert digest_of(1, 2)[8:] == digest_of(101, 2)[8:] != digest_of(5001, 2)[8:]
    assert digest_of(1, 2)[:-8] == digest_of(5001, 2)[:-8] != digest_of(101, 2)[:-8]
    assert digest_of(1, 2)[8:-8] != digest_of(1, 3)[8:-8]
    assert text_of(5) + text_of(3) == text_of(1) + text_of(9) == "aAb"
    assert len({text_of(number) for number in range(200)}) == 200


def test_keyed_tail_has_a_key() -> None:
    """Who declares a key for a part of a block gives one more, and who does not gives none."""
    claims = Claims(features=OF_PREFIXES, choices={"tail-block": "keyed"})
    case = Case(
        verb="block_keys", seq_lens=(), query_lens=(), block_size=4, options={"program": "keys 1 1 9"}
    )
    session = InProcessHost(type("Subject", (), {"block_keys": KeyLists})()).open(
        "block_keys", **opening(case)
    )
    assert "2 keys, expected 3" in messages(run("keys 1 1 9", session, case, claims))["KV-PREFIX-032"]

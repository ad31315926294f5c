"""The tree of states against SGLang's MambaRadixCache, and by its own laws under drawn programs."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.errors import ArgumentError, KVError, OwnershipError
from kvref.memory.snapshot_tree import SnapshotTree, StateNode

RECORDED = Path(__file__).parents[1] / "data" / "sglang_states.json"


@cache
def recorded() -> list[list[list[Any]]]:
    """Programs, and what SGLang 0.5.6 did."""
    found: list[list[list[Any]]] = json.loads(RECORDED.read_text(encoding="utf-8"))["programs"]
    return found


class Follower:
    """The reference, doing what SGLang was asked to do."""

    def __init__(self) -> None:
        self.tree = SnapshotTree()
        self.nodes: dict[int, StateNode] = {}

    def match(self, number: int, tokens: list[int]) -> Any:
        """The slots of the hit, and its state."""
        slots, state, self.nodes[number], _ = self.tree.match(tokens)
        return [slots, state]

    def insert(self, number: int, tokens: list[int], slots: list[int], state: int) -> Any:
        """How many tokens were known, and whether the state was."""
        return list(self.tree.insert(tokens, slots, state))

    def lock(self, number: int, at: int) -> None:
        """Lock what was matched."""
        self.tree.lock(self.nodes[at])

    def unlock(self, number: int, at: int) -> None:
        """Unlock it again."""
        self.tree.unlock(self.nodes[at])

    def evict(self, number: int, count: int) -> Any:
        """Evict slots."""
        return list(self.tree.evict(count))

    def evict_states(self, number: int, count: int) -> Any:
        """Evict states."""
        return list(self.tree.evict_states(count))


@pytest.mark.parametrize("number", range(24))
def test_hits_and_evictions_are_those_of_sglang(number: int) -> None:
    """Slots and states of every hit, what was known, and what was evicted, in its order."""
    follower = Follower()
    for at, name, *arguments, found in recorded()[number]:
        assert getattr(follower, name)(at, *arguments) == found
        follower.tree.check_invariants()


def test_programs_hit_and_leave_tombstones() -> None:
    """What a program never does cannot disagree."""
    steps = [step for program in recorded() for step in program]
    assert sum(name == "match" and bool(found[0]) for _, name, *_, found in steps) > 100
    assert (
        sum(name == "evict_states" and not found[0] and bool(found[1]) for _, name, *_, found in steps) > 20
    )
    assert sum(name == "insert" and found[1] for _, name, *_, found in steps) > 10
    assert sum(name == "unlock" for _, name, *_ in steps) > 50


def test_sglang_still_does_so() -> None:
    """The record is what the script prints, asked now."""
    if "KVREF_SGLANG_WHEEL" not in os.environ:
        pytest.skip("KVREF_SGLANG_WHEEL does not name a wheel of SGLang 0.5.6")
    pytest.importorskip("torch")
    script = Path(__file__).parent / "ask_sglang_states.py"
    command = [sys.executable, str(script), os.environ["KVREF_SGLANG_WHEEL"]]
    answer = subprocess.run(command, capture_output=True, check=False, text=True, timeout=600)
    assert answer.returncode == 0, answer.stderr[-2000:]
    assert json.loads(answer.stdout)["programs"] == recorded()


def test_a_split_leaves_the_state_below() -> None:
    """Half of a run has no state: the hit is none, and the slots alone go further."""
    tree = SnapshotTree()
    tree.insert([1, 2, 3, 4, 5, 6], range(6), 0)
    found = tree.match([1, 2, 3, 9])
    assert (found.slots, found.state, found.known_tokens) == ([], None, 3)
    assert (found.branching(1), found.branching(2), found.branching(4)) == (3, 2, 0)
    assert tree.match([1, 2, 3, 4, 5, 6, 7]).state == 0


def test_a_tombstone_is_armed_again() -> None:
    """The next state that is put in where one was lost makes the prefix whole."""
    tree = SnapshotTree()
    tree.insert([1, 2, 3], range(3), 0)
    tree.insert([1, 2, 3, 4], range(3, 7), 1)
    assert tree.evict_states(1) == ([], [0])
    assert tree.match([1, 2, 3, 9]).slots == []
    assert tree.insert([1, 2, 3], range(7, 10), 2) == (3, False)
    assert tree.match([1, 2, 3, 9]).state == 2


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (ArgumentError, lambda tree: tree.insert([], [], 3)),
        (ArgumentError, lambda tree: tree.insert([1, 2], [7], 3)),
        (ArgumentError, lambda tree: tree.insert([1, 2], [7, 8], -1)),
        (ArgumentError, lambda tree: tree.evict(-1)),
        (ArgumentError, lambda tree: tree.evict_states(1.5)),
        (OwnershipError, lambda tree: tree.unlock(next(tree.nodes()))),
    ],
)
def test_what_is_refused_changes_nothing(error: type[KVError], call: Any) -> None:
    """A wrong number, a lock that is none: the tree stays as it was."""
    tree = SnapshotTree()
    tree.insert([1, 2, 3], range(3), 0)
    before = [(node.tokens[:], node.slots[:], node.state, node.locks) for node in tree.nodes()]
    with pytest.raises(error):
        call(tree)
    assert [(node.tokens, node.slots, node.state, node.locks) for node in tree.nodes()] == before


@given(st.data())
def test_a_state_is_that_of_its_whole_prefix(data: st.DataObject) -> None:
    """Slots and states carry the prefix they were put in under; whatever is evicted, a hit has its own."""
    tree, slots, states = SnapshotTree(), dict[int, tuple[int, ...]](), dict[int, tuple[int, ...]]()
    for number in range(data.draw(st.integers(1, 25))):
        tokens = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=9))
        kind = data.draw(st.sampled_from(["match", "insert", "insert", "evict", "evict_states"]))
        if kind == "insert":
            given = range(len(slots), len(slots) + len(tokens))
            slots.update((slot, tuple(tokens[: at + 1])) for at, slot in enumerate(given))
            states[number] = tuple(tokens)
            tree.insert(tokens, given, number)
        elif kind == "match":
            found = tree.match(tokens)
            assert [slots[slot] for slot in found.slots] == [
                tuple(tokens[: at + 1]) for at in range(len(found.slots))
            ]
            assert found.state is None or states[found.state] == tuple(tokens[: len(found.slots)])
        else:
            getattr(tree, kind)(data.draw(st.integers(0, 4)))
        tree.check_invariants()

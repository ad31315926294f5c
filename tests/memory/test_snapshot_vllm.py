"""Both hybrid caches against vLLM's KVCacheManager: in mode align the same rows, and any joint hit."""

import json
import os
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvref.errors import OutOfBlocksError, UnknownRequestError
from kvref.memory.snapshot_align import AlignCache
from kvref.memory.snapshot_cache import SnapshotCache
from kvref.memory.snapshot_groups import AttentionGroup
from kvref.memory.snapshot_request import SnapshotRequest

RECORDED = Path(__file__).parents[1] / "data" / "vllm_hybrid_manager.json"
SCRIPT = Path(__file__).parent / "ask_vllm_snapshots.py"


@cache
def recorded() -> dict[str, Any]:
    """Programs, and what vLLM 0.32.0 did."""
    found: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


class Follower:
    """The reference, doing what vLLM was asked to do."""

    def __init__(self) -> None:
        self.cache = AlignCache(recorded()["num_blocks"], recorded()["block_size"])
        self.scheduled: set[int] = set()

    def admit(self, request: int, tokens: list[int], most: int) -> Any:
        """The hit, the junction, where the step ends, and both rows."""
        hit, slots, *_ = self.cache.admit(request, tokens, max_new_tokens=most)
        self.scheduled.add(request)
        return [hit, self.cache._requests[request].junction, len(slots), *self.cache.rows(request)]

    def extend(self, request: int, tokens: list[int], most: int) -> Any:
        """Where the step ends, and both rows."""
        behind = self.cache._known(request).prefix
        if request in self.scheduled or behind.num_scheduled == behind.num_tokens + len(tokens):
            return None
        self.cache.extend(request, tokens, max_new_tokens=most)
        self.scheduled.add(request)
        return [len(self.cache.slots(request)), *self.cache.rows(request)]

    def finish(self, request: int) -> None:
        """End a request whose steps are done."""
        if request not in self.scheduled:
            self.cache.finish(request)

    def step(self, _: int) -> None:
        """What was scheduled is done."""
        for request in self.scheduled:
            self.cache.commit(request)
        self.scheduled.clear()


@pytest.mark.parametrize("number", range(24))
def test_rows_are_those_of_vllm(number: int) -> None:
    """Hits, junctions, ends of steps, ids of blocks and states, refusals: the order of eviction too."""
    follower = Follower()
    for name, *arguments, found, num_free in recorded()["programs"][number]:
        try:
            answer = getattr(follower, name)(*arguments)
        except (OutOfBlocksError, UnknownRequestError):
            answer = None
        assert (answer, follower.cache.num_free) == (found, num_free)
        follower.cache.check_invariants()


def test_programs_hit_junctions_and_refuse() -> None:
    """What a program never does cannot disagree."""
    steps = [step for program in recorded()["programs"] for step in program]
    admitted = [found for name, *_, found, _ in steps if name == "admit"]
    assert len(recorded()["programs"]) == 24
    assert sum(found is None for found in admitted) > 50
    assert sum(found is not None and found[0] > 0 for found in admitted) > 50
    assert sum(found is not None and found[1] > 0 for found in admitted) > 20
    assert sum(name == "extend" and found is not None for name, *_, found, _ in steps) > 100


def served(sizes: list[int], window: int) -> tuple[SnapshotCache, SnapshotRequest]:
    """A cache that has every block and every state of the prompt, and the request that computed it."""
    groups = [AttentionGroup(sizes[0]), AttentionGroup(sizes[1], window)]
    hybrid = SnapshotCache(200, 50, snapshot_interval=sizes[2], groups=groups)
    hybrid.admit(0, range(recorded()["prompt"]))
    own = hybrid._requests[0]
    hybrid.commit(0)
    hybrid.finish(0)
    return hybrid, own


@pytest.mark.parametrize("number", range(160))
def test_joint_hits_are_those_of_vllm(number: int) -> None:
    """Full attention, a window and states, of each of which some are gone: the same hit, block for block."""
    window, sizes, gone, hit = recorded()["hits"][number].values()
    hybrid, own = served(sizes, window)
    for group, at in gone:
        if group < 2:
            for key in own.keys(group, at, at + 1):
                hybrid._index.withdraw(
                    hybrid._index.every(key)
                )  # and the snapshots that need it are there still
        elif at * sizes[2] + sizes[2] < recorded()["prompt"]:
            slot = hybrid._snapshots.find(own.prefix_of(at * sizes[2] + sizes[2]))
            if slot is not None:
                hybrid._snapshots.take_over(slot)
                hybrid._snapshots.release([slot])
    assert hybrid.admit(1, range(recorded()["prompt"])).num_cached_tokens == hit


def test_hits_are_lost_in_every_way() -> None:
    """Hits of nothing, of all and of lengths between, in blocks of one size and of two."""
    hits = Counter(told["hit"] for told in recorded()["hits"])
    assert min(hits[0], hits[40]) > 20
    assert sum(count for hit, count in hits.items() if 0 < hit < 40) > 50
    assert {(tuple(told["block_sizes"])) for told in recorded()["hits"]} == {(4, 4, 4), (8, 4, 8)}


def test_vllm_still_does_so() -> None:
    """The record is what the script prints, asked now."""
    if "KVREF_VLLM_PYTHON" not in os.environ:
        pytest.skip("KVREF_VLLM_PYTHON does not name an interpreter with vLLM")
    command = [os.environ["KVREF_VLLM_PYTHON"], str(SCRIPT)]
    answer = subprocess.run(command, capture_output=True, check=False, text=True, timeout=600)
    assert answer.returncode == 0, answer.stderr[-2000:]
    told = json.loads(answer.stdout)
    assert told["programs"] == recorded()["programs"]
    assert told["hits"] == recorded()["hits"]

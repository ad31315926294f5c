"""What a snapshot cache does, told as a history: nothing is found in it, but a state that is another's is."""

import random
from typing import Any

import pytest
from histories import allocate, arrive, compute, found, opened, say

from kvref.memory.history import Event
from kvref.memory.snapshot_cache import SnapshotCache

SIZE = 2


def told(cache: SnapshotCache, request: int, tokens: list[int]) -> list[Event]:
    """Serve one request, and tell what happened in it."""
    hit, slots, source, _, positions, states = cache.admit(request, tokens)
    blocks = [slot // SIZE for slot in slots[::SIZE]]
    events = [arrive(request, tokens)]
    if hit:
        events.append(say("hit", request=request, count=hit, blocks=blocks[: hit // SIZE]))
        events.append(say("restore", request=request, snapshot=source))
    events += [allocate(request, *blocks[hit // SIZE :]), compute((request, hit, len(tokens) - hit))]
    saved = zip(positions, states, strict=True)
    events += [say("snapshot", request=request, snapshot=slot, count=count) for count, slot in saved]
    full = len(tokens) // SIZE
    if full > hit // SIZE:
        events.append(say("publish", request=request, blocks=blocks[hit // SIZE : full]))
    cache.commit(request)
    cache.finish(request)
    return [*events, say("finish", request=request), say("free", request=request)]


def history(seed: int) -> list[Event]:
    """Prompts that share stems, on memory that is too small for all of them."""
    draw, cache = random.Random(seed), SnapshotCache(24, 5, "kvref", SIZE, 4)
    stems = [[draw.randrange(3) for _ in range(16)] for _ in range(3)]
    events = [opened(num_blocks=24, block_size=SIZE)]
    for request in range(30):
        prompt = draw.choice(stems)[: draw.randrange(1, 17)] + [draw.randrange(3) for _ in range(3)]
        events += told(cache, request, prompt)
    return [*events, say("close")]


@pytest.mark.parametrize("seed", range(4))
def test_histories_of_the_cache_are_clean(seed: int) -> None:
    """Hits of blocks and states, evictions, slots that are used again."""
    events = history(seed)
    assert sum(event["event"] == "restore" for event in events) > 5
    assert found(*events) == []


def test_a_state_of_another_is_found() -> None:
    """A restore that names another snapshot than the one that belongs to the prefix."""
    events = history(0)
    at = next(i for i, event in enumerate(events) if event["event"] == "restore")
    other = next(
        e["snapshot"]
        for e in events[:at]
        if e["event"] == "snapshot" and e["snapshot"] != events[at]["snapshot"]
    )
    changed: list[Any] = [*events[:at], events[at] | {"snapshot": other}, *events[at + 1 :]]
    assert found(*changed) != []

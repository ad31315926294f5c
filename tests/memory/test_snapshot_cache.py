"""A snapshot cache: whose state is restored, under any operations on memory that is too small."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from memory.snapshot_shadow import Hybrids

from kvref.memory.snapshot_cache import SnapshotCache
from kvref.memory.snapshot_profiles import SNAPSHOT_PROFILES

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden_memory.json").read_text(encoding="utf-8"))
KVREF = SNAPSHOT_PROFILES["kvref"]

#: Blocks, state slots, profile, block size, interval and window of caches that are too small for everything.
CACHES: dict[str, tuple[Any, ...]] = {
    "kvref": (9, 4, KVREF, 3, 3, None),
    "sparse": (9, 3, KVREF, 2, 6, None),
    "off the grid": (9, 6, KVREF, 2, 3, None),
    "one state": (9, 1, KVREF, 3, 3, None),
    "many states": (9, 30, KVREF, 2, 2, None),
    "chunk ends": (9, 4, replace(KVREF, saves="chunk_end", finish="donates"), 2, 2, None),
    "junctions alone": (9, 4, replace(KVREF, saves="branch"), 2, 2, None),
    "no junctions": (9, 4, replace(KVREF, junctions=False, finish="donates"), 2, 4, None),
    "window of one": (9, 5, KVREF, 3, 3, 1),
    "window": (9, 5, replace(KVREF, finish="donates"), 2, 2, 4),
    "wide window": (12, 6, KVREF, 2, 4, 7),
}


def run(machine: type[Hybrids]) -> None:
    """Draw programs of up to 50 operations."""
    run_state_machine_as_test(machine, settings=settings(stateful_step_count=50))


@pytest.mark.parametrize("name", CACHES)
def test_every_step_starts_from_its_own_state(name: str) -> None:
    """Whatever is admitted, drafted, rejected, computed and ended in whatever order: KV-SNAP-001 to 022."""
    blocks, states, profile, size, interval, window = CACHES[name]

    class Machine(Hybrids):
        make = staticmethod(lambda: SnapshotCache(blocks, states, profile, size, interval, window=window))

    run(Machine)


@pytest.mark.parametrize("saves", ["interval", "chunk_end", "branch"])
def test_what_the_rule_saves_is_hit(saves: str) -> None:
    """With memory for all, a hit is the longest that the profile's rule has left: KV-SNAP-014."""

    class Machine(Hybrids):
        ample = True
        make = staticmethod(lambda: SnapshotCache(2000, 3000, replace(KVREF, saves=saves), 2, 4))

    run(Machine)

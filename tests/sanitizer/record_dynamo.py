"""Dynamo's index under a seeded load: the events it was given, and what it answered between them.

    python tests/sanitizer/record_dynamo.py tests/data/kv_events

Two workers of two ranks each store, remove and clear. One run removes leaves alone, as caches do that evict
the end of a prefix first; the other removes anything. The answers stand as lookups, so that a mirror of the
events is held to Dynamo's. Needs Dynamo's runtime (`pip install --no-deps ai-dynamo-runtime==1.6.1`).
"""

import contextlib
import gzip
import json
import random
import sys
from pathlib import Path
from typing import Any

from dynamo._core import RadixTree  # type: ignore[import-not-found, unused-ignore]

SOURCES = [(worker, rank) for worker in (1, 2) for rank in (0, 1)]
Path_ = tuple[int, ...]


def key(path: Path_) -> int:
    """The key of the last block of a path, by a hash that everybody computes alike."""
    value = 17
    for tokens in path:
        value = (value * 1_000_003 + tokens) % (1 << 61)
    return value


class Index:
    """Dynamo's index, and what was said to it."""

    def __init__(self) -> None:
        self.tree = RadixTree()
        self.lines: list[str] = []
        self.held: dict[tuple[int, int], set[Path_]] = {source: set() for source in SOURCES}

    def tell(self, source: tuple[int, int], data: Any) -> None:
        worker, rank = source
        event = {"event_id": len(self.lines), "data": data, "dp_rank": rank}
        with contextlib.suppress(RuntimeError):  # of a block whose parent it has forgotten
            self.tree.apply_event(worker, json.dumps(event).encode())
        self.lines.append(json.dumps({"worker_id": worker, "event": event}))

    def store(self, source: tuple[int, int], paths: list[Path_]) -> None:
        parent = key(paths[0][:-1]) if len(paths[0]) > 1 else None
        blocks = [{"block_hash": key(path), "tokens_hash": path[-1]} for path in paths]
        self.tell(source, {"stored": {"parent_hash": parent, "blocks": blocks}})
        self.held[source] |= set(paths)

    def remove(self, source: tuple[int, int], path: Path_) -> None:
        self.tell(source, {"removed": {"block_hashes": [key(path)]}})
        self.held[source].discard(path)

    def ask(self, path: Path_) -> None:
        scores = {tuple(source): count for source, count in self.tree.find_matches(list(path)).scores.items()}
        for worker, rank in SOURCES:
            asked = {"tokens_hashes": list(path), "num_cached_blocks": scores.get((worker, rank), 0)}
            self.lines.append(json.dumps({"worker": worker, "dp_rank": rank, "lookup": asked}))


def run(seed: int, *, anything: bool, count: int = 120) -> list[str]:
    """Random events."""
    rng, index = random.Random(seed), Index()
    for number in range(count):
        source = rng.choice(SOURCES)
        held = sorted(index.held[source])
        path = tuple(rng.randrange(1, 4) for _ in range(rng.randrange(1, 6)))
        present = next((n for n in range(len(path), 0, -1) if path[:n] in index.held[source]), 0)
        if rng.random() < 0.6:
            whole = all(path[:n] in index.held[source] for n in range(1, present + 1))
            new = [path[:n] for n in range(present + 1, len(path) + 1)]
            if new and whole:
                index.store(source, new)
        elif held:
            leaves = [p for p in held if not any(q[: len(p)] == p and q != p for q in held)]
            index.remove(source, rng.choice(held if anything else leaves))
        if number % 40 == 39:
            index.tell(source, "cleared")
            index.held[source].clear()
        index.ask(tuple(rng.randrange(1, 4) for _ in range(5)))
    return index.lines


def main() -> None:
    """Record both runs."""
    folder = Path(sys.argv[1])
    for name, anything in (("dynamo-leaves", False), ("dynamo-anything", True)):
        raw = ("\n".join(run(5, anything=anything)) + "\n").encode()
        with (
            (folder / f"{name}.jsonl.gz").open("wb") as plain,
            gzip.GzipFile("", "wb", 9, plain, mtime=0) as file,
        ):
            file.write(raw)


if __name__ == "__main__":
    main()

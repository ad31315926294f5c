"""Engines over the reference's own pools and caches: clean, and found out once a part of them is broken."""

import importlib.util
import random
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvref.errors import OutOfBlocksError
from kvref.memory.blocks import BlockPool
from kvref.memory.profiles import PROFILES
from kvref.memory.tables import BlockTables
from kvref.sanitizer.lines import standard
from kvref.sanitizer.recorder import Recorder
from kvref.sanitizer.sanitizer import Report, sanitize

_SPEC = importlib.util.spec_from_file_location(
    "benchmark_histories", Path(__file__).parents[2] / "benchmarks" / "histories.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
histories = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = histories
_SPEC.loader.exec_module(histories)


def served(
    path: Path, num_events: int, *, seed: int = 0, num_blocks: int = 120, block_size: int = 16, batch: int = 6
) -> Any:
    """Log what an engine does that serves drawn requests, and return the engine."""
    with Recorder(path, num_blocks=num_blocks, block_size=block_size) as log:
        engine = histories.Engine(
            log, random.Random(seed), num_blocks=num_blocks, block_size=block_size, batch=batch
        )
        engine.serve(num_events)
        log.close(num_free=num_blocks)
    return engine


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "batch"),
    [(400, 16, 16), (120, 16, 8), (80, 16, 6), (2000, 1, 6), (40, 64, 9)],
)
def test_a_prefix_cache_is_clean(num_blocks: int, block_size: int, batch: int, tmp_path: Path) -> None:
    """Hits, evictions and preemptions of the reference break no rule, and every block comes back."""
    path = tmp_path / "log.jsonl"
    engine = served(path, 5000, num_blocks=num_blocks, block_size=block_size, batch=batch)
    text = path.read_text()
    assert text.count('"hit"') > 5
    assert engine.cache.evictions > 20
    assert num_blocks > 100 or text.count('"preempt"') > 3
    assert sanitize(path).findings == ()
    assert sanitize(path, loads=standard).events == engine.events + 2


def tables(path: Path, seed: int, *, steps: int = 400) -> None:
    """Log drawn operations on block tables of two groups, one of them with a window."""
    rng, pool = random.Random(seed), BlockPool(60)
    sizes, windows = (4, 2), (None, 6)
    owner = BlockTables(pool, sizes, windows=windows)
    lengths: dict[int, int] = {}
    names = iter(range(10**6))
    with Recorder(path, num_blocks=60, block_sizes=list(sizes), windows=list(windows)) as log:

        def rows(request: int) -> list[list[int]]:
            return [[-1 if b is None else b for b in owner.table(request, g)] for g in range(2)]

        def append(request: int, count: int) -> None:
            before = rows(request)
            given = owner.append(request, count)
            for copy in given.copies:
                log.copy(copy.source, copy.target, copy.count, request=request, group=copy.group)
            for group, row in enumerate(rows(request)):
                log.allocate(request, row[len(before[group]) :], group=group)
            log.compute([request], [lengths[request]], [count])
            lengths[request] += count

        for _ in range(steps):
            known = list(lengths)
            kind = rng.choice(("add", "append", "append", "append", "fork", "truncate", "prune", "free"))
            if kind == "add" or not known:
                name = next(names)
                owner.add(name)
                lengths[name] = 0
                log.request(name, [])
                continue
            request = rng.choice(known)
            try:
                if kind == "append":
                    count = rng.randrange(1, 9)
                    before = lengths[request]
                    log.tokens(request, [rng.randrange(9) for _ in range(count)])
                    try:
                        append(request, count)
                    except OutOfBlocksError:
                        log.truncate(request, before)
                elif kind == "fork":
                    name = next(names)
                    owner.fork(request, name)
                    lengths[name] = lengths[request]
                    log.fork(request, name)
                elif kind == "truncate":
                    before_rows = rows(request)
                    owner.truncate(request, count := rng.randrange(lengths[request] + 1))
                    log.truncate(request, count)
                    lengths[request] = count
                    for group, row in enumerate(rows(request)):
                        gone = [b for b in before_rows[group][len(row) :] if b >= 0]
                        if gone:
                            log.free(request, gone)
                elif kind == "prune":
                    if gone := owner.prune(request):
                        log.free(request, gone)
                elif kind == "free":
                    owner.free(request)
                    del lengths[request]
                    log.abort(request)
                    log.free(request)
            except ValueError:
                continue  # a refusal changes nothing
            log.log("begin", step=0)
            log.log("end", step=0, num_free=pool.num_free)


@pytest.mark.parametrize("seed", range(5))
def test_block_tables_are_clean(seed: int, tmp_path: Path) -> None:
    """Forks, copies on write, cuts and pruned windows of two groups, with the count of free blocks."""
    path = tmp_path / "log.jsonl"
    tables(path, seed)
    assert [finding.told() for finding in sanitize(path).findings] == []


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing where something is to be done."""


BROKEN: dict[str, tuple[type, str, Callable[..., Any], set[str]]] = {
    "a fork takes no reference": (BlockPool, "touch", nothing, {"KV-BLOCK-005", "KV-BLOCK-001"}),
    "nothing is copied on write": (BlockPool, "is_writable", lambda self, block: True, {"KV-BLOCK-022"}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_tables_are_found_out(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same engine with one method of its pool broken."""
    kind, method, broken, expected = BROKEN[name]
    monkeypatch.setattr(kind, method, broken)
    path, found = tmp_path / "log.jsonl", set()
    for seed in range(4):
        try:
            tables(path, seed)
        except AssertionError:
            continue
        found |= {finding.requirement for finding in sanitize(path).findings}
    assert found & expected


def test_a_cache_that_trusts_a_weak_hash_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of one byte collide, and a hit holds another prefix."""
    weak = histories.PrefixCache
    by_hash = PROFILES["vllm"]

    def cache(num_blocks: int, profile: str, block_size: int) -> Any:
        return weak(num_blocks, by_hash, block_size, digest=lambda message: bytes([sum(message) % 256]))

    monkeypatch.setattr(histories, "PrefixCache", cache)
    path = tmp_path / "log.jsonl"
    served(path, 3000)
    assert "KV-PREFIX-001" in {finding.requirement for finding in sanitize(path).findings}


#: An event of a clean history that is missing -> what is then found, at the latest at the end.
MISSING: dict[str, set[str]] = {
    "free": {"KV-BLOCK-044", "KV-BLOCK-001", "KV-BLOCK-004", "KV-PREFIX-016"},
    "compute": {"KV-BLOCK-040", "KV-PREFIX-005", "KV-BLOCK-021"},
    "allocate": {"KV-BLOCK-020"},
    "decode": {"KV-BLOCK-042"},
    "request": {"KV-BLOCK-033"},
    "hit": {"KV-BLOCK-040"},
}


@pytest.mark.parametrize("kind", MISSING)
def test_an_event_that_is_missing_is_missed(kind: str, tmp_path: Path) -> None:
    """Whichever of its kind it is."""
    path, cut = tmp_path / "log.jsonl", tmp_path / "cut.jsonl"
    served(path, 600)
    lines = path.read_text().splitlines()
    at = [i for i, line in enumerate(lines) if line.startswith(f'{{"event":"{kind}"')]
    for missing in random.Random(0).sample(at, min(10, len(at))):
        cut.write_text("\n".join(lines[:missing] + lines[missing + 1 :]))
        found = {finding.requirement for finding in sanitize(cut).findings}
        assert found & MISSING[kind], (missing, found)


def test_memory_does_not_grow_with_the_history(tmp_path: Path) -> None:
    """What is kept is bounded by the pool and by live requests, so gigabytes can pass through."""

    def peak(path: Path) -> int:
        tracemalloc.start()
        report: Report = sanitize(path)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert report.findings == ()
        return most

    short, long = tmp_path / "short.jsonl", tmp_path / "long.jsonl"
    served(short, 4000, num_blocks=80)
    served(long, 16000, num_blocks=80)
    assert peak(long) < 1.25 * peak(short) + 300_000

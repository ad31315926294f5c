"""Speed of the hit curve and of replays against LRU in a plain OrderedDict, on one thread.

    python benchmarks/traces.py            # prints the table committed in benchmarks/README.md
    python benchmarks/traces.py --smoke    # the first requests alone, one repetition: does it run?

The peer is the shortest LRU that Python has: an OrderedDict at one capacity, which looks a request's blocks
up, then touches them. Each row takes turns with it, so that a slow moment hits both; the ratio of medians is
what counts. The last column says whether both find the same hits.
"""

import argparse
import gzip
import json
import os
import platform
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np  # noqa: E402  # the thread count is read when NumPy loads

from kvref.planning.counting import Counting, Touch  # noqa: E402
from kvref.planning.distances import HitCurve  # noqa: E402
from kvref.planning.replay import Replay  # noqa: E402
from kvref.planning.traces import Trace, read_requests  # noqa: E402

PATH = Path(__file__).parents[1] / "tests" / "data" / "traces" / "mooncake_conversation_trace.jsonl.gz"
CAPACITY = 10_000

#: What a run finds: hits in blocks, or requests read.
Run = Callable[[], int]


@dataclass(frozen=True)
class Row:
    """One piece of work and what it is compared with."""

    work: str
    own: Run
    peer: str
    other: Run
    equal: bool = True
    """Whether both must find the same."""


def plain(requests: list[list[int]], touch: Touch) -> int:
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for blocks in requests:
        for block in blocks:
            if block not in cache:
                break
            hits += 1
        for block in blocks if touch == "head_first" else reversed(blocks):
            if block in cache:
                cache.move_to_end(block)
            else:
                cache[block] = None
                if len(cache) > CAPACITY:
                    cache.popitem(last=False)
    return hits


def curve(trace: Trace, touch: Touch) -> int:
    capacities, hits, _ = HitCurve.of(trace, Counting(touch=touch)).points()
    return int(hits[np.searchsorted(capacities, CAPACITY, side="right") - 1])


def parsed() -> int:
    with gzip.open(PATH) as file:
        return sum(len(json.loads(line)["hash_ids"]) for line in file)


def rows(trace: Trace) -> list[Row]:
    requests = [trace.blocks[a:b].tolist() for a, b in zip(trace.starts[:-1], trace.starts[1:], strict=True)]
    whole = [
        Row(
            f"every capacity at once, {touch}",
            lambda touch=touch: curve(trace, touch),
            f"one capacity, {touch}",
            lambda touch=touch: plain(requests, touch),
        )
        for touch in ("head_first", "tail_first")
    ]
    replays = [
        Row(
            f"one capacity through the cache, {name}",
            lambda name=name: Replay(trace, name).at(CAPACITY).hit_blocks,
            "one capacity, head_first",
            lambda: plain(requests, "head_first"),
            name == "plain-lru",
        )
        for name in ("plain-lru", "vllm", "sglang")
    ]
    return [*whole, *replays]


def measure(row: Row, repetitions: int) -> tuple[float, float]:
    """Return the median wall time of both in milliseconds."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repetitions + 1):
        for run, into in zip((row.own, row.other), times, strict=True):
            start = time.perf_counter()
            run()
            into.append((time.perf_counter() - start) * 1e3)
    ours, theirs = (statistics.median(taken[1:]) for taken in times)  # the first one warms up
    return ours, theirs


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="the first requests alone, one repetition")
    smoke = parser.parse_args().smoke
    requests = read_requests(PATH)
    trace = Trace.of(islice(requests, 400 if smoke else None), name=PATH.name, block_size=512)
    reading = Row(
        "reading and checking the trace", lambda: len(Trace.read(PATH).blocks), "json.loads", parsed
    )
    print(f"Python {platform.python_version()}, numpy {np.__version__}; {trace.num_requests} requests,")
    print(f"{len(trace.blocks)} blocks, {trace.num_distinct} different; one capacity is {CAPACITY} blocks")
    print("\n| work | kvref, ms | peer | peer, ms | kvref's time / peer's | equal |")
    print("|---|---:|---|---:|---:|---|")
    for row in [*rows(trace), reading]:
        ours, theirs = measure(row, 1 if smoke else 7)
        same = "yes" if row.own() == row.other() else "no" if row.equal else "other rule"
        print(
            f"| {row.work} | {ours:.0f} | {row.peer} | {theirs:.0f} | {ours / theirs:.2f} | {same} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""Speed of the prefix caches beside those of engines, and their cost per token as they grow; one thread.

    KVREF_VLLM_PYTHON=… KVREF_SGLANG_PYTHON=… KVREF_KVSIM_PYTHON=… python benchmarks/memory.py
    python benchmarks/memory.py --smoke    # the first requests and small caches, one repetition: does it run?

W1 is 2,000 requests for one of 50 documents, W3 200 conversations of 10 turns; both on 4,096 blocks of 16
tokens, one request at a time, in CPU time. Against vLLM each decoded token is a step of its own, as both
hash it; in the tree all tokens of an answer are one step, since neither puts one there before the end. The
trace is Mooncake's. A peer runs in its own interpreter, fed with the same requests, and takes turns with
kvref, so that a slow moment hits both. A peer whose interpreter is not named is skipped.
"""

import argparse
import json
import os
import pickle
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "memory"))

import numpy as np  # noqa: E402  # the thread count is read when NumPy loads
from workloads import BLOCK_SIZE, NUM_BLOCKS, VOCAB, w1, w3  # noqa: E402

from kvref.memory.prefix_cache import PrefixCache  # noqa: E402
from kvref.memory.profiles import PROFILES  # noqa: E402
from kvref.memory.radix_cache import RadixCache  # noqa: E402
from kvref.planning.counting import Counting  # noqa: E402
from kvref.planning.distances import HitCurve  # noqa: E402
from kvref.planning.replay import Replay  # noqa: E402
from kvref.planning.traces import Trace, read_requests  # noqa: E402

TRACE = ROOT / "tests" / "data" / "traces" / "mooncake_conversation_trace.jsonl.gz"
TRACE_BLOCK, WARM_UP = 512, 0.5
#: What kvcache-simulator does: LRU over a trie, partial tails keyed, the whole of a request may hit.
SIMULATED = replace(PROFILES["plain-lru"], name="simulated", release="tail_first")
INTERPRETERS = {
    "vllm": "KVREF_VLLM_PYTHON",
    "sglang": "KVREF_SGLANG_PYTHON",
    "kvsim": "KVREF_KVSIM_PYTHON",
}
NAMES = {"vllm": "vLLM KVCacheManager", "sglang": "SGLang RadixCache", "kvsim": "kvcache-simulator"}
Cache = PrefixCache | RadixCache
Found = dict[str, Any]


class PeerError(Exception):
    """A peer that cannot be run, and why."""


@dataclass(frozen=True)
class Row:
    """Requests, how kvref serves them, and by what name the peer knows them."""

    work: str
    requests: int
    own: Callable[[], Found]
    workload: str


def serve(make: Callable[[], Cache], requests: Any, *, at_once: bool) -> Found:
    cache, hits, start = make(), 0, time.process_time()
    for name, (prompt, decoded) in enumerate(requests):
        hits += cache.admit(name, prompt).num_cached_tokens
        cache.commit(name)
        for tokens in [decoded] * bool(decoded) if at_once else [[token] for token in decoded]:
            cache.extend(name, tokens)
            cache.commit(name)
        cache.finish(name)
    return {"seconds": time.process_time() - start, "hits": hits, "evicted": cache.evictions}


def replayed(trace: Trace, capacity: int) -> Found:
    run, start = Replay(trace, SIMULATED, warm_up=WARM_UP), time.process_time()
    hits = run.at(capacity).hit_tokens
    return {"seconds": time.process_time() - start, "hits": hits, "evicted": None}


def curve(trace: Trace, capacity: int) -> Found:
    start = time.process_time()
    found = HitCurve.of(trace, Counting(touch="tail_first", tail="keyed", warm_up=WARM_UP))
    seconds = time.process_time() - start
    return {"seconds": seconds, "hits": found.at(capacity).hit_tokens, "evicted": None}


@contextmanager
def peer(name: str, workloads: Any) -> Iterator[tuple[str, Callable[[str], Found]]]:
    """Start a peer on workloads; give its version, and what runs it once on one of them."""
    python = os.environ.get(INTERPRETERS[name], "")
    if not python:
        raise PeerError(f"{INTERPRETERS[name]} names no interpreter")
    with tempfile.NamedTemporaryFile() as file:
        file.write(pickle.dumps(workloads))
        file.flush()
        paths = os.pathsep.join((str(ROOT), str(ROOT / "conformance")))
        command = [python, str(Path(__file__).with_name("memory_peers.py")), name, file.name]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        ) as running:
            assert running.stdin is not None
            assert running.stdout is not None
            hello = running.stdout.readline()
            if not hello:
                raise PeerError(f"{python} has no {NAMES[name]}")

            def run(workload: str) -> Found:
                running.stdin.write(f"{workload}\n")
                running.stdin.flush()
                answer = running.stdout.readline()
                if not answer:
                    raise PeerError(f"{NAMES[name]} ended in {workload}")
                found: Found = json.loads(answer)
                return found

            yield json.loads(hello)["version"], run
            running.stdin.close()


def measure(own: Callable[[], Found], other: Callable[[], Found], repetitions: int) -> tuple[Found, Found]:
    """Let both run by turns; return what each found, with the median of its times."""
    found: tuple[list[Found], list[Found]] = ([], [])
    for _ in range(repetitions + 1):
        for run, into in zip((own, other), found, strict=True):
            into.append(run())
    ours, theirs = (
        {**runs[-1], "seconds": statistics.median(run["seconds"] for run in runs[1:])} for runs in found
    )
    return ours, theirs


def compare(name: str, workloads: Any, rows: list[Row], repetitions: int) -> None:
    """Print one row a piece of work, or that the peer is not there."""
    try:
        with peer(name, workloads) as (version, run):
            for row in rows:
                ours, theirs = measure(row.own, lambda row=row: run(row.workload), repetitions)
                mine, its = (row.requests / found["seconds"] for found in (ours, theirs))
                cells = [
                    row.work,
                    f"{mine:.0f}",
                    f"{NAMES[name]} {version}",
                    f"{its:.0f}",
                    f"{mine / its:.2f}",
                ]
                print(f"| {' | '.join([*cells, agreement(ours, theirs)])} |", flush=True)
    except PeerError as error:
        for row in rows:
            print(f"| {row.work} | | {NAMES[name]} | | skipped: {error} | |", flush=True)


def agreement(ours: Found, theirs: Found) -> str:
    """Say what was hit and evicted, once where both agree."""
    pairs = [(what, ours[what], theirs[what]) for what in ("hits", "evicted") if ours[what] is not None]
    return ", ".join(f"{a:,}" if a == b else f"{a:,} and {b:,} {what}" for what, a, b in pairs)


def growth(make: Callable[[int], Cache], num_blocks: int, repetitions: int) -> float:
    """Return the microseconds a token of requests cost on a full cache of so many blocks."""
    rng, cache = np.random.default_rng(1), make(num_blocks)
    documents = rng.integers(0, VOCAB, size=(max(8, num_blocks // 136), 2048)).tolist()
    times = []
    for name in range(len(documents) + 8 + repetitions):
        fresh = name < len(documents)
        document = documents[name if fresh else rng.integers(len(documents) // 2, len(documents))]
        prompt = document + rng.integers(0, VOCAB, size=128).tolist()
        start = time.process_time()
        cache.admit(name, prompt)
        cache.commit(name)
        cache.finish(name)
        times.append(time.process_time() - start)
    return statistics.median(times[-repetitions:]) / 2176 * 1e6


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="the first requests, small caches")
    smoke = parser.parse_args().smoke
    count, repetitions = (60, 1) if smoke else (None, 5)
    requests = {"W1": [(prompt, []) for prompt in w1()][:count], "W3": w3()[:count]}
    records, capacity = (400, 500) if smoke else (0, 10_000)
    trace = Trace.of(islice(read_requests(TRACE), records or None), name=TRACE.name, block_size=TRACE_BLOCK)
    given = {"path": str(TRACE), "block_size": TRACE_BLOCK, "requests": records, "capacity": capacity}
    print(f"Python {platform.python_version()}, numpy {np.__version__}; {NUM_BLOCKS} blocks of {BLOCK_SIZE},")
    print(f"the trace on {capacity} blocks of {TRACE_BLOCK}")
    print("\n| work | kvref, requests/s | peer | peer, requests/s | kvref's / peer's | hits, evictions |")
    print("|---|---:|---|---:|---:|---|")
    served: dict[str, Callable[[], Cache]] = {
        "vllm": lambda: PrefixCache(NUM_BLOCKS + 1, "vllm", BLOCK_SIZE),
        "sglang": lambda: RadixCache(NUM_BLOCKS, "sglang", BLOCK_SIZE),
    }
    for name, make in served.items():
        at_once = name == "sglang"
        rows = [
            Row(work, len(own), lambda own=own, make=make, at=at_once: serve(make, own, at_once=at), work)
            for work, own in requests.items()
        ]
        compare(name, requests, rows, repetitions)
    rows = [
        Row(f"the trace, {work}", trace.num_requests, lambda run=run: run(trace, capacity), "trace")
        for work, run in (("one capacity through the cache", replayed), ("every capacity at once", curve))
    ]
    compare("kvsim", {"trace": {**given, "warm_up": WARM_UP}}, rows, repetitions)
    print("\n| cached blocks | PrefixCache, us a token | RadixCache, us a token |\n|---:|---:|---:|")
    for blocks in (1024, 2048) if smoke else (4096, 16384, 65536, 262144, 1048576):
        chain, tree = (
            growth(lambda n, kind=kind, name=name: kind(n, name, BLOCK_SIZE), blocks, 4 if smoke else 300)
            for kind, name in ((PrefixCache, "vllm"), (RadixCache, "sglang"))
        )
        print(f"| {blocks:,} | {chain:.3f} | {tree:.3f} |", flush=True)


if __name__ == "__main__":
    main()

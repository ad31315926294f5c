"""Speed of chunked scans in float32 against transformers' functions for CPUs, and the cost of a token.

    python benchmarks/recurrent.py            # prints the tables committed in benchmarks/README.md
    python benchmarks/recurrent.py --smoke    # small shapes, one repetition: does it run?

Both sides take one request of the shape of a real model in chunks of 64 and start from a state. All run in
one process on one thread and take turns, so that a slow moment hits all of them; the ratio of medians is what
counts. Needs torch and transformers 5.24; without them the peers say so.
"""

import argparse
import importlib
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import numpy as np  # noqa: E402  # the thread count is read when NumPy loads

from kvref.recurrent.gated_delta import gated_delta_rule  # noqa: E402
from kvref.recurrent.kda import kimi_delta_attention  # noqa: E402
from kvref.recurrent.ssd import ssd_scan  # noqa: E402

CHUNK = 64
Answer = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Work:
    """One scan and the function of transformers that does the same."""

    name: str
    model: str
    scan: Callable[..., Any]
    peer: str
    tensors: dict[str, np.ndarray]
    state: np.ndarray

    def own(self) -> Answer:
        """Scan with kvref in float32."""
        done = self.scan(
            *self.tensors.values(),
            query_start_loc=[0, len(self.tensors["x" if "x" in self.tensors else "q"])],
            initial_state=self.state,
            chunk_size=CHUNK,
            dtype=np.float32,
        )
        return done.out, done.state


def gated_delta_work(num_tokens: int, heads: tuple[int, int], width: int, channels: bool) -> Work:
    """Return a delta rule with keys of length 1 and gates between 0.5 and 1."""
    rng = np.random.default_rng(0)
    num_k_heads, num_v_heads = heads

    def drawn(*shape: int) -> np.ndarray:
        return rng.standard_normal((num_tokens, *shape), np.float32)

    k = drawn(num_k_heads, width)
    tensors = {
        "q": drawn(num_k_heads, width),
        "k": k / np.linalg.norm(k, axis=-1, keepdims=True),
        "v": drawn(num_v_heads, width),
        "g": -rng.random((num_tokens, num_v_heads, *([width] if channels else [])), np.float32) * 0.7,
        "beta": rng.random((num_tokens, num_v_heads), np.float32),
    }
    state = rng.standard_normal((1, num_v_heads, width, width), np.float32)
    if channels:
        peer = "kimi_linear.chunk_kimi_delta_attention"
        return Work("kimi_delta_attention", "Kimi Linear", kimi_delta_attention, peer, tensors, state)
    peer = "qwen3_next.torch_chunk_gated_delta_rule"
    return Work("gated_delta_rule", "Qwen3-Next", gated_delta_rule, peer, tensors, state)


def ssd_work(num_tokens: int, num_heads: int, head_dim: int, num_groups: int, state_dim: int) -> Work:
    """Return a Mamba-2 scan with step sizes as softplus makes them."""
    rng = np.random.default_rng(0)
    tensors = {
        "x": rng.standard_normal((num_tokens, num_heads, head_dim), np.float32),
        "dt": rng.random((num_tokens, num_heads), np.float32),
        "A": -rng.random(num_heads, np.float32),
        "B": rng.standard_normal((num_tokens, num_groups, state_dim), np.float32),
        "C": rng.standard_normal((num_tokens, num_groups, state_dim), np.float32),
    }
    state = rng.standard_normal((1, num_heads, head_dim, state_dim), np.float32)
    return Work("ssd_scan", "Nemotron 3 Nano", ssd_scan, "mamba2.mamba2_chunk_scan", tensors, state)


def peer_of(work: Work) -> Callable[[], Answer]:
    """Return the same scan by transformers.

    Raises: ImportError if torch or transformers is not there.
    """
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    model, name = work.peer.split(".")
    function = getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), name)
    given = {key: torch.from_numpy(x) for key, x in work.tensors.items()}
    batch = {key: x if x.dim() == 1 else x[None] for key, x in given.items()}
    options: dict[str, Any] = {"initial_state": torch.from_numpy(work.state), "output_final_state": True}
    if work.scan is ssd_scan:
        options = {"initial_states": torch.from_numpy(work.state), "return_final_states": True}

    def run() -> Answer:
        out, state = function(*batch.values(), chunk_size=CHUNK, **options)
        return out[0].numpy(), state.numpy()

    return run


def measure(runs: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, float]:
    """Return the median wall time of each in milliseconds; all take turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repetitions + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(values[1:]) for name, values in times.items()}  # the first one warms up


def row(work: Work, repetitions: int) -> str:
    """Measure one scan against its peer, and how far apart the two answers are."""
    length = len(next(iter(work.tensors.values())))
    head = f"| {work.name} | {work.model} | {length}"
    try:
        peer = peer_of(work)
    except ImportError as error:
        own = measure({"own": work.own}, repetitions)["own"]
        return f"{head} | {own:.1f} | {work.peer} | | skipped: {error} | |"
    took = measure({"own": work.own, "peer": peer}, repetitions)
    apart = max(_apart(mine, other) for mine, other in zip(work.own(), peer(), strict=True))
    ratio = took["peer"] / took["own"]
    return f"{head} | {took['own']:.1f} | {work.peer} | {took['peer']:.1f} | {ratio:.2f} | {apart:.1e} |"


def _apart(mine: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(mine - other).max() / np.abs(other).max())


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="small shapes, one repetition")
    smoke = parser.parse_args().smoke
    warnings.simplefilter("ignore")
    repetitions = 1 if smoke else 7
    print(f"Python {platform.python_version()}, numpy {np.__version__}\n")
    print("| scan | shape of | tokens | kvref, ms | peer | peer, ms | kvref's speed / peer's | apart |")
    print("|---|---|---:|---:|---|---:|---:|---:|")
    works = (
        [
            gated_delta_work(130, (2, 4), 32, channels=False),
            gated_delta_work(130, (2, 2), 32, channels=True),
            ssd_work(130, 4, 32, 2, 32),
        ]
        if smoke
        else [
            gated_delta_work(2048, (16, 32), 128, channels=False),
            gated_delta_work(256, (32, 32), 128, channels=True),
            ssd_work(2048, 64, 64, 8, 128),
        ]
    )
    for work in works:
        print(row(work, repetitions), flush=True)
    print("\n| tokens | gated_delta_rule, us a token | ssd_scan, us a token |")
    print("|---:|---:|---:|")
    for length in (100, 200) if smoke else (256, 1024, 4096, 16384):
        few = {
            "gdn": gated_delta_work(length, (2, 4), 64, channels=False),
            "ssd": ssd_work(length, 8, 64, 1, 64),
        }
        took = measure({name: work.own for name, work in few.items()}, repetitions)
        print(
            f"| {length:,} | {took['gdn'] / length * 1e3:.1f} | {took['ssd'] / length * 1e3:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""Speed of the paged reader in float32 against torch's flash SDPA, and its growth with the context.

    python benchmarks/paged_decode.py            # prints the table committed in benchmarks/README.md
    python benchmarks/paged_decode.py --smoke    # small shapes, one repetition: does it run?

All peers run in one process on one thread and take turns, so that a slow moment hits all of them; the ratio
of medians is what counts. Needs torch.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np  # noqa: E402  # the thread count is read when NumPy loads
import torch  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from kvref.attention.paged import paged_attention  # noqa: E402

NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 32, 8, 128, 16


def make_batch(num_requests: int, context: int) -> dict[str, np.ndarray]:
    """Return a float32 decode batch over scrambled blocks; lengths differ a little, as they do in life."""
    rng = np.random.default_rng(0)
    seq_lens = context - 3 * np.arange(num_requests)
    needed = -(-seq_lens // BLOCK_SIZE)
    shape = (int(needed.sum()), BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    ids = rng.permutation(shape[0])
    tables = np.zeros((num_requests, int(needed.max())), np.int64)
    for request, count in enumerate(needed):
        tables[request, :count] = ids[needed[:request].sum() :][:count]
    return {
        "q": rng.standard_normal((num_requests, NUM_Q_HEADS, HEAD_DIM), np.float32),
        "k_cache": rng.standard_normal(shape, np.float32),
        "v_cache": rng.standard_normal(shape, np.float32),
        "block_tables": tables,
        "seq_lens": seq_lens,
        "query_start_loc": np.arange(num_requests + 1),
    }


def torch_on_ready_kv(batch: dict[str, np.ndarray]) -> Callable[[], object]:
    """Flash SDPA on keys and values that already lie in one piece."""
    q, k, v = _dense(batch)
    return lambda: _sdpa(q, k, v)


def torch_with_gather(batch: dict[str, np.ndarray]) -> Callable[[], object]:
    """Flash SDPA after gathering the blocks, which is what a paged cache asks of it."""
    q = _dense(batch)[0]
    caches = [torch.from_numpy(batch[name]) for name in ("k_cache", "v_cache")]
    tables = torch.from_numpy(batch["block_tables"])

    def run() -> object:
        gathered = [c[tables].flatten(1, 2).transpose(1, 2) for c in caches]
        return _sdpa(q, *gathered)

    return run


def kvref_paged(batch: dict[str, np.ndarray]) -> Callable[[], object]:
    """The reference, asked for float32."""
    return lambda: paged_attention(**batch, scale=HEAD_DIM**-0.5, dtype=np.float32)


def measure(runs: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Return the median wall time of each in milliseconds; all take turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repetitions + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(values[1:]) for name, values in times.items()}  # the first one warms up


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="small shapes, one repetition")
    smoke = parser.parse_args().smoke
    torch.set_num_threads(1)
    context, repetitions = (256, 1) if smoke else (4096, 7)
    batch = make_batch(8, context)
    runs = {
        "kvref paged, float32": kvref_paged(batch),
        "torch flash SDPA, KV already gathered": torch_on_ready_kv(batch),
        "torch flash SDPA, gathering first": torch_with_gather(batch),
    }
    medians = measure(runs, repetitions)
    own = medians["kvref paged, float32"]
    print(f"batch 8, heads {NUM_Q_HEADS}/{NUM_KV_HEADS}, head_dim {HEAD_DIM}, context {context}, one thread")
    for name, value in medians.items():
        print(f"  {name:40s} {value:9.1f} ms   {own / value:5.2f}x")
    print("cost per token of context (float64, one request; all lengths take turns)")
    lengths = (256, 512) if smoke else (1024, 4096, 16384, 65536, 131072)
    singles = {length: make_batch(1, length) for length in lengths}
    growth = {
        f"{length}": lambda one=one: paged_attention(**one, scale=HEAD_DIM**-0.5)
        for length, one in singles.items()
    }
    for name, took in measure(growth, repetitions).items():
        print(f"  context {name:>7s} {took:9.2f} ms {took / int(name) * 1e3:7.2f} us/token")


def _dense(batch: dict[str, np.ndarray]) -> tuple[torch.Tensor, ...]:
    q = torch.from_numpy(batch["q"])[:, :, None]
    gathered = [torch.from_numpy(batch[n][batch["block_tables"]]) for n in ("k_cache", "v_cache")]
    return (q, *(x.flatten(1, 2).transpose(1, 2).contiguous() for x in gathered))


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


if __name__ == "__main__":
    main()

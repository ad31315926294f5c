"""Does a correct kernel ever exceed its bound? Every emulated kernel, every family, many seeds: a table.

Run: python benchmarks/false_alarms.py [seeds]. Each seed draws a size and an input dtype for every kernel and
family. The table shows the largest error as a share of the bound; above 1 would be a false alarm.
"""

import sys
from collections import defaultdict

import numpy as np

from kvref.attention.bounds import attention_bound, margin
from kvref.attention.dense import attend
from kvref.attention.merge import with_sinks
from kvref_conformance.emulation import KERNELS, Kernel, run
from kvref_conformance.families import FAMILIES, SIZES, draw

DTYPES = ("bfloat16", "float32", "float16")


def shares(kernel: Kernel, family: str, seed: int) -> tuple[float, float]:
    """Return the largest error of out and of lse, as shares of their bounds, for one draw."""
    rng = np.random.default_rng([seed, 17])
    n, head_dim = SIZES[rng.integers(len(SIZES))]
    dtype = DTYPES[rng.integers(len(DTYPES))]
    softcap = 20.0 if rng.random() < 0.25 else None
    sinks = rng.normal(size=4) if rng.random() < 0.25 else None
    if kernel.serial:
        n = min(n, 1025)
    x = draw(family, n=n, head_dim=head_dim, dtype=dtype, seed=seed)
    seen = run(kernel, x.q, x.k, x.v, x.allowed, scale=x.scale, softcap=softcap, sinks=sinks)
    bound = attention_bound(
        x.q, x.k, x.v, x.allowed, scale=x.scale, softcap=softcap, sinks=sinks, arithmetic=kernel.arithmetic
    )
    q, k, v = (np.asarray(each, np.float64) for each in (x.q, x.k, x.v))
    exact = attend(q, k, v, x.allowed, scale=x.scale, softcap=softcap)
    if sinks is not None:
        exact = with_sinks(exact, sinks)
    return margin(seen.out, exact.out, bound.out), margin(seen.lse, exact.lse, bound.lse)


def main(num_seeds: int) -> int:
    worst_lse: dict[str, float] = defaultdict(float)
    alarms = 0
    print(f"{'largest error / bound':<28}" + "".join(f"{name[:9]:>11}" for name in FAMILIES) + f"{'lse':>11}")
    for name, kernel in KERNELS.items():
        cells = []
        for family in FAMILIES:
            found = [shares(kernel, family, seed) for seed in range(num_seeds)]
            alarms += sum(out > 1 or lse > 1 for out, lse in found)
            cells.append(max(out for out, _ in found))
            worst_lse[name] = max(worst_lse[name], *(lse for _, lse in found))
        print(
            f"{name:<28}" + "".join(f"{cell:>11.3f}" for cell in cells) + f"{worst_lse[name]:>11.3f}",
            flush=True,
        )
    print(f"{alarms} false alarms in {num_seeds * len(KERNELS) * len(FAMILIES)} comparisons")
    return int(alarms > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))

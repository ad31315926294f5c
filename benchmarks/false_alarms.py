"""Does a correct kernel ever exceed its bound? Emulated kernels on seeded inputs: a table of errors.

Run: python benchmarks/false_alarms.py [seeds]. For every kernel each seed draws a family of inputs, a size
(up to 4096 tokens) and an input dtype. The table shows the largest error as a share of the bound, by the
family that was drawn; above 1 would be a false alarm.
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


def shares(kernel: Kernel, seed: int) -> tuple[str, float, float]:
    """Return the family a seed draws, and the largest error of out and of lse as shares of their bounds."""
    rng = np.random.default_rng([seed, 17])
    family = list(FAMILIES)[rng.integers(len(FAMILIES))]
    n, head_dim = SIZES[rng.integers(len(SIZES))]
    dtype = DTYPES[rng.integers(len(DTYPES))]
    softcap = 20.0 if rng.random() < 0.25 else None
    sinks = rng.normal(size=4) if rng.random() < 0.25 else None
    x = draw(family, n=n, head_dim=head_dim, dtype=dtype, seed=seed)
    seen = run(kernel, x.q, x.k, x.v, x.allowed, scale=x.scale, softcap=softcap, sinks=sinks)
    bound = attention_bound(
        x.q, x.k, x.v, x.allowed, scale=x.scale, softcap=softcap, sinks=sinks, arithmetic=kernel.arithmetic
    )
    q, k, v = (np.asarray(each, np.float64) for each in (x.q, x.k, x.v))
    exact = attend(q, k, v, x.allowed, scale=x.scale, softcap=softcap)
    if sinks is not None:
        exact = with_sinks(exact, sinks)
    return family, margin(seen.out, exact.out, bound.out), margin(seen.lse, exact.lse, bound.lse)


def main(num_seeds: int) -> int:
    """Print the table; return 1 if there was a false alarm."""
    alarms = 0
    print(f"{'largest error / bound':<28}" + "".join(f"{name[:9]:>11}" for name in FAMILIES) + f"{'lse':>11}")
    for name, kernel in KERNELS.items():
        worst: dict[str, float] = defaultdict(float)
        for seed in range(num_seeds):
            family, out, lse = shares(kernel, seed)
            alarms += out > 1 or lse > 1
            worst[family], worst["lse"] = max(worst[family], out), max(worst["lse"], lse)
        cells = "".join(f"{worst[column]:>11.3f}" for column in (*FAMILIES, "lse"))
        print(f"{name:<28}{cells}", flush=True)
    print(f"{alarms} false alarms in {num_seeds * len(KERNELS)} comparisons")
    return int(alarms > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))

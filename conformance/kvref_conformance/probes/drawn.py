"""Drawn problems: any lengths, heads and widths of the claimed domain, any claimed variants together.

Checks vary one thing at a time, so that a failure names it. What goes wrong only when a window meets a sink
under a softcap in a request without context is found by drawing all of them at once. Everything follows from
a seed, and what was drawn stands in the case, so a find can be replayed and made smaller by hand or by greed.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.cases import Case, Option
from kvref_conformance.claims import MINIMUM_GROUPS, Claims
from kvref_conformance.probes.needles import coded_values, hunt_near, needles
from kvref_conformance.probes.random import random_problem
from kvref_conformance.problems import POISON_KEY, POISON_VALUE, Placement, Problem

#: Tokens of the longest context that is drawn.
LONGEST = 200
#: What an option is drawn from, by the feature that allows it; each is drawn in one case of three.
VARIANTS: dict[str, tuple[str, tuple[Option, ...]]] = {
    "non_causal": ("causal", (False,)),
    "window": ("window", (1, 2, 15, 16, 17, 64)),
    "chunk_size": ("chunk_size", (1, 8, 17, 64)),
    "softcap": ("softcap", (0.5, 5.0, 50.0)),
    "sinks": ("sinks", (-4.0, 2.0, 30.0)),
    "alibi": ("alibi", (0.0625, 1.0)),
    "spans": ("spans", (3, 16)),
    "mask": ("mask", (0.05, 0.5, 0.95)),
    "value_width": ("v_head_dim", (32,)),
}
SCALES = (0.0078125, 0.09375, 0.3125, -0.125)


def fuzz_cases(claims: Claims, verb: str, seeds: Iterable[int]) -> list[Case]:
    """Return one case for each seed."""
    return [_draw(claims, verb, seed) for seed in seeds]


def drawn_problem(case: Case) -> Problem:
    """Return the problem of a drawn case."""
    variant = variant_of(case)
    if case.option("probe") == "needles":
        problem = needles(case, hunt_near(case, 0, -1, -case.block_size, 1 - case.block_size), **variant)
        altered = {"softcap", "sinks", "alibi_slopes"} & set(variant)
        # these leave a needle less than all of the weight; a negative scale makes it the least of all
        return problem.but(hunts=None) if altered or variant["scale"] < 0 else problem
    problem = random_problem(case, **variant)
    return (
        problem.but(v=coded_values(case, variant.get("v_head_dim")))
        if case.option("probe") == "codes"
        else problem
    )


def drawn_placement(case: Case, claims: Claims) -> Placement:
    """Return where a drawn case's contexts lie, and what the subject allows the rest of memory to hold."""
    rng = np.random.default_rng(case.seed + 97)
    poison: tuple[float, float] = (POISON_KEY, POISON_VALUE)
    if claims.choice("dead-slots") == "any_bits" and rng.random() < 0.5:
        poison = (np.nan, np.nan)
    free = claims.choice("table-padding") == "any_value"
    return Placement(
        seed=case.seed,
        poison=poison,
        table_padding=int(rng.choice([-1, 2**31 - 1])) if free and rng.random() < 0.5 else None,
        spare_blocks=int(rng.integers(1, 9)),
    )


def _draw(claims: Claims, verb: str, seed: int) -> Case:
    rng = np.random.default_rng([17, seed])

    def one_of(values: Iterable[Any]) -> Any:
        some = tuple(values)
        return some[int(rng.integers(len(some)))]

    block_size = one_of(claims.block_sizes)
    grid = [n for k in range(4) for n in (k * block_size - 1, k * block_size, k * block_size + 1)]
    near = [n for n in grid if 0 <= n <= LONGEST]
    lens, queries = [], []
    for _ in range(one_of((1, 2, 2, 3, 5))):
        n = one_of(near) if rng.random() < 0.6 else int(rng.integers(0, LONGEST))
        lens.append(n)
        queries.append(one_of((1, n, int(rng.integers(0, n + 1)))) if "prefill" in claims.features else 1)
    options: dict[str, Option] = {
        name: one_of(values)
        for feature, (name, values) in VARIANTS.items()
        if feature in claims.features and rng.random() < 1 / 3
    }
    return Case(
        verb=verb,
        seq_lens=tuple(lens),
        query_lens=tuple(queries),
        num_kv_heads=one_of((1, 2, 3)),
        group=one_of((*MINIMUM_GROUPS, 2, 5)),
        head_dim=one_of(claims.head_dims),
        block_size=block_size,
        dtype=one_of(claims.dtypes),
        seed=seed,
        options={"scale": one_of(SCALES), "probe": one_of(("random", "codes", "needles")), **options},
    )


def variant_of(case: Case) -> dict[str, Any]:
    """Turn a case's options into the arguments of attention; those that are none are passed over."""
    rng = np.random.default_rng(case.seed + 89)
    heads, total = case.num_q_heads, sum(case.seq_lens)
    variant: dict[str, Any] = {}
    for name, value in case.options.items():
        if name == "sinks":
            variant["sinks"] = (float(value) + rng.integers(-8, 9, heads) / 4).astype(np.float32)
        elif name == "alibi":
            variant["alibi_slopes"] = (float(value) * 2.0 ** -(np.arange(heads) % 8)).astype(np.float32)
        elif name == "spans":
            variant["span_ids"] = _spans(rng, total, int(value))
        elif name == "mask":
            size = sum(n * n_q for n, n_q in zip(case.seq_lens, case.query_lens, strict=True))
            variant["mask"] = rng.random(size) < float(value)
        elif name not in ("probe", "format"):
            variant[name] = value
    return variant


def _spans(rng: np.random.Generator, total: int, longest: int) -> Array:
    """Return runs of span ids with gaps between them, `[total]`."""
    ids = np.full(total, -1, np.int32)
    start = 0
    for span in range(total):
        start += int(rng.integers(0, 2 * longest))
        stop = start + int(rng.integers(1, longest + 1))
        ids[start:stop] = span
        start = stop
        if start >= total:
            break
    return ids

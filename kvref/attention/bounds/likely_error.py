"""How far rounding is likely to move attention if its roundings are independent: a probabilistic companion.

The worst case lets every rounding push the same way. On random data they do not: independent errors of mean
zero add up like a random walk. By Hoeffding's inequality, Σ a_i δ_i with |δ_i| <= u exceeds
λ u √(Σ a_i²) with probability at most 2 exp(−λ²/2).

This bound may judge random data that a suite has drawn itself, and nothing else: equal weights, equal values
or stagnating sums make errors agree, and then a correct kernel may exceed it.

For porters: optional; it adds power on long random contexts.
Source: Hoeffding 1963; Higham and Mary 2019, "A new approach to probabilistic rounding error analysis".
"""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref.attention.arithmetic import Arithmetic, gamma
from kvref.attention.bounds.forward_error import (
    Rows,
    Tilt,
    flush_error,
    least_sum,
    logit_error,
    out_bound,
    part_error,
    remainder,
    sink_error,
    spread,
    sum_length,
    too_small,
    weight_error,
)

#: Probability, for each number compared, that a correct kernel exceeds the bound.
FALSE_ALARM = 1e-12

#: λ such that 2 exp(−λ²/2) is that probability.
LAMBDA = float(np.sqrt(2 * np.log(2 / FALSE_ALARM)))


def likely_out_bound(rows: Rows, facts: Arithmetic, inexact: Array | float = 0.0) -> Array:
    """Return how much `out` is likely to differ at most, `[R, D]`; arguments as `out_bound`.

    Never above the worst case, and equal to it for truncating arithmetic, whose errors have no mean zero.
    """
    worst = out_bound(rows, facts, inexact)
    if facts.rounding == "truncate":
        return worst
    u_p = facts.format("probabilities").roundoff
    n_sums = sum_length(rows, facts)
    worst_g = gamma(n_sums, facts.format("accumulate").roundoff)
    likely_g = LAMBDA * np.sqrt(n_sums) * facts.format("accumulate").roundoff
    g = np.where(np.isfinite(worst_g), np.minimum(worst_g, likely_g), np.inf)

    shared, alone = _log_weight_error(rows, facts)
    delta = logit_error(rows, facts)
    most = np.minimum(LAMBDA * alone, weight_error(rows, facts, delta))
    tilt = Tilt.of(rows, shared + most, sink_error(rows, facts, delta))
    floor = least_sum(rows, tilt, delta)
    tiny = flush_error(facts, tilt, floor)
    tiny_v = flush_error(facts, tilt, floor, rows.cache.weight_unit)
    decode = rows.cache.relative(facts)

    mean_v, flushed_v = np.stack([tilt.weights, tiny_v]) @ ((1 + decode) * np.abs(rows.v))
    second = np.expm1(most) - most
    drift = tilt.weights * (np.expm1(shared) + second)
    moved = spread(drift[None], rows.v, rows.out, inexact)[0]
    squares = np.stack([(tilt.weights * alone) ** 2, tilt.weights**2])
    walk, walk_p = np.sqrt(spread(squares, rows.v, rows.out, inexact, power=2))
    walk_v = np.sqrt(tilt.weights**2 @ rows.v**2)

    score = moved + LAMBDA * walk + tilt.sink_change * np.abs(rows.out)
    size = np.abs(rows.out) + score
    weight = LAMBDA * u_p * (np.maximum(walk_v, walk_p + score) + tilt.sink * size)
    running = g * (1 + u_p) * (mean_v + size)
    flush = flushed_v + tiny.sum(axis=1, keepdims=True) * size + too_small(rows, facts, tilt, floor)
    kept = remainder(g, u_p)
    part = part_error(rows, facts, (2 - kept) * mean_v)
    total = score + (weight + running + decode * (2 - kept) * mean_v + flush + part) / kept
    bound = total + facts.format("output").rounded(np.abs(rows.out) + total)
    likely: Array = np.fmin(bound, worst)
    return likely


def _log_weight_error(rows: Rows, facts: Arithmetic) -> tuple[Array, Array]:
    """Split t_j into what positions may share and what is each position's own (per λ), both `[R, N]`.

    A position's own errors are those of its dot product and of storing its logit and its distance.
    """
    exact_store = replace(facts, scores=facts.working)
    delta = logit_error(rows, facts)
    shared = weight_error(rows, exact_store, logit_error(rows, exact_store, products=0))
    dot = np.sqrt(rows.head_dim) * facts.format("accumulate").roundoff * rows.size
    if not facts.stores_scores:
        return shared, dot
    distance = rows.distance + delta + delta.max(axis=1, keepdims=True)
    stored = facts.format("scores")
    own = stored.rounded(rows.magnitude + delta) ** 2 + (stored.roundoff * distance) ** 2
    return shared, np.where(rows.inside, np.sqrt(dot**2 + own), 0.0)

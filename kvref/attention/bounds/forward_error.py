"""How far rounding may move attention: the terms of the error bound, one function per term.

A kernel under an `Arithmetic` returns, for one row and one output channel,

    out^ = Σ w_j (1 + π_j) (1 + α_j) v_j / (Σ w_j (1 + β_j) + w_sink),     w_j = exp(s_j + θ_j)

where |θ_j| <= t_j collects what happens to a logit and its exponential, |π_j| <= u_P is the rounding of P,
and |α_j|, |β_j| <= γ_N come from the running sums. Subtracting the exact out = Σ p_j v_j leaves five terms:
score, weight, running, flush and part; the result is then rounded once to the output format.

For porters: read `spec/bounds.md` first; the names here are the names there.
Source: Higham 2002, chapters 3 and 4, for running sums; the centred score term is derived in the spec.
"""

from dataclasses import dataclass, replace

import numpy as np

from kvref.arrays import Array
from kvref.attention.arithmetic import Arithmetic, Format, gamma
from kvref.attention.bounds.decoding import PLAIN, Decoding

#: Elements of the largest temporary, |v_j − out| over rows, positions and channels: 16 MiB of float64.
CHUNK = 2**21


@dataclass(frozen=True)
class Rows:
    """The exact quantities of some rows that share one kv head and that each attend to something.

    Positions outside a row's set hold zeros, and −inf as a logit. Per row and position, `[R, N]`: `logits`
    (scaled, capped, biased), `size` = |scale| Σ|q_i k_i|, `query_size` = Σ|q_i|, `key_size` = Σ|k_i|,
    `bias_size` = |bias|. Values `v [N, D]` are finite. `out [R, D]` and `lse [R, 1]` (without the sink) are
    the reference's answer; `sink [R, 1]` is −inf where there is none. `count` and `span`, `[R, 1]`, say how
    many positions a row attends to and how far apart the first and the last of them lie (1 for one alone).
    """

    logits: Array
    size: Array
    query_size: Array
    key_size: Array
    bias_size: Array
    v: Array
    out: Array
    lse: Array
    sink: Array
    count: Array
    span: Array
    head_dim: int
    scale: float
    capped: bool
    cache: Decoding = PLAIN

    @property
    def inside(self) -> Array:
        """Which positions each row attends to, `[R, N]`."""
        inside: Array = ~np.isneginf(self.logits)
        return inside

    @property
    def peak(self) -> Array:
        """The largest logit, the sink's included, `[R, 1]`."""
        peak: Array = np.maximum(self.logits.max(axis=1, keepdims=True), self.sink)
        return peak

    @property
    def lse_all(self) -> Array:
        """The log of the total weight, the sink's included, `[R, 1]`."""
        lse: Array = np.logaddexp(self.lse, self.sink)
        return lse

    @property
    def magnitude(self) -> Array:
        """|s_j|, and 0 outside the set, `[R, N]`."""
        return np.where(self.inside, np.abs(self.logits), 0.0)

    @property
    def distance(self) -> Array:
        """How far each logit lies below the peak, and 0 outside the set, `[R, N]`."""
        return np.where(self.inside, self.peak - self.logits, 0.0)


@dataclass(frozen=True)
class Tilt:
    """What errors t_j in the log-weights can do to the weights.

    `least [R, 1]` is the smallest the total weight can become, relative to the exact one. `weights [R, N]`,
    p_j e^{t_j} / least, is the largest each weight can become, and `change`, p_j (e^{t_j} − 1) / least, the
    most it can move; `sink` and `sink_change`, `[R, 1]`, are the same for the sink.
    """

    least: Array
    weights: Array
    change: Array
    sink: Array
    sink_change: Array

    @staticmethod
    def of(rows: Rows, t: Array, t_sink: Array) -> "Tilt":
        """Tilt the exact weights by errors t `[R, N]` and t_sink `[R, 1]`."""
        log_p, log_sink = rows.logits - rows.lse_all, rows.sink - rows.lse_all
        least = np.exp(log_p - t).sum(axis=1, keepdims=True) + np.exp(log_sink - t_sink)
        upper, upper_sink = np.exp(log_p + t) / least, np.exp(log_sink + t_sink) / least
        return Tilt(least, upper, -np.expm1(-t) * upper, upper_sink, -np.expm1(-t_sink) * upper_sink)


def out_bound(rows: Rows, facts: Arithmetic, inexact: Array | float = 0.0) -> Array:
    """Return the most `out` may differ under some arithmetic, `[R, D]`.

    `inexact` bounds how far `rows.out` itself may be from the exact result.
    """
    u_p, sums = facts.format("probabilities").roundoff, facts.format("accumulate")
    n_sums = sum_length(rows, facts)
    g = gamma(n_sums, sums.roundoff)  # [R, 1]
    delta = logit_error(rows, facts)
    tilt = Tilt.of(rows, weight_error(rows, facts, delta), sink_error(rows, facts, delta))
    floor = least_sum(rows, tilt, delta)
    tiny = flush_error(facts, tilt, floor)
    tiny_v = flush_error(facts, tilt, floor, rows.cache.weight_unit)
    decode = rows.cache.relative(facts)

    mean_v, flushed_v = np.stack([tilt.weights, tiny_v]) @ ((1 + decode) * np.abs(rows.v))
    moved, mean_spread = spread(np.stack([tilt.change, tilt.weights]), rows.v, rows.out, inexact)

    score = moved + tilt.sink_change * np.abs(rows.out)
    size = np.abs(rows.out) + score
    weight = u_p * np.maximum(mean_v, mean_spread + score + tilt.sink * size)
    running = g * (1 + u_p) * (mean_v + size)
    flush = flushed_v + tiny.sum(axis=1, keepdims=True) * size + too_small(rows, facts, tilt, floor)
    kept = remainder(g, u_p)
    part = part_error(rows, facts, (2 - kept) * mean_v)
    total = score + (weight + running + decode * (2 - kept) * mean_v + flush + part) / kept
    bound: Array = total + facts.format("output").rounded(np.abs(rows.out) + total)
    return bound


def lse_bound(rows: Rows, facts: Arithmetic) -> Array:
    """Return the most `lse` (nats, without the sink, in float32) may differ, `[R, 1]`.

    Log-weight errors do not cancel here, and neither does the rounding of the reference logit m:
    |lse^ − lse| <= ln Σ p_j e^{t_j} − ln(1 − γ_N − …) + u (4|lse| + 2|m| + 2|ln l| + 4).
    """
    delta = logit_error(rows, facts)
    t = weight_error(rows, facts, delta)
    alone = replace(rows, sink=np.full_like(rows.sink, -np.inf))
    tilt = Tilt.of(alone, t, np.zeros_like(rows.sink))
    in_sum = facts if facts.rounded_sum else replace(facts, probabilities=facts.working)
    floor = np.exp(rows.lse - rows.peak) * tilt.least * np.exp(-delta.max(axis=1, keepdims=True))
    lost = flush_error(in_sum, tilt, floor).sum(axis=1, keepdims=True)
    g = gamma(sum_length(rows, facts), facts.format("accumulate").roundoff)
    u_p = in_sum.format("probabilities").roundoff if facts.rounded_sum else 0.0
    kept = np.maximum(remainder(g, u_p) - lost, 0.0)
    m = rows.logits.max(axis=1, keepdims=True)
    steps = 4 * np.abs(rows.lse) + 2 * np.abs(m) + 2 * np.abs(rows.lse - m) + 4
    growth = np.log1p(tilt.change.sum(axis=1, keepdims=True))
    bound: Array = growth - np.log(kept) + facts.roundoff * steps
    return bound


def logit_error(rows: Rows, facts: Arithmetic, products: int | None = None) -> Array:
    """Bound δ_j, the error of each logit as stored, `[R, N]`.

    It comes from the dot product (`products` roundings, one per channel), the scale, q rounded again, the
    softcap, the bias, and the format of S.
    """
    u, sums = facts.roundoff, facts.format("accumulate")
    dot = gamma(rows.head_dim if products is None else products, sums.roundoff)
    finish = gamma(3, u)  # scale rounded, applied, base changed
    decode = rows.cache.relative(facts)
    relative = dot + finish + dot * finish
    relative = relative + decode * (1 + relative)
    rescaled = np.maximum(1.0, abs(rows.scale) * rows.cache.key_unit)
    error = relative * rows.size + (rows.head_dim * rescaled + 1) * sums.underflow
    error = error + rows.cache.underflow * abs(rows.scale) * rows.query_size
    error = np.where(rows.size > sums.largest, np.inf, error)
    for name, other_size in (("query", rows.key_size), ("key", rows.query_size)):
        if getattr(facts, name) is not None:
            again = facts.format(name)
            lost = again.underflow * rescaled * other_size
            error = error + again.roundoff * (rows.size + error) + (1 + relative) * lost
    steps = (facts.tanh_error + 4 if rows.capped else 1) * u
    error = error + steps * (rows.magnitude + rows.bias_size + error) + 3 * u * rows.bias_size
    if facts.stores_scores:
        error = error + facts.format("scores").rounded(rows.magnitude + error)
    return np.where(rows.inside, error, 0.0)


def weight_error(rows: Rows, facts: Arithmetic, delta: Array) -> Array:
    """Bound t_j, the error of ln w_j up to what all positions share, `[R, N]`.

    After the logit's own δ_j come: the base change of the logit and of the reference logit, their difference,
    the exponential, the rescalings of an online softmax, and the weights of merged splits. The computed
    reference logit is off by at most max δ, so a distance x_j is at most x_j + δ_j + max δ.
    """
    u, exp = facts.roundoff, gamma(facts.exp_error, facts.roundoff)
    stored = facts.format("scores").roundoff if facts.stores_scores else 0.0
    distance = rows.distance + delta + delta.max(axis=1, keepdims=True)
    magnitude = rows.magnitude + delta
    rescalings, merges = _rescalings(rows, facts), _merges(rows, facts)
    t = delta + 4 * u * magnitude + (3 * u + stored) * distance + exp
    t = t + rescalings * exp + 2 * u * np.where(rescalings, distance, 0.0)
    lse_k = np.maximum(magnitude, np.abs(rows.lse)) + distance
    merge = u * (6 * lse_k + 3 * np.log(rows.count + 1) + 3 * distance + 4) + 2 * exp
    return np.where(rows.inside, t + np.where(merges, merges * merge, 0.0), 0.0)


def sink_error(rows: Rows, facts: Arithmetic, delta: Array) -> Array:
    """Bound τ, the error of the sink's log-weight, `[R, 1]`: through the softmax or through the lse."""
    u, exp = facts.roundoff, gamma(facts.exp_error, facts.roundoff)
    stored = facts.format("scores").roundoff if facts.stores_scores else 0.0
    here = ~np.isneginf(rows.sink)
    sink = np.abs(np.where(here, rows.sink, 0.0))
    distance = np.where(here, rows.peak - rows.sink, 0.0) + delta.max(axis=1, keepdims=True)
    step = 2 * exp + u * (6 * (sink + np.abs(rows.lse)) + 3 * np.log(rows.count + 1) + 3 * distance + 4)
    tau = (1 + _merges(rows, facts)) * step + stored * (sink + distance)
    return np.where(here, tau, 0.0)


def least_sum(rows: Rows, tilt: Tilt, delta: Array) -> Array:
    """Return the least a kernel's sum of weights can be, in units of its own largest weight, `[R, 1]`."""
    drift = np.exp(-delta.max(axis=1, keepdims=True))
    total: Array = np.exp(rows.lse_all - rows.peak) * tilt.least * drift
    return total


def flush_error(facts: Arithmetic, tilt: Tilt, floor: Array, unit: Array | float = 1.0) -> Array:
    """Bound what each weight loses to underflow, `[R, N]`: no more than the weight itself.

    The exponential may flush to zero, and P may be rounded among subnormal numbers, multiplied by at least
    `unit` before. A weight that has not been divided by the sum of weights yet is measured against `floor`,
    the least that sum can be.
    """
    p = facts.format("probabilities").underflow / unit
    working = Format.of(facts.working).underflow / unit
    lost: Array = np.minimum(tilt.weights, working / floor + (p if facts.normalized else p / floor))
    return lost


def too_small(rows: Rows, facts: Arithmetic, tilt: Tilt, floor: Array) -> Array:
    """Bound what products and sums of values lose among subnormal numbers, `[R, 1]`."""
    count, unit = rows.count + sum_length(rows, facts), rows.cache.value_unit.max(initial=1.0)
    decoded = rows.cache.underflow * tilt.weights.sum(axis=1, keepdims=True)
    lost: Array = count * facts.format("accumulate").underflow * unit / np.minimum(floor, 1.0) + decoded
    return lost


def part_error(rows: Rows, facts: Arithmetic, mean_v: Array) -> Array:
    """Bound the rounding of partial outputs in their own format, once per merge, `[R, D]`.

    `mean_v` is the largest the computed parts can be, weighted and added up.
    """
    merges, part = _merges(rows, facts), facts.format("partial")
    error: Array = gamma(
        merges, part.roundoff
    ) * mean_v + merges * part.underflow * rows.cache.value_unit.max(initial=1.0)
    return error


def sum_length(rows: Rows, facts: Arithmetic) -> Array:
    """Return N, the most roundings between one product of P·V and the result, `[R, 1]`.

    One for the product, one per addition, one per rescaling, four per merge (two divisions by a sum, the
    weight, the addition), and six to finish (reciprocal, product, and the sink's factor).
    """
    depth = rows.count if facts.depth is None else np.minimum(rows.count, facts.depth)
    length: Array = depth + 1 + _rescalings(rows, facts) + 4 * _merges(rows, facts) + 6
    return length


def spread(weights: Array, v: Array, out: Array, inexact: Array | float, power: int = 1) -> Array:
    """Return Σ weights_j (|v_j − out| + inexact)^power in chunks: `[K, R, D]` from weights `[K, R, N]`."""
    kinds, num_rows, n = weights.shape
    total = np.zeros((kinds, num_rows, v.shape[1]))
    around = np.broadcast_to(inexact, out.shape)[:, None, :]
    step = max(1, CHUNK // (num_rows * max(1, v.shape[1])))
    by_row = np.ascontiguousarray(weights.transpose(1, 0, 2))  # [R, K, N]
    for start in range(0, n, step):
        gap = np.abs(v[None, start : start + step] - out[:, None, :])  # [R, n, D]
        gap += around
        gap = gap if power == 1 else gap**power
        total += (by_row[:, :, start : start + step] @ gap).transpose(1, 0, 2)
    return total


def remainder(g: Array, u_p: float) -> Array:
    """Return 1 − |(1 + π)(1 + β) − 1|, the least a computed sum is of the exact one; 0 if nothing is left."""
    return np.maximum(1 - g - u_p * (1 + g), 0.0)


def _rescalings(rows: Rows, facts: Arithmetic) -> Array:
    if facts.block is None:
        return np.zeros_like(rows.count)
    most: Array = np.minimum(rows.count - 1, -(-(rows.span - 1) // facts.block))
    return most


def _merges(rows: Rows, facts: Arithmetic) -> Array:
    most: Array = np.minimum(rows.count - 1, facts.merges)
    return most

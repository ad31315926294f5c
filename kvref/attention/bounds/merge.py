"""How far from the exact merge of two partial states a kernel may be: the bound on `merge` alone.

A merge is attention over two positions whose logits are the two lse and whose values are the two outputs, all
given exactly. So the score, running and output terms of `spec/bounds.md` apply with N = 6 and no dot product.

For porters: needed only where a kernel offers the merge as a function of its own.
Source: derived in `spec/bounds.md`.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, widen
from kvref.attention.arithmetic import REFERENCE, Arithmetic, gamma, resolved
from kvref.attention.bounds.attention import Bound
from kvref.attention.merge import State, merge
from kvref.errors import ArgumentError

#: A weight's division by the sum, the product, the addition, and a division of the sum: with two to spare.
_ROUNDINGS = 6


def merge_bound(
    out_a: ArrayLike, lse_a: ArrayLike, out_b: ArrayLike, lse_b: ArrayLike, *, arithmetic: Arithmetic
) -> tuple[State, Bound]:
    """Return the exact merge of two states and the bound around it.

    Shapes: out [num_tokens, num_q_heads, head_dim], lse [num_tokens, num_q_heads] (nats). "input" in
    `arithmetic` is the dtype of `out_a`. Where both states are empty the bound is 0.
    Raises: ShapeError, DTypeError, ArgumentError (a lse that is NaN or +∞ belongs to no state).
    """
    facts = resolved(arithmetic, "out_a", out_a)
    a = State(widen("out_a", out_a), widen("lse_a", lse_a))
    b = State(widen("out_b", out_b), widen("lse_b", lse_b))
    state = merge(a, b)
    for name, lse in (("lse_a", a.lse), ("lse_b", b.lse)):
        if not (lse < np.inf).all():
            at = np.argwhere(~(lse < np.inf))[0].tolist()
            raise ArgumentError(
                f"{name}{at} = {lse[tuple(at)]}, expected a finite number, or −inf for an empty part "
                "(KV-ATTN-031 merge-identity)"
            )
    own = replace(REFERENCE, output="float64")
    with np.errstate(all="ignore"):
        kernel, reference = _bound(a, b, state, facts), _bound(a, b, state, own)
    empty = np.isneginf(state.lse)
    out = np.where(empty[..., None], 0.0, kernel.out + reference.out)
    return state, Bound(out, np.where(empty, 0.0, kernel.lse + reference.lse))


def _bound(a: State, b: State, whole: State, facts: Arithmetic) -> Bound:
    u, exp = facts.roundoff, gamma(facts.exp_error, facts.roundoff)
    out, lse = np.stack([a.out, b.out]), np.stack([a.lse, b.lse])  # [2, T, H, D], [2, T, H]
    there = ~np.isneginf(lse)
    log_p = lse - whole.lse
    distance = np.where(there, lse.max(axis=0) - lse, 0.0)
    t = np.where(there, u * (4 * np.abs(np.where(there, lse, 0.0)) + 3 * distance) + exp, 0.0)
    least = np.exp(log_p - t).sum(axis=0)
    weights = np.exp(log_p + t) / least  # [2, T, H]
    change = weights * -np.expm1(-t)
    out = np.where(there[..., None], out, 0.0)  # an empty part has no value to move

    g = gamma(_ROUNDINGS, u)
    score = (change[..., None] * np.abs(out - whole.out)).sum(axis=0)
    mean = (weights[..., None] * np.abs(out)).sum(axis=0)
    running = g * (mean + np.abs(whole.out) + score) / (1 - g)
    tiny = 2 * facts.format("accumulate").underflow * (1 + np.abs(out).sum(axis=0) + np.abs(whole.out))
    total = score + running + tiny
    total = total + facts.format("output").rounded(np.abs(whole.out) + total)
    growth = np.log1p(change.sum(axis=0))
    ln_sum = whole.lse - lse.max(axis=0)
    steps: Array = u * (4 * np.abs(whole.lse) + 2 * np.abs(lse.max(axis=0)) + 2 * np.abs(ln_sum) + 4)
    return Bound(total, growth + gamma(2, u) + steps)

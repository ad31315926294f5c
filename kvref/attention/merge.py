"""Partial attention states and how they combine.

An attention output over a set of slots S is the pair (out, lse): the weighted mean of the values, and the
log of the total weight. Pairs over disjoint sets combine into the pair over their union, so a long context
may be read in any number of pieces (split-KV), and a shared prefix once for many requests (cascade).

Realises: KV-ATTN-031 merge-identity, KV-ATTN-032 merge-order, KV-ATTN-033 merge-additivity.
For porters: build `merge` first; every other function here, and the paged reader, is a fold over it.
Source: FlashAttention-2 (Dao 2023, section 3.1); the empty state follows from the definition.
"""

from collections.abc import Iterable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, as_array, check_shape, widen
from kvref.errors import ArgumentError


class State(NamedTuple):
    """Attention over a set of slots.

    `out [num_tokens, num_q_heads, head_dim]`, `lse [num_tokens, num_q_heads]` in nats.
    """

    out: Array
    lse: Array


def empty_state(num_tokens: int, num_q_heads: int, head_dim: int, dtype: Any = np.float64) -> State:
    """Return attention over no slot at all: out 0, lse −inf (KV-ATTN-007 empty-row)."""
    return State(
        np.zeros((num_tokens, num_q_heads, head_dim), dtype),
        np.full((num_tokens, num_q_heads), -np.inf, dtype),
    )


def merge(a: State, b: State) -> State:
    """Combine attention over two disjoint sets of slots.

    Shapes: out [num_tokens, num_q_heads, head_dim], lse [num_tokens, num_q_heads] (nats).
    An empty set is (0, −inf) and changes nothing, on either side or on both; its `out` is not read. Computed
    in float64, or in float32 where both states are float32. A lse that is NaN or +∞ gives NaN.
    Raises: ShapeError if the two states differ in any axis; DTypeError if one holds no real numbers.
    """
    a, b = _widened("a", a), _widened("b", b)
    _check_alike(a, b)
    with np.errstate(over="ignore", invalid="ignore"):
        lse = np.logaddexp(a.lse, b.lse)  # [T, H]; −inf with −inf stays −inf
    return State(_share(a, lse) + _share(b, lse), lse)


def merge_all(states: Iterable[State]) -> State:
    """Combine attention over any number of disjoint sets, left to right.

    Raises: ArgumentError if there is no state; ShapeError if two differ in any axis.
    """
    parts = list(states)
    if not parts:
        raise ArgumentError("states is empty, expected at least one state (KV-ATTN-031 merge-identity)")
    return reduce(merge, parts)


def with_sinks(state: State, sinks: ArrayLike) -> State:
    """Give each query head's sink its share of the weight.

    A sink is a logit per query head that takes weight and returns nothing: it stands in the denominator, is
    not multiplied by `scale`, and belongs to the whole context, so it is applied once, after every merge.
    `sinks [num_q_heads]`. The lse stays without the sink, so a row that attends to nothing stays (0, −inf).

    Realises: KV-ATTN-035 lse-without-sink, KV-ATTN-041 sink-in-denominator, KV-ATTN-042 sink-per-query-head,
    KV-ATTN-043 sink-once, KV-ATTN-045 sink-unscaled, KV-ATTN-046 sink-on-empty-row.
    Raises: ShapeError, DTypeError.
    Source: gpt-oss model card; equal to appending the logit and dropping its column after the softmax.
    """
    state = _widened("state", state)
    logits = widen("sinks", sinks)  # float64, also beside a float32 state
    check_shape("sinks", logits, [state.lse.shape[-1]])
    with np.errstate(over="ignore", invalid="ignore"):
        return State(_share(state, np.logaddexp(state.lse, logits)), state.lse)


def _share(state: State, lse: Array) -> Array:
    """Scale a part by its weight in the whole: exp(lse_part − lse_whole), and 0 where the part is empty."""
    empty = np.isneginf(state.lse)
    with np.errstate(over="ignore", invalid="ignore"):
        weight = np.where(empty, 0.0, np.exp(state.lse - lse)).astype(state.out.dtype)  # [T, H]
        return np.where(empty[..., None], 0.0, state.out * weight[..., None])


def _widened(name: str, state: State) -> State:
    """Return a state as float32 where both its arrays are, and as float64 otherwise."""
    out, lse = as_array(f"{name}.out", state.out), as_array(f"{name}.lse", state.lse)
    dtype = np.float32 if out.dtype == lse.dtype == np.float32 else np.float64
    return State(widen(f"{name}.out", out, dtype), widen(f"{name}.lse", lse, dtype))


def _check_alike(a: State, b: State) -> None:
    check_shape("a.out", a.out, ["num_tokens", "num_q_heads", "head_dim"])
    check_shape("a.lse", a.lse, a.out.shape[:-1])
    check_shape("b.out", b.out, a.out.shape)
    check_shape("b.lse", b.lse, a.lse.shape)

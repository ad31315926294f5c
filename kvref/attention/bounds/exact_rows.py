"""The exact quantities that every bound on attention rests on, gathered a bounded number of rows at a time.

Rows that share a kv head are taken together, so that keys and values are widened once; what no row attends to
is left out. Memory stays small however long the context is.

For porters: any order of the same rows will do.
Source: `spec/bounds.md`, on what is computed exactly.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from kvref.arrays import Array, widen
from kvref.attention.bounds.decoding import PLAIN, Decoding
from kvref.attention.bounds.forward_error import Rows
from kvref.attention.dense import attend
from kvref.attention.masks import Variant
from kvref.attention.merge import State, with_sinks

#: Elements of one array over rows and positions: 2 MiB of float64.
_ROWS_TIMES_POSITIONS = 2**18


class RowPiece(NamedTuple):
    """Rows that share a kv head: their places `at` in out and lse, and the positions `live` any attends to.

    `unknown [R, D]` says which components rest on a value that is not finite; it stands as 0 in `rows.v`.
    """

    at: tuple[Array, Array]
    kv_head: int
    live: Array
    unknown: Array
    rows: Rows


def row_pieces(
    q: Array,
    k: Array,
    v: Array,
    allowed: Array,
    variant: Variant,
    bias: Array | None,
    state: State,
    cache: Decoding | None = None,
) -> Iterator[RowPiece]:
    """Fill `state` with the exact answer of one request, one kv head at a time, and yield what it rests on.

    `k` and `v` may be narrow: they are widened one kv head at a time, so that a long context fits.
    """
    read = allowed.any(axis=0)  # what no row attends to stays out even of the last bit
    for kv_head, group in enumerate(np.split(np.arange(q.shape[1]), k.shape[1])):
        keys, values = widen("k", k[:, kv_head]), widen("v", v[:, kv_head])
        own = attend(
            q[:, group],
            keys[read, None],
            values[read, None],
            allowed[:, read],
            scale=variant.scale,
            softcap=variant.softcap,
            bias=None if bias is None else bias[group][..., read],
        )
        if variant.sinks is not None:
            own = with_sinks(own, np.asarray(variant.sinks)[group])
        state.out[:, group], state.lse[:, group] = own
        finite = np.isfinite(values)
        tame = values if finite.all() else np.where(finite, values, 0.0)
        for queries, heads in _row_blocks(allowed, group):
            live = np.flatnonzero(allowed[queries].any(axis=0))
            rows = _rows(
                q[queries, heads],
                keys[live],
                tame[live],
                allowed[queries],
                variant,
                0.0 if bias is None else bias[heads[:, None], queries[:, None], live],
                State(state.out[queries, heads], state.lse[queries, heads][:, None]),
                heads,
                PLAIN if cache is None else cache.at(live, kv_head),
            )
            known = finite[live]
            unknown = np.zeros_like(rows.out, np.bool_) if known.all() else rows.inside @ ~known
            yield RowPiece((queries, heads), kv_head, live, unknown, rows)


def _row_blocks(allowed: Array, heads: Array) -> Iterator[tuple[Array, Array]]:
    """Yield (queries, query heads) of rows that attend to something, a bounded number at a time."""
    step = max(1, _ROWS_TIMES_POSITIONS // max(1, allowed.shape[1]))
    queries = np.flatnonzero(allowed.any(axis=1))
    pairs = np.repeat(queries, len(heads)), np.tile(heads, len(queries))
    for start in range(0, len(pairs[0]), step):
        yield pairs[0][start : start + step], pairs[1][start : start + step]


def _rows(
    q: Array,
    k: Array,
    v: Array,
    allowed: Array,
    variant: Variant,
    bias: Array | float,
    state: State,
    heads: Array,
    cache: Decoding,
) -> Rows:
    """Gather the exact quantities of rows that share one kv head; `allowed` is over the whole context."""
    inside = allowed[:, allowed.any(axis=0)]
    with np.errstate(invalid="ignore", over="ignore"):
        logits = variant.scale * (q @ k.T)  # [R, N]
        if variant.softcap is not None:
            logits = variant.softcap * np.tanh(logits / variant.softcap)
        logits = logits + bias
        size = abs(variant.scale) * (np.abs(q) @ np.abs(k).T)
    none = np.full(q.shape[0], -np.inf)
    sinks = none if variant.sinks is None else np.asarray(variant.sinks, np.float64)[heads]
    first, last = np.argmax(allowed, axis=1), allowed.shape[1] - 1 - np.argmax(allowed[:, ::-1], axis=1)
    return Rows(
        logits=np.where(inside, logits, -np.inf),
        size=np.where(inside, size, 0.0),
        query_size=np.where(inside, np.abs(q).sum(axis=1, keepdims=True), 0.0),
        key_size=np.where(inside, np.abs(k).sum(axis=1), 0.0),
        bias_size=np.where(inside, np.abs(bias), 0.0),
        v=v,
        out=state.out,
        lse=state.lse,
        sink=sinks[:, None],
        count=inside.sum(axis=1, keepdims=True),
        span=(last - first + 1)[:, None],
        head_dim=q.shape[1],
        scale=variant.scale,
        capped=variant.softcap is not None,
        cache=cache,
    )

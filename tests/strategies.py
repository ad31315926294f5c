"""Hypothesis strategies shared by the tests: ragged batches, and values that are exact in every dtype."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvref.arrays import Array


@dataclass(frozen=True)
class Ragged:
    """A ragged batch of small dyadic queries, keys and values."""

    q: Array
    k: Array
    v: Array
    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    scale: float

    @property
    def query_start_loc(self) -> Array:
        return np.concatenate([[0], np.cumsum(self.query_lens)]).astype(np.int64)

    @property
    def context_start_loc(self) -> Array:
        return np.concatenate([[0], np.cumsum(self.seq_lens)]).astype(np.int64)

    @property
    def lengths(self) -> dict[str, Any]:
        return {"query_start_loc": self.query_start_loc, "seq_lens": np.array(self.seq_lens, np.int64)}


def dyadic(rng: np.random.Generator, *shape: int) -> Array:
    """Return multiples of 1/8 in ±4: exact in bfloat16, and sums of a few thousand are exact in float32."""
    return rng.integers(-32, 33, shape) / 8.0


def ragged(seed: int, seq_lens: tuple[int, ...], query_lens: tuple[int, ...], **heads: int) -> Ragged:
    """Return a batch drawn from a seed; `heads` may set num_kv_heads, group, head_dim, v_head_dim."""
    rng = np.random.default_rng(seed)
    kv, group, dim = heads.get("num_kv_heads", 2), heads.get("group", 3), heads.get("head_dim", 8)
    tokens, context = sum(query_lens), sum(seq_lens)
    return Ragged(
        dyadic(rng, tokens, kv * group, dim),
        dyadic(rng, context, kv, dim),
        dyadic(rng, context, kv, heads.get("v_head_dim", dim)),
        query_lens,
        seq_lens,
        0.375,
    )


@st.composite
def batches(draw: st.DrawFn, *, max_len: int = 12, more_queries: bool = True) -> Ragged:
    """Draw a batch: empty contexts, requests without queries, and more queries than context among them."""
    seq_lens = tuple(draw(st.lists(st.integers(0, max_len), min_size=1, max_size=4)))
    query_lens = tuple(draw(st.integers(0, n + 2 if more_queries else n)) for n in seq_lens)
    heads = {
        "num_kv_heads": draw(st.integers(1, 3)),
        "group": draw(st.sampled_from([1, 2, 3, 7])),
        "head_dim": draw(st.sampled_from([1, 4, 6])),
        "v_head_dim": draw(st.sampled_from([1, 4, 5])),
    }
    return ragged(draw(st.integers(0, 2**32)), seq_lens, query_lens, **heads)


@st.composite
def variants(draw: st.DrawFn, batch: Ragged) -> dict[str, Any]:
    """Draw any combination of variants that fits a batch."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    num_q_heads, context = batch.q.shape[1], sum(batch.seq_lens)
    pairs = sum(n * n_q for n, n_q in zip(batch.seq_lens, batch.query_lens, strict=True))
    possible = {
        "causal": draw(st.booleans()),
        "window": draw(st.integers(1, 6)),
        "chunk_size": draw(st.integers(1, 6)),
        "softcap": draw(st.sampled_from([0.5, 2.0, 30.0])),
        "sinks": rng.integers(-8, 9, num_q_heads) / 4.0,
        "alibi_slopes": rng.integers(0, 5, num_q_heads) / 8.0,
        "span_ids": np.repeat(rng.integers(-1, 3, context), 2)[:context],
        "mask": rng.integers(0, 2, pairs) == 1,
    }
    return {name: possible[name] for name in draw(st.sets(st.sampled_from(sorted(possible)), max_size=4))}


def scatter(batch: Ragged, block_size: int, seed: int, *, poison: float = np.nan) -> dict[str, Any]:
    """Place a batch's contexts in scrambled blocks; every other slot is poisoned, padding entries are −1."""
    rng = np.random.default_rng(seed)
    needed = [-(-n // block_size) for n in batch.seq_lens]
    ids = list(rng.permutation(sum(needed) + 2))
    shape = (len(ids), block_size, batch.k.shape[1])
    k_cache, v_cache = (
        np.full((*shape, batch.k.shape[2]), poison),
        np.full((*shape, batch.v.shape[2]), poison),
    )
    tables = np.full((len(needed), max([*needed, 0]) + 1), -1)
    for request, count in enumerate(needed):
        tables[request, :count] = [ids.pop() for _ in range(count)]
        for i in range(batch.seq_lens[request]):
            slot = tables[request, i // block_size], i % block_size
            k_cache[slot] = batch.k[batch.context_start_loc[request] + i]
            v_cache[slot] = batch.v[batch.context_start_loc[request] + i]
    return {"k_cache": k_cache, "v_cache": v_cache, "block_tables": tables}

"""Latent attention: absorbed against naive, PyTorch over expanded keys, and exact integers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.attention.mla import (
    absorb_queries,
    as_one_kv_head,
    expand_outputs,
    expand_records,
    mla_attention,
    mla_attention_naive,
)
from kvref.errors import ArgumentError, BlockTableError, DTypeError, KVError, LengthError, ShapeError

#: Twice the unit roundoff of float64: the factor 2 pays for the rounding of the bounds themselves.
U = 2.0**-52


@dataclass(frozen=True)
class Model:
    """One layer's matrices, one step's queries, and a cache whose dead slots hold NaN."""

    q_nope: np.ndarray
    q_rope: np.ndarray
    w_uk: np.ndarray
    w_uv: np.ndarray
    kv_cache: np.ndarray
    records: list[np.ndarray]  # of each request, in order of position
    batch: dict[str, Any]

    def absorbed(self, **variant: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return out [T, H, v] and lse by the absorbed path."""
        q = absorb_queries(self.q_nope, self.q_rope, self.w_uk)
        state = mla_attention(q, self.kv_cache, latent_dim=self.w_uk.shape[2], **self.batch, **variant)
        return expand_outputs(state.out, self.w_uv), state.lse

    def naive(self, **variant: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return out [T, H, v] and lse by the naive path."""
        parts = self.q_nope, self.q_rope, self.kv_cache, self.w_uk, self.w_uv
        return mla_attention_naive(*parts, **self.batch, **variant)


def make(
    seed: int,
    seq_lens: list[int],
    query_lens: list[int],
    heads: int = 3,
    dims: tuple[int, int, int, int] = (5, 4, 7, 6),
    draw: Any = None,
    block_size: int = 4,
) -> Model:
    """Build a model of `dims` = nope, rope, latent, v over contexts in scrambled blocks."""
    rng = np.random.default_rng(seed)
    draw = draw or rng.standard_normal
    nope, rope, latent, v_dim = dims
    records = [draw((n, latent + rope)) for n in seq_lens]
    needed = [-(-n // block_size) for n in seq_lens]
    blocks = rng.permutation(sum(needed) + 3)
    kv_cache = np.full((len(blocks), block_size, latent + rope), np.nan)
    block_tables = np.full((len(seq_lens), max([0, *needed]) + 1), -1)
    for request, (record, count) in enumerate(zip(records, needed, strict=True)):
        start = sum(needed[:request])
        block_tables[request, :count] = blocks[start : start + count]
        for position, row in enumerate(record):
            kv_cache[block_tables[request, position // block_size], position % block_size] = row
    tokens = sum(query_lens)
    return Model(
        draw((tokens, heads, nope)),
        draw((tokens, heads, rope)),
        draw((heads, nope, latent)),
        draw((heads, v_dim, latent)),
        kv_cache,
        records,
        {
            "block_tables": block_tables,
            "seq_lens": seq_lens,
            "query_start_loc": np.cumsum([0, *query_lens]),
        },
    )


def path_bound(m: Model, scale: float) -> float:
    """Bound the error of either path's output in float64, for contexts that are read in one piece.

    a, the largest |scale| · (Σ|q||W_UK||c| + Σ|q_r||r|), is at least any |logit|. A logit passes through at
    most nope + latent + rope + 3 roundings, in either order of the sums, so it errs by that times u·a. With
    the subtraction of the peak (2u·a) and exp (4u) a weight is off by a factor e^±t, t as below, and a share
    of the total by e^±2t times n + 2 roundings. Values and the blend add n + latent + 2 roundings to terms
    that are at most A = max Σ|W_UV||c|, and shares sum to one.
    """
    latent = m.w_uk.shape[2]
    packed = np.abs(np.concatenate(m.records))
    q = absorb_queries(np.abs(m.q_nope), np.abs(m.q_rope), np.abs(m.w_uk))
    a = abs(scale) * np.max(q.reshape(-1, packed.shape[1]) @ packed.T, initial=0.0)
    values = np.max(np.einsum("nl,hvl->nhv", packed[:, :latent], np.abs(m.w_uv)), initial=0.0)
    t = U * ((q.shape[2] + m.w_uk.shape[1] + 3 + 2) * a + 4)
    n = max(len(records) for records in m.records)
    return float(values * (np.exp(2 * t) * (1 + U * (2 * n + latent + 4)) - 1) * (1 + U))


batches = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 3)), min_size=1, max_size=3)


@given(st.integers(0, 2**31), batches, st.sampled_from([1, 2, 7]), st.sampled_from([0.02, 0.7, -1.3]))
def test_absorbed_equals_naive(seed: int, lengths: list[tuple[int, int]], heads: int, scale: float) -> None:
    """Moving W_UK and W_UV to the query side changes the order of the sums and nothing else."""
    m = make(seed, [n for n, _ in lengths], [t for _, t in lengths], heads)
    (out, lse), (naive_out, naive_lse) = m.absorbed(scale=scale), m.naive(scale=scale)
    assert (np.abs(out - naive_out) <= 2 * path_bound(m, scale)).all()
    assert (np.isneginf(lse) == np.isneginf(naive_lse)).all()


def test_one_record_decides_exactly() -> None:
    """In integers, where one record outweighs the rest beyond exp's range, both paths are exact.

    The first rotated channel ranks the records by steps of 2000 while all else moves a logit by less than
    600, so every other weight is exactly 0 and the output is W_UV c of the winner, an integer.
    """
    rng = np.random.default_rng(3)
    m = make(3, [9, 14], [2, 1], draw=lambda shape: rng.integers(-1, 2, shape).astype(float))
    for request, table in enumerate(m.batch["block_tables"]):
        rank = rng.permutation(len(m.records[request]))
        m.records[request][:, 7] = 2000 * rank
        for position, row in enumerate(m.records[request]):
            m.kv_cache[table[position // 4], position % 4] = row
    m.q_rope[..., 0] = 1
    out, lse = m.absorbed(scale=1.0)
    naive_out, naive_lse = m.naive(scale=1.0)
    for token, (request, position) in enumerate([(0, 7), (0, 8), (1, 13)]):
        seen = m.records[request][: position + 1].astype(int)
        winner = seen[np.argmax(seen[:, 7])]
        for head in range(3):
            expected = m.w_uv[head].astype(int) @ winner[:7]
            key = m.w_uk[head].astype(int) @ winner[:7]
            logit = m.q_nope[token, head].astype(int) @ key + m.q_rope[token, head].astype(int) @ winner[7:]
            assert out[token, head].tolist() == expected.tolist() == naive_out[token, head].tolist()
            assert lse[token, head] == logit == naive_lse[token, head]


def test_expanded_keys_and_values_give_the_same_under_pytorch() -> None:
    """PyTorch's attention over W_UK c | r and W_UV c, built with its own matrix products, agrees."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    m, scale = make(11, [10], [4]), 0.3
    record = torch.tensor(m.records[0])
    k_nope = torch.einsum("nl,hpl->hnp", record[:, :7], torch.tensor(m.w_uk))
    k = torch.cat([k_nope, record[:, 7:].expand(3, 10, 4)], dim=-1)
    v = torch.einsum("nl,hvl->hnv", record[:, :7], torch.tensor(m.w_uv))
    q = torch.tensor(np.concatenate([m.q_nope, m.q_rope], axis=-1)).transpose(0, 1)
    causal = torch.arange(10)[None, :] <= torch.arange(6, 10)[:, None]
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=causal, scale=scale)
    # PyTorch scales q and k by √scale each: four more roundings of a logit, which the factor in U pays for.
    for out, _ in (m.absorbed(scale=scale), m.naive(scale=scale)):
        assert (np.abs(out - expected.transpose(0, 1).numpy()) <= 2 * path_bound(m, scale)).all()


def test_values_are_the_latent_part() -> None:
    """Zero queries average the latents alone: 8 small integers over 8, exactly, without the rotated part."""
    m = make(5, [8], [1])
    m.kv_cache[:] = np.round(m.kv_cache * 4)
    out = mla_attention(np.zeros((1, 3, 11)), m.kv_cache, latent_dim=7, scale=1.0, **m.batch).out
    mean = np.round(m.records[0] * 4)[:, :7].sum(axis=0) / 8
    assert (out == mean).all()


def test_records_are_read_in_place() -> None:
    """A cache of 2^40 blocks, every one the same 8 numbers of memory, could not be copied."""
    block = np.arange(8.0).reshape(1, 2, 4)
    kv_cache = np.broadcast_to(block, (2**40, 2, 4))
    keys, values = as_one_kv_head(kv_cache, 3)
    assert np.shares_memory(values, block)
    assert values.strides == keys.strides
    out = mla_attention(
        np.zeros((1, 1, 4)),
        kv_cache,
        latent_dim=3,
        block_tables=[[2**40 - 1]],
        seq_lens=[2],
        query_start_loc=[0, 1],
        scale=1.0,
    ).out
    assert out.tolist() == [[[2.0, 3.0, 4.0]]]


def test_dead_slots_have_no_part() -> None:
    """NaN in every slot outside the contexts gives the bits of a cache with zeros there."""
    m = make(6, [5, 0, 9], [2, 1, 3])
    clean = Model(**{**vars(m), "kv_cache": np.nan_to_num(m.kv_cache)})
    for path in ("absorbed", "naive"):
        for found, expected in zip(getattr(m, path)(scale=0.5), getattr(clean, path)(scale=0.5), strict=True):
            assert found.tobytes() == expected.tobytes()
        assert (getattr(m, path)(scale=0.5)[0][2] == 0).all()


def test_layer_without_a_rotated_part() -> None:
    """A record may be all latent (NoPE): key and value are then the same channels."""
    m = make(8, [6], [2], dims=(5, 0, 7, 6))
    assert (np.abs(m.absorbed(scale=0.5)[0] - m.naive(scale=0.5)[0]) <= 2 * path_bound(m, 0.5)).all()


def test_rows_and_variants_are_those_of_paged_attention() -> None:
    """A window of one token returns W_UV c of the query's own record; rows pick query tokens."""
    rng = np.random.default_rng(9)
    m = make(9, [7], [3], draw=lambda shape: rng.integers(-3, 4, shape).astype(float))
    expected = np.einsum("nl,hvl->nhv", m.records[0][4:, :7], m.w_uv)
    assert (m.absorbed(scale=0.5, window=1)[0] == expected).all()
    assert (m.naive(scale=0.5, window=1, rows=[2])[0] == expected[2:]).all()


BAD = [
    ({"latent_dim": 12}, ArgumentError, r"latent_dim = 12, expected at most 11.* \(KV-ATTN-061"),
    ({"latent_dim": 0}, ArgumentError, "latent_dim = 0, expected an integer >= 1"),
    ({"q": np.zeros((3, 3, 10))}, ShapeError, r"q has shape \[3, 3, 10\], expected .*, 11\]"),
    ({"kv_cache": np.zeros((4, 0, 11))}, ShapeError, "k_cache has block_size 0, expected at least 1"),
    ({"kv_cache": [[[0.0] * 11]]}, DTypeError, "kv_cache is a list, expected a NumPy array"),
    ({"kv_cache": np.zeros((4, 4, 1, 11))}, ShapeError, "kv_cache has shape"),
    ({"block_tables": [[99, 0], [0, 0]]}, BlockTableError, r"block_tables\[0, 0\] = 99"),
    ({"seq_lens": [-1, 3]}, LengthError, r"seq_lens\[0\] = -1"),
]


@pytest.mark.parametrize(("change", "error", "says"), BAD)
def test_impossible_input_is_refused(change: dict, error: type[KVError], says: str) -> None:
    """The error names the argument; queries and cache keep their bits."""
    m = make(4, [5, 3], [2, 1])
    good = {"q": np.ones((3, 3, 11)), "kv_cache": m.kv_cache, "latent_dim": 7, "scale": 1.0, **m.batch}
    before = m.kv_cache.tobytes()
    with pytest.raises(error, match=says):
        mla_attention(**{**good, **change})
    assert m.kv_cache.tobytes() == before
    assert (good["q"] == 1).all()


def test_scale_is_never_guessed() -> None:
    """576^−½ from the record is wrong for a model with 192 channels a head: neither path has a default."""
    m = make(4, [5, 3], [2, 1])
    for path in (m.absorbed, m.naive):
        with pytest.raises(ArgumentError, match=r"scale is missing.* \(KV-ATTN-062 mla-scale-given\)"):
            path()


def test_matrices_must_fit_the_records() -> None:
    """Each matrix is checked against the heads and the latent it expands."""
    m = make(4, [5, 3], [2, 1])
    with pytest.raises(ShapeError, match="w_uk has shape"):
        absorb_queries(m.q_nope, m.q_rope, m.w_uk[:2])
    with pytest.raises(ShapeError, match="q_rope has shape"):
        absorb_queries(m.q_nope, m.q_rope[:1], m.w_uk)
    with pytest.raises(ShapeError, match="w_uv has shape"):
        expand_outputs(np.zeros((1, 3, 5)), m.w_uv)
    with pytest.raises(ShapeError, match="w_uk has latent_dim 7, expected at most 6"):
        expand_records(m.records[0][:, :6], m.w_uk, m.w_uv)
    with pytest.raises(ShapeError, match="w_uv has shape"):
        expand_records(m.records[0], m.w_uk, m.w_uv[:1])
    with pytest.raises(ShapeError, match="kv_cache has shape"):
        mla_attention_naive(m.q_nope, m.q_rope, m.kv_cache[0], m.w_uk, m.w_uv, scale=1.0, **m.batch)

"""Block tables: placement is free, dead slots are dead, writes hit their slots."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Ragged, batches, dyadic, ragged, scatter, variants

from kvref.arrays import DTYPES
from kvref.attention import paged
from kvref.attention.bounds import REFERENCE, dense_bound, exceeds, paged_bound
from kvref.attention.paged import append_and_attend, paged_attention, write_kv
from kvref.errors import (
    ArgumentError,
    BlockTableError,
    DTypeError,
    KVError,
    LengthError,
    ShapeError,
    SlotMappingError,
)


@given(st.data(), batches(max_len=20), st.integers(1, 9), st.integers(0, 99))
def test_equals_dense_attention_wherever_blocks_lie(data, batch: Ragged, block_size: int, seed: int) -> None:
    """Scrambled blocks, NaN in every other slot, −1 in every table entry that is not needed."""
    variant = data.draw(variants(batch))
    placed = scatter(batch, block_size, seed)
    arguments = {**batch.lengths, "scale": batch.scale, **variant}
    state, bound = dense_bound(batch.q, batch.k, batch.v, **arguments, arithmetic=REFERENCE)
    answer = paged_attention(batch.q, **placed, **arguments)
    assert not exceeds(answer.out, state.out, bound.out).any()
    assert not exceeds(answer.lse, state.lse, bound.lse).any()


@given(batches(max_len=20), st.integers(1, 5))
def test_same_bits_under_any_placement(batch: Ragged, block_size: int) -> None:
    """The reference reads positions in order, so block ids cannot move a bit."""
    answers = [
        paged_attention(batch.q, **scatter(batch, block_size, seed), **batch.lengths, scale=batch.scale)
        for seed in (1, 2)
    ]
    np.testing.assert_array_equal(answers[0].out, answers[1].out)
    np.testing.assert_array_equal(answers[0].lse, answers[1].lse)


def test_pieces_merge_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tokens are gathered at a time, the answer stays within the bound of float64."""
    batch = ragged(7, (70, 33), (3, 33), head_dim=16)
    arguments = {**scatter(batch, 16, 0), **batch.lengths, "scale": batch.scale, "sinks": np.arange(6.0)}
    state, bound = paged_bound(batch.q, **arguments, arithmetic=REFERENCE)
    for tokens in (1, 7, 16, 64, 1000):
        monkeypatch.setattr(paged, "TOKENS_PER_PIECE", tokens)
        answer = paged_attention(batch.q, **arguments)
        assert not exceeds(answer.out, state.out, bound.out).any()
        assert not exceeds(answer.lse, state.lse, bound.lse).any()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn"])
def test_narrow_caches_are_widened_exactly(dtype: str) -> None:
    """Values a format holds exactly give the bits they give in float64."""
    batch = ragged(8, (21,), (2,))
    placed = scatter(batch, 4, 3)
    narrow = {**placed, "k_cache": np.rint(placed["k_cache"]), "v_cache": np.rint(placed["v_cache"])}
    wide = paged_attention(batch.q, **narrow, **batch.lengths, scale=0.5)
    narrow["k_cache"], narrow["v_cache"] = (narrow[n].astype(DTYPES[dtype]) for n in ("k_cache", "v_cache"))
    np.testing.assert_array_equal(
        paged_attention(batch.q, **narrow, **batch.lengths, scale=0.5).out, wide.out
    )


def test_element_offsets_beyond_32_bits() -> None:
    """Blocks 2^29 elements apart: the last one starts beyond 2^31, and is read and written there."""
    stride, blocks = 2**29 + 64, 6
    flat = np.zeros((blocks - 1) * stride + 64, np.int8).view(np.dtype("float8_e4m3fn"))
    cache = np.lib.stride_tricks.as_strided(flat, (blocks, 4, 2, 8), (stride, 16, 8, 1))
    k, v = np.ones((1, 2, 8), np.float32), np.full((1, 2, 8), 3, np.float32)
    assert 5 * stride > 2**31
    write_kv(k, v, cache, cache.copy(), slot_mapping=[5 * 4 + 2])
    assert (cache[5, 2] == 1).all()
    answer = paged_attention(
        np.ones((1, 2, 8)),
        cache,
        cache,
        block_tables=[[5]],
        seq_lens=[3],
        query_start_loc=[0, 1],
        scale=1.0,
        window=1,
    )
    np.testing.assert_array_equal(answer.out, 1.0)


def test_requests_may_share_blocks() -> None:
    """Two requests that name the same block both read it."""
    rng = np.random.default_rng(0)
    cache = dyadic(rng, 3, 4, 2, 8)
    q = dyadic(rng, 2, 2, 8)
    both = paged_attention(
        q, cache, cache, block_tables=[[2, 0], [2, 1]], seq_lens=[6, 5], query_start_loc=[0, 1, 2], scale=0.5
    )
    for request, table in enumerate([[2, 0], [2, 1]]):
        alone = paged_attention(
            q[request : request + 1],
            cache,
            cache,
            block_tables=[table],
            seq_lens=[6 - request],
            query_start_loc=[0, 1],
            scale=0.5,
        )
        np.testing.assert_array_equal(both.out[request], alone.out[0])


@given(st.integers(0, 2**32), st.sampled_from(["float32", "bfloat16", "float16", "float8_e5m2"]))
def test_write_hits_its_slots_and_nothing_else(seed: int, dtype: str) -> None:
    """Negative slots are skipped, given slots hold key and value bit for bit, the rest keeps its bits."""
    rng = np.random.default_rng(seed)
    k_cache, v_cache = (np.full((4, 3, 2, 5), np.nan).astype(DTYPES[dtype]) for _ in range(2))
    slots = rng.permutation(12)[:6]
    slots[rng.integers(0, 6, 2)] = [-1, -7]
    k, v = (rng.integers(-4, 5, (6, 2, 5)).astype(DTYPES[dtype]) for _ in range(2))
    write_kv(k, v, k_cache, v_cache, slot_mapping=slots)
    for cache, new in ((k_cache, k), (v_cache, v)):
        flat = cache.reshape(12, 2, 5).astype(np.float64)
        for slot in range(12):
            token = np.flatnonzero(slots == slot)
            expected = new[token[0]].astype(np.float64) if len(token) else np.full((2, 5), np.nan)
            np.testing.assert_array_equal(flat[slot], expected)


@given(batches(max_len=11, more_queries=False), st.integers(1, 4))
def test_append_then_attend_is_both_in_order(batch: Ragged, block_size: int) -> None:
    """New tokens are part of their own context: the answer is that of a cache that held them already."""
    full = scatter(batch, block_size, 5)
    arguments = {**batch.lengths, "scale": batch.scale}
    expected = paged_attention(batch.q, **full, **arguments)
    old = {name: x.copy() for name, x in full.items()}
    slots, rows = [], []
    for request, (n, n_q) in enumerate(zip(batch.seq_lens, batch.query_lens, strict=True)):
        for i in range(n - n_q, n):
            block = full["block_tables"][request, i // block_size]
            slots.append(block * block_size + i % block_size)
            rows.append(batch.context_start_loc[request] + i)
            old["k_cache"][block, i % block_size] = old["v_cache"][block, i % block_size] = -99.0
    index = np.array(rows, int)
    answer = append_and_attend(
        batch.q, batch.k[index], batch.v[index], **old, slot_mapping=np.array(slots, int), **arguments
    )
    np.testing.assert_array_equal(answer.out, expected.out)
    np.testing.assert_array_equal(old["k_cache"], full["k_cache"])


READS = {
    "entry beyond the cache": (
        {"block_tables": [[0, 9]]},
        BlockTableError,
        r"block_tables\[0, 1\] = 9, but k_cache has 3 blocks \(KV-ATTN-014 table-in-range\)",
    ),
    "negative entry that is needed": (
        {"block_tables": [[-1, 1]]},
        BlockTableError,
        r"block_tables\[0, 0\] = -1",
    ),
    "table too short": (
        {"block_tables": [[0]]},
        BlockTableError,
        r"block_tables has 1 entries a request, but seq_lens\[0\] = 6 needs 2 blocks of 4",
    ),
    "real table": (
        {"block_tables": [[0.0, 1.0]]},
        DTypeError,
        "block_tables has dtype float64, expected integers",
    ),
    "rank of the cache": ({"k_cache": np.zeros((3, 4, 2))}, ShapeError, r"k_cache has shape \[3, 4, 2\]"),
    "unequal pools": ({"v_cache": np.zeros((2, 4, 2, 8))}, ShapeError, r"v_cache has shape \[2, 4, 2, 8\]"),
    "complex cache": ({"k_cache": np.zeros((3, 4, 2, 8), complex)}, DTypeError, "dtype complex128"),
    "integer cache": ({"k_cache": np.zeros((3, 4, 2, 8), np.int32)}, DTypeError, "k_cache has dtype int32"),
    "negative length": ({"seq_lens": [-6]}, LengthError, r"seq_lens\[0\] = -6"),
    "pool without blocks": (
        {"k_cache": np.zeros((0, 4, 2, 8)), "v_cache": np.zeros((0, 4, 2, 8))},
        BlockTableError,
        r"block_tables\[0, 0\] = 0, but k_cache has 0 blocks",
    ),
    "blocks without slots": (
        {"k_cache": np.zeros((3, 0, 2, 8)), "v_cache": np.zeros((3, 0, 2, 8))},
        ShapeError,
        "k_cache has block_size 0, expected at least 1",
    ),
    "tables of unequal rows": ({"block_tables": [[0, 1], [0]]}, ShapeError, "block_tables holds rows of"),
    "entries past int64": (
        {"block_tables": np.full((1, 2), 2**64 - 1, np.uint64)},
        DTypeError,
        r"block_tables holds 18446744073709551615, expected integers below 2\^63",
    ),
    "arithmetic narrower than the cache": (
        {"dtype": np.float32},
        DTypeError,
        "k_cache has dtype float64, which float32 cannot hold exactly",
    ),
}


@pytest.mark.parametrize(("change", "error", "message"), READS.values(), ids=READS)
def test_bad_read_is_named_and_changes_nothing(change: dict, error: type[Exception], message: str) -> None:
    """Attention refuses; appending refuses before it writes."""
    caches = {"k_cache": np.zeros((3, 4, 2, 8)), "v_cache": np.zeros((3, 4, 2, 8))}
    arguments = {
        **caches,
        "block_tables": [[0, 1]],
        "seq_lens": [6],
        "query_start_loc": [0, 1],
        "scale": 1.0,
        **change,
    }
    q, new = np.zeros((1, 2, 8), np.float32), np.ones((1, 2, 8))
    with pytest.raises(error, match=message):
        paged_attention(q, **arguments)
    with pytest.raises(KVError):
        append_and_attend(q, new, new, **arguments, slot_mapping=[5])
    assert all((arguments[name] == 0).all() for name in caches)


WRITES = {
    "slot beyond the cache": (
        {"slot_mapping": [3, 12]},
        SlotMappingError,
        r"slot_mapping\[1\] = 12, but the cache has 12",
    ),
    "slot twice": ({"slot_mapping": [3, 3]}, SlotMappingError, "slot_mapping names slot 3 2 times"),
    "wrong count": ({"slot_mapping": [3]}, ShapeError, r"slot_mapping has shape \[1\], expected \[2\]"),
    "real slots": ({"slot_mapping": [3.0, 4.0]}, DTypeError, "slot_mapping has dtype float64"),
    "heads of k": ({"k": np.ones((2, 3, 8))}, ShapeError, r"k has shape \[2, 3, 8\]"),
    "width of v": ({"v": np.ones((2, 2, 7))}, ShapeError, r"v has shape \[2, 2, 7\]"),
    "integer keys": ({"k": np.ones((2, 2, 8), int)}, DTypeError, "k has dtype int64"),
    "slot past int64": (
        {"slot_mapping": np.array([3, 2**64 - 1], np.uint64)},
        DTypeError,
        "slot_mapping holds 18446744073709551615",
    ),
    "keys of unequal rows": ({"k": [[1.0], [1.0, 2.0]]}, ShapeError, "k holds rows of unequal length"),
}


@pytest.mark.parametrize(("change", "error", "message"), WRITES.values(), ids=WRITES)
def test_bad_write_is_named_and_changes_nothing(change: dict, error: type[Exception], message: str) -> None:
    """All or nothing: no slot has changed when a write is refused."""
    k_cache, v_cache = np.zeros((3, 4, 2, 8)), np.zeros((3, 4, 2, 8))
    arguments = {"k": np.ones((2, 2, 8)), "v": np.ones((2, 2, 8)), "slot_mapping": [3, 4], **change}
    with pytest.raises(error, match=message):
        write_kv(arguments["k"], arguments["v"], k_cache, v_cache, slot_mapping=arguments["slot_mapping"])
    assert (k_cache == 0).all()
    assert (v_cache == 0).all()


def test_read_only_cache_is_refused_before_the_other_is_written() -> None:
    """A value cache that cannot be written leaves the key cache as it was."""
    k_cache, v_cache = np.zeros((3, 4, 2, 8)), np.zeros((3, 4, 2, 8))
    v_cache.setflags(write=False)
    with pytest.raises(DTypeError, match="v_cache is read-only"):
        write_kv(np.ones((1, 2, 8)), np.ones((1, 2, 8)), k_cache, v_cache, slot_mapping=[1])
    assert (k_cache == 0).all()


@pytest.mark.parametrize(
    ("dtype", "past_largest"),
    [("float32", np.inf), ("float16", np.inf), ("bfloat16", np.inf), ("float8_e4m3fn", np.nan)],
)
def test_number_past_the_format_becomes_infinity_or_nan(dtype: str, past_largest: float) -> None:
    """Overflow is stored as what it is, without a warning that, as an error, would leave half a write."""
    k_cache, v_cache = (np.zeros((1, 1, 1, 1), DTYPES[dtype]) for _ in range(2))
    write_kv(np.full((1, 1, 1), 2.0), np.full((1, 1, 1), 1e39), k_cache, v_cache, slot_mapping=[0])
    assert k_cache[0, 0, 0, 0] == 2
    np.testing.assert_array_equal(v_cache.astype(np.float64), past_largest)


def test_new_tokens_may_lie_in_the_cache_they_are_written_to() -> None:
    """Values taken from the key cache, and queries too, are those from before the write."""
    rng = np.random.default_rng(4)
    k_cache, v_cache, k = dyadic(rng, 4, 2, 2, 8), dyadic(rng, 4, 2, 2, 8), dyadic(rng, 2, 2, 8)
    views = k_cache.reshape(8, 2, 8)[1:3]
    old = views.copy()
    arguments = {
        "slot_mapping": [1, 2],
        "block_tables": [[0, 1]],
        "seq_lens": [3],
        "query_start_loc": [0, 2],
        "scale": 1.0,
    }
    expected = append_and_attend(old, k, old, k_cache.copy(), v_cache.copy(), **arguments)
    answer = append_and_attend(views, k, views, k_cache, v_cache, **arguments)
    np.testing.assert_array_equal(answer.out, expected.out)
    np.testing.assert_array_equal(v_cache.reshape(8, 2, 8)[1:3], old)


def test_caches_that_lie_over_each_other_are_refused() -> None:
    """One array for both would keep the values alone; blocks that share memory would keep the last one."""
    one = np.zeros((2, 2, 2, 8))
    shared = np.lib.stride_tricks.as_strided(np.zeros((1, 2, 2, 8)), one.shape, (0, *one.strides[1:]))
    k, v = np.ones((2, 2, 8)), np.full((2, 2, 8), 2.0)
    k[1] = 3.0
    for k_cache, v_cache in ((one, one), (shared, one), (one, shared)):
        with pytest.raises(ArgumentError, match=r"lie over each other.*KV-ATTN-053"):
            write_kv(k, v if v_cache is one else k, k_cache, v_cache, slot_mapping=[1, 3])
        assert (k_cache == 0).all()
        assert (v_cache == 0).all()


def test_pool_without_blocks_serves_requests_without_context() -> None:
    """Nothing is read, and every row is empty."""
    cache = np.zeros((0, 4, 2, 8))
    answer = paged_attention(
        np.ones((1, 2, 8)), cache, cache, block_tables=[[]], seq_lens=[0], query_start_loc=[0, 1], scale=1.0
    )
    assert (answer.out == 0).all()
    assert np.isneginf(answer.lse).all()


@pytest.mark.parametrize("window", [None, 9])
def test_jax_ragged_paged_reference_agrees(window: int | None) -> None:
    """The ragged paged reference of JAX (K and V interleaved by head), mixed prefill and decode."""
    jax = pytest.importorskip("jax", reason="jax is not installed; the oracle is its ragged paged reference")
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ref_ragged_paged_attention

    from kvref.attention.arithmetic import Arithmetic

    batch = ragged(11, (37, 5, 18), (1, 5, 9), head_dim=16)
    placed = scatter(batch, 8, 4, poison=0.0)
    pages = np.stack([placed["k_cache"], placed["v_cache"]], axis=3).reshape(
        *placed["k_cache"].shape[:2], 4, 16
    )
    out = ref_ragged_paged_attention(
        jnp.asarray(batch.q, jnp.float32),
        jnp.asarray(pages, jnp.float32),
        jnp.asarray(batch.seq_lens, jnp.int32),
        jnp.asarray(np.maximum(placed["block_tables"], 0), jnp.int32),
        jnp.asarray(batch.query_start_loc, jnp.int32),
        jnp.asarray([3], jnp.int32),
        sm_scale=batch.scale,
        sliding_window=window,
    )
    float32 = Arithmetic(probabilities="float32", output="float32", block=None)
    state, bound = paged_bound(
        batch.q, **placed, **batch.lengths, scale=batch.scale, window=window, arithmetic=float32
    )
    assert not exceeds(np.asarray(out), state.out, bound.out).any()
    assert jax.default_backend() == "cpu"

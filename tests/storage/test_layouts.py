"""Layouts: permutations in every bit, and each element where its address formula says."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.attention.mla import as_one_kv_head
from kvref.attention.paged import paged_attention
from kvref.errors import ArgumentError, DTypeError, KVError, ShapeError
from kvref.storage.layouts import LAYOUTS, CacheShape, convert_layout, join_kv, slot_offset, split_kv

ONE = [name for name, layout in LAYOUTS.items() if not layout.holds_both and name != "record"]
BOTH = [name for name, layout in LAYOUTS.items() if layout.holds_both]
DTYPES = [np.uint8, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float32, np.float64]

extents = st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))


def any_bits(shape: tuple[int, ...], dtype: Any = np.uint32, seed: int = 0) -> np.ndarray:
    """Return an array of random bytes, signalling NaN and every payload included."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(np.random.default_rng(seed).bytes(nbytes), dtype).reshape(shape)


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    """Return an array whose every element is different."""
    return np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)


def x_for(layout: str, x: int) -> dict[str, int]:
    """Return the argument x for the layout that takes it."""
    return {"x": x} if LAYOUTS[layout].splits_channels else {}


@given(extents, st.sampled_from(ONE), st.sampled_from(ONE), st.sampled_from(DTYPES), st.sampled_from([1, 2]))
def test_there_and_back_returns_every_bit(extent: tuple, first: str, second: str, dtype: Any, x: int) -> None:
    """Between any two layouts of one cache, whatever the bytes mean."""
    blocks, size, heads, pieces = extent
    bits = any_bits((blocks, size, heads, 2 * pieces), dtype)
    start = convert_layout(bits, source="nhd", target=first, **x_for(first, x))
    there = convert_layout(start, source=first, target=second, **x_for(second, 2))
    back = convert_layout(there, source=second, target=first, **x_for(first, x))
    assert back.shape == start.shape
    assert back.dtype == start.dtype
    assert back.tobytes() == start.tobytes()
    assert convert_layout(back, source=first, target="nhd").tobytes() == bits.tobytes()


@given(extents, st.sampled_from(BOTH), st.sampled_from(BOTH), st.sampled_from(DTYPES))
def test_joined_caches_come_apart_in_every_bit(extent: tuple, first: str, second: str, dtype: Any) -> None:
    """Keys and values through any two layouts that hold both."""
    k, v = any_bits(extent, dtype, seed=1), any_bits(extent, dtype, seed=2)
    joined = join_kv(k, v, layout=first)
    keys, values = split_kv(convert_layout(joined, source=first, target=second), layout=second)
    assert keys.tobytes() == k.tobytes()
    assert values.tobytes() == v.tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("x", [1, 3])
def test_every_element_lies_where_the_formula_says(layout: str, x: int) -> None:
    """Read at the address of its layout, each element is the one at [block, offset, head, channel]."""
    shape = CacheShape(
        num_blocks=3, block_size=4, num_kv_heads=1 if layout == "record" else 5, head_dim=6, x=x
    )
    extent = 3, 4, shape.num_kv_heads, 6
    block, offset, head, channel = np.indices(extent)
    at = {"block": block, "offset": offset, "head": head, "channel": channel}
    if LAYOUTS[layout].holds_both:
        k, v = numbered((2, *extent))
        memory = join_kv(k, v, layout=layout).ravel()
        assert (memory[slot_offset(layout, shape, kv=0, **at)] == k).all()
        assert (memory[slot_offset(layout, shape, kv=1, **at)] == v).all()
    else:
        k = numbered(extent)
        memory = convert_layout(k, source="nhd", target=layout, **x_for(layout, x)).ravel()
        assert (memory[slot_offset(layout, shape, **at)] == k).all()


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        ("nhd", (7, 16, 3, 24)),
        ("hnd", (7, 3, 16, 24)),
        ("x_split", (7, 3, 3, 16, 8)),
        ("values_last", (7, 3, 24, 16)),
        ("kv_first", (2, 7, 16, 3, 24)),
        ("blocks_nhd", (7, 2, 16, 3, 24)),
        ("blocks_hnd", (7, 2, 3, 16, 24)),
        ("heads_interleaved", (7, 16, 6, 24)),
        ("kv_packed", (7, 3, 16, 48)),
    ],
)
def test_shapes_are_those_of_the_engines(layout: str, shape: tuple[int, ...]) -> None:
    """vLLM's x is 16 bytes, 8 numbers of bfloat16; the other shapes are as their projects document them."""
    cache = np.zeros((7, 16, 3, 24), ml_dtypes.bfloat16)
    if LAYOUTS[layout].holds_both:
        assert join_kv(cache, cache, layout=layout).shape == shape
    else:
        assert convert_layout(cache, source="nhd", target=layout).shape == shape


def test_heads_interleave_as_k0_v0_k1_v1() -> None:
    """The order the Pallas kernel reads; cutting the head axis into (heads, packing) moves nothing."""
    k = np.array([10, 11, 12]).reshape(1, 1, 3, 1)
    assert join_kv(k, k + 10, layout="heads_interleaved").ravel().tolist() == [10, 20, 11, 21, 12, 22]
    assert join_kv(k, k + 10, layout="kv_packed").ravel().tolist() == [10, 20, 11, 21, 12, 22]
    wide = np.arange(4).reshape(1, 1, 2, 2)
    assert join_kv(wide, wide + 4, layout="heads_interleaved").ravel().tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    assert join_kv(wide, wide + 4, layout="blocks_hnd").ravel().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("layout", "order"),
    [("hnd", "permute(0, 2, 1, 3)"), ("values_last", "permute(0, 2, 3, 1)"), ("x_split", "view and permute")],
)
def test_conversion_is_the_permutation_of_pytorch(layout: str, order: str) -> None:
    """PyTorch's views and permutations reach the same memory."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    cache = numbered((3, 4, 5, 8))
    theirs = torch.tensor(cache)
    if order == "view and permute":
        theirs = theirs.view(3, 4, 5, 4, 2).permute(0, 2, 3, 1, 4)  # int64: 2 channels are 16 bytes
    else:
        theirs = theirs.permute((0, 2, 1, 3) if layout == "hnd" else (0, 2, 3, 1))
    assert (convert_layout(cache, source="nhd", target=layout) == theirs.contiguous().numpy()).all()


def test_record_is_one_kv_head() -> None:
    """A record is the key of the only head; its value is the first part of the same numbers."""
    records = any_bits((5, 4, 7), np.float32)
    keys = convert_layout(records, source="record", target="nhd")
    assert keys.shape == (5, 4, 1, 7)
    assert keys.tobytes() == as_one_kv_head(records, 6)[0].tobytes() == records.tobytes()
    assert convert_layout(keys, source="nhd", target="record").tobytes() == records.tobytes()
    assert convert_layout(records, source="record", target="hnd").shape == (5, 1, 4, 7)


def test_strided_cache_converts_and_stays_as_it_was() -> None:
    """A view with gaps and negative strides is read in place; the result is new memory in C order."""
    wide = numbered((6, 8, 3, 10))
    view = wide[::-2, 1::2, :, ::5]
    before = wide.copy()
    for target in ("nhd", "hnd"):
        found = convert_layout(view, source="nhd", target=target)
        assert found.flags.c_contiguous
        assert not np.shares_memory(found, wide)
        found[:] = 0
    assert (wide == before).all()
    assert (convert_layout(view, source="nhd", target="hnd") == view.transpose(0, 2, 1, 3)).all()


def test_attention_through_any_layout_is_bitwise_the_same() -> None:
    """What a reader of the cache gets does not depend on the layout the cache travelled in."""
    rng = np.random.default_rng(0)
    k, v = rng.standard_normal((2, 5, 4, 2, 6))
    batch = {"block_tables": [[3, 1, 4]], "seq_lens": [10], "query_start_loc": [0, 2], "scale": 0.4}
    q = rng.standard_normal((2, 4, 6))
    expected = paged_attention(q, k, v, **batch).out.tobytes()
    for layout in BOTH:
        assert (
            paged_attention(q, *split_kv(join_kv(k, v, layout=layout), layout=layout), **batch).out.tobytes()
            == expected
        )


def test_address_of_a_far_block_needs_more_than_32_bits() -> None:
    """Block 2^24 of blocks of 16 · 8 · 128 elements begins past 2^38."""
    shape = CacheShape(num_blocks=2**24 + 1, block_size=16, num_kv_heads=8, head_dim=128)
    for layout in ("nhd", "hnd", "values_last"):
        assert slot_offset(layout, shape, block=2**24, offset=0, head=0, channel=0) == 2**38
    assert slot_offset("blocks_nhd", shape, block=2**24, offset=0, head=0, channel=0) == 2**39


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.uint64])
def test_address_does_not_overflow_the_dtype_of_its_indices(dtype: Any) -> None:
    """Block ids come as int32 from a block table; the address they lead to is an int64."""
    shape = CacheShape(num_blocks=256, block_size=2**16, num_kv_heads=8, head_dim=128)
    index = {"block": 255, "offset": 2, "head": 7, "channel": 100}
    narrow = {name: np.array([i], dtype) for name, i in index.items()}
    for layout in LAYOUTS.keys() - {"record"}:
        assert slot_offset(layout, shape, **narrow).tolist() == [slot_offset(layout, shape, **index)]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"source": "bhsd"}, ArgumentError, "source = 'bhsd', expected one of nhd, hnd"),
        ({"target": "NHD"}, ArgumentError, "target = 'NHD', expected one of nhd, hnd"),
        ({"target": "kv_first"}, ArgumentError, "see join_kv and split_kv"),
        ({"source": "x_split"}, ShapeError, r"cache has shape \[2, 4, 3, 6\], expected x_split \[block head"),
        ({"target": "x_split", "x": 4}, ShapeError, r"channel\*x of nhd must be 4 times channel"),
        ({"target": "x_split", "x": 0}, ArgumentError, "x = 0, expected an integer >= 1"),
        ({"x": 2}, ArgumentError, "x = 2, but hnd keeps channels together"),
        ({"target": "record"}, ShapeError, "cache has 3 along head, but record"),
        ({"source": "heads_interleaved", "target": "kv_first"}, ShapeError, r"head\*kv of heads_interleaved"),
    ],
)
def test_impossible_conversion_is_refused(change: dict, error: type[KVError], says: str) -> None:
    """The error names the layout and the axis; the cache keeps its bits."""
    cache = numbered((2, 4, 3, 6))
    with pytest.raises(DTypeError, match="cache is a list, expected a NumPy array"):
        convert_layout(cache.tolist(), source="nhd", target="hnd")
    with pytest.raises(error, match=says):
        convert_layout(cache, **{"source": "nhd", "target": "hnd", **change})
    assert (cache == numbered((2, 4, 3, 6))).all()


def test_caches_that_cannot_share_an_array_are_refused() -> None:
    """Two halves of one array have one width and one dtype; a layout of one cache holds no second."""
    k = np.zeros((2, 4, 3, 6), np.float32)
    with pytest.raises(ShapeError, match="v_cache has shape"):
        join_kv(k, k[..., :4], layout="kv_packed")
    with pytest.raises(DTypeError, match="v_cache has dtype float64, expected float32"):
        join_kv(k, k.astype(float), layout="kv_packed")
    with pytest.raises(ArgumentError, match="expected two layouts"):
        join_kv(k, k, layout="hnd")
    with pytest.raises(ShapeError, match="kv of kv_first must be 2"):
        split_kv(np.zeros((3, 2, 4, 3, 6)), layout="kv_first")


@pytest.mark.parametrize(
    "index", [{"block": 2}, {"offset": -1}, {"head": 3}, {"channel": 6}, {"kv": 1}, {"block": 0.5}]
)
def test_index_outside_the_cache_has_no_address(index: dict) -> None:
    """An index past its axis would be some other element's address."""
    shape = CacheShape(num_blocks=2, block_size=4, num_kv_heads=3, head_dim=6)
    good = {"block": 0, "offset": 0, "head": 0, "channel": 0}
    (name,) = index
    with pytest.raises(ArgumentError, match=f"{name} = .*, expected integers from 0 to"):
        slot_offset("nhd", shape, **{**good, **index})
    with pytest.raises(ArgumentError, match="head = 1"):
        slot_offset("record", shape, **{**good, "head": 1})
    with pytest.raises(ShapeError, match=r"block \[2\], offset \[3\], .* expected ones that broadcast"):
        slot_offset("nhd", shape, **{**good, "block": [0, 1], "offset": [0, 0, 0]})


def test_shape_of_a_cache_is_checked() -> None:
    """Extents are positive, and x divides head_dim."""
    good = {"num_blocks": 1, "block_size": 1, "num_kv_heads": 1, "head_dim": 6}
    with pytest.raises(ArgumentError, match="block_size = 0"):
        CacheShape(**{**good, "block_size": 0})
    with pytest.raises(ShapeError, match="head_dim = 6, expected a multiple of x = 4"):
        CacheShape(**good, x=4)
    with pytest.raises(ArgumentError, match="layout = 'nope'"):
        slot_offset("nope", CacheShape(**good), block=0, offset=0, head=0, channel=0)

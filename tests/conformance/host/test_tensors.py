"""Guarded memory: what a subject wrote, did not write, and should not have written is seen exactly."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.arrays import DTYPES, Array
from kvref_conformance.contracts import Call, OutputSpec
from kvref_conformance.host.inprocess import MemoryStore
from kvref_conformance.host.scratch import Scratch
from kvref_conformance.host.tensors import (
    GUARD,
    Laid,
    Store,
    collect,
    count_poison,
    file_size,
    lay,
    poison,
    strides_of,
    view,
)


class Memory:
    """Stores by name, as a host keeps them."""

    def __init__(self) -> None:
        self.stores: dict[str, MemoryStore] = {}

    def allocate(self, name: str, size: int) -> tuple[str, Store]:
        """Return fresh memory."""
        self.stores[name] = MemoryStore(size)
        return name, self.stores[name]

    def tensor(self, laid: Laid, name: str) -> Array:
        """Return a tensor as the subject sees it."""
        return view(self.stores[name].bytes, laid[name][0])


def strided(kind: str) -> Array:
    """Return a [3, 4, 2, 8] cache that is a view of a larger array."""
    if kind == "kv_interleaved":
        return np.arange(3 * 2 * 64, dtype=np.float32).reshape(3, 2, 4, 2, 8)[:, 0]
    if kind == "hnd":
        return np.arange(192, dtype=np.float32).reshape(3, 2, 4, 8).transpose(0, 2, 1, 3)
    if kind == "padded_rows":
        return np.arange(3 * 4 * 2 * 12, dtype=np.float32).reshape(3, 4, 2, 12)[..., :8]
    return np.arange(192 * 2, dtype=np.float32).reshape(3, 4, 2, 16)[..., ::2]


KINDS = ["kv_interleaved", "hnd", "padded_rows", "every_other"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_strided_tensor_keeps_values_and_strides(kind: str) -> None:
    """The subject walks the same view the case was built with; nothing is packed for it."""
    x, memory = strided(kind), Memory()
    call = Call("write_kv", {"k_cache": x}, in_place=("k_cache",))
    laid = lay(call, memory.allocate)
    seen = memory.tensor(laid, "k_cache")
    assert seen.strides == x.strides
    np.testing.assert_array_equal(seen, x)
    seen[2, 3, 1, 7] = -1
    answer = collect(call, laid)
    assert answer.outputs["k_cache"][2, 3, 1, 7] == -1
    assert answer.outputs["k_cache"].flags.c_contiguous
    assert not answer.overrun
    assert not answer.mutated


@pytest.mark.parametrize("kind", ["kv_interleaved", "padded_rows", "every_other"])
def test_a_write_between_the_elements_of_a_view_is_an_overrun(kind: str) -> None:
    """The gaps of a strided cache belong to another tensor, often the values beside the keys."""
    x, memory = strided(kind), Memory()
    call = Call("write_kv", {"k_cache": x}, in_place=("k_cache",))
    laid = lay(call, memory.allocate)
    inside = np.zeros(len(memory.stores["k_cache"].bytes), np.bool_)
    ref = laid["k_cache"][0]
    for index in np.ndindex(ref.shape):
        start = ref.offset + 4 * sum(i * step for i, step in zip(index, ref.steps, strict=True))
        inside[start : start + 4] = True
    for place in np.flatnonzero(~inside)[:: max(1, (~inside).sum() // 50)]:
        memory.stores["k_cache"].bytes[place] ^= 1
        assert collect(call, laid).overrun == ("k_cache",)
        memory.stores["k_cache"].bytes[place] ^= 1
    assert not collect(call, laid).overrun


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (5, 7), (2, 3, 4, 5)])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_byte_around_an_output_is_a_guard(dtype: str, shape: tuple[int, ...]) -> None:
    """64 bytes before and after, for every dtype, for scalars and for outputs without elements."""
    memory = Memory()
    call = Call("attention", {}, outputs={"out": OutputSpec(dtype, shape)})
    laid = lay(call, memory.allocate)
    data = memory.stores["out"].bytes
    size = int(np.prod(shape)) * DTYPES[dtype].itemsize
    assert len(data) == size + 2 * GUARD
    for place in (0, GUARD - 1, GUARD + size, len(data) - 1):
        data[place] ^= 0x80
        assert collect(call, laid).overrun == ("out",)
        data[place] ^= 0x80
    assert not collect(call, laid).overrun


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_what_was_not_written_is_counted(dtype: str) -> None:
    """All of it when nothing was written, the rest when some was."""
    spec = OutputSpec(dtype, (6, 10))
    out = poison(spec).copy()
    assert count_poison(out) == 60
    out[:4] = np.zeros((4, 10)).astype(DTYPES[dtype])
    assert count_poison(out) == 20


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "bool"])
def test_no_code_but_poison_counts_as_poison(dtype: str) -> None:
    """Quiet NaNs, infinities and every other result of arithmetic are somebody's answer."""
    width = DTYPES[dtype].itemsize
    codes = np.arange(256**width, dtype=f"u{width}").view(DTYPES[dtype])
    assert count_poison(codes) == 1


def test_the_poison_of_real_formats_is_nan_and_not_the_one_of_arithmetic() -> None:
    """Whoever forgets to look sees NaN; a NaN that was computed is somebody's answer."""
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        x = poison(OutputSpec(dtype, (4,)))
        assert np.isnan(x.astype(np.float64)).all()
        with np.errstate(invalid="ignore"):
            assert count_poison(np.zeros(4, x.dtype) / np.zeros(4, x.dtype)) == 0


@given(st.binary(min_size=1, max_size=64))
def test_one_byte_outputs_are_not_taken_for_poison_by_accident(data: bytes) -> None:
    """Eight codes in a row must repeat the pattern, in its place; Hypothesis will not find that."""
    assert count_poison(np.frombuffer(data, np.uint8)) == 0


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_changed_input_is_named(contiguous: bool) -> None:
    """One bit of one input, in an element or in a gap, is enough."""
    memory = Memory()
    q = strided("padded_rows")
    call = Call("attention", {"q": q.copy() if contiguous else q, "k": np.ones((2, 3), np.float32)})
    laid = lay(call, memory.allocate)
    for place in (0, len(memory.stores["q"].bytes) // 2, len(memory.stores["q"].bytes) - 1):
        memory.stores["q"].bytes[place] ^= 1
        assert collect(call, laid).mutated == ("q",)
        memory.stores["q"].bytes[place] ^= 1
    assert not collect(call, laid).mutated


def test_minus_zero_and_nan_are_compared_as_bits() -> None:
    """An input of NaN is equal to itself, and −0 is a change from +0."""
    memory = Memory()
    call = Call("attention", {"q": np.array([np.nan, 0.0], ml_dtypes.bfloat16)})
    laid = lay(call, memory.allocate)
    assert not collect(call, laid).mutated
    memory.tensor(laid, "q")[1] = -0.0
    assert collect(call, laid).mutated == ("q",)


def test_overlapping_and_reversed_views_travel_packed() -> None:
    """A broadcast scale or a reversed array has no memory of its own to write into."""
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    for x in (
        np.broadcast_to(base[:1], (5, 4)),
        base[::-1],
        np.lib.stride_tricks.sliding_window_view(base[0], 2),
    ):
        memory = Memory()
        assert strides_of(x) is None
        call = Call("attention", {"q": x})
        laid = lay(call, memory.allocate)
        np.testing.assert_array_equal(memory.tensor(laid, "q"), x)
        assert not collect(call, laid).mutated


def test_a_folded_view_costs_its_memory_only() -> None:
    """Blocks that lie over each other travel as the memory they share, if nobody may write it."""
    flat = np.arange(70_000 * 8, dtype=np.float32)
    x = np.lib.stride_tricks.as_strided(flat, (69_985, 16, 1, 8), (32, 32, 32, 4))
    memory = Memory()
    call = Call("paged_attention", {"k_cache": x})
    laid = lay(call, memory.allocate)
    ref, store = laid["k_cache"]
    assert ref.strides == (8, 8, 8, 1)
    assert file_size(ref) == flat.nbytes
    np.testing.assert_array_equal(memory.tensor(laid, "k_cache")[-3:], x[-3:])
    assert not collect(call, laid).mutated
    store.write(flat.nbytes - 1, b"\0")
    assert collect(call, laid).mutated == ("k_cache",)


def test_a_view_that_reaches_far_costs_its_elements_only() -> None:
    """Five blocks 2^30 elements apart: 10 GB of file, a few pages of it on the disk (KV-ATTN-018)."""
    block_stride = 2**30
    flat = np.zeros(4 * block_stride + 64, ml_dtypes.bfloat16)
    x = np.lib.stride_tricks.as_strided(flat, (5, 4, 2, 8), (block_stride * 2, 32, 16, 2))
    x[...] = np.arange(320).reshape(x.shape)
    scratch = Scratch()
    try:
        call = Call("write_kv", {"k_cache": x}, in_place=("k_cache",))
        laid = lay(call, scratch.allocate)
        ref, store = laid["k_cache"]
        assert ref.steps[0] == block_stride
        assert ref.end > 2**33
        store.write(ref.offset + 4 * block_stride * 2, np.array([-7], ml_dtypes.bfloat16).tobytes())
        answer = collect(call, laid)
        assert answer.outputs["k_cache"][4, 0, 0, 0] == -7
        assert not answer.overrun
        used = sum(entry.stat().st_blocks * 512 for entry in scratch.root.iterdir())
        assert used < 2**20
        store.write(ref.offset + 4 * block_stride * 2 - 2, b"\0\0")
        assert collect(call, laid).overrun == ("k_cache",)
    finally:
        scratch.close()


@given(
    st.lists(st.integers(0, 4), max_size=4),
    st.permutations(range(4)),
    st.lists(st.integers(1, 3), min_size=4, max_size=4),
)
def test_any_view_comes_back_as_it_is(shape: list[int], axes: list[int], every: list[int]) -> None:
    """Permuted axes, steps along each axis, empty and unit extents."""
    base = np.arange(int(np.prod([max(n, 1) * step for n, step in zip(shape, every, strict=False)])))
    whole = base.reshape([max(n, 1) * step for n, step in zip(shape, every, strict=False)]).astype(np.int32)
    x = whole[tuple(slice(0, n * step, step) for n, step in zip(shape, every, strict=False))]
    x = x.transpose([axis for axis in axes if axis < x.ndim])
    memory = Memory()
    call = Call("convert_layout", {"cache": x}, in_place=("cache",))
    laid = lay(call, memory.allocate)
    np.testing.assert_array_equal(memory.tensor(laid, "cache"), x)
    answer = collect(call, laid)
    np.testing.assert_array_equal(answer.outputs["cache"], x)
    assert not answer.overrun

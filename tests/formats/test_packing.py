"""Packing: every element at the place its convention says, and back in every bit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.errors import DTypeError, FormatError
from kvref.formats.elements import decode
from kvref.formats.packing import (
    NIBBLE_ORDERS,
    SCALE_LAYOUTS,
    arrange_scales,
    arranged_shape,
    nibble_place,
    pack,
    pack_fields,
    restore_scales,
    scale_address,
    unpack,
    unpack_fields,
)
from kvref.formats.paths import PATHS

ALL_PAIRS = np.arange(256, dtype=np.uint8)


def random_codes(shape: tuple[int, ...], bits: int = 4, seed: int = 0) -> np.ndarray:
    """Return random codes of some bits."""
    return np.random.default_rng(seed).integers(0, 2**bits, shape, np.uint8)


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    """Return scales of which no two are equal, so that any permutation shows."""
    return np.arange(int(np.prod(shape)), dtype=np.uint32).reshape(shape)


def test_conventions_are_the_answers_of_a_path() -> None:
    """A declared path names what these functions take."""
    assert PATHS["nibble_order"] == NIBBLE_ORDERS
    assert set(PATHS["scale_layout"]) | set(PATHS["v_scale_layout"]) == set(SCALE_LAYOUTS)


@pytest.mark.parametrize("order", NIBBLE_ORDERS)
@pytest.mark.parametrize("size", [2, 8, 16, 32])
def test_every_code_lies_where_its_convention_says(order: str, size: int) -> None:
    """One element at a time, over several groups and leading axes."""
    codes = random_codes((3, 2, 64))
    packed = pack(codes, order, size)
    for index in range(64):
        byte, shift = nibble_place(index, order, size)
        assert (packed[..., byte] >> shift & 0xF == codes[..., index]).all()


@given(
    st.lists(st.integers(0, 3), max_size=2),
    st.integers(0, 4),
    st.sampled_from([2, 6, 16, 32]),
    st.sampled_from(NIBBLE_ORDERS),
)
def test_codes_come_back(lead: list[int], groups: int, size: int, order: str) -> None:
    """Packing loses nothing, and no two rows of codes pack alike: unpacking is the inverse both ways."""
    codes = random_codes((*lead, groups * size))
    packed = pack(codes, order, size)
    assert packed.dtype == np.uint8
    assert packed.shape == (*lead, groups * size // 2)
    assert (unpack(packed, order, size) == codes).all()
    anything = np.random.default_rng(1).integers(0, 256, packed.shape, np.uint8)
    assert (pack(unpack(anything, order, size), order, size) == anything).all()


def test_every_byte_is_two_codes() -> None:
    """All 256 pairs: low first reads 0x72 as 2, 7; high first as 7, 2."""
    assert unpack(np.array([0x72], np.uint8)).tolist() == [2, 7]
    assert unpack(np.array([0x72], np.uint8), "high_first").tolist() == [7, 2]
    low = unpack(ALL_PAIRS)
    assert (low[0::2] == ALL_PAIRS % 16).all()
    assert (low[1::2] == ALL_PAIRS // 16).all()
    assert (unpack(ALL_PAIRS, "split", 2) == low).all()  # in groups of two, the halves are the neighbours
    assert (unpack(ALL_PAIRS, "high_first") == unpack(ALL_PAIRS % 16 * 16 + ALL_PAIRS // 16)).all()


def test_split_puts_halves_of_a_group_side_by_side() -> None:
    """ggml's byte j holds elements j and j + 16 of 32; in its NVFP4 blocks, j and j + 8 of each 16."""
    codes = np.arange(32, dtype=np.uint8) % 16
    assert pack(codes, "split", 32).tolist() == [17 * (j % 16) for j in range(16)]
    assert pack(codes, "split", 16).tolist() == [j + 16 * (j + 8) for j in range(8)] * 2


def test_cuda_and_torchao_put_the_even_element_low() -> None:
    """torchao's packer, on every pair of codes."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    kernels = pytest.importorskip("torchao.prototype.mx_formats.kernels")
    codes = random_codes((16, 64))
    theirs = kernels.pack_uint4(torch.tensor(codes))
    assert (theirs.numpy() == pack(codes)).all()
    assert (kernels.unpack_uint4(torch.tensor(ALL_PAIRS)).numpy() == unpack(ALL_PAIRS)).all()


def test_compressed_tensors_puts_the_even_element_low() -> None:
    """Its packer takes numbers, so every code goes through its E2M1 table too."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    helpers = pytest.importorskip("compressed_tensors.compressors.nvfp4.helpers")
    codes = random_codes((4, 32))
    theirs = helpers.pack_fp4_to_uint8(torch.tensor(decode(codes, "e2m1")))
    assert (theirs.numpy() == pack(codes)).all()


@pytest.mark.parametrize("kind", ["Q4_0", "MXFP4"])
def test_ggml_reads_split_nibbles(kind: str) -> None:
    """A block whose scale is 1 and whose bytes `pack` made decodes, in gguf, to the codes' own numbers."""
    gguf = pytest.importorskip("gguf")
    codes = random_codes((5, 32))
    one = {"Q4_0": [0x00, 0x3C], "MXFP4": [0x7F]}[kind]  # 1.0 as float16; 2^0 as E8M0
    head = np.broadcast_to(np.array(one, np.uint8), (5, len(one)))
    blocks = np.concatenate([head, pack(codes, "split", 32)], axis=-1)
    found = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    assert (found == (codes.astype(float) - 8 if kind == "Q4_0" else decode(codes, "e2m1"))).all()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: pack(np.zeros(3, np.uint8)), "codes has 3 elements .* expected a multiple of 2"),
        (lambda: pack(np.zeros(24, np.uint8), "split", 16), "codes has 24 elements .* a multiple of 16"),
        (lambda: pack(np.array([1, 16], np.uint8)), "codes holds 0x10, expected codes of uint4 up to 0x0f"),
        (lambda: pack(np.zeros(4, np.int8)), "codes has dtype int8, expected uint8"),
        (lambda: pack(np.zeros(4, np.uint8), "low"), "order = 'low', expected one of low_first"),
        (lambda: pack(np.zeros(4, np.uint8), "split"), "size = 0, expected an even number"),
        (lambda: pack(np.zeros(3, np.uint8), "split", 3), "size = 3, expected an even number"),
        (lambda: pack(np.array(1, np.uint8)), "codes is a single number"),
        (lambda: unpack(np.zeros(4, np.uint16)), "packed has dtype uint16, expected uint8"),
        (lambda: unpack(np.zeros(4, np.uint8), "split", 16), "packed has 4 elements .* a multiple of 8"),
        (lambda: unpack(np.array(1, np.uint8)), "packed is a single number"),
        (lambda: unpack(np.zeros(4, np.uint8), "high"), "order = 'high'"),
        (lambda: nibble_place(0, "split", 5), "size = 5"),
    ],
)
def test_what_is_no_row_of_nibbles_is_refused(call: Any, says: str) -> None:
    """The error says what was found and what was expected."""
    with pytest.raises(FormatError, match=says):
        call()
    with pytest.raises(DTypeError, match="codes is a list"):
        pack([1, 2])  # type: ignore[arg-type]


def kivi_words(codes: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """Pack as KIVI's loop does: word by word, each field shifted by its place in the word."""
    per = 32 // bits
    last = np.moveaxis(codes, axis, -1)
    words = np.zeros((*last.shape[:-1], last.shape[-1] // per), np.int64)
    for index in range(last.shape[-1]):
        words[..., index // per] |= last[..., index].astype(np.int64) << bits * (index % per)
    return np.moveaxis(np.where(words >= 2**31, words - 2**32, words), -1, axis)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_fields_of_a_word_go_from_low_to_high(bits: int, axis: int) -> None:
    """Keys pack along tokens, values along channels; the last field of a word is its sign bit."""
    codes = random_codes((32, 16, 48), bits)
    words = pack_fields(codes, bits, axis)
    assert words.dtype == np.int32
    assert (words < 0).any()
    assert (words == kivi_words(codes, bits, axis)).all()
    assert (unpack_fields(words, bits, axis) == codes).all()


@given(st.sampled_from([2, 4, 8]), st.integers(0, 3), st.integers(0, 3), st.sampled_from([0, 1]))
def test_fields_come_back(bits: int, words: int, others: int, axis: int) -> None:
    """Any word is some row of codes, negative words included."""
    shape = (words, others) if axis == 0 else (others, words)
    anything = np.frombuffer(np.random.default_rng(bits).bytes(4 * words * others), np.int32).reshape(shape)
    assert (pack_fields(unpack_fields(anything, bits, axis), bits, axis) == anything).all()


@pytest.mark.parametrize("bits", [2, 4])
def test_fields_are_those_of_torch(bits: int) -> None:
    """In torch: int32 words reinterpreted as bytes hold 8 / bits codes each, the first one lowest."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    codes = random_codes((6, 64), bits)
    as_bytes = torch.tensor(pack_fields(codes, bits, -1)).view(torch.uint8).to(torch.int32)
    apart = torch.stack([as_bytes >> shift & 2**bits - 1 for shift in range(0, 8, bits)], dim=-1)
    assert (apart.reshape(6, 64).numpy() == codes).all()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: pack_fields(np.zeros(32, np.uint8), 3, 0), "bits = 3, expected 2, 4 or 8"),
        (lambda: pack_fields(np.zeros(12, np.uint8), 4, 0), "codes has 12 elements .* a multiple of 8"),
        (lambda: pack_fields(np.full(16, 4, np.uint8), 2, 0), "codes holds 0x04, expected codes of uint2"),
        (lambda: pack_fields(np.zeros(16, np.uint8), 2, 1), r"axis = 1, but codes has shape \[16\]"),
        (lambda: unpack_fields(np.zeros(2, np.int64), 2, 0), "words has dtype int64, expected int32"),
        (lambda: unpack_fields(np.zeros(2, np.int32), 2, -2), "axis = -2"),
    ],
)
def test_what_is_no_row_of_words_is_refused(call: Any, says: str) -> None:
    """Bits that no word holds evenly, codes that are too wide, words of another width."""
    with pytest.raises(FormatError, match=says):
        call()


@pytest.mark.parametrize("layout", SCALE_LAYOUTS)
@pytest.mark.parametrize("extent", [(4, 4), (16, 8), (64, 16), (128, 4), (260, 12)])
def test_every_scale_lies_at_its_address(layout: str, extent: tuple[int, int]) -> None:
    """Addresses are distinct, inside the array, and where the permutation puts the scale."""
    rows, columns = extent
    scales = numbered((2, rows, columns))
    memory = arrange_scales(scales, layout).reshape(2, -1)
    seen = set()
    for row in range(rows):
        for column in range(columns):
            at = scale_address(row, column, layout, rows=rows, columns=columns)
            assert (memory[:, at] == scales[:, row, column]).all()
            seen.add(at)
    assert len(seen) == rows * columns


@given(
    st.lists(st.integers(0, 2), max_size=2),
    st.integers(0, 40).map(lambda n: 4 * n),
    st.integers(0, 3).map(lambda n: 4 * n),
    st.sampled_from(SCALE_LAYOUTS),
    st.sampled_from([np.uint8, np.float32]),
)
def test_scales_come_back(lead: list[int], rows: int, columns: int, layout: str, dtype: Any) -> None:
    """There and back keeps every bit, NaN payloads included, in new memory."""
    size = int(np.prod([*lead, rows, columns])) * np.dtype(dtype).itemsize
    scales = np.frombuffer(np.random.default_rng(0).bytes(size), dtype).reshape(*lead, rows, columns)
    arranged = arrange_scales(scales, layout)
    assert arranged.shape == (*lead, *arranged_shape(rows, columns, layout))
    assert not np.shares_memory(arranged, scales)
    back = restore_scales(arranged, layout, rows=rows, columns=columns)
    assert back.dtype == dtype
    assert back.tobytes() == scales.tobytes()


def test_tiles_pad_rows_and_columns_with_zeros() -> None:
    """130 rows and 5 groups take two tiles of rows and two of columns; what fills them is not read."""
    scales = numbered((130, 5)) + 1
    arranged = arrange_scales(scales, "tiled_128x4")
    assert arranged.shape == (256, 8)
    assert np.count_nonzero(arranged) == 130 * 5
    arranged[arranged == 0] = 99
    assert (restore_scales(arranged, "tiled_128x4", rows=130, columns=5) == scales).all()


@pytest.mark.parametrize("extent", [(128, 4), (130, 5), (384, 17), (1, 1)])
def test_tiles_are_those_of_torchao(extent: tuple[int, int]) -> None:
    """torchao prepares block scales for cuBLAS in the same order."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    utils = pytest.importorskip("torchao.prototype.mx_formats.utils")
    scales = numbered(extent).astype(np.int32)
    theirs = utils.to_blocked(torch.tensor(scales)).numpy()
    assert (arrange_scales(scales, "tiled_128x4").ravel() == theirs).all()


@pytest.mark.parametrize("extent", [(4, 4), (16, 8), (64, 16)])
def test_turns_are_those_of_a_permutation_in_torch(extent: tuple[int, int]) -> None:
    """A page as [T/4, 4, 4, S/4], permuted to [T/4, 4, S/4, 4]: the order of vLLM's writer on SM100."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rows, columns = extent
    scales = numbered(extent).astype(np.int32)
    theirs = torch.tensor(scales).view(rows // 4, 4, 4, columns // 4).permute(0, 2, 3, 1).reshape(extent)
    assert (arrange_scales(scales, "interleaved") == theirs.numpy()).all()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: arrange_scales(np.zeros((4, 4)), "swizzled"), "layout = 'swizzled', expected one of linear"),
        (
            lambda: arrange_scales(np.zeros((6, 4)), "interleaved"),
            r"\[6, 4\], expected multiples of 4 tokens",
        ),
        (lambda: arrange_scales(np.zeros((4, 6)), "interleaved"), r"\[4, 6\], expected .* of 4 groups"),
        (lambda: arrange_scales(np.zeros(4), "linear"), r"scales has shape \[4\], expected \[..., rows"),
        (
            lambda: restore_scales(np.zeros((4, 4)), "tiled_128x4", rows=4, columns=4),
            r"arranged has shape \[4, 4\], expected \[..., 128, 4\]",
        ),
        (lambda: scale_address(4, 0, "linear", rows=4, columns=4), r"scale \[4, 0\], expected one inside"),
        (lambda: scale_address(0, -1, "linear", rows=4, columns=4), r"scale \[0, -1\]"),
    ],
)
def test_scales_that_have_no_place_are_refused(call: Any, says: str) -> None:
    """A page of heads read as a page of tokens must not pass as scales of one head."""
    with pytest.raises(FormatError, match=says):
        call()

"""Blocks of bytes: each as ggml writes and reads it, where it is installed and by what it once wrote."""

import ctypes
import json
from collections.abc import Iterator
from math import floor, log2
from pathlib import Path as File

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kvref.errors import DTypeError, FormatError
from kvref.formats.format import FORMATS
from kvref.formats.ggml import (
    AVX,
    BLOCKS,
    PORTABLE,
    decoded,
    dequantize_row,
    quantize,
    quantize_row,
    ue4m3_codes,
    ue4m3_values,
    values,
)
from kvref.formats.paths import Path

KINDS = tuple(BLOCKS)
RECORDED = json.loads((File(__file__).parents[1] / "data" / "ggml_vectors.json").read_text())
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


def read(text: str) -> np.ndarray:
    """Return float32 numbers in hexadecimal notation."""
    return np.float32([float.fromhex(number) for number in text.split()])


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_those_once_recorded(kind: str) -> None:
    """Ties, zeros of both signs, extremes of both signs, constants, scales small, large and past float16."""
    for case in RECORDED["written"][kind]:
        x = read(case["numbers"])
        assert quantize_row(x, kind, PORTABLE).tobytes().hex() == case["bytes"], case["what"]
        if "vector" in case:
            assert quantize_row(x, kind, AVX).tobytes().hex() == case["vector"], case["what"]


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_read_as_once_recorded(kind: str) -> None:
    """Random bytes, and the scales that are zero, subnormal, infinite or NaN elsewhere."""
    for case in RECORDED["read"][kind]:
        block = np.frombuffer(bytes.fromhex(case["bytes"]), np.uint8)
        with np.errstate(over="ignore"):
            found = dequantize_row(block, kind).astype(np.float32)
        assert_same_bits(found, read(case["numbers"]))


def assert_same_bits(found: np.ndarray, wanted: np.ndarray) -> None:
    """Equal in every bit, but that any NaN is as good as another."""
    bits = [np.where(np.isnan(x), 0, x.view(np.uint32)) for x in (found, wanted)]
    np.testing.assert_array_equal(*bits)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))


class Ggml:
    """ggml's own functions on rows."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def _call(self, name: str, into: np.ndarray, row: np.ndarray, count: int) -> np.ndarray:
        function = getattr(self.library, name)
        function.restype, function.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        function(row.ctypes.data, into.ctypes.data, count)
        return into

    def quantize(self, x: np.ndarray, kind: str, suffix: str = "_ref") -> np.ndarray:
        """Return the blocks of numbers."""
        into = np.zeros((x.size // BLOCKS[kind].numbers, BLOCKS[kind].bytes), np.uint8)
        return self._call(f"quantize_row_{kind}{suffix}", into, np.ascontiguousarray(x), x.size)

    def dequantize(self, blocks: np.ndarray, kind: str) -> np.ndarray:
        """Return the numbers of blocks."""
        into = np.zeros((len(blocks), BLOCKS[kind].numbers), np.float32)
        return self._call(f"dequantize_row_{kind}", into, np.ascontiguousarray(blocks), into.size)


@pytest.fixture(scope="module")
def ggml() -> Ggml:
    """Return the library that the package xllamacpp brings along."""
    package = pytest.importorskip("xllamacpp")
    return Ggml(ctypes.CDLL(str(next(File(package.__file__).parent.glob("xllamacpp*.so")))))


def rows() -> Iterator[tuple[str, np.ndarray]]:
    """Rows of 64 numbers, plain and adversarial."""
    rng, n = np.random.default_rng(11), 4000
    normal = rng.standard_normal((n, 64)).astype(np.float32)
    yield "normal", normal
    yield "bfloat16", normal.astype(ml_dtypes.bfloat16).astype(np.float32)
    yield "float16", normal.astype(np.float16).astype(np.float32)
    yield "wide", (normal * np.exp2(rng.integers(-118, 120, (n, 1)))).astype(np.float32)
    yield "zeros", np.where(rng.random((n, 64)) < 0.7, rng.choice([0.0, -0.0], (n, 64)), normal).astype("f")
    yield "nothing but zeros", rng.choice(np.float32([0.0, -0.0]), (64, 64))
    quarters = (rng.integers(-24, 25, (n, 64)) / 4 * np.exp2(rng.integers(-9, 9, (n, 1)))).astype(np.float32)
    yield "ties of E2M1", quarters
    away = rng.choice(np.float32([-np.inf, np.inf]), (n, 64))
    yield "beside ties of E2M1", np.nextafter(quarters, away)
    halves = (rng.integers(-254, 255, (n, 64)) / 2).astype(np.float32)
    halves[:, ::32] = 127
    yield "ties of int8", halves
    power = np.ldexp(1.0, rng.integers(-124, 128, (n, 2))).astype(np.float32)
    amax = (power.view(np.uint32) + rng.integers(-300, 300, (n, 2))).astype(np.uint32).view(np.float32)
    below = rng.uniform(-0.9, 0.9, (n, 2, 32)).astype(np.float32) * amax[..., None]
    below[..., 3] = amax
    yield "maxima beside powers of two", below.reshape(n, 64)
    scale = (rng.integers(0x38000, 0x45000, (n, 4)) << 12).astype(np.uint32).view(np.float32) * np.float32(6)
    under = rng.uniform(-1, 1, (n, 4, 16)).astype(np.float32) * scale[..., None]
    under[..., 0] = scale
    yield "scales at ties of UE4M3", under.reshape(n, 64)
    bits = rng.integers(0, 2**32, (n, 64), dtype=np.uint64).astype(np.uint32)
    yield "any bits", np.where(bits >> 23 & 255 == 255, bits ^ 0x00800000, bits).astype(np.uint32).view("f")


def defined(x: np.ndarray, kind: str) -> np.ndarray:
    """Say of which blocks C defines the codes: 1 / d must be a float32, and an exponent not negative."""
    amax = np.abs(x.reshape(-1, BLOCKS[kind].numbers)).max(-1)
    least = {"q8_0": 2.0**-119, "q4_0": 2.0**-119, "mxfp4": 2.0**-125, "nvfp4": 0}[kind]
    result: np.ndarray = (amax == 0) | (amax >= least)
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_those_of_ggml(ggml: Ggml, kind: str) -> None:
    """Byte for byte, its portable code in every kind and its vector code in q8_0."""
    for what, x in rows():
        same = defined(x, kind)
        wanted = ggml.quantize(x, kind)
        found = quantize_row(x.reshape(len(wanted), -1), kind, PORTABLE)
        np.testing.assert_array_equal(found[same], wanted[same], err_msg=what)
        if kind == "q8_0":
            found = quantize_row(x.reshape(len(wanted), -1), kind, AVX)
            np.testing.assert_array_equal(found[same], ggml.quantize(x, kind, "")[same], err_msg=what)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_read_as_by_ggml(ggml: Ggml, kind: str) -> None:
    """Random bytes: every scale there is, with every code."""
    blocks = np.random.default_rng(5).integers(0, 256, (20000, BLOCKS[kind].bytes)).astype(np.uint8)
    with np.errstate(over="ignore"):
        assert_same_bits(dequantize_row(blocks, kind).astype(np.float32), ggml.dequantize(blocks, kind))


@pytest.mark.parametrize(
    ("kind", "bits"), [("q8_0", 8.5), ("q4_0", 4.5), ("mxfp4", 4.25), ("nvfp4", 4.5)], ids=KINDS
)
def test_bits_per_number_are_those_published(kind: str, bits: float) -> None:
    """34 and 18 and 17 bytes for 32 numbers, 36 for 64: llama.cpp lists its types by bits per weight."""
    assert quantize_row(np.zeros(128, np.float32), kind).size * 8 / 128 == bits


def halves(codes: list[int]) -> list[int]:
    """Return the bytes of 4-bit codes, the first half of them low."""
    middle = len(codes) // 2
    return [low | high << 4 for low, high in zip(codes[:middle], codes[middle:], strict=True)]


def q8_0_of(x: np.ndarray) -> list[int]:
    """Return a block number by number: d from the maximum, 1 / d, products rounded half away from zero."""
    d = np.abs(x).max() / np.float32(127)
    inverse = np.float32(1) / d if d else np.float32(0)
    products = [float(n * inverse) for n in x]
    codes = [floor(abs(p) + 0.5) * (-1 if p < 0 else 1) % 256 for p in products]
    return [*np.float16(d).tobytes(), *codes]


def q4_0_of(x: np.ndarray) -> list[int]:
    """Return a block number by number: d from the first number of largest magnitude, cut off after + 8.5."""
    extreme = np.float32(0)
    for n in x:
        extreme = n if abs(n) > abs(extreme) else extreme
    d = extreme / np.float32(-8)
    inverse = np.float32(1) / d if d else np.float32(0)
    codes = [min(15, int(n * inverse + np.float32(8.5))) for n in x]
    return [*np.float16(d).tobytes(), *halves(codes)]


def first_nearest(n: np.float32, scale: float) -> int:
    """Return the first code at the least distance, in float32."""
    return int(np.argmin([abs(np.float32(v) * np.float32(scale) - n) for v in E2M1]))


def mxfp4_of(x: np.ndarray) -> list[int]:
    """Return a block number by number, the exponent by a logarithm in float32."""
    amax = float(np.abs(x).max())
    exponent = floor(float(np.float32(log2(amax)))) - 2 if amax else -127
    return [exponent + 127, *halves([first_nearest(n, 2.0**exponent) for n in x])]


def ue4m3_of(x: np.float32) -> int:
    """Return the code of a scale, by the steps that lead to it."""
    if not x > 0:
        return 0
    exponent = floor(log2(float(x)))
    if exponent < -6:
        return min(int(x * np.float32(512) + np.float32(0.5)), 7)
    mantissa = floor((float(x) / 2.0**exponent - 1) * 8 + 0.5)  # half up
    if mantissa == 8:
        exponent, mantissa = exponent + 1, 0
    return 0x7E if exponent >= 8 else exponent + 7 << 3 | mantissa


def nvfp4_of(x: np.ndarray) -> list[int]:
    """Return a block group by group."""
    scales, codes = [], []
    for group in x.reshape(4, 16):
        scales.append(ue4m3_of(np.abs(group).max() / np.float32(6)))
        scale = 0.0 if scales[-1] == 0 else float(ue4m3_values(np.uint8([scales[-1]]))[0])
        codes += halves([first_nearest(n, scale) for n in group])
    return scales + codes


BY_DEFINITION = {"q8_0": q8_0_of, "q4_0": q4_0_of, "mxfp4": mxfp4_of, "nvfp4": nvfp4_of}
moderate = st.floats(-4096, 4096, width=32).map(lambda n: 0.0 if abs(n) < 2.0**-60 else n)


@pytest.mark.parametrize("kind", KINDS)
@given(x=hnp.arrays(np.float32, 64, elements=moderate), decimals=st.sampled_from([0, 1, 7]))
def test_blocks_follow_their_definition(kind: str, x: np.ndarray, decimals: int) -> None:
    """The loops above, number by number, agree with the arrays."""
    size = BLOCKS[kind].numbers
    for group in np.round(x, decimals).reshape(-1, size):
        assert quantize_row(group, kind, PORTABLE).tolist() == BY_DEFINITION[kind](group)


def test_ue4m3_follows_its_definition_at_every_tie() -> None:
    """Every number of UE4M3, the middles between them, and the float32 numbers beside all of these."""
    table = ue4m3_values(np.arange(0x7F, dtype=np.uint8))
    marks = np.concatenate([table, (table[1:] + table[:-1]) / 2, np.float32([248, 256, 447, 449, 1e30])])
    marks = np.concatenate([np.nextafter(marks, np.float32(0)), marks, np.nextafter(marks, np.float32(1e38))])
    assert ue4m3_codes(marks).tolist() == [ue4m3_of(n) for n in marks]


@pytest.mark.parametrize("kind", KINDS)
@given(x=hnp.arrays(np.float32, 64, elements=st.floats(-900, 900, width=32)))
def test_what_was_read_is_written_as_it_was(kind: str, x: np.ndarray) -> None:
    """A cache that is read and written again stays what it is, but for scales that vanish in float16."""
    once = dequantize_row(quantize_row(x, kind), kind).astype(np.float32)
    np.testing.assert_array_equal(dequantize_row(quantize_row(once, kind), kind), once)


@pytest.mark.parametrize(("kind", "levels"), [("q8_0", 127), ("q4_0", 8)])
@given(x=hnp.arrays(np.float32, 32, elements=st.floats(-1000, 1000, width=32)))
def test_no_number_moves_by_more_than_half_a_scale(kind: str, levels: int, x: np.ndarray) -> None:
    """And by what float16 takes from the scale; only +8 of q4_0, which is none of its codes, moves by one."""
    d = float(np.abs(x).max()) / levels
    moved = np.abs(dequantize_row(quantize_row(x, kind), kind) - x)
    opposite = np.where(kind == "q4_0", np.maximum(np.abs(x) / d - 7.5, 0) if d else 0, 0)
    lost = levels * max(d * 2.0**-11, 2.0**-25)
    assert (moved <= d * (0.5 + opposite) * (1 + 2.0**-20) + lost).all()


def test_processors_write_different_bytes() -> None:
    """Reference, NEON and AVX differ in rounding and in the reciprocal, and share the scale."""
    x = np.random.default_rng(3).standard_normal((20000, 32)).astype(ml_dtypes.bfloat16)
    reference, neon, avx = (quantize_row(x, "q8_0", path) for path in (PORTABLE, Path(), AVX))
    np.testing.assert_array_equal(reference[:, :2], avx[:, :2])
    for other in (neon, avx):
        moved = reference[:, 2:].view(np.int8).astype(int) - other[:, 2:].view(np.int8)
        assert set(np.unique(moved)) == {-1, 0, 1}
        assert np.count_nonzero(moved) < moved.size / 500
    assert (neon != avx).any()


def test_a_compiler_that_fuses_writes_different_bytes() -> None:
    """x · (1 / d) + 8.5 in one rounding moves a code in ten thousand of bfloat16 numbers."""
    x = np.random.default_rng(3).standard_normal((20000, 32)).astype(ml_dtypes.bfloat16)
    apart, fused = quantize_row(x, "q4_0"), quantize_row(x, "q4_0", Path(multiply_add="fused"))
    assert 0 < np.count_nonzero(apart != fused) < apart.size / 1000


def test_the_extreme_has_a_code_and_its_opposite_has_none() -> None:
    """The first of two equal magnitudes is −8 times d; the other would be +8 and is +7."""
    x = np.float32([1, -1, *[0] * 30])
    assert dequantize_row(quantize_row(x, "q4_0"), "q4_0")[:2].tolist() == [1, -0.875]
    assert dequantize_row(quantize_row(-x, "q4_0"), "q4_0")[:2].tolist() == [-1, 0.875]


def test_zeros_have_the_bytes_ggml_gives_them() -> None:
    """0 / −8 is −0, so a q4_0 block of zeros starts 00 80; its codes are the 8 that stands for zero."""
    zeros = np.float32([0.0, -0.0] * 32)
    assert quantize_row(zeros[:32], "q4_0").tolist() == [0x00, 0x80, *[0x88] * 16]
    for kind in ("q8_0", "mxfp4", "nvfp4"):
        assert not quantize_row(zeros, kind).any()


def test_numbers_past_all_distances_vanish() -> None:
    """Under the largest scale, |6 · 448 − 1e30| and |0 − 1e30| are one float32: the first code wins, 0."""
    x = np.zeros(64, np.float32)
    x[0] = 1e30
    block = quantize_row(x, "nvfp4")
    assert block[0] == 0x7E
    assert not dequantize_row(block, "nvfp4").any()


def test_scales_jump_from_240_to_448() -> None:
    """A scale of 248 rounds up into the last exponent, where the code is always the last."""
    assert ue4m3_codes(np.float32([247.99, 248, 256, 448])).tolist() == [0x77, 0x7E, 0x7E, 0x7E]


def test_the_last_scale_of_mxfp4_is_a_number() -> None:
    """Elsewhere 0xFF is NaN; ggml reads 2^128, of which the code 0 is 0 and the code 1 half."""
    block = np.zeros(17, np.uint8)
    block[:2] = 0xFF, 0x01
    found = dequantize_row(block, "mxfp4")
    assert (found[0], found[16]) == (2.0**127, 0)
    assert np.isfinite(decoded(block, FORMATS["ggml_mxfp4"])).all()


def test_a_maximum_just_below_a_power_takes_its_scale_by_the_logarithm() -> None:
    """7.9999995 is 2^3 to a float32 logarithm, and what is 6 under the scale 1 stands for 8."""
    x = np.zeros(32, np.float32)
    x[0] = np.nextafter(np.float32(8), np.float32(0))
    by_field, by_log = (dequantize_row(quantize_row(x, "mxfp4", p), "mxfp4")[0] for p in (Path(), PORTABLE))
    assert (by_field, by_log) == (6, 8)


def test_nothing_is_minus_zero_in_four_bits() -> None:
    """Tiny negatives get the code 0, and the code 8 is read as +0."""
    x = np.resize(np.float32([6, -0.1, -0.0, -0.25]), 64)
    for kind in ("mxfp4", "nvfp4"):
        codes = quantize_row(x, kind)[BLOCKS[kind].scale_bytes :]
        assert 8 not in set((codes & 15).tolist()) | set((codes >> 4).tolist())
        block = np.full(BLOCKS[kind].bytes, 0x88, np.uint8)
        assert not np.signbit(dequantize_row(block, kind)).any()


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_lie_along_head_dim(kind: str) -> None:
    """Each block of a head is that of its own numbers, in order; half inputs are widened first."""
    x = np.random.default_rng(0).standard_normal((3, 2, 128)).astype(ml_dtypes.bfloat16)
    block, format = BLOCKS[kind], FORMATS[f"ggml_{kind}"]
    q = quantize(x, format)
    assert q.codes.shape == (3, 2, 128 // block.numbers * block.bytes)
    last = quantize_row(x[2, 1, -block.numbers :].astype(np.float32), kind)
    np.testing.assert_array_equal(q.codes[2, 1, -block.bytes :], last)
    assert values(q.codes, format).shape == decoded(q.codes, format).shape == x.shape
    assert quantize(x[:0], format).codes.shape == (0, *q.codes.shape[1:])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_block_is_refused(kind: str) -> None:
    """A length that is no multiple, a number without a scale, another dtype, another kind."""
    block = BLOCKS[kind]
    with pytest.raises(FormatError, match=rf"x has shape \[2, 48\], expected a multiple of {block.numbers}"):
        quantize_row(np.zeros((2, 48), np.float32), kind)
    with pytest.raises(FormatError, match=rf"codes has shape \[33\], expected a multiple of {block.bytes}"):
        dequantize_row(np.zeros(33, np.uint8), kind)
    with pytest.raises(FormatError, match=r"x\[0, 3\] is nan"):
        quantize_row(np.float32([[0, 0, 0, np.nan, *[0] * 60]]), kind)
    with pytest.raises(FormatError, match="codes has dtype int8"):
        dequantize_row(np.zeros(block.bytes, np.int8), kind)
    with pytest.raises(DTypeError):
        quantize_row(np.zeros(64), kind)
    with pytest.raises(FormatError, match="kind = 'q5_0'"):
        quantize_row(np.zeros(64, np.float32), "q5_0")


@given(st.integers(-149, -118), st.integers(0, 2**32 - 1))
def test_what_c_leaves_open_is_settled(exponent: int, seed: int) -> None:
    """Where 1 / d is past float32, or an exponent negative, codes saturate and the scale is the least."""
    x = (np.random.default_rng(seed).uniform(-2, 2, 32) * 2.0**exponent).astype(np.float32)
    for kind in ("q8_0", "q4_0"):
        block = quantize_row(x, kind)
        assert not dequantize_row(block, kind).any()
    assert quantize_row(x, "mxfp4")[0] <= max(exponent + 1 - 2 + 127, 0)

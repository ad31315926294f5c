"""Blocks of bytes as ggml stores them: each block carries its scale in front of its codes.

    q8_0     32 numbers in 34 bytes   d float16, then 32 int8      d = amax / 127
                                      code = round(x · (1 / d))
    q4_0     32 numbers in 18 bytes   d float16, then 32 nibbles   d = extreme / −8
                                      code = trunc(x · (1 / d) + 8.5), at most 15
    mxfp4    32 numbers in 17 bytes   E8M0, then 32 E2M1           scale = 2^(floor(log2 amax) − 2)
    nvfp4    64 numbers in 36 bytes   4 UE4M3, then 4 × 16 E2M1    scale = UE4M3(amax / 6), of each 16

A number comes back as d · code, d · (code − 8), or scale · E2M1(code). The first half of 32 codes (of 16 in
nvfp4) lies in the low nibbles, the second half in the high ones. `extreme` is the first number of largest
magnitude, with its sign. Codes are made with the float32 d; what is stored is d rounded to float16.

Four things are unlike the formats these are named after. An E2M1 code is the first whose float32 distance
|code · scale − x| is least: ties go towards zero, there is no −0, and a number so far past a saturated scale
that all distances round to the same becomes 0. A UE4M3 scale rounds half up, has 7 below 2^-6 however close
it is, jumps to 448 from 248 on, and as 0x7F is 0. An E8M0 scale 0xFF is 2^128, not NaN. A block of zeros in
q4_0 has d = −0.

Realises: KV-FMT-060 q8-0-block, KV-FMT-061 q4-0-block, KV-FMT-062 ggml-mxfp4-block, KV-FMT-063
ggml-nvfp4-block.
For porters: these are ggml's bytes, so compare with ggml's; its own processors differ in q8_0 and q4_0.
Source: llama.cpp `ggml/src/ggml-quants.c` and `ggml-impl.h`, measured; `ggml-cpu/arch` for the vector code.
"""

from dataclasses import dataclass

import numpy as np

from kvref.arrays import Array, check_array
from kvref.errors import FormatError, shown
from kvref.formats import elements
from kvref.formats.casts import encode
from kvref.formats.format import Format, Quantized
from kvref.formats.packing import pack, unpack
from kvref.formats.paths import CANONICAL, Path, check_path
from kvref.formats.steps import float32_numbers, multiply_add


@dataclass(frozen=True)
class Block:
    """How many numbers a block holds, and in how many bytes, the first of which are scales."""

    numbers: int
    bytes: int
    scale_bytes: int


BLOCKS: dict[str, Block] = {
    "q8_0": Block(32, 34, 2),
    "q4_0": Block(32, 18, 2),
    "mxfp4": Block(32, 17, 1),
    "nvfp4": Block(64, 36, 4),
}

#: The path of ggml's portable C code, and of its vector code on x86 (which differs in q8_0 alone).
PORTABLE = Path(int_ties="away", mx_exponent="log2")
AVX = Path(int_ties="even", q8_0_reciprocal="of_amax", mx_exponent="log2")

_E2M1 = elements.values("e2m1").astype(np.float32) + np.float32(0)  # +0 for −0: the code 8 is read as +0
_UE4M3 = np.tile(elements.values("e4m3fn")[:128], 2)
_UE4M3[[0x7F, 0xFF]] = 0, 480


def quantize_row(x: Array, kind: str, path: Path = CANONICAL) -> Array:
    """Return the blocks of numbers along the last axis: uint8 [..., numbers / block · bytes of a block].

    Of the path: int_ties and q8_0_reciprocal (q8_0), multiply_add (q4_0), mx_exponent (mxfp4); everything
    else is fixed by the format. Where C leaves a code open it saturates here: under a d of which 1 / d is
    past float32 (it is 0 in float16), and in mxfp4 groups below 2^-125, which have the scale byte 0.
    Raises: FormatError if there is no such kind, no whole number of blocks, or a number is not finite;
    DTypeError if `x` holds no numbers float32 can hold.
    """
    block = block_of(kind)
    check_path(path)
    numbers = float32_numbers(x)
    _check_whole("x", numbers, block.numbers, "numbers", kind)
    groups = numbers.reshape(*numbers.shape[:-1], numbers.shape[-1] // block.numbers, block.numbers)
    made = {"q8_0": _q8_0, "q4_0": _q4_0, "mxfp4": _mxfp4, "nvfp4": _nvfp4}[kind](groups, path)
    whole = np.concatenate(made, axis=-1)
    return whole.reshape(*numbers.shape[:-1], whole.shape[-2] * block.bytes)


def dequantize_row(blocks: Array, kind: str) -> Array:
    """Return the numbers of blocks along the last axis, float64, exactly.

    Rounded to float32 they are what ggml's readers compute, bit for bit; only mxfp4 has larger ones, which
    become infinite. A float16 d that is infinite or NaN makes its block infinite or NaN.
    Raises: FormatError if there is no such kind, or no whole number of uint8 blocks; DTypeError.
    """
    block = block_of(kind)
    check_blocks(blocks, kind)
    groups = blocks.reshape(*blocks.shape[:-1], blocks.shape[-1] // block.bytes, block.bytes)
    head, body = groups[..., : block.scale_bytes], groups[..., block.scale_bytes :]
    with np.errstate(invalid="ignore"):
        numbers = _scales(head, kind)[..., None] * _numbers(body, kind)
    return numbers.reshape(*blocks.shape[:-1], groups.shape[-2] * block.numbers)


def check_blocks(blocks: Array, kind: str) -> None:
    """Check that an array holds whole blocks along its last axis.

    Raises: FormatError, DTypeError.
    """
    block = block_of(kind)
    check_array("codes", blocks)
    if blocks.dtype != np.uint8:
        raise FormatError(f"codes has dtype {blocks.dtype}, expected uint8 blocks of ggml_{kind}")
    _check_whole("codes", blocks, block.bytes, "bytes", kind)


def quantize(x: Array, format: Format, path: Path = CANONICAL) -> Quantized:
    """Return the blocks of x [num_tokens, num_kv_heads, head_dim] in one of ggml's formats.

    Raises: as `quantize_row`.
    """
    return Quantized(quantize_row(x, kind_of(format), path))


def values(codes: Array, format: Format) -> Array:
    """Return what blocks stand for, float64, exactly. Raises: as `dequantize_row`."""
    return dequantize_row(codes, kind_of(format))


def decoded(codes: Array, format: Format) -> Array:
    """Return what a reader computes from blocks, float32, bit for bit. Raises: as `dequantize_row`."""
    with np.errstate(over="ignore"):
        return dequantize_row(codes, kind_of(format)).astype(np.float32)


def kind_of(format: Format) -> str:
    """Return the kind of block of a format."""
    return format.name.removeprefix("ggml_")


def block_of(kind: str) -> Block:
    """Return the block of a kind.

    Raises: FormatError if there is none.
    """
    if not isinstance(kind, str) or kind not in BLOCKS:
        raise FormatError(f"kind = {shown(kind)}, expected one of {', '.join(BLOCKS)}")
    return BLOCKS[kind]


def ue4m3_codes(x: Array) -> Array:
    """Return the UE4M3 codes of float32 numbers from zero on, as ggml rounds them."""
    bits = np.ascontiguousarray(x).view(np.uint32).astype(np.int64)
    normal = (bits + (1 << 19) >> 20) - (127 - 7 << 3)
    normal = np.where(normal >= 0x78, 0x7E, normal)
    subnormal = np.minimum(np.minimum(x, np.float32(1)) * np.float32(512) + np.float32(0.5), np.float32(7))
    return np.where(x < np.float32(2.0**-6), subnormal.astype(np.int64), normal).astype(np.uint8)


def ue4m3_values(codes: Array) -> Array:
    """Return the numbers of UE4M3 codes, float32; the top bit is not looked at, but 0x7F alone is 0."""
    return np.take(_UE4M3, codes)


def nearest_e2m1(x: Array, scales: Array) -> Array:
    """Return the first E2M1 codes whose distance |code · scale − x| in float32 is least."""
    codes, least = np.zeros(x.shape, np.uint8), np.full(x.shape, np.inf, np.float32)
    with np.errstate(over="ignore"):
        for code, number in enumerate(_E2M1):
            distance = np.abs(number * scales - x)
            codes[distance < least] = code
            np.minimum(least, distance, out=least)
    return codes


def _q8_0(x: Array, path: Path) -> tuple[Array, Array]:
    amax = np.abs(x).max(-1, keepdims=True)
    scales = amax / np.float32(127)
    inverse = _inverse(scales) if path.q8_0_reciprocal == "of_scale" else _inverse(amax, 127)
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.where(x == 0, np.float32(0), x * inverse)
    return _half_bytes(scales), encode(np.clip(ratio, np.float32(-127), np.float32(127)), "int8", path)


def _q4_0(x: Array, path: Path) -> tuple[Array, Array]:
    extreme = np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1) + np.float32(0)  # +0 for −0
    scales = extreme / np.float32(-8)
    lifted = multiply_add(x, _inverse(scales), np.float32(8.5), path)
    lifted = np.where(x == 0, np.float32(8.5), lifted)  # also under an inverse that is infinite
    codes = np.clip(np.trunc(lifted), 0, 15).astype(np.uint8)
    return _half_bytes(scales), pack(codes, "split", 32)


def _mxfp4(x: Array, path: Path) -> tuple[Array, Array]:
    amax = np.abs(x).max(-1, keepdims=True)
    exponent = np.where(amax > 0, _exponent(amax, path) - 2 + 127, 0)
    scale = np.clip(exponent, 0, 255).astype(np.uint8)
    return scale, pack(nearest_e2m1(x, _power(scale).astype(np.float32)), "split", 32)


def _nvfp4(x: Array, path: Path) -> tuple[Array, Array]:
    groups = x.reshape(*x.shape[:-1], 4, 16)
    scale = ue4m3_codes(np.abs(groups).max(-1) / np.float32(6))
    codes = nearest_e2m1(groups, ue4m3_values(scale)[..., None])
    return scale, pack(codes.reshape(x.shape), "split", 16)


def _scales(head: Array, kind: str) -> Array:
    """Return the scales of a block as float64, [..., 1] or [..., 4]."""
    if kind == "nvfp4":
        return ue4m3_values(head).astype(np.float64)
    if kind == "mxfp4":
        return _power(head)
    return np.ascontiguousarray(head).view("<f2").astype(np.float64)


def _numbers(body: Array, kind: str) -> Array:
    """Return what the codes of a block are under the scale 1, float64, grouped by scale."""
    if kind == "q8_0":
        return body.view(np.int8).astype(np.float64)[..., None, :]
    size = 16 if kind == "nvfp4" else 32
    codes = unpack(body, "split", size)
    numbers = codes - 8.0 if kind == "q4_0" else np.take(_E2M1, codes).astype(np.float64)
    return numbers.reshape(*numbers.shape[:-1], numbers.shape[-1] // size, size)


def _inverse(x: Array, over: int = 1) -> Array:
    """Return over / x in float32, and 0 where x is 0."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(x != 0, np.float32(over) / x, np.float32(0))


def _exponent(amax: Array, path: Path) -> Array:
    """Return floor(log2 amax): of the number, or of its logarithm after it was rounded to float32."""
    if path.mx_exponent == "field":
        return np.frexp(amax)[1] - 1
    with np.errstate(divide="ignore"):
        return np.floor(np.log2(amax.astype(np.float64)).astype(np.float32))


def _power(scale: Array) -> Array:
    """Return 2^(byte − 127), float64, for every byte there is."""
    return np.ldexp(1.0, scale.astype(np.int32) - 127)


def _half_bytes(scales: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return scales.astype("<f2").view(np.uint8)


def _check_whole(name: str, x: Array, of: int, what: str, kind: str) -> None:
    if x.ndim == 0 or x.shape[-1] % of:
        raise FormatError(
            f"{name} has shape {list(x.shape)}, expected a multiple of {of} {what} along the last axis: "
            f"ggml_{kind} stores {of} a block"
        )

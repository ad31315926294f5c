"""Asymmetric integers: a group of numbers is a zero, a scale, and how many scales each lies above the zero.

    KIVI         scale = (max − min) / (2^bits − 1)        code = round((x − min) / scale)
                 x' = code · scale + min

    mid-point    scale = (max − min) / 255                 code = round((x − mid) / scale)
                 x' = code · scale + mid                   mid = (min + max) / 2

    int4 per     scale = max((max − min) / 15, 1e-6)       code = round(x · (1 / scale) + z)
    token, head  x' = (code − z) · scale                   z = round(−min / scale), both within 0 … 15

Every step is rounded to float32. KIVI's groups are 32 tokens of one channel in keys, 32 channels of one token
in values; the other two have one group for each token and head.

The last has a zero that is itself a code: a group whose numbers are all positive, or all negative, has no
such zero, and what lies past 15 scales saturates. Its zero is kept in the low four bits of the scale's
mantissa, and readers clear them before they multiply. (vLLM also turns keys and values by a random Hadamard
matrix before it stores them; that is no part of the format, and not done here.)

Realises: KV-FMT-050 integer-rounding-as-declared, KV-FMT-051 integer-range, KV-FMT-052 zero-point-rounding,
KV-FMT-053 zero-point-in-scale, KV-FMT-054 groups-along-their-axis, KV-FMT-055 constant-group.
For porters: round as declared, then clamp; divide by the scale you have, and store it afterwards.
Source: KIVI (Liu et al. 2024) `quant/new_pack.py`; vLLM `int4_per_token_head.py`; LMDeploy's int8 cache.
"""

import numpy as np

from kvref.arrays import Array, as_array, check_array, check_shape, dtype_name, dtype_of, narrow
from kvref.errors import FormatError
from kvref.formats.casts import encode
from kvref.formats.elements import decode, element_of
from kvref.formats.format import Format, Quantized
from kvref.formats.paths import CANONICAL, Path
from kvref.formats.steps import float32_numbers, multiply_add, step, sum_to_float32

#: The least scale of int4 per token and head, and the bits of a scale that hold its zero.
LEAST_SCALE = np.float32(1e-6)
ZERO_BITS = np.uint32(0xF)


def quantize(x: Array, format: Format, path: Path = CANONICAL) -> Quantized:
    """Return codes, one a byte, and what they need, for x [num_tokens, num_kv_heads, head_dim].

    Raises: FormatError if a group does not divide its axis, a number is not finite, a scale or a zero is past
    the largest number of what it is kept in, or a constant group is refused; DTypeError if `x` holds no real
    numbers that float32 can hold.
    """
    if not format.zeros:
        return int4_token_head(x, path)
    return midpoint(x, path) if format.group == "token_head" else kivi(x, format, path)


def kivi(x: Array, format: Format, path: Path = CANONICAL) -> Quantized:
    """Quantise as KIVI does, in groups of tokens (keys) or of channels (values).

    Scales and zeros are float32 [num_tokens / size, num_kv_heads, head_dim] or [num_tokens, num_kv_heads,
    head_dim / size]. All steps are in float32, or in the dtype of x if path.scale_division is "input"; it may
    also be "reciprocal". Of the path, int_ties and constant_group have a say too. Raises: as `quantize`.
    """
    numbers = _numbers(x)
    grouped, axis = _grouped(numbers, format)
    low, high = grouped.min(axis, keepdims=True), grouped.max(axis, keepdims=True)
    works = dtype_name(as_array("x", x)) if path.scale_division == "input" else "float32"
    levels = np.float32(2 ** element_of(format.element).bits - 1)
    with np.errstate(over="ignore"):
        scales = step(step(high - low, works) / levels, works)
    _check_finite("scales", scales.squeeze(axis), works)
    codes = _codes(grouped, low, scales, high == low, format.element, path, works)
    return Quantized(codes.reshape(numbers.shape), scales.squeeze(axis), low.squeeze(axis))


def midpoint(x: Array, path: Path = CANONICAL) -> Quantized:
    """Quantise to int8 around the middle of the range of each token and head.

    Scales and zeros are float16 [num_tokens, num_kv_heads]; the codes are made with the float32 ones. Of the
    path: int_ties, int8_lowest, constant_group, scale_division "reciprocal". Raises: as `quantize`.
    """
    numbers = _numbers(x)
    low, high = numbers.min(-1, keepdims=True), numbers.max(-1, keepdims=True)
    with np.errstate(over="ignore", under="ignore"):
        scales = (high - low) / np.float32(255)
        middle = (low + high) / np.float32(2)
        kept = [part[..., 0].astype(np.float16) for part in (scales, middle)]
    _check_finite("scales", kept[0], "float16")
    _check_finite("zeros", kept[1], "float16")
    codes = _codes(numbers, middle, scales, high == low, "int8", path, "float32")
    return Quantized(codes, kept[0], kept[1])


def int4_token_head(x: Array, path: Path = CANONICAL) -> Quantized:
    """Quantise to uint4 with an integer zero that lies in the low bits of the scale, as vLLM does.

    Scales are float32 [num_tokens, num_kv_heads]; there are no other zeros. Ties go away from zero, by adding
    one half in float32 and cutting off; of the path, only multiply_add has a say. Raises: as `quantize`.
    """
    numbers = _numbers(x)
    low, high = numbers.min(-1, keepdims=True), numbers.max(-1, keepdims=True)
    with np.errstate(over="ignore"):
        scales = np.maximum((high - low) / np.float32(15), LEAST_SCALE)
        _check_finite("scales", scales[..., 0], "float32")
        zeros = _cut(-low / scales)
        codes = _cut(multiply_add(numbers, np.float32(1) / scales, zeros, path))
    bits = scales.view(np.uint32) & ~ZERO_BITS | zeros.astype(np.uint32)
    return Quantized(codes.astype(np.uint8), bits.view(np.float32)[..., 0])


def int4_scales(scales: Array) -> tuple[Array, Array]:
    """Return the scales of int4 per token and head with their low bits cleared, and the zeros they held.

    Raises: FormatError if they are not float32; DTypeError.
    """
    check_array("scales", scales)
    if scales.dtype != np.float32:
        raise FormatError(f"scales has dtype {scales.dtype}, expected float32")
    bits = np.ascontiguousarray(scales).view(np.uint32)
    return (bits & ~ZERO_BITS).view(np.float32), (bits & ZERO_BITS).astype(np.float32)


def values(q: Quantized, format: Format) -> Array:
    """Return what codes, one a byte, and their scales and zeros stand for, float64.

    (code − z) · scale is exact; code · scale + zero is the nearest float64 to it.
    Raises: FormatError if a code is none of the element, or scales or zeros are missing or of another dtype;
    ShapeError if they do not fit the codes; DTypeError.
    """
    codes, scales, zeros = _operands(q, format)
    exact: Array = codes.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return exact * scales + zeros if format.zeros else (exact - zeros) * scales


def decoded(q: Quantized, format: Format, path: Path = CANONICAL, dtype: str = "float32") -> Array:
    """Return what a reader that follows the path computes from codes, one a byte, in `dtype`, bit for bit.

    path.decode_dtype "float32": every step in float32, the result rounded to `dtype`; "output": scales and
    zeros are rounded to `dtype`, and so is every step. path.multiply_add fuses a float32 product and its sum.
    Raises: as `values`.
    """
    codes, scales, zeros = _operands(q, format)
    works = dtype if path.decode_dtype == "output" else "float32"
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        scales, zeros = step(scales, works), step(zeros, works)
        if not format.zeros:
            result = step((codes - zeros) * scales, works)
        elif path.multiply_add == "fused" and works == "float32":
            result = sum_to_float32(codes.astype(np.float64) * scales, zeros.astype(np.float64))
        else:
            result = step(step(codes * scales, works) + zeros, works)
    return narrow(result, dtype_of(dtype))


def _numbers(x: Array) -> Array:
    """Return the numbers of x as float32, checked."""
    numbers = float32_numbers(x)
    check_shape("x", numbers, ["num_tokens", "num_kv_heads", "head_dim"])
    if numbers.shape[-1] == 0:
        raise FormatError("head_dim = 0, expected at least one number in a group")
    return numbers


def _grouped(x: Array, format: Format) -> tuple[Array, int]:
    """Return x with the axis of its groups split in two, and the axis along which a group runs."""
    num_tokens, heads, dim = x.shape
    size = format.size
    extent, name = (num_tokens, "num_tokens") if format.group == "tokens" else (dim, "head_dim")
    if extent % size:
        raise FormatError(
            f"{name} = {extent}, expected a multiple of {size}, the group of {format.name} "
            "(KV-FMT-054 groups-along-their-axis)"
        )
    if format.group == "tokens":
        return x.reshape(num_tokens // size, size, heads, dim), 1
    return x.reshape(num_tokens, heads, dim // size, size), 3


def _codes(
    x: Array, zeros: Array, scales: Array, constant: Array, element: str, path: Path, works: str
) -> Array:
    """Return the nearest codes of (x − zero) / scale, every step rounded; of a number at its zero, 0."""
    if path.constant_group == "nan" and constant.any():
        at = [int(i) for i in np.argwhere(constant)[0]]
        raise FormatError(f"group {at} of x is constant, and 0 / 0 is no code (KV-FMT-055 constant-group)")
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        above = step(x - zeros, works)
        if path.scale_division == "reciprocal":
            ratio = above * (np.float32(1) / scales)
        else:
            ratio = step(above / scales, works)
    return encode(np.where(above == 0, np.float32(0), ratio), element, path)


def _cut(x: Array) -> Array:
    """Return x rounded to an integer by adding one half in float32 and cutting off, within 0 … 15."""
    nearest: Array = np.trunc(x + np.copysign(np.float32(0.5), x))
    return np.clip(nearest, np.float32(0), np.float32(15))


def _operands(q: Quantized, format: Format) -> tuple[Array, Array, Array]:
    """Return numbers of codes, scales and zeros, float32, of shapes that fit each other."""
    codes = decode(q.codes, format.element)
    scales, zeros = (q.scales, q.zeros) if format.zeros else int4_scales(_present("scales", q.scales))
    if format.group == "token_head":
        shape: tuple[int, ...] = codes.shape[:-1]
    else:
        check_shape("codes", codes, ["num_tokens", "num_kv_heads", "head_dim"])
        grouped, axis = _grouped(codes, format)
        shape = grouped.shape[:axis] + grouped.shape[axis + 1 :]
    return codes, _spread("scales", scales, shape, format), _spread("zeros", zeros, shape, format)


def _spread(name: str, groups: Array | None, shape: tuple[int, ...], format: Format) -> Array:
    """Return scales or zeros as float32, one for each number or for each token and head."""
    found = _present(name, groups)
    if found.dtype != np.dtype(format.scale_element):
        raise FormatError(f"{name} has dtype {found.dtype}, expected {format.scale_element}")
    check_shape(name, found, shape)
    wide = found.astype(np.float32)
    if format.group == "token_head":
        return wide[..., None]
    return np.repeat(wide, format.size, axis=0 if format.group == "tokens" else 2)


def _present(name: str, part: Array | None) -> Array:
    if part is None:
        raise FormatError(f"{name} is missing, expected an array")
    check_array(name, part)
    return part


def _check_finite(name: str, found: Array, dtype: str) -> None:
    wrong = ~np.isfinite(found)
    if wrong.any():
        at = [int(i) for i in np.argwhere(wrong)[0]]
        raise FormatError(f"{name}{at} is past the largest {dtype}, expected a finite number")

"""How far past its last code a number may have lain, under the rule that made the scale.

A scale that was taken from the largest magnitude of a group leaves nothing far outside, but each rule leaves
something. With the largest number L of the element, and E, the power of two at or below it, the largest of
u = x / S is

    amax / L in float32            L, and its rounding        power of two by `floor` or `even`      2E
    amax / 200, amax / 100         200, 100                   `ceil`                                 E
    E4M3(amax / (6 g))             6 (1 + half a gap of s)    `rceil`                                L
    (max − min) / 15 or 255        the last code and a half   `nearest`                              √2 L

and there is no largest where the scale was given, or where an E4M3 scale that did not come from the same
numbers is at its end.

For porters: a table to check your reading of a rule against.
Source: the rules themselves, in `kvref.formats.amax`, `exponents`, `nvfp4`, `affine` and `ggml`.
"""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref.formats.elements import largest, values
from kvref.formats.format import Format, Quantized
from kvref.formats.lines import Line, line_of
from kvref.formats.paths import Path

#: What a reserve for roundings of float32 in a scale's own arithmetic comes to.
_NEARLY = 1 + 2.0**-16
#: Unit roundoff of the half dtypes, and half their smallest number (bfloat16 may flush what is subnormal).
HALF_DTYPES = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-126)}


def reach(quantized: Quantized, format: Format, path: Path, line: Line, dtype: str) -> tuple[Array, Array]:
    """Return the lowest and the highest (x − offset) / slope of a finite number that the group held."""
    if format.family == "affine" or format.name == "ggml_q4_0":
        return _of_integers(format, path, line, dtype)
    if format.family == "amax":
        top = _of_amax(format, path, line)
    elif format.name == "ggml_q8_0":
        top = np.full(line.slope.shape, 127.0)
    elif format.name == "ggml_mxfp4":
        top = np.full(line.slope.shape, 8.0)
    elif format.family == "mx":
        top = np.full(line.slope.shape, _of_shared_exponent(format, path))
    else:
        top = _of_group_scale(quantized, format, path, line)
    return -top, top


def gone(quantized: Quantized, format: Format, path: Path, line: Line, dtype: str) -> Array:
    """Return the most that |x − offset| can have been in a group whose scale is zero."""
    eta = HALF_DTYPES[dtype][1] if dtype in HALF_DTYPES and path.scale_division == "input" else 0.0
    if format.name == "int8_midpoint":
        return 128 * 2.0**-25 + 1.01 * 2.0**-11 * np.abs(line.offset)
    if format.name in ("ggml_q8_0", "ggml_q4_0"):
        return np.full(line.slope.shape, largest("int8") * 2.0**-25)
    if format.family == "nvfp4":
        g = line_of(_with_group_scales_of_one(quantized), format, path).slope
        least = (
            2.0**-127 if path.nvfp4_operand == "encode" else 2.0**-149
        )  # less, and the global scale is gone
        return 6 * 2.0**-10 * 1.01 * g + 2688 * least
    if format.name == "ggml_nvfp4":
        return np.full(line.slope.shape, 6 * 2.0**-10 * 1.01)
    return np.full(line.slope.shape, largest(format.element) * max(2.0**-149, 2 * eta))


def is_extreme(scale: Array) -> Array:
    """Say which scales may overflow or vanish as reciprocals, or as products with a second scale."""
    extreme: Array = (scale < 2.0**-117) | (scale > 2.0**117)
    return extreme


def _of_amax(format: Format, path: Path, line: Line) -> Array:
    top = largest(format.element)
    if format.group == "given" or (format.group == "tensor" and path.tensor_scale == "unit"):
        return np.full(line.slope.shape, np.inf)
    if format.group == "tensor" and path.tensor_scale != "amax":
        top = float(path.tensor_scale.removeprefix("amax_over_"))
    return top * (_NEARLY + 2.0**-149 / line.slope)


def _of_shared_exponent(format: Format, path: Path) -> float:
    top = largest(format.element)
    power = 2.0 ** (int(np.frexp(top)[1]) - 1)
    # a logarithm of up to 128 in bfloat16 is off by up to a half, and its ratio by a step
    nearly = 2.0**0.51 if path.mx_exponent == "log2_input" else _NEARLY
    return nearly * {
        "floor": 2 * power,
        "ceil": power,
        "rceil": top,
        "nearest": 2**0.5 * top,
    }.get(path.mx_scale, 2 * power)


def _of_group_scale(quantized: Quantized, format: Format, path: Path, line: Line) -> Array:
    """Return 6 s' / s, s' being the largest number that rounds to the E4M3 scale s."""
    table = values("e4m3fn")[:127].astype(np.float64)
    if format.family == "ggml":
        s, gap = line.slope, 1.0  # ggml has no code between 7/8 and 1 of the smallest normal number
        unknown = s == table[-1]
    else:
        assert quantized.global_scale is not None
        plain = replace(quantized, global_scale=np.ones_like(quantized.global_scale))
        s, gap = line_of(plain, format, path).slope, 0.5
        own = format.global_scale != "given" and path.nvfp4_global != "unit"
        unknown = (s == table[-1]) & (not own)
    at = np.clip(np.searchsorted(table, s, side="right") - 1, 0, len(table) - 2)
    rounded = 1 + gap * (table[at + 1] - table[at]) / s
    shares = 1.01 if path.scale_division == "input" else _NEARLY
    return np.where(unknown | is_extreme(line.slope), np.inf, 6 * rounded * shares)


def _of_integers(format: Format, path: Path, line: Line, dtype: str) -> tuple[Array, Array]:
    """Return the ends of ranges that were divided into as many steps as there are codes."""
    top = largest(format.element)
    ones = np.ones(line.slope.shape)
    if format.name == "ggml_q4_0":
        return 0 * ones, 16 * ones
    if format.name == "int8_midpoint":
        return -127.5 * ones, 127.5 * ones
    if format.name == "int4_token_head":  # a zero at its end may have been cut off there
        zero = -line.offset / line.slope
        return np.where(zero > top - 0.5, -np.inf, -0.5), np.where(zero < 0.5, np.inf, top + 0.5)
    u, eta = HALF_DTYPES[dtype] if path.scale_division == "input" and dtype in HALF_DTYPES else (0.0, 0.0)
    return 0 * ones, top * (_NEARLY + 4 * u + 2 * max(eta, 2.0**-150) / line.slope)


def _with_group_scales_of_one(quantized: Quantized) -> Quantized:
    assert quantized.scales is not None
    one = int(np.flatnonzero(values("e4m3fn") == 1.0)[0])
    return replace(quantized, scales=np.full_like(quantized.scales, one))

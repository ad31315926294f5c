"""How much a format may lose: a bound on every number that came back, from its definition alone.

Every format reads x' = S·c + Z, where c is the number its code stands for; S and Z are what is stored for the
group. A writer rounds the real u = (x − Z) / S, or something close to it, to a number of the element. So with
h(u), half the gap between the two numbers of the element around u, and r, how far the writer's own arithmetic
may have moved u,

    |x' − x|  <=  |S| · max( h(|u| + r) + r,  |u| − largest + r )

The second part is the clipping of what lies past the largest number. S and Z are taken as stored: that the
scale was itself rounded shows in u, which may lie a little past the largest.

Of codes alone, without x, the gap around each code is known, and at the last code how far past it a number
may have lain under the rule that made the scale (`kvref.formats.saturation`): not at all, a little, or, where
the scale was given, no one knows, and the bound is infinite.

Realises: KV-FMT-100 loss-within-definition.
For porters: nothing to build; a writer that is right to the byte is within.
Source: derived here and in `spec/bounds.md`, on what a format adds.
"""

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, as_array, check_shape, dtype_name, narrow, widen
from kvref.formats.elements import IntElement, element_of, values
from kvref.formats.format import Format, Quantized, format_of
from kvref.formats.integers import limits
from kvref.formats.lines import Line, line_of
from kvref.formats.paths import CANONICAL, Path
from kvref.formats.saturation import HALF_DTYPES, gone, is_extreme, reach
from kvref.formats.scaled import dequantize

#: At most eight roundings to float32 lie between x and the number that is rounded to an element.
_ROUNDINGS = 8 * 2.0**-24
#: The scale of byte 0 in microscaled formats.
SMALLEST_SCALE = 2.0**-127


def loss_bound(x: ArrayLike, quantized: Quantized, format: str | Format, *, path: Path = CANONICAL) -> Array:
    """Return the most each number that comes back may differ from x, float64 of the shape of x.

    Of `quantized` only the scales and zeros are used, so that wrong codes are found out. Infinity where
    nothing can be said: x or its scale is not finite, or the path makes NaN or infinity of what overflows.
    Raises: as `dequantize`; ShapeError if x has another shape than the numbers stored.
    """
    kind, given = format_of(format), as_array("x", x)
    wide, line = widen("x", given), line_of(quantized, kind, path)
    check_shape("x", wide, line.slope.shape)
    with np.errstate(all="ignore"):
        u = (wide - line.offset) / line.slope
        size = np.abs(wide - line.offset)
        off = _off(np.abs(u), line, kind, path, dtype_name(given))
        low, high = _range(kind, path)
        past = np.maximum(u - high, low - u)
        lost = np.abs(line.slope) * np.maximum(_half_gap(np.abs(u) + off, kind) + off, past + off)
        most = size + np.abs(line.slope) * max(high, -low)  # a finite code is no further
        lost = np.where(line.slope == 0, size, np.fmin(lost, most))
        no_number = _overflows(np.abs(u) + off, kind, path) | (np.isnan(off) & (line.slope != 0))
        return np.where(no_number | np.isnan(wide) | ~np.isfinite(line.slope), np.inf, lost)


def loss_of_codes(
    quantized: Quantized, format: str | Format, *, dtype: str = "float32", path: Path = CANONICAL
) -> Array:
    """Return the most each number that comes back may differ from the finite one that was written, float64.

    `dtype` is the one x had; it matters only where the path divides in it. Infinity where a code is the last
    one and nothing says how far past it the number lay, and where a code or a scale is not finite.
    Raises: as `dequantize`.
    """
    kind = format_of(format)
    numbers, line = dequantize(quantized, kind, path=path), line_of(quantized, kind, path)
    with np.errstate(all="ignore"):
        c = (numbers - line.offset) / line.slope
        gap = _half_gap(np.abs(c) * (1 + 2.0**-50), kind)  # c is a number of the element, to 2^-53
        low, high = _range(kind, path)
        off = _off(np.abs(c) + 2 * gap, line, kind, path, dtype)
        lowest, highest = reach(quantized, kind, path, line, dtype)
        nearly = 0.25  # no two numbers of an element at its ends are that close
        past = np.where(c > high - nearly, highest - high, np.where(c < low + nearly, low - lowest, 0.0))
        if kind.name == "ggml_nvfp4":  # far past the last code many distances are alike, and the first wins
            past = np.where(np.isinf(highest), np.inf, past)
        lost = np.abs(line.slope) * (np.maximum(gap, past) + off)
        if kind.family == "mx" and path.mx_smallest_divisor == "one":
            lost = np.where(line.slope == SMALLEST_SCALE, np.inf, lost)  # all codes are 0, whatever x was
        lost = np.where(line.slope == 0, gone(quantized, kind, path, line, dtype), lost)
        return np.where(np.isfinite(numbers) & np.isfinite(line.slope) & ~np.isnan(lost), lost, np.inf)


def _range(format: Format, path: Path) -> tuple[float, float]:
    """Return the lowest and the highest number of the element that the path writes."""
    kind = element_of(format.element)
    if isinstance(kind, IntElement):
        low, high = limits(kind, path)
        return float(low), float(high)
    finite = values(format.element)[np.isfinite(values(format.element))]
    return float(finite.min()), float(finite.max())


def _half_gap(size: Array, format: Format) -> Array:
    """Return half the gap between the numbers of the element around a magnitude; past the end, the last."""
    if isinstance(element_of(format.element), IntElement):
        return np.full(np.shape(size), 0.5)
    table = values(format.element).astype(np.float64)
    magnitudes = np.unique(np.abs(table[np.isfinite(table)]))
    gaps = np.diff(magnitudes)
    at = np.clip(np.searchsorted(magnitudes, size, side="right") - 1, 0, len(gaps) - 1)
    half: Array = gaps[at] / 2
    return half


def _overflows(size: Array, format: Format, path: Path) -> Array:
    """Say where the path may answer with NaN or infinity instead of the largest number."""
    declared = {"e4m3fn": path.e4m3_overflow, "e5m2": path.e5m2_overflow}
    answer = declared.get(format.element, path.fnuz_overflow if "fnuz" in format.element else "saturate")
    if format.family != "amax" or answer == "saturate":
        return np.zeros(size.shape, np.bool_)
    top = values(format.element).astype(np.float64)
    last = np.max(top[np.isfinite(top)])
    past: Array = size >= last + _half_gap(np.array(last), format)
    return past


def _off(size: Array, line: Line, format: Format, path: Path, dtype: str) -> Array:
    """Return r, how far a writer's arithmetic may move u of a size; infinity where it may do anything."""
    scale = np.abs(line.slope)
    off = _ROUNDINGS * (size + 16) if format.family in ("affine", "ggml") else _ROUNDINGS * size
    off = off + 2.0**-126
    extreme = is_extreme(scale)
    if format.family == "nvfp4":
        off = np.where(extreme, np.inf, off)
    elif (
        format.family != "mx" and path.scale_division == "reciprocal"
    ):  # 0 times an infinite reciprocal is NaN
        off = np.where(extreme, np.nan if format.family == "amax" else np.inf, off)
    if format.name in ("ggml_q8_0", "ggml_q4_0", "int8_midpoint"):  # d and the middle are stored as float16
        u, eta = HALF_DTYPES["float16"]
        share = u + eta / scale
        stretched = np.where(share < 1, share / (1 - share), np.inf)
        off = off + stretched * (size + 8 * (format.name == "ggml_q4_0"))
        if format.name == "int8_midpoint":
            off = off + 1.01 * (1 + stretched) * (u * np.abs(line.offset) + eta) / scale
    elif format.name == "int4_token_head":  # up to 15 steps of the scale's mantissa are the zero
        off = np.where(extreme, np.inf, off + 2.0**-18 * (size + 16))
    elif format.family == "mx" and path.mx_smallest_divisor != "exact":  # half of u is rounded, or nothing
        return np.where(scale == SMALLEST_SCALE, size, off)
    elif path.scale_division.startswith("input") and dtype in HALF_DTYPES:
        u, eta = HALF_DTYPES[dtype]
        if format.family == "affine" and path.scale_division == "input":
            return off + 3 * u * size + eta
        if format.family != "amax":
            return off
        as_cast = narrow(scale, dtype) if path.scale_division == "input_scale" else scale
        cast = scale / as_cast.astype(np.float64)
        off = off + size * (np.abs(cast - 1) + u * cast) + eta
        off = np.where(np.isinf(cast), np.nan, off)  # 0 / 0 is among the quotients
    return off

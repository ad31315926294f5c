"""Quantise and dequantise: any format, any path, to the byte.

`quantize` gives what a writer of the path stores. `dequantize` gives the number that stored bytes stand for,
exactly: a product of an element and one or two scales, in float64. `decoded` gives what a reader of the path
gets from them, rounded as it rounds. Attention over a quantised cache is attention over the second.

Realises: KV-FMT-070 nibble-order-as-declared, KV-FMT-071 scale-layout-as-declared,
KV-FMT-080 dequantised-exactly, KV-FMT-081 decode-path-as-declared.
For porters: `dequantize` of every code first; then `quantize` against it.
Source: `spec/formats.md`.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, as_array, check_array, check_shape, dtype_of, is_real, narrow
from kvref.errors import DTypeError, FormatError, ShapeError, shown
from kvref.formats import affine, amax, ggml, mx, nvfp4
from kvref.formats.elements import check_codes
from kvref.formats.format import Format, Quantized, format_of
from kvref.formats.packing import arrange_scales, arranged_shape, pack, restore_scales, unpack
from kvref.formats.paths import CANONICAL, Path, check_path
from kvref.formats.steps import operation

AXES = ["num_tokens", "num_kv_heads", "head_dim"]
#: Steps of float32 by which a division that is not exact may be off.
BAND = 2
#: What numbers may come in, and what a reader may make of them.
_INPUTS = tuple(dtype_of(name) for name in ("float32", "bfloat16", "float16"))
_OUTPUTS = ("float32", "bfloat16", "float16", "float64")


def quantize(
    x: ArrayLike,
    format: str | Format,
    *,
    scales: ArrayLike | None = None,
    global_scale: ArrayLike | None = None,
    path: Path = CANONICAL,
) -> Quantized:
    """Return what a writer of a format stores for x [num_tokens, num_kv_heads, head_dim].

    `scales` [1] or [num_kv_heads] and `global_scale` [1], float32, are passed where the format is given them,
    and nowhere else. float16 and bfloat16 are widened exactly, except where the path divides in their own.
    Raises: FormatError if a scale is missing, unasked for, of another shape, zero, negative or not finite; if
    a group does not divide its axis; if x holds what the format or the path refuses. ShapeError; DTypeError.
    """
    return _quantize(x, format_of(format), scales, global_scale, path)


def acceptable(
    x: ArrayLike,
    format: str | Format,
    *,
    scales: ArrayLike | None = None,
    global_scale: ArrayLike | None = None,
    path: Path = CANONICAL,
) -> tuple[Quantized, ...]:
    """Return everything a writer of a path may store: one answer, but where its division is not exact.

    There, the answers at the ends of a band of two float32 steps around each quotient, of scales and of
    numbers; a writer may take any of them, group by group and number by number. Raises: as `quantize`.
    """
    kind = format_of(format)
    check_path(path)
    ends = (-BAND, BAND)
    if kind.family == "amax" and path.scale_division == "approximate":
        return tuple(_quantize(x, kind, scales, global_scale, path, (0, end)) for end in ends)
    if kind.family == "nvfp4" and path.nvfp4_division == "approximate":
        both = [(a, b) for a in ends for b in ends]
        return tuple(_quantize(x, kind, scales, global_scale, path, ulps) for ulps in both)
    return (_quantize(x, kind, scales, global_scale, path),)


def dequantize(q: Quantized, format: str | Format, *, path: Path = CANONICAL) -> Array:
    """Return the numbers that stored bytes stand for, float64 [num_tokens, num_kv_heads, head_dim], exactly.

    Raises: FormatError if codes or scales have another length, shape or dtype than the format's.
    """
    kind = format_of(format)
    plain = _plain(q, kind, path)
    if kind.family == "affine":
        return affine.values(plain, kind)
    if kind.family == "ggml":
        return ggml.values(plain.codes, kind)
    if kind.family == "nvfp4":
        return nvfp4.values(plain, kind, path)
    numbers, spread = _factors(plain, kind, path)
    with np.errstate(all="ignore"):  # an infinite code under a scale that is NaN
        return np.asarray(numbers.astype(np.float64) * spread)


def decoded(q: Quantized, format: str | Format, *, dtype: str = "float32", path: Path = CANONICAL) -> Array:
    """Return what a reader of the path makes of stored bytes, in `dtype`, bit for bit.

    Raises: as `dequantize`; DTypeError if `dtype` is not float32, bfloat16, float16 or float64.
    """
    if not isinstance(dtype, str) or dtype not in _OUTPUTS:
        raise DTypeError(f"dtype = {shown(dtype)}, expected one of {', '.join(_OUTPUTS)}")
    kind, wanted = format_of(format), dtype_of(dtype)
    plain = _plain(q, kind, path)
    works = wanted if path.decode_dtype == "output" else np.dtype(np.float32)
    with np.errstate(all="ignore"):
        if kind.family == "affine":
            return affine.decoded(plain, kind, path, dtype)
        if kind.family == "ggml":
            return narrow(ggml.decoded(plain.codes, kind), wanted)
        if kind.family == "nvfp4":
            product = nvfp4.decoded(plain, kind, path, works)
        else:
            product = operation(np.multiply, *_factors(plain, kind, path), works)
    return product if product.dtype == wanted else narrow(product, wanted)


def unpacked(q: Quantized, format: str | Format, *, path: Path = CANONICAL) -> Array:
    """Return the codes of stored bytes, one a byte. Raises: as `dequantize`."""
    return _plain(q, format_of(format), path).codes


def check_stored(q: Quantized, format: Format, path: Path) -> None:
    """Check that bytes are stored, with no part that the format has not; scales are not looked at.

    Raises: FormatError, ShapeError, DTypeError.
    """
    check_path(path)
    if not isinstance(q, Quantized):
        raise DTypeError(f"q is a {type(q).__name__}, expected a Quantized")
    check_array("codes", q.codes)
    if q.codes.ndim != 3:
        raise ShapeError(f"codes has shape {list(q.codes.shape)}, expected [num_tokens, num_kv_heads, bytes]")
    own = {"scales": format.family != "ggml", "zeros": format.zeros, "global_scale": format.global_scale}
    for name, has in own.items():
        if not has and getattr(q, name) is not None:
            raise FormatError(f"{name} was passed, expected none: {format.name} has no {name}")
    if format.family == "ggml":
        ggml.check_blocks(q.codes, ggml.kind_of(format))


def _quantize(
    x: ArrayLike,
    format: Format,
    scales: ArrayLike | None,
    global_scale: ArrayLike | None,
    path: Path,
    ulps: tuple[int, int] = (0, 0),
) -> Quantized:
    check_path(path)
    given = as_array("x", x)
    if given.dtype not in _INPUTS:
        raise DTypeError(f"x has dtype {given.dtype}, expected float32, float16 or bfloat16")
    check_shape("x", given, AXES)
    with np.errstate(invalid="ignore"):
        wide = given.astype(np.float32, copy=False)
    own = _scales("scales", scales, format.group == "given", format, (1, given.shape[1]))
    second = _scales("global_scale", global_scale, format.global_scale == "given", format, (1,))
    if format.family == "amax":
        found = amax.quantize(wide, given.dtype, format, own, path, ulps[1])
    elif format.family == "mx":
        found = mx.quantize(wide, given.dtype, format, path)
    elif format.family == "nvfp4":
        found = nvfp4.quantize(wide, given.dtype, format, second, path, ulps)
    elif format.family == "affine":
        found = affine.quantize(given, format, path)
    else:
        return ggml.quantize(given, format, path)
    return _stored(found, format, path)


def _scales(
    name: str, scales: ArrayLike | None, asked: bool, format: Format, lengths: tuple[int, ...]
) -> Array | None:
    """Check scales that a caller passes."""
    if not asked:
        if scales is not None:
            raise FormatError(f"{name} was passed, expected none: {format.name} makes its own or has none")
        return None
    if scales is None:
        raise FormatError(f"{name} is missing, expected float32 scales: {format.name} is given them")
    found = as_array(name, scales)
    if not is_real(found):
        raise DTypeError(f"{name} has dtype {found.dtype}, expected float32")
    if found.ndim != 1 or len(found) not in lengths:
        raise FormatError(
            f"{name} has shape {list(found.shape)}, expected {' or '.join(f'[{n}]' for n in lengths)}"
        )
    with np.errstate(over="ignore", under="ignore"):
        exact = found.astype(np.float32)
    wrong = ~(np.isfinite(exact) & (exact > 0))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise FormatError(f"{name}[{at}] = {found[at]}, expected a finite number above zero in float32")
    return exact


def _stored(q: Quantized, format: Format, path: Path) -> Quantized:
    """Return what is stored: codes packed, scales in the path's layout."""
    codes, scales = q.codes, q.scales
    if format.packed:
        codes = pack(codes, path.nibble_order, format.size or codes.shape[2])
    if _tiled(format, path):
        assert scales is not None
        scales = arrange_scales(scales.reshape(-1, scales.shape[-1]), path.scale_layout)
    return replace(q, codes=codes, scales=scales)


def _tiled(format: Format, path: Path) -> bool:
    return format.family in ("mx", "nvfp4") and path.scale_layout != "linear"


def _plain(q: Quantized, format: Format, path: Path) -> Quantized:
    """Return codes one a byte and scales in order, both checked."""
    check_stored(q, format, path)
    if format.family == "ggml":
        return q
    size = format.size or 2 * q.codes.shape[2]
    codes = unpack(q.codes, path.nibble_order, size) if format.packed else q.codes
    check_codes("codes", codes, format.element)
    if format.family == "affine":
        return replace(q, codes=codes)
    scales = _part("scales", q.scales, format.scale_element)
    shape = _scales_shape(codes.shape, scales, format, path)
    if _tiled(format, path):
        rows, columns = int(np.prod(shape[:-1])), shape[-1]
        check_shape("scales", scales, arranged_shape(rows, columns, path.scale_layout))
        scales = restore_scales(scales, path.scale_layout, rows=rows, columns=columns).reshape(shape)
    check_shape("scales", scales, shape)
    if not format.global_scale:
        return Quantized(codes, scales)
    second = _part("global_scale", q.global_scale, "float32")
    check_shape("global_scale", second, codes.shape[:2] if format.global_scale == "token_head" else (1,))
    return Quantized(codes, scales, None, second)


def _scales_shape(shape: tuple[int, ...], scales: Array, format: Format, path: Path) -> tuple[int, ...]:
    if format.family in ("mx", "nvfp4"):
        return mx.scales_shape(shape, format, path)
    if format.group == "token_head":
        return shape[:2]
    if format.group == "channels":
        return (*shape[:2], shape[2] // format.size)
    per_head = format.group == "given" and scales.shape != (1,)
    return (shape[1],) if per_head else (1,)


def _part(name: str, x: Array | None, element: str) -> Array:
    """Check that a stored part is there, in the dtype its element is stored in."""
    if x is None:
        raise FormatError(f"{name} is missing, expected an array of {element}")
    check_array(name, x)
    wanted = np.dtype(element if element.startswith("float") else np.uint8)
    if x.dtype != wanted:
        raise FormatError(f"{name} has dtype {x.dtype}, expected {wanted} ({element})")
    return x


def _factors(q: Quantized, format: Format, path: Path) -> tuple[Array, Array]:
    """Return element and scale of each number, float32, for formats of one scale."""
    return amax.factors(q, format) if format.family == "amax" else mx.factors(q, format, path)

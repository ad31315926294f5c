"""NVFP4: E2M1 in groups of sixteen, each with an E4M3 scale, and one more scale g over them all.

    s = E4M3(amax / (6 g))            q = E2M1(x / (s g))            x' = q · s · g

g is the one that decodes; a caller may hold 1 / g instead, which is another member of the path. The group's
scale saturates at 448, so numbers past 2688 g are cut off, and it may round to zero, where the group is gone.
All arithmetic is in float32, in the order the path names; NaN counts for nothing in amax.

Realises: KV-FMT-040 two-level-scale, KV-FMT-041 global-operand-as-declared, KV-FMT-042 group-scale-rounding,
KV-FMT-043 tiny-group-as-declared, KV-FMT-044 global-rule-as-declared, KV-FMT-045 largest-as-declared.
For porters: dividing and multiplying by a reciprocal differ in about one code of two thousand.
Source: the NVFP4 cache writers of FlashInfer, TensorRT-LLM and vLLM; torchao and compressed-tensors.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvref.arrays import Array, narrow
from kvref.errors import FormatError
from kvref.formats.amax import check_finite, group_amax, moved
from kvref.formats.casts import encode
from kvref.formats.elements import decode
from kvref.formats.format import Format, Quantized
from kvref.formats.mx import grouped, saturating, ungrouped
from kvref.formats.paths import Path
from kvref.formats.pieces import in_pieces
from kvref.formats.steps import operation

#: What amax is divided by for g: the largest element, times or without the largest group scale.
_GLOBAL = {"amax/2688": 2688.0, "amax/448": 448.0}
#: Codes of E4M3: the smallest number 2^-9, the smallest normal number 2^-6, 0.125, and 1.
_SMALLEST, _SMALLEST_NORMAL, _EPSILON, _UNIT = (np.uint8(code) for code in (0x01, 0x08, 0x20, 0x38))
_NAN = np.uint8(0x7F)
_ONE = np.float32(1)


def quantize(
    x: Array,
    dtype: np.dtype[Any],
    format: Format,
    global_scale: Array | None,
    path: Path,
    ulps: tuple[int, int] = (0, 0),
) -> Quantized:
    """Quantise float32 x [num_tokens, num_kv_heads, head_dim] that came in `dtype`; codes come one a byte.

    `global_scale` is what the caller passes, None where the writer derives it. `ulps` moves the quotients of
    scales and of numbers by that many steps of float32, for paths whose division is not exact.
    Raises: FormatError if groups do not divide their axis, or g must come from numbers that are not finite.
    """
    if global_scale is None:
        check_finite(x, format)
    shared = derived(x, format, path) if format.global_scale == "tensor" else global_scale

    def write(x: Array) -> Quantized:
        stored = derived(x, format, path) if shared is None else shared
        codes, scales = _written(x, stored, dtype, format, path, ulps)
        return Quantized(codes, scales, None, stored if shared is None else None)

    whole = path.scale_axis == "tokens" or path.e2m1_nan == "refuse"  # a refusal names a place in x
    found = write(x) if whole else in_pieces(write, x)
    return found if shared is None else replace(found, global_scale=shared)


def values(q: Quantized, format: Format, path: Path) -> Array:
    """Return q · s · g, float64, exactly; q · s / G to the nearest float64 where 1 / g is what is stored."""
    numbers, scales, second = _factors(q, format, path)
    with np.errstate(all="ignore"):
        product = numbers.astype(np.float64) * scales
        return np.asarray(product / second if path.nvfp4_operand == "encode" else product * second)


def decoded(q: Quantized, format: Format, path: Path, dtype: np.dtype[Any]) -> Array:
    """Return what a reader of the path that works in `dtype` makes of it."""
    numbers, scales, second = _factors(q, format, path)
    over = np.divide if path.nvfp4_operand == "encode" else np.multiply
    if path.nvfp4_decode_order == "scales_first":
        return operation(np.multiply, numbers, operation(over, scales, second, dtype), dtype)
    return operation(over, operation(np.multiply, numbers, scales, dtype), second, dtype)


def derived(x: Array, format: Format, path: Path) -> Array:
    """Return the global scale a writer takes from finite numbers, float32, in the operand's direction."""
    axes = None if format.global_scale == "tensor" else 2
    amax = np.abs(x).max(axis=axes, initial=0.0).reshape(-1 if axes is None else x.shape[:2])
    if path.nvfp4_global == "unit":
        return np.ones_like(amax)
    top = np.float32(_GLOBAL[path.nvfp4_global])
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(top / amax if path.nvfp4_operand == "encode" else amax / top)


def _written(
    x: Array, stored: Array, dtype: np.dtype[Any], format: Format, path: Path, ulps: tuple[int, int]
) -> tuple[Array, Array]:
    """Return the codes of numbers, one a byte, and the codes of their groups' scales."""
    groups = grouped(x, format, path)
    both = _Global.of(stored, path, groups.ndim - 1)
    amax = group_amax(groups)
    lost = np.isnan(amax) & (path.nvfp4_nan_group == "nan")
    if np.isnan(amax).any():  # NaN counts for nothing
        amax = np.fmax.reduce(np.abs(groups), axis=-1, initial=0)
    own = dtype if path.scale_division == "input" else np.dtype(np.float32)

    def at(top: float) -> tuple[Array, Array]:
        share = narrow(amax.astype(np.float64) / top, own).astype(np.float32)
        scales = _scales(amax, share, np.float32(top), both, path, ulps[0])
        return scales, _codes(groups, amax, decode(scales, "e4m3fn"), both, path, ulps[1])

    scales, codes = at(6.0)
    if path.nvfp4_largest == "four_over_six":
        scales, codes = _better(groups, (scales, codes), at(4.0), both.g)
    scales[lost], codes[lost] = _NAN, 0
    return ungrouped(codes, x.shape, path), scales


@dataclass(frozen=True)
class _Global:
    """The global scale in both directions, float32: one is stored, the other its reciprocal."""

    g: Array
    inverse: Array

    @staticmethod
    def of(stored: Array, path: Path, rank: int) -> "_Global":
        """Shape what is stored to meet the scales of groups."""
        if stored.ndim == 2 and path.scale_axis == "tokens":
            raise FormatError("path.scale_axis = 'tokens', expected 'channels' with a global scale a token")
        shaped = stored.reshape(*stored.shape, *(1,) * (rank - stored.ndim))
        with np.errstate(divide="ignore", over="ignore"):
            other = _ONE / shaped
        return _Global(other, shaped) if path.nvfp4_operand == "encode" else _Global(shaped, other)


def _scales(amax: Array, share: Array, top: np.float32, both: _Global, path: Path, ulps: int) -> Array:
    """Return the codes of the groups' scales; `share` is amax / top."""
    with np.errstate(all="ignore"):
        if path.nvfp4_division == "two_reciprocals":
            quotient = share / both.g
        elif path.nvfp4_division == "encode":
            quotient = share * both.inverse
        else:
            quotient = amax / (top * both.g)
        quotient = np.where(amax == 0, np.float32(0), moved(quotient, ulps))
        codes = encode(quotient, "e4m3fn")
    if path.nvfp4_scale_floor == "smallest":
        return np.maximum(codes, _SMALLEST)
    if path.nvfp4_scale_floor == "smallest_normal":
        return np.maximum(codes, _SMALLEST_NORMAL)
    if path.nvfp4_scale_floor == "epsilon":
        return np.where(codes == 0, _EPSILON, codes)
    if path.nvfp4_scale_floor == "one":
        return np.where(quotient == 0, _UNIT, np.maximum(codes, _SMALLEST))
    return codes


def _codes(groups: Array, amax: Array, s: Array, both: _Global, path: Path, ulps: int) -> Array:
    """Return the codes of numbers under their groups' scales."""
    scale, g, inverse = s[..., None], both.g[..., None], both.inverse[..., None]
    with np.errstate(all="ignore"):
        if path.nvfp4_division == "reciprocal":
            numbers = groups * (_ONE / (scale * g))
        elif path.nvfp4_division == "two_reciprocals":
            numbers = groups * (inverse / scale)
        elif path.nvfp4_division == "encode":
            numbers = groups / (scale / inverse)
        else:
            numbers = moved(groups / (scale * g), ulps)
    gone = (s == 0) & ((amax == 0) | (path.nvfp4_tiny_group == "zero"))
    if path.nvfp4_tiny_group == "signed_zero":  # numbers times zero
        gone = np.zeros_like(gone)
        numbers = np.where((s == 0)[..., None], groups * np.float32(0), numbers)
    if np.isnan(numbers).any():
        own = ~np.isnan(groups)
        numbers[np.isnan(numbers) & own] = np.nan  # 0 / 0, whose sign is a machine's
        numbers[gone[..., None] & own] = 0
        zeros = own & (amax == 0)[..., None]  # 0 over a global scale of 0 stays what it was
        numbers[zeros] = groups[zeros]
    codes = encode(numbers, "e2m1", saturating(path))
    codes[gone] = 0
    return codes


def _factors(q: Quantized, format: Format, path: Path) -> tuple[Array, Array, Array]:
    """Return the numbers of the codes, and both scales of each as they are stored, of one shape."""
    assert q.scales is not None
    assert q.global_scale is not None
    numbers = decode(q.codes, "e2m1")
    spread = np.repeat(decode(q.scales, "e4m3fn")[..., None], format.size, axis=-1)
    stored = q.global_scale.reshape(*q.global_scale.shape, *(1,) * (3 - q.global_scale.ndim))
    return numbers, ungrouped(spread, q.codes.shape, path), np.broadcast_to(stored, numbers.shape)


def _better(
    groups: Array, six: tuple[Array, Array], four: tuple[Array, Array], g: Array
) -> tuple[Array, Array]:
    """Keep the group whose squares of errors add up to less; the first where they add up to the same."""

    def lost(scales: Array, codes: Array) -> Array:
        scale = decode(scales, "e4m3fn").astype(np.float64) * g
        gaps = decode(codes, "e2m1") * scale[..., None] - groups
        return np.asarray((gaps**2).sum(axis=-1))

    with np.errstate(invalid="ignore"):
        keep = lost(*four) < lost(*six)
    return np.where(keep, four[0], six[0]), np.where(keep[..., None], four[1], six[1])

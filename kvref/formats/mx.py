"""Microscaling: groups of numbers that share a power of two.

    X = 2^shared exponent(amax)            q = cast(x / X)            x' = q · X

Dividing by a power of two is exact in float32 but where it overflows, and there the element saturates; so the
rule for the exponent and the cast decide every code. A group with a NaN in it has the scale NaN, and nothing
that is stored beside it means anything.

Realises: KV-FMT-030 shared-exponent-as-declared, KV-FMT-032 elements-under-the-shared-scale,
KV-FMT-033 mx-zero-group, KV-FMT-034 nan-group, KV-FMT-035 inf-group, KV-FMT-038 groups-stay-in-their-head.
For porters: an element never leaves the group of its own head, unless the path runs groups over all heads.
Source: OCP Microscaling (MX) 1.0, 6.3.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.formats.amax import group_amax
from kvref.formats.casts import encode
from kvref.formats.elements import decode
from kvref.formats.exponents import NAN, scale_of, shared_exponent
from kvref.formats.format import Format, Quantized, check_divides
from kvref.formats.integers import refuse_nan
from kvref.formats.paths import Path
from kvref.formats.pieces import in_pieces

#: Elements saturate whatever the path says of a bare cast: a scale was chosen for them.
_SATURATING = ("e4m3_overflow", "e5m2_overflow", "fnuz_overflow")


def quantize(x: Array, dtype: np.dtype[Any], format: Format, path: Path) -> Quantized:
    """Quantise float32 x [num_tokens, num_kv_heads, head_dim] that came in `dtype`; codes come one a byte.

    Raises: FormatError if groups do not divide the axis they run along, or the path refuses a NaN.
    """
    if format.element == "e2m1" and path.e2m1_nan == "refuse":
        refuse_nan(x, format.element)

    def write(x: Array) -> Quantized:
        groups = grouped(x, format, path)
        scales = shared_exponent(group_amax(groups), format.element, path, dtype)
        with np.errstate(all="ignore"):
            quotients = groups / divisor_of(scales, path)[..., None]
        quotients[scales == NAN] = 0
        codes = encode(quotients, format.element, saturating(path))
        codes[scales == NAN] = 0  # also where the path stores zeros as −0
        return Quantized(ungrouped(codes, x.shape, path), scales)

    return write(x) if path.scale_axis == "tokens" else in_pieces(write, x)


def divisor_of(scales: Array, path: Path) -> Array:
    """Return what a writer divides by under each scale byte, float32: the scale, but perhaps for byte 0."""
    scale = scale_of(scales)
    if path.mx_smallest_divisor == "exact":
        return scale
    least = 1.0 if path.mx_smallest_divisor == "one" else 2.0**-126
    return np.where(scales == 0, np.float32(least), scale)


def factors(q: Quantized, format: Format, path: Path) -> tuple[Array, Array]:
    """Return the numbers of the codes, one a byte, and the scale of each, both float32, of one shape."""
    assert q.scales is not None
    numbers = decode(q.codes, format.element)
    spread = np.repeat(scale_of(q.scales)[..., None], format.size, axis=-1)
    return numbers, ungrouped(spread, q.codes.shape, path)


@lru_cache(maxsize=64)
def saturating(path: Path) -> Path:
    """Return the path of a cast under a scale that was made for it."""
    kept = {name: getattr(path, name) for name in path.__dataclass_fields__ if name not in _SATURATING}
    return Path(**kept)


def grouped(x: Array, format: Format, path: Path) -> Array:
    """Return numbers with their groups as the last axis; what comes before it is the shape of the scales.

    Raises: FormatError if a group does not divide its axis.
    """
    num_tokens, num_kv_heads, head_dim = x.shape
    if path.scale_axis == "tokens":
        check_divides(format.size, num_tokens, "num_tokens", format)
        apart = x.reshape(num_tokens // format.size, format.size, num_kv_heads, head_dim)
        return np.moveaxis(apart, 1, -1)
    if path.mx_span == "flattened" and format.family == "mx":
        check_divides(format.size, num_kv_heads * head_dim, "num_kv_heads * head_dim", format)
        return x.reshape(num_tokens, num_kv_heads * head_dim // format.size, format.size)
    check_divides(format.size, head_dim, "head_dim", format)
    return x.reshape(num_tokens, num_kv_heads, head_dim // format.size, format.size)


def ungrouped(groups: Array, shape: tuple[int, ...], path: Path) -> Array:
    """Return numbers grouped by `grouped` where they were, `[num_tokens, num_kv_heads, head_dim]`."""
    if path.scale_axis == "tokens":
        groups = np.moveaxis(groups, -1, 1)
    return np.ascontiguousarray(groups).reshape(shape)


def scales_shape(shape: tuple[int, ...], format: Format, path: Path) -> tuple[int, ...]:
    """Return the shape of the scales of codes [num_tokens, num_kv_heads, head_dim], before any layout.

    Raises: FormatError if a group does not divide its axis.
    """
    return grouped(np.broadcast_to(np.zeros(1, np.uint8), shape), format, path).shape[:-1]

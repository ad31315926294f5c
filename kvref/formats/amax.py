"""One scale for a group, so that its largest magnitude becomes the element's largest: FP8 and INT8.

    scale = amax / largest            q = cast(x / scale)            x' = q · scale

The scale is the one that decodes. It is given by the caller, for all or for each kv head, or the writer takes
it from the tensor, from each token's head, or from 128 channels at a time. All arithmetic is in float32
unless the path says otherwise; how x is divided is a decision of the path, and so are the floor of a scale
and whether it is a power of two. A group whose scale is zero holds zeros.

Realises: KV-FMT-020 decode-scale, KV-FMT-021 division-as-declared, KV-FMT-022 scale-of-own-head,
KV-FMT-023 scale-from-own-amax, KV-FMT-024 clamp-after-scaling, KV-FMT-025 scale-rule-as-declared,
KV-FMT-026 zero-group.
For porters: x / scale may be past the largest by one step even where the scale came from amax: clamp.
Source: the FP8 and per-token-head cache writers of vLLM and SGLang; FlashMLA's rows of 128 channels.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from kvref.arrays import Array, narrow
from kvref.errors import FormatError
from kvref.formats.casts import encode
from kvref.formats.elements import IntElement, decode, element_of, largest
from kvref.formats.format import Format, Quantized, check_divides
from kvref.formats.paths import Path
from kvref.formats.pieces import in_pieces

#: What an amax is divided by where the writer does not look at the element; vLLM's constants for K and for V.
_DIVISORS = {"amax_over_200": 200.0, "amax_over_100": 100.0}
_FLOORS = {"none": 0.0, "1e-4": 0.0, "1e-6": 1e-6, "smallest_normal": 2.0**-126}


def quantize(
    x: Array, dtype: np.dtype[Any], format: Format, scales: Array | None, path: Path, ulps: int = 0
) -> Quantized:
    """Quantise float32 x [num_tokens, num_kv_heads, head_dim] that came in `dtype`.

    `ulps` moves each quotient by that many steps of float32, for paths whose division is not exact.
    Raises: FormatError if a scale must come from numbers that are not finite, or groups do not divide.
    """
    if scales is None:
        check_finite(x, format)
    shared = scales_of(x, format, path) if format.group == "tensor" else scales

    def write(x: Array) -> Quantized:
        stored = scales_of(x, format, path) if shared is None else shared
        spread = over_channels(stored, x.shape, format)
        quotients = divided(x, spread, dtype, path, ulps)
        if not stored.all():  # a quotient by zero is NaN, which integers refuse
            quotients = np.where(spread == 0, quotients.dtype.type(0), quotients)
        return Quantized(encode(quotients, format.element, path), stored if shared is None else None)

    names_its_place = isinstance(element_of(format.element), IntElement)  # of a NaN, in x
    found = write(x) if names_its_place else in_pieces(write, x)
    return found if shared is None else replace(found, scales=shared)


def factors(q: Quantized, format: Format) -> tuple[Array, Array]:
    """Return the numbers of the codes and the scale of each, both float32, of one shape."""
    assert q.scales is not None
    return decode(q.codes, format.element), over_channels(q.scales, q.codes.shape, format)


def scales_of(x: Array, format: Format, path: Path) -> Array:
    """Return the decode scales a writer takes from finite numbers, float32, in the format's shape."""
    top = np.float32(largest(format.element))
    if format.group == "tensor":
        if path.tensor_scale == "unit":
            return np.ones(1, np.float32)
        amax = np.abs(x).max(initial=0.0, keepdims=True).reshape(1)
        top = np.float32(_DIVISORS.get(path.tensor_scale, top))
    elif format.group == "token_head":
        amax = group_amax(x)
    else:
        check_divides(format.size, x.shape[2], "head_dim", format)
        amax = group_amax(x.reshape(*x.shape[:2], x.shape[2] // format.size, format.size))
    if path.scale_floor == "1e-4":
        amax = np.maximum(amax, np.float32(1e-4))
    scale = np.maximum(amax / top, np.float32(_FLOORS[path.scale_floor]))
    return power_of_two_up(scale) if path.scale_power == "up" else scale


def power_of_two_up(scale: Array) -> Array:
    """Return the smallest power of two that is no smaller, float32; zero stays zero."""
    fraction, exponent = np.frexp(scale)
    return np.where(scale == 0, scale, np.ldexp(np.float32(1), exponent - (fraction == 0.5))).astype(
        np.float32
    )


def group_amax(groups: Array) -> Array:
    """Return the largest magnitude along the last axis of float32 numbers; NaN where there is one.

    Without their signs float32 bits are ordered as the numbers are, NaN above infinity. NumPy is slow along a
    short axis, so neighbours are compared until nothing is left to halve.
    """
    bits = np.ascontiguousarray(groups).view(np.uint32).reshape(-1) & np.uint32(0x7FFFFFFF)
    size = groups.shape[-1]
    while size > 1 and size % 2 == 0:
        bits = np.maximum(bits[0::2], bits[1::2])
        size //= 2
    bits = bits.reshape(*groups.shape[:-1], size)
    top = bits[..., 0] if size == 1 else bits.max(axis=-1, initial=0)
    return np.asarray(top).view(np.float32)


def divided(x: Array, scale: Array, dtype: np.dtype[Any], path: Path, ulps: int = 0) -> Array:
    """Return x / scale as the path computes it, float32 or `dtype`; where the scale is zero, anything."""
    with np.errstate(all="ignore"):
        if path.scale_division == "reciprocal":
            return np.asarray(x * (np.float32(1) / scale))
        if path.scale_division == "input":
            return narrow(x / scale, dtype)
        if path.scale_division == "input_scale":
            return narrow(x / narrow(scale, dtype).astype(np.float32), dtype)
        return moved(x / scale, ulps)


def moved(x: Array, ulps: int) -> Array:
    """Return finite float32 numbers `ulps` steps away from zero, or towards it where that is negative."""
    if not ulps:
        return x
    bits = x.view(np.uint32).astype(np.int64)
    steps = np.where(np.isfinite(x) & (x != 0), ulps, 0)
    size = np.maximum((bits & 0x7FFFFFFF) + steps, 0)  # no step leads past zero
    return np.asarray(size | bits & 0x80000000, np.uint32).view(np.float32)


def over_channels(scales: Array, shape: tuple[int, ...], format: Format) -> Array:
    """Return the scale of every number, `[num_tokens, num_kv_heads, head_dim]`."""
    if format.group in ("given", "tensor"):
        by_head = scales.reshape(1, -1, 1)
    elif format.group == "token_head":
        by_head = scales[..., None]
    else:
        by_head = np.repeat(scales, format.size, axis=2)
    return np.broadcast_to(by_head, shape)


def check_finite(x: Array, format: Format) -> None:
    """Check that a scale can be taken from numbers.

    Raises: FormatError naming the first that is not finite.
    """
    if not np.isfinite(x).all():
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])
        raise FormatError(
            f"x{list(at)} = {x[at]}, expected a finite number: {format.name} takes scales from x"
        )

"""Faults of whose scale it is: that of another head."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.beside_formats import named
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.bitwise import Bitwise
from kvref_conformance.subjects.bitwise.coded import Coded
from kvref_conformance.subjects.bitwise.kinds import Kind

_BOTH, _GIVEN = ("quantize_kv", "dequantize_kv"), ("fp8_e4m3",)
#: What else hangs on whose scale it is.
_BESIDE = named(21, 24, 26, 73, 81)


@exhibit(
    as_if="every head had the scale of the first",
    fault="F18 row mapping",
    seen_in=("sgl-project/sgl-kernel-xpu#252",),
    breaks=("KV-FMT-022",),
    may_also_break=_BESIDE,
    verbs=_BOTH,
    formats=_GIVEN,
)
class ScaleOfFirstHead(Bitwise):
    """The scale is read as one number where it is one a head.

    A pointer to a float was made for one scale a tensor, and the interface around it had grown a scale for
    each kv head. Where all are alike nothing shows.
    """

    def given_scales(self, scales: Array, x: Array) -> Array:
        """Take the first."""
        return super().given_scales(scales[:1], x)


@exhibit(
    as_if="every head had the scale of the next",
    fault="F18 row mapping",
    seen_in=("ROCm/aiter#3894",),
    breaks=("KV-FMT-022",),
    may_also_break=_BESIDE,
    verbs=_BOTH,
    formats=_GIVEN,
)
class ScaleOfNextHead(Bitwise):
    """The flat index into the buffer of scales is off.

    Codes and scales are addressed apart, and a layout that shuffles the codes changed the one computation
    and not the other.
    """

    def given_scales(self, scales: Array, x: Array) -> Array:
        """Move every scale to the head before."""
        return super().given_scales(np.roll(scales, -1), x)


class _Moved(Bitwise):
    """Scales change places among heads, given ones and those that were stored."""

    def in_other_heads(self, scales: Array, axis: int) -> Array:
        """Return scales in another order of heads, which lie along an axis."""
        raise NotImplementedError

    def by_heads(self, scales: Array) -> Array:
        """Move scales `[num_kv_heads]`, or `[num_tokens, num_kv_heads, ...]`."""
        return self.in_other_heads(scales, 0 if scales.ndim == 1 else 1)

    def write_amax(self, x: Array, kind: Kind, scales: Array | None) -> Coded:
        """Move what is given."""
        return super().write_amax(x, kind, None if scales is None else self.by_heads(scales))

    def read_amax(self, codes: Array, kind: Kind, scales: Array, dtype: np.dtype[Any]) -> Array:
        """Move float32 scales."""
        return super().read_amax(codes, kind, self.by_heads(scales), dtype)

    def read_mx(self, codes: Array, kind: Kind, scales: Array, dtype: np.dtype[Any]) -> Array:
        """Move exponents."""
        return super().read_mx(codes, kind, self.by_heads(scales), dtype)

    def read_nvfp4(
        self, codes: Array, kind: Kind, scales: Array, global_scale: Array, dtype: np.dtype[Any]
    ) -> Array:
        """Move scales of groups."""
        return super().read_nvfp4(codes, kind, self.by_heads(scales), global_scale, dtype)


@exhibit(
    as_if="every head had the scale of the one before it",
    fault="F18 row mapping",
    breaks=("KV-FMT-022",),
    may_also_break=_BESIDE,
    verbs=_BOTH,
    formats=_GIVEN,
)
class ScaleOfPreviousHead(_Moved):
    """The index into the scales lags one head behind.

    A plant, of `ScaleOfNextHead` in the other direction: with two heads nobody can tell them apart.
    """

    def in_other_heads(self, scales: Array, axis: int) -> Array:
        """Move every scale to the head after."""
        return np.roll(scales, 1, axis)


@exhibit(
    as_if="the scales of heads were in reverse order",
    fault="F18 row mapping",
    breaks=("KV-FMT-022",),
    may_also_break=_BESIDE,
    verbs=_BOTH,
    formats=_GIVEN,
)
class ScalesOfHeadsReversed(_Moved):
    """Heads count up, and their scales count down.

    A plant of a loop that runs backwards over one of two arrays. The head in the middle is right.
    """

    def in_other_heads(self, scales: Array, axis: int) -> Array:
        """Turn the order around."""
        return np.flip(scales, axis)

"""Faults of rearranging: bits that change, and elements in another's place."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.tiled import Tiled

_CONVERT = ("convert_layout",)


@exhibit(
    as_if="elements passed through arithmetic, which loses the sign of zero and the payload of NaN",
    fault="F13 scale or encoding",
    breaks=("KV-ATTN-090",),
    may_also_break=("KV-ATTN-091",),
    verbs=_CONVERT,
)
class BitsPassThroughArithmetic(Tiled):
    """A conversion adds zero to every element.

    A plant: kernels that copy through registers of another type canonicalise NaN, and -0 becomes 0.
    """

    def laid(self, plain: Array, target: str, x: int) -> Array:
        """Add zero."""
        with np.errstate(invalid="ignore"):
            return np.asarray(super().laid(plain, target, x) + np.asarray(0, plain.dtype), plain.dtype)


@exhibit(
    as_if="axes were relabelled without moving elements",
    fault="F12 layout",
    seen_in=("vllm-project/vllm#49012",),
    breaks=("KV-ATTN-091",),
    verbs=_CONVERT,
)
class ReshapedNotTransposed(Tiled):
    """A cache is given the target's shape, and its elements stay where they are.

    The extent was read from the wrong axis, and what came out had the right shape. A round trip is perfect:
    two wrong conversions undo each other.
    """

    def plain(self, cache: Array, source: str) -> Array:
        """Relabel on the way in."""
        right = super().plain(cache, source)
        return np.ascontiguousarray(cache).reshape(right.shape)

    def laid(self, plain: Array, target: str, x: int) -> Array:
        """Relabel on the way out."""
        right = super().laid(plain, target, x)
        return np.ascontiguousarray(plain).reshape(right.shape)

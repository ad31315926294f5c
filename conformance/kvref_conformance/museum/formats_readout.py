"""Faults of what attention reads of a code: numbers that are flushed, clipped, or none at all."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.bitwise import Bitwise

_ATTEND, _FORMATS = ("quantized_paged_attention",), ("fp8_e4m3", "int8_token_head")


@exhibit(
    as_if="codes of NaN were read as zero by attention",
    fault="F10 NaN spread",
    breaks=("KV-FMT-090", "KV-FMT-037"),
    verbs=_ATTEND,
    features=("prefill",),
    formats=("fp8_e4m3", "mxfp8_e4m3"),
)
class LiveNaNReadAsZero(Bitwise):
    """What is no number is set to zero, in order that dead slots do no harm.

    A plant of a cure that goes too far: a row that is lost looks like any other.
    """

    def numbers(self, *parts: Any) -> Array:
        """Set whatever is NaN to zero."""
        found = super().numbers(*parts)
        return np.where(np.isnan(found), found.dtype.type(0), found)


@exhibit(
    as_if="numbers of the cache were clipped to 65504, where float16 ends",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-090",),
    verbs=_ATTEND,
    features=("prefill",),
    formats=_FORMATS,
)
class ClippedAtHalf(Bitwise):
    """Tiles are dequantised into half precision, and clipped so that nothing is infinite.

    A plant. With scales near 1 no number comes near the end.
    """

    def numbers(self, *parts: Any) -> Array:
        """Clip."""
        return np.clip(super().numbers(*parts), -65504, 65504)


@exhibit(
    as_if="numbers of the cache below 2^-14 were flushed to zero",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-090",),
    verbs=_ATTEND,
    features=("prefill",),
    formats=_FORMATS,
)
class FlushedAtHalf(Bitwise):
    """Tiles are dequantised into half precision without its subnormal numbers.

    A plant. A query that is large makes up for a small scale, and its scores are gone.
    """

    def numbers(self, *parts: Any) -> Array:
        """Flush."""
        found = super().numbers(*parts)
        return np.where(np.abs(found) < 2.0**-14, found.dtype.type(0), found)

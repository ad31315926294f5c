"""Faults of whose scale it is: that of the group beside."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.beside_formats import ANY_READ, less
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.bitwise import Bitwise
from kvref_conformance.subjects.bitwise.kinds import Kind

_READ, _GROUPS = ("dequantize_kv",), ("mxfp4", "mxfp8_e4m3", "nvfp4")
_BROKEN = ("KV-FMT-036",)


class _Beside(Bitwise):
    """Every group is read with the scale of another."""

    by, within = 1, True
    """How many groups on the scale comes from; whether the count starts anew with each head."""

    def beside_group(self, scales: Array) -> Array:
        """Return the scales `[num_tokens, num_kv_heads, groups]` that groups are read with."""
        if self.within:
            return np.roll(scales, -self.by, axis=-1)
        return np.roll(scales.reshape(-1), -self.by).reshape(scales.shape)

    def read_amax(self, codes: Array, kind: Kind, scales: Array, dtype: np.dtype[Any]) -> Array:
        """Take those of other groups, if there are groups."""
        return super().read_amax(codes, kind, self.beside_group(scales) if kind.size else scales, dtype)

    def read_mx(self, codes: Array, kind: Kind, scales: Array, dtype: np.dtype[Any]) -> Array:
        """Take the exponents of other groups."""
        return super().read_mx(codes, kind, self.beside_group(scales), dtype)

    def read_nvfp4(
        self, codes: Array, kind: Kind, scales: Array, global_scale: Array, dtype: np.dtype[Any]
    ) -> Array:
        """Take the scales of other groups."""
        return super().read_nvfp4(codes, kind, self.beside_group(scales), global_scale, dtype)


@exhibit(
    as_if="every group was read with the scale of the next",
    fault="F01 boundary",
    breaks=_BROKEN,
    may_also_break=less(ANY_READ, *_BROKEN),
    verbs=_READ,
    formats=_GROUPS,
)
class ScaleOfNextGroup(_Beside):
    """The index of a group is rounded up, and the last of a head finds the first.

    A plant. Groups of one head are alike in magnitude, so that what comes out is off by a factor of two here
    and there.
    """


@exhibit(
    as_if="every group was read with the scale of the one before it",
    fault="F01 boundary",
    breaks=_BROKEN,
    may_also_break=less(ANY_READ, *_BROKEN),
    verbs=_READ,
    formats=_GROUPS,
)
class ScaleOfPreviousGroup(_Beside):
    """The index of a group is one too small, and that before the first is the last.

    A plant, of the exhibit before in the other direction. With two groups a head they are the same.
    """

    by = -1


@exhibit(
    as_if="the scales of groups were read from one place too far on, across heads and tokens",
    fault="F01 boundary",
    breaks=_BROKEN,
    may_also_break=less(ANY_READ, *_BROKEN),
    verbs=_READ,
    formats=_GROUPS,
)
class GroupScalesOnePlaceOn(_Beside):
    """The pointer to the scales starts at the second.

    A plant. The last group of a head finds the first scale of the next head, and the last of all what lies
    behind.
    """

    within = False


@exhibit(
    as_if="the scales of groups were read from one place too early, across heads and tokens",
    fault="F01 boundary",
    breaks=_BROKEN,
    may_also_break=less(ANY_READ, *_BROKEN),
    verbs=_READ,
    formats=_GROUPS,
)
class GroupScalesOnePlaceBack(_Beside):
    """The pointer to the scales starts one before the first.

    A plant, of the exhibit before in the other direction.
    """

    by, within = -1, False

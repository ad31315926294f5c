"""Faults of deriving a float32 scale: from the wrong numbers, by the wrong rule, or not kept."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.beside_formats import ANY_WRITE, less, named
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.bitwise import Bitwise
from kvref_conformance.subjects.bitwise.coded import Coded
from kvref_conformance.subjects.bitwise.kinds import Kind

_WRITE, _ROWS = ("quantize_kv",), ("fp8_e4m3_token_head",)


@exhibit(
    as_if="a token's heads had one scale together",
    fault="F18 row mapping",
    breaks=("KV-FMT-023",),
    may_also_break=named(2, 4, 21, 24, 26, 73, 100),
    verbs=_WRITE,
    formats=_ROWS,
)
class OneScaleForAllHeads(Bitwise):
    """The maximum is taken over a token, and its heads share it.

    A plant of a reduction over one axis too many. The largest head is right and the others lose bits.
    """

    def own_scales(self, groups: Array, kind: Kind) -> Array:
        """Spread the largest scale of a token over its heads."""
        right = super().own_scales(groups, kind)
        return np.broadcast_to(right.max(axis=1, keepdims=True), right.shape).copy()


@exhibit(
    as_if="a head was scaled by the maximum of the head beside it",
    fault="F18 row mapping",
    seen_in=("kekzl/imp#91",),
    breaks=("KV-FMT-023",),
    may_also_break=(*less(ANY_WRITE, "KV-FMT-023"), "KV-FMT-051"),
    verbs=_WRITE,
    formats=_ROWS,
)
class MaximumOfNeighbour(Bitwise):
    """The reduction looks at another stretch of memory than the one that is quantised.

    A view of the widest layer's shape was reduced for a layer with fewer channels, so the maximum was of what
    lay behind. Scales come from numbers that are never stored.
    """

    def own_scales(self, groups: Array, kind: Kind) -> Array:
        """Take the neighbour's."""
        return np.roll(super().own_scales(groups, kind), 1, axis=1)


@exhibit(
    as_if="the scale was the one of the token written before",
    fault="F06 order",
    breaks=("KV-FMT-023",),
    may_also_break=less(ANY_WRITE, "KV-FMT-023"),
    verbs=_WRITE,
    formats=_ROWS,
)
class ScaleOfPreviousToken(Bitwise):
    """The scale is stored before the maximum is known.

    A plant of two steps in the wrong order: what is stored is what the register held, from the row before.
    """

    def own_scales(self, groups: Array, kind: Kind) -> Array:
        """Take the last row's."""
        return np.roll(super().own_scales(groups, kind), 1, axis=0)


@exhibit(
    as_if="only positive numbers counted for the maximum",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-025",),
    may_also_break=less(ANY_WRITE, "KV-FMT-025"),
    verbs=_WRITE,
    formats=_ROWS,
)
class MaximumWithoutAbs(Bitwise):
    """The maximum is taken of the numbers and not of their magnitudes.

    A plant. On data around zero the two are nearly alike; a key channel that is always negative saturates.
    """

    def amax(self, groups: Array) -> Array:
        """Return the largest number, at least 0."""
        return np.asarray(groups.astype(np.float32).max(axis=-1, initial=0))


@exhibit(
    as_if="the maximum was divided by 240, the largest number of another flavour",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-025",),
    may_also_break=less(ANY_WRITE, "KV-FMT-025"),
    verbs=_WRITE,
    formats=(*_ROWS, "fp8_e4m3_tensor"),
)
class LargestOfAnotherFlavour(Bitwise):
    """Scales are made for numbers up to 240.

    A plant of a constant that belongs to FNUZ; one engine's manual gives it for both. Nothing saturates, and
    nearly a bit is lost.
    """

    def divisor(self, kind: Kind) -> np.float32:
        """Return 240."""
        return np.float32(240)


@exhibit(
    as_if="scales that are powers of two were doubled",
    fault="F01 boundary",
    seen_in=("microsoft/onnxruntime#32122",),
    breaks=("KV-FMT-025",),
    may_also_break=less(ANY_WRITE, "KV-FMT-025"),
    verbs=_WRITE,
    formats=_ROWS,
    choices={"scale-power": "up"},
)
class PowerOfTwoDoubled(Bitwise):
    """A power of two is rounded up to the next one.

    `frexp` has its fraction from a half to one, so an exact power comes with an exponent that is one larger.
    Whoever takes that exponent has twice the scale for just the maxima that needed no rounding.
    """

    def power_up(self, scale: Array) -> Array:
        """Return the power of two above."""
        return np.ldexp(np.float32(1), np.frexp(scale)[1]).astype(np.float32)


@exhibit(
    as_if="a group of zeros was divided by its scale of zero",
    fault="F10 NaN spread",
    seen_in=(
        *("huggingface/kernels-community#681", "pytorch/ao#4762", "pytorch/ao#4714"),
        *("THUDM/slime#2256", "ROCm/aiter#4289"),
    ),
    breaks=("KV-FMT-026",),
    verbs=_WRITE,
    formats=(*_ROWS, "fp8_e4m3_tensor", "fp8_e4m3_group128"),
    head_dims=(128,),
)
class ZeroGroupIsNaN(Bitwise):
    """0 / 0 is NaN, and E4M3 can store it.

    The scale is amax / 448 without a floor. Padding, an expert that is not used, a channel that is never
    active: each is a group of zeros, and comes back as NaN, which no scale of zero repairs.
    """

    def under_zero(self, quotients: Array, scales: Array) -> Array:
        """Keep the quotients."""
        return quotients


@exhibit(
    as_if="the writer kept no scale of its own and returned ones",
    fault="F20 failure as success",
    breaks=("KV-FMT-023", "KV-FMT-025"),
    may_also_break=(*less(ANY_WRITE, "KV-FMT-023", "KV-FMT-025"), "KV-FMT-051"),
    verbs=_WRITE,
    formats=_ROWS,
)
class ScalesNotStored(Bitwise):
    """Codes are right, and the tensor of scales is as it was allocated.

    A plant: the store of the scale is behind a flag that another format sets.
    """

    def write_amax(self, x: Array, kind: Kind, scales: Array | None) -> Coded:
        """Return ones for scales."""
        right = super().write_amax(x, kind, scales)
        return right._replace(scales=None if right.scales is None else np.ones_like(right.scales))

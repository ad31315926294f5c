"""Faults of two levels of scales: NVFP4's formula, its operand, groups that are tiny beside their tensor."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.beside_formats import TWO_LEVELS, less
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.bitwise import Bitwise

_WRITE, _READ = ("quantize_kv",), ("dequantize_kv",)
_NVFP4 = ("nvfp4",)


@exhibit(
    as_if="the maximum of a group was not divided by 6",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-040", "KV-FMT-042"),
    may_also_break=less(TWO_LEVELS, "KV-FMT-040", "KV-FMT-042"),
    verbs=_WRITE,
    formats=_NVFP4,
)
class SixLeftOut(Bitwise):
    """The scale of a group is its maximum.

    A plant. Codes reach 1 of 6, and three codes of sixteen are used. Read back, nothing is out of place.
    """

    def wanted_scale(self, amax: Array, passed: Array, largest: np.float32, dtype: np.dtype[Any]) -> Array:
        """Divide by the global scale alone."""
        return super().wanted_scale(amax, passed, np.float32(1), dtype)


@exhibit(
    as_if="codes were made with the scale of the group before it was rounded",
    fault="F06 order",
    breaks=("KV-FMT-040",),
    may_also_break=less(TWO_LEVELS, "KV-FMT-040"),
    verbs=_WRITE,
    formats=_NVFP4,
)
class ScaleNotYetRounded(Bitwise):
    """Numbers are divided by the float32 scale, and the reader has the E4M3 one.

    A plant. The two differ by up to a sixteenth, which moves one code in ten.
    """

    def coded_group(
        self, groups: Array, passed: Array, largest: int, dtype: np.dtype[Any]
    ) -> tuple[Array, Array]:
        """Divide by the scale that was wanted."""
        codes, scales = super().coded_group(groups, passed, largest, dtype)
        with np.errstate(all="ignore"):
            wanted = self.wanted_scale(self.number_amax(groups), passed, np.float32(largest), dtype)
            numbers = self.under(groups, wanted[..., None], passed[..., None])
        kept = (self.read_float(scales, "e4m3fn") > 0) & (wanted > 0)
        return np.where(kept[..., None], self.write_float(numbers, "e2m1"), codes), scales


@exhibit(
    as_if="the global scale was taken for its reciprocal",
    fault="F13 scale or encoding",
    seen_in=("modular/modular#6600",),
    breaks=("KV-FMT-041",),
    may_also_break=(*less(TWO_LEVELS, "KV-FMT-041"), "KV-FMT-001", "KV-FMT-080", "KV-FMT-081"),
    verbs=("quantize_kv", "dequantize_kv"),
    formats=_NVFP4,
)
class GlobalScaleReciprocal(Bitwise):
    """One part of a system stores the scale that divides, another reads it as the one that multiplies.

    Checkpoints of one family hold 1 / g and those of another g, under names that do not say. Numbers are
    wrong by the square of it.
    """

    def decode_scale(self, passed: Array) -> Array:
        """Return the inverse of what it is."""
        return self.inverse(super().decode_scale(passed))

    def times_global(self, x: Array, passed: Array) -> Array:
        """Divide."""
        return np.asarray(x / super().decode_scale(passed))


@exhibit(
    as_if="numbers were read without the global scale",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-041", "KV-FMT-080"),
    may_also_break=("KV-FMT-073", "KV-FMT-081"),
    verbs=_READ,
    formats=(*_NVFP4, "nvfp4_token_head"),
)
class GlobalScaleLeftOut(Bitwise):
    """The reader multiplies by the scale of the group and stops.

    A plant: where nothing was calibrated the global scale is 1.
    """

    def times_global(self, x: Array, passed: Array) -> Array:
        """Return the numbers."""
        return x


@exhibit(
    as_if="the global scale was applied twice",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-041",),
    may_also_break=("KV-FMT-073", "KV-FMT-080", "KV-FMT-081"),
    verbs=_READ,
    formats=(*_NVFP4, "nvfp4_tensor"),
)
class GlobalScaleTwice(Bitwise):
    """The reader multiplies by it, and it is folded into the scales of groups as well.

    A plant, of two ways to save a multiplication that were both taken.
    """

    def times_global(self, x: Array, passed: Array) -> Array:
        """Multiply twice."""
        return super().times_global(super().times_global(x, passed), passed)


@exhibit(
    as_if="a group's scale past 448 was stored as NaN",
    fault="F11 overflow",
    seen_in=("NVIDIA/Model-Optimizer#1397",),
    breaks=("KV-FMT-042",),
    may_also_break=("KV-FMT-003", "KV-FMT-040"),
    verbs=_WRITE,
    formats=_NVFP4,
)
class GroupScaleOverflows(Bitwise):
    """The cast of a scale to E4M3 does not saturate.

    E4M3 has no infinity, so a scale that is too large is NaN, and the group with it. It was found in a
    checkpoint that had been saved.
    """

    def group_scale(self, wanted: Array) -> Array:
        """Store NaN for what is past the largest number."""
        return np.where(wanted > 464, 0x7F, super().group_scale(wanted)).astype(np.uint8)


@exhibit(
    as_if="ties between two scales of E4M3 went up",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-042",),
    may_also_break=("KV-FMT-040", "KV-FMT-043"),
    verbs=_WRITE,
    formats=_NVFP4,
)
class GroupScaleTiesGoUp(Bitwise):
    """A half is added to the mantissa of the scale, and the rest is cut off.

    A plant: one inference library has this rounding in its own format of the same name.
    """

    def group_scale(self, wanted: Array) -> Array:
        """Round ties up."""
        right = super().group_scale(wanted)
        here = self.read_float(right, "e4m3fn")
        above = self.read_float(np.minimum(right + 1, 0x7E), "e4m3fn")
        tie = wanted.astype(np.float64) * 2 == here.astype(np.float64) + above
        return np.where(tie & (right < 0x7E), right + 1, right).astype(np.uint8)


@exhibit(
    as_if="codes of ±6 were stored under a scale of zero",
    fault="F10 NaN spread",
    breaks=("KV-FMT-043",),
    may_also_break=("KV-FMT-042",),
    verbs=_WRITE,
    formats=_NVFP4,
)
class TinyGroupKeepsCodes(Bitwise):
    """The guard asks whether the maximum is zero, and the scale is zero before it.

    A plant, of an answer that some kernels declare: x / 0 is infinite, so numbers become ±6 that read as 0.
    """

    def vanishes(self, amax: Array) -> Array:
        """Say so of groups of zeros alone."""
        return np.asarray(amax == 0)


@exhibit(
    as_if="a group of zeros was divided by its scale of zero",
    fault="F10 NaN spread",
    seen_in=("flashinfer-ai/flashinfer#3448",),
    breaks=("KV-FMT-043",),
    may_also_break=("KV-FMT-026", "KV-FMT-042"),
    verbs=_WRITE,
    formats=(*_NVFP4, "nvfp4_token_head"),
)
class ZeroRowTimesInfinity(Bitwise):
    """The reciprocal of a scale of zero is infinite, and zero times it NaN.

    A row of padding has a scale of zero on both levels. E2M1 has no NaN: the codes are 6, under a scale that
    the next reader may replace. It was found in review.
    """

    def vanishes(self, amax: Array) -> Array:
        """Say it of no group."""
        return np.zeros(amax.shape, np.bool_)


@exhibit(
    as_if="the global scale was amax / 448: six times the declared one",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-044",),
    may_also_break=less(TWO_LEVELS, "KV-FMT-044"),
    verbs=_WRITE,
    formats=("nvfp4_tensor", "nvfp4_token_head"),
)
class OtherGlobalRule(Bitwise):
    """The largest group scale is 75 and not 448.

    A plant of two conventions that are called by one name. Each is right by itself; a reader that multiplies
    by 6 because it expects the other is not.
    """

    def global_from(self, amax: Array, most: np.float32) -> Array:
        """Divide by 448."""
        return super().global_from(amax, np.float32(448))


@exhibit(
    as_if="the largest number of every group was put on 6 where 4 would have lost less",
    fault="F21 one path only",
    breaks=("KV-FMT-045",),
    may_also_break=less(TWO_LEVELS, "KV-FMT-045"),
    verbs=_WRITE,
    formats=_NVFP4,
    choices={"nvfp4-largest": "four_over_six"},
)
class FourNeverTried(Bitwise):
    """The second candidate is made and never chosen.

    A plant: the comparison of the two errors has its sides exchanged for the same one.
    """

    def error(self, groups: Array, codes: Array, scales: Array, passed: Array) -> Array:
        """Return nothing to tell them apart by."""
        return np.zeros(groups.shape[:-1])

"""Faults of shared exponents: how one is taken from a maximum, and how its byte is read."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.beside_formats import ANY_READ, MX_WRITE, less
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.bitwise import Bitwise
from kvref_conformance.subjects.bitwise.exponents import NAN_BYTE
from kvref_conformance.subjects.bitwise.floats import INFINITE, bits_of, from_bits
from kvref_conformance.subjects.bitwise.kinds import Kind

_WRITE, _READ = ("quantize_kv",), ("dequantize_kv",)
_MX = ("mxfp4", "mxfp8_e4m3")


@exhibit(
    as_if="the exponent of the maximum was rounded up",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-030",),
    may_also_break=less(MX_WRITE, "KV-FMT-030"),
    verbs=_WRITE,
    formats=_MX,
)
class ExponentRoundedUp(Bitwise):
    """The shared exponent is a ceiling.

    A plant, of a rule that some libraries declare: nothing saturates, and all groups but those whose maximum
    is a power of two lose a bit.
    """

    def by_binade(self, amax: Array, element: str, rule: str) -> Array:
        """Round up."""
        return super().by_binade(amax, element, "ceil")


@exhibit(
    as_if="the exponent was taken from a logarithm",
    fault="F01 boundary",
    breaks=("KV-FMT-031",),
    may_also_break=("KV-FMT-030",),
    verbs=_WRITE,
    formats=_MX,
)
class ExponentFromLogarithm(Bitwise):
    """The exponent is the floor of a float32 logarithm.

    A plant of what a widely used emulation does: the logarithm of 7.9999995 rounds to 3, so the group gets
    twice its scale. Inputs in bfloat16 never show it.
    """

    def by_binade(self, amax: Array, element: str, rule: str) -> Array:
        """Take the logarithm."""
        return self.by_logarithm(amax, element, rule, np.dtype(np.float32)) + self.largest_exponent(element)


@exhibit(
    as_if="the maximum was rounded to bfloat16 before its exponent was taken",
    fault="F01 boundary",
    seen_in=("pytorch/ao#4725",),
    breaks=("KV-FMT-030", "KV-FMT-031"),
    may_also_break=("KV-FMT-073",),
    verbs=_WRITE,
    formats=_MX,
)
class MaximumRoundedFirst(Bitwise):
    """The maximum passes through a shorter dtype, and may come out as the next power of two.

    It was found when a kernel was made to agree with its reference: some maxima crossed the threshold and
    were scaled for numbers that are not there.
    """

    def amax(self, groups: Array) -> Array:
        """Round the maximum to 8 bits."""
        word = bits_of(super().amax(groups))
        kept = word + 0x7FFF + (word >> 16 & 1) >> 16 << 16
        return from_bits(np.where(word >= INFINITE, word, kept))


@exhibit(
    as_if="elements past the largest number became NaN under the shared scale",
    fault="F11 overflow",
    breaks=("KV-FMT-032",),
    may_also_break=less(MX_WRITE, "KV-FMT-032"),
    verbs=_WRITE,
    formats=("mxfp8_e4m3",),
)
class ElementsOverflow(Bitwise):
    """The cast under a shared scale does not saturate.

    A plant. By the standard's rule a group's maximum may be up to 511 scales, and 448 is the last number; a
    plain cast makes NaN of what lies between 464 and that.
    """

    def write_float(self, x: Array, element: str, *, saturate: bool = False) -> Array:
        """Store NaN for what overflows."""
        code = super().write_float(x, element, saturate=saturate)
        past = np.abs(np.asarray(x, np.float32)) > 464
        return np.where(past & (element == "e4m3fn"), code | 0x7F, code).astype(np.uint8)


@exhibit(
    as_if="a group of zeros had the scale NaN",
    fault="F10 NaN spread",
    breaks=("KV-FMT-033",),
    may_also_break=("KV-FMT-026",),
    verbs=_WRITE,
    formats=_MX,
)
class ZeroGroupHasNaNScale(Bitwise):
    """The scale of a group of zeros is the byte that a cast of 0.0 gives.

    A plant: E8M0 has no zero, and one library's cast returns NaN for it. The group is 32 NaN.
    """

    def broken(self, amax: Array) -> Array:
        """Count a maximum of zero among what is no number."""
        return np.asarray(super().broken(amax) | (amax == 0))


@exhibit(
    as_if="a NaN was passed over when the maximum was taken",
    fault="F10 NaN spread",
    breaks=("KV-FMT-034",),
    verbs=_WRITE,
    formats=_MX,
)
class NaNPassedOver(Bitwise):
    """The maximum of a group ignores NaN, as `fmax` does.

    A plant: the group gets an ordinary scale, and the NaN the code of a number, where E2M1 has nothing else
    to give.
    """

    def amax(self, groups: Array) -> Array:
        """Return the largest number."""
        return self.number_amax(np.asarray(groups, np.float32))


@exhibit(
    as_if="one infinity made its group NaN",
    fault="F11 overflow",
    breaks=("KV-FMT-035",),
    verbs=_WRITE,
    formats=_MX,
)
class InfinityMakesGroupNaN(Bitwise):
    """The largest exponent is taken for a NaN's.

    A plant, of an answer that others declare. One overflow upstream costs 31 neighbours.
    """

    def broken(self, amax: Array) -> Array:
        """Count infinity among what is no number."""
        return bits_of(amax) >= INFINITE


@exhibit(
    as_if="the scale byte was shifted into the exponent field, so that 0x00 is 0 and 0xFF infinity",
    fault="F13 scale or encoding",
    seen_in=("NVIDIA/TransformerEngine#3262", "triton-lang/triton#11624"),
    breaks=("KV-FMT-036", "KV-FMT-037"),
    may_also_break=("KV-FMT-080", "KV-FMT-081"),
    verbs=_READ,
    formats=(*_MX, "mxfp8_e5m2"),
)
class ScaleByteShifted(Bitwise):
    """A byte becomes a float by one shift.

    It is right for 254 bytes of 256. 2^-127 is a subnormal float32, which the shift makes 0, and so a whole
    group of tiny numbers; NaN becomes infinity, under which zeros are NaN and the rest is not.
    """

    def smallest_power(self) -> int:
        """Return the bits of 0."""
        return 0

    def nan_power(self) -> int:
        """Return the bits of infinity."""
        return NAN_BYTE << 23


@exhibit(
    as_if="scale bytes were taken for numbers and not for exponents",
    fault="F13 scale or encoding",
    seen_in=("jundot/omlx#2159",),
    breaks=("KV-FMT-036",),
    may_also_break=(*less(ANY_READ, "KV-FMT-036"), "KV-FMT-054"),
    verbs=_READ,
    formats=_MX,
)
class ScaleBytesAsNumbers(Bitwise):
    """Scales have the dtype uint8, and are multiplied in as they are.

    The decoder asked for the dtype that says E8M0, and these files say bytes. Numbers came out five orders of
    magnitude too large.
    """

    def read_power(self, codes: Array) -> Array:
        """Return the bytes."""
        return codes.astype(np.float32)


@exhibit(
    as_if="groups ran from one head into the next",
    fault="F12 layout",
    breaks=("KV-FMT-038",),
    verbs=_WRITE,
    formats=("mxfp4",),
    head_dims=(80,),
)
class GroupsCrossHeads(Bitwise):
    """A token's heads are one row of channels, cut into groups.

    A plant, of a choice that was not declared. 80 channels are two groups and a half; the other half is the
    next head's, and a head can no longer be moved alone.
    """

    def spans_heads(self, kind: Kind) -> bool:
        """Join the heads."""
        return kind.family == "mx"

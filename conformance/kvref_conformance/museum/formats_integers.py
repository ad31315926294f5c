"""Faults of integer codes: rounding, range, zero points, and ggml's records."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.beside_formats import AFFINE_WRITE, less, named
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.bitwise import Bitwise
from kvref_conformance.subjects.bitwise.coded import Coded
from kvref_conformance.subjects.bitwise.floats import bits_of, from_bits
from kvref_conformance.subjects.bitwise.ggml import half_bytes, half_floats
from kvref_conformance.subjects.bitwise.kinds import Kind

_WRITE, _READ = ("quantize_kv",), ("dequantize_kv",)
_BOTH = (*_WRITE, *_READ)
_KIVI = ("kivi_k4", "kivi_v4", "kivi_k2", "kivi_v2")


@exhibit(
    as_if="integers were cut off toward zero instead of rounded",
    fault="F13 scale or encoding",
    seen_in=("vllm-project/vllm#45361",),
    breaks=("KV-FMT-050",),
    may_also_break=(*less(AFFINE_WRITE, "KV-FMT-050"), "KV-FMT-060"),
    verbs=_WRITE,
    formats=("int8_token_head", "int8"),
)
class IntegersCutOff(Bitwise):
    """The store of a float into an int8 tensor truncates.

    The scaled number was clamped and handed to a store that converts by itself. Tests compared what was read
    back, within a tolerance of a step. Every number shrank by half a step on average, and so did the score.
    """

    def whole(self, x: Array) -> Array:
        """Truncate."""
        return np.asarray(np.trunc(np.clip(x, -(2.0**20), 2.0**20)), np.int64)


@exhibit(
    as_if="integers past the range wrapped around",
    fault="F11 overflow",
    breaks=("KV-FMT-051",),
    may_also_break=("KV-FMT-020", "KV-FMT-021", "KV-FMT-022", "KV-FMT-024", "KV-FMT-050"),
    verbs=_WRITE,
    formats=("int8",),
)
class IntegersWrap(Bitwise):
    """The clamp is missing.

    A plant: 128 becomes -128. With scales from the data it never happens; with calibrated ones it is a matter
    of time.
    """

    def clamped(self, number: Array, lowest: int, highest: int) -> Array:
        """Leave numbers as they are."""
        return number


@exhibit(
    as_if="integers were rounded by adding a half and taking the floor",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-050",),
    may_also_break=less(AFFINE_WRITE, "KV-FMT-050"),
    verbs=_WRITE,
    formats=("int8_token_head", "kivi_k4"),
)
class HalvesGoUp(Bitwise):
    """A half is added, and the floor taken.

    A plant, of a choice that was not declared. Ties go up, and the mean of what is stored with them.
    """

    def half_up(self, below: Array, negative: Array) -> Array:
        """Round halves up."""
        return ~negative


@exhibit(
    as_if="codes were made with a zero point that was not rounded",
    fault="F06 order",
    breaks=("KV-FMT-052",),
    may_also_break=less(AFFINE_WRITE, "KV-FMT-052"),
    verbs=_WRITE,
    formats=("int4_token_head",),
)
class ZeroPointNotRounded(Bitwise):
    """The integer zero point is rounded when it is stored, after the codes were made.

    A plant. Codes are up to half a step from where the reader looks for them.
    """

    def zero_point(self, low: Array, scales: Array) -> Array:
        """Return it as it is."""
        return np.clip(-low / scales, np.float32(0), np.float32(15))

    def with_zero(self, scales: Array, zeros: Array) -> Array:
        """Round it here."""
        return super().with_zero(scales, self.half_away(zeros))


@exhibit(
    as_if="the scale was used with the zero point in its low bits",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-053",),
    may_also_break=("KV-FMT-001", "KV-FMT-070", "KV-FMT-073", "KV-FMT-080", "KV-FMT-081"),
    verbs=_READ,
    formats=("int4_token_head",),
)
class ZeroPointLeftInScale(Bitwise):
    """The reader takes the zero point out of the scale and leaves it there.

    A plant. It is up to 15 units in the last place, which no tolerance sees: two readers of the same bytes
    have different numbers.
    """

    def cleared(self, scales: Array) -> Array:
        """Return the scales as they are."""
        return scales


@exhibit(
    as_if="the zero point was put into the scale's low bits without clearing them",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-053",),
    may_also_break=less(AFFINE_WRITE, "KV-FMT-053"),
    verbs=_WRITE,
    formats=("int4_token_head",),
)
class ScaleBitsNotCleared(Bitwise):
    """The two are joined by an or.

    A plant. What is read as the zero point is the union of its bits and the scale's.
    """

    def with_zero(self, scales: Array, zeros: Array) -> Array:
        """Set bits, clear none."""
        return from_bits(bits_of(scales) | zeros.astype(np.int64))


@exhibit(
    as_if="groups ran along the other axis",
    fault="F12 layout",
    breaks=("KV-FMT-054",),
    may_also_break=(*less(AFFINE_WRITE, "KV-FMT-054"), "KV-FMT-072"),
    verbs=_WRITE,
    formats=_KIVI,
    dtypes=("float32", "float16"),
)
class GroupsAlongTheOtherAxis(Bitwise):
    """Keys are grouped over channels and values over tokens.

    A plant, of an implementation that has one axis for both, reshaped so that every extent is right. What
    KIVI is made for, a channel that is large in every key, then sets the scale of 31 others.
    """

    def axis_of(self, kind: Kind) -> str:
        """Exchange the two."""
        return "channels" if super().axis_of(kind) == "tokens" else "tokens"

    def write_affine(self, x: Array, kind: Kind) -> Coded:
        """Give scales the extents that are expected."""
        wrong = super().write_affine(x, kind)
        assert wrong.scales is not None
        assert wrong.zeros is not None
        tokens, heads, width = x.shape
        along_tokens = super().axis_of(kind) == "tokens"
        shape = (tokens // kind.size, heads, width) if along_tokens else (tokens, heads, width // kind.size)
        return wrong._replace(scales=wrong.scales.reshape(shape), zeros=wrong.zeros.reshape(shape))


@exhibit(
    as_if="a group of equal numbers lost its zero point, and is read as zeros",
    fault="F13 scale or encoding",
    seen_in=("openvinotoolkit/openvino#34105",),
    breaks=("KV-FMT-055",),
    may_also_break=("KV-FMT-026", "KV-FMT-100"),
    verbs=_WRITE,
    formats=_KIVI,
)
class ConstantGroupLost(Bitwise):
    """The branch for a range of zero stores no zero point that leads back.

    Where all numbers were equal the scale was set to 0 and the zero point to something the reader does not
    undo. A bias in a key channel is such a group.
    """

    def from_least(
        self, x: Array, low: Array, high: Array, kind: Kind, dtype: np.dtype[Any]
    ) -> tuple[Array, Array, Array]:
        """Store zero for the number of a constant group."""
        codes, scales, zeros = super().from_least(x, low, high, kind, dtype)
        return codes, scales, np.where(low == high, np.float32(0), zeros)


@exhibit(
    as_if="codes were made with the scale that had been rounded to float16",
    fault="F06 order",
    breaks=("KV-FMT-060",),
    may_also_break=("KV-FMT-050", "KV-FMT-051", "KV-FMT-073", "KV-FMT-100"),
    verbs=_WRITE,
    formats=("ggml_q8_0",),
)
class CodesUnderStoredScale(Bitwise):
    """Numbers are divided by the scale that is stored.

    A plant of what looks like the better order. ggml divides first, so one code in a hundred is another.
    """

    def q8_0(self, x: Array) -> tuple[Array, Array]:
        """Round the scale, then divide."""
        front = half_bytes(self.amax(x) / np.float32(127))
        factor = np.float32(1) / half_floats(front).astype(np.float32)
        ratio = np.where(x == 0, np.float32(0), x * factor)
        return front, self.write_integer(np.clip(ratio, -127, 127), "int8")


@exhibit(
    as_if="the last record of every row was not converted",
    fault="F21 one path only",
    breaks=("KV-FMT-060",),
    may_also_break=("KV-FMT-001", "KV-FMT-073", "KV-FMT-080", "KV-FMT-081"),
    verbs=_READ,
    formats=("ggml_q8_0",),
)
class LastRecordSkipped(Bitwise):
    """A fast path takes records in fours and leaves the rest to nobody.

    A plant of a tile that does not divide the row: 64 channels are two records, and 96 are three.
    """

    def read_q8_0(self, front: Array, data: Array) -> Array:
        """Leave the last record out."""
        right = super().read_q8_0(front, data)
        right[..., -1, :] = 0
        return right


@exhibit(
    as_if="four-bit codes were in two's complement, where ggml adds 8",
    fault="F13 scale or encoding",
    seen_in=("1bit-MONSTER/1bit-MONSTER#572",),
    breaks=("KV-FMT-061",),
    may_also_break=named(1, 26, 50, 51, 73, 80, 81, 100),
    verbs=_BOTH,
    formats=("ggml_q4_0",),
)
class NibblesInTwosComplement(Bitwise):
    """A code of four bits is a signed integer.

    In q4_0 a code is the number plus 8. Written as a signed integer it is off by 8 steps in either direction,
    which is the whole range.
    """

    def q4_0(self, x: Array) -> tuple[Array, Array]:
        """Flip the top bit of every code."""
        front, data = super().q4_0(x)
        return front, data ^ 0x88

    def read_q4_0(self, front: Array, data: Array) -> Array:
        """Read signed integers."""
        return super().read_q4_0(front, data ^ 0x88)


@exhibit(
    as_if="the scale of q4_0 had the size of the extreme and not its sign",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-061",),
    may_also_break=("KV-FMT-026", "KV-FMT-050", "KV-FMT-051", "KV-FMT-073", "KV-FMT-100"),
    verbs=_WRITE,
    formats=("ggml_q4_0",),
)
class ExtremeWithoutSign(Bitwise):
    """The scale is the largest magnitude divided by −8.

    A plant. The lowest code has no opposite, so the extreme has to lie on it; with the other sign it is
    clipped to 7 of 8.
    """

    def extreme(self, x: Array) -> Array:
        """Return the largest magnitude."""
        return self.amax(x)


@exhibit(
    as_if="the codes of ggml's records were packed in pairs of neighbours",
    fault="F12 layout",
    seen_in=("kekzl/imp#567", "kekzl/imp#722", "1bit-MONSTER/1bit-MONSTER#572"),
    breaks=("KV-FMT-061", "KV-FMT-062", "KV-FMT-063"),
    may_also_break=named(1, 26, 50, 51, 73, 80, 81, 100),
    verbs=_BOTH,
    formats=("ggml_q4_0", "ggml_mxfp4", "ggml_nvfp4"),
)
class RecordsInPairs(Bitwise):
    """Byte j holds elements 2j and 2j + 1, where ggml has j and j + 16.

    The size of a record and the place of its scale are right, so the bytes were taken to be the same as
    another library's. All 32 numbers of every record are permuted, and what comes out is fluent.
    """

    def halves(self, codes: Array) -> Array:
        """Join neighbours."""
        return np.asarray(codes[..., 0::2] | codes[..., 1::2] << 4)

    def in_order(self, data: Array) -> Array:
        """Take neighbours apart."""
        return np.stack([data & 0xF, data >> 4], axis=-1).reshape(*data.shape[:-1], -1)


@exhibit(
    as_if="the maximum of ggml's mxfp4 was divided by 6 and rounded up to a power of two",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-062",),
    may_also_break=("KV-FMT-073", "KV-FMT-100"),
    verbs=_WRITE,
    formats=("ggml_mxfp4",),
)
class RecordExponentRoundedUp(Bitwise):
    """The exponent is the smallest under which nothing saturates.

    A plant, of a rule that other libraries have under the same name.
    """

    def record_exponent(self, amax: Array) -> Array:
        """Return the exponent by the other rule."""
        return self.by_quotient(amax, "e2m1", "rceil") + 2


@exhibit(
    as_if="the first half of a record's 64 codes was put in the low bits, where each group of 16 has halves",
    fault="F12 layout",
    breaks=("KV-FMT-063",),
    may_also_break=("KV-FMT-001", "KV-FMT-026", "KV-FMT-073", "KV-FMT-080", "KV-FMT-081", "KV-FMT-100"),
    verbs=_BOTH,
    formats=("ggml_nvfp4",),
)
class SplitOverTheRecord(Bitwise):
    """The halves are those of the record and not of its groups.

    A plant: the other record formats have one group, and there the two are the same.
    """

    def ggml_nvfp4(self, x: Array) -> tuple[Array, Array]:
        """Split 64 codes in two."""
        scales, data = super().ggml_nvfp4(x)
        codes = self.in_order(data.reshape(*data.shape[:-1], 4, 8)).reshape(*data.shape[:-1], 64)
        return scales, self.halves(codes)

    def read_ggml_nvfp4(self, front: Array, data: Array) -> Array:
        """Take 32 low halves, then 32 high ones."""
        groups = self.in_order(data).reshape(*data.shape[:-1], 4, 16)
        return super().read_ggml_nvfp4(front, self.halves(groups).reshape(*data.shape[:-1], 32))

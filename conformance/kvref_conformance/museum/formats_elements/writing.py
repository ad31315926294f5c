"""Faults of writing elements: a number stored as another code."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.beside_formats import ANY_WRITE, less, named
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.bitwise import Bitwise
from kvref_conformance.subjects.bitwise.floats import FIELDS, INFINITE, Fields, bits_of, from_bits

_WRITE = ("quantize_kv",)
_E4M3, _FNUZ = ("fp8_e4m3",), ("fp8_e4m3fnuz", "fp8_e5m2fnuz")


@exhibit(
    as_if="a negative number that rounds to zero was stored as 0x80, which is NaN in FNUZ",
    fault="F13 scale or encoding",
    seen_in=("sgl-project/sglang#28455",),
    breaks=("KV-FMT-006",),
    may_also_break=less(ANY_WRITE, "KV-FMT-006"),
    verbs=_WRITE,
    formats=_FNUZ,
)
class TinyNegativeIsNaN(Bitwise):
    """The sign bit is set on whatever rounds to zero.

    The encoder was made for a format that has -0, and returned its code for tiny negatives. In FNUZ that code
    is the only NaN. One such key makes a row NaN.
    """

    def signed_zero(self, bit: Array, x: Array, element: str) -> Array:
        """Return the sign bit alone."""
        return bit


@exhibit(
    as_if="a NaN was stored as the largest number",
    fault="F13 scale or encoding",
    seen_in=("vllm-project/vllm#49077",),
    breaks=("KV-FMT-005",),
    may_also_break=("KV-FMT-009", "KV-FMT-010"),
    verbs=_WRITE,
    formats=(*_E4M3, "fp8_e5m2"),
)
class NaNSaturates(Bitwise):
    """Whatever is not below the largest number becomes the largest number.

    An encoder that saturates compares bits, and those of NaN lie above all others. It was found in review; no
    test had a NaN in it. What produced the NaN is never found again.
    """

    def nan_code(self, negative: Array, element: str) -> Array:
        """Return the largest number."""
        fields = FIELDS[element]
        return np.where(negative, fields.sign, 0) | fields.largest


@exhibit(
    as_if="numbers past the largest became NaN",
    fault="F11 overflow",
    seen_in=("pytorch/pytorch#178817",),
    breaks=("KV-FMT-003",),
    may_also_break=("KV-FMT-009", "KV-FMT-010", "KV-FMT-024"),
    verbs=_WRITE,
    formats=_E4M3,
)
class OverflowIsNaN(Bitwise):
    """A cast that is said to saturate does so up to the last tie only.

    The vector path of a framework turned 465 into NaN where its documentation and its GPU said 448. Whoever
    used it as an oracle had another truth with each version.
    """

    def past_largest(self, element: str) -> int:
        """Return the code after the largest number, where that is NaN."""
        has_none = element in ("e5m2", "e2m1")
        return super().past_largest(element) if has_none else FIELDS[element].largest + 1


@exhibit(
    as_if="numbers past the largest became infinite",
    fault="F11 overflow",
    breaks=("KV-FMT-003",),
    may_also_break=named(9, 10, 20, 21, 22, 24, 73),
    verbs=_WRITE,
    formats=("fp8_e5m2",),
)
class OverflowIsInfinite(Bitwise):
    """E5M2 has infinities, and a plain cast uses them.

    A plant, of an answer that others declare. A cache that saturates loses a little of one number; after an
    infinity the softmax of its row is NaN.
    """

    def past_largest(self, element: str) -> int:
        """Return infinity, where there is one."""
        return FIELDS[element].largest + 1 if element == "e5m2" else super().past_largest(element)


@exhibit(
    as_if="the mantissa was cut off instead of rounded",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-002", "KV-FMT-009"),
    may_also_break=less(ANY_WRITE, "KV-FMT-002", "KV-FMT-009"),
    verbs=_WRITE,
    formats=(*_E4M3, "fp8_e5m2"),
    dtypes=("float32", "float16"),
)
class MantissaCutOff(Bitwise):
    """The upper byte of a number is its code.

    A plant of the cheapest conversion there is: float16 and E5M2 have the same exponent, so the first byte of
    one is nearly the other. It changes half of all codes, and always toward zero.
    """

    def added(self, significand: Array, shift: Array, element: str) -> Array:
        """Add nothing before the shift."""
        return np.zeros_like(significand)


@exhibit(
    as_if="ties went away from zero",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-002", "KV-FMT-009"),
    may_also_break=less(ANY_WRITE, "KV-FMT-002", "KV-FMT-009"),
    verbs=_WRITE,
    formats=_E4M3,
    dtypes=("float32", "bfloat16"),
)
class TiesGoAway(Bitwise):
    """Half is added, and the rest is cut off.

    A plant. It differs at ties alone, and they are common: keys have 8 bits, and most scales are 1.
    """

    def tie_up(self, odd: Array, element: str) -> Array:
        """Round every tie up."""
        return np.ones_like(odd)


@exhibit(
    as_if="numbers below the smallest normal one became zero",
    fault="F13 scale or encoding",
    seen_in=("tenstorrent/tt-metal#29734",),
    breaks=("KV-FMT-004", "KV-FMT-008"),
    may_also_break=less(ANY_WRITE, "KV-FMT-004", "KV-FMT-008"),
    verbs=_WRITE,
    formats=(*_E4M3, "fp8_e5m2"),
)
class SubnormalsFlushed(Bitwise):
    """An exponent below the range means zero.

    The converter asks for the exponent first. E4M3 has 14 subnormal codes between 2^-9 and 2^-6, and with
    given scales small values live there.
    """

    def rounded(self, size: Array, fields: Fields, element: str) -> Array:
        """Keep what is normal before it is rounded."""
        normal = (size >> 23) - 127 >= 1 - fields.bias
        return np.where(normal, super().rounded(size, fields, element), 0)


@exhibit(
    as_if="subnormal numbers were rounded twice, first as if they were normal",
    fault="F13 scale or encoding",
    seen_in=("openvinotoolkit/openvino#30057",),
    breaks=("KV-FMT-004",),
    may_also_break=("KV-FMT-007", "KV-FMT-009", "KV-FMT-010", "KV-FMT-021", "KV-FMT-026", "KV-FMT-073"),
    verbs=_WRITE,
    formats=(*_E4M3, "fp8_e5m2"),
)
class SubnormalsRoundedTwice(Bitwise):
    """The mantissa is rounded to its width, and rounded again when it is shifted to where a subnormal has it.

    The code for normal numbers came first and was not left out. Numbers just beside a tie are moved onto it.
    """

    def rounded(self, size: Array, fields: Fields, element: str) -> Array:
        """Round to the width of a normal number, then as it should be."""
        shift = 23 - fields.mantissa
        once = size + (1 << shift - 1) - 1 + (size >> shift & 1) >> shift << shift
        return super().rounded(np.where(size < INFINITE, once, size), fields, element)


@exhibit(
    as_if="numbers were rounded to bfloat16 on the way",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-007",),
    may_also_break=less(ANY_WRITE, "KV-FMT-007"),
    verbs=_WRITE,
    formats=_E4M3,
)
class ThroughBfloat16(Bitwise):
    """The number passes through the dtype of the model before it is encoded.

    A plant: in bfloat16 a number that lay beside a tie lies on it. Three codes in a hundred change.
    """

    def operand(self, x: Array) -> Array:
        """Round to 8 bits, ties to even."""
        word = bits_of(x)
        kept = word + 0x7FFF + (word >> 16 & 1) >> 16 << 16
        return from_bits(np.where(word & 0x7FFFFFFF > INFINITE, word, kept))


@exhibit(
    as_if="numbers were cut off to float16 on the way",
    fault="F13 scale or encoding",
    seen_in=("FlashML-org/FreeToken#103",),
    breaks=("KV-FMT-007",),
    may_also_break=less(ANY_WRITE, "KV-FMT-007"),
    verbs=_WRITE,
    formats=_E4M3,
)
class ThroughTruncatedFloat16(Bitwise):
    """A compiler lowers one cast to two.

    Without an instruction for it, a store to E4M3 went to float16 with truncation and from there with
    rounding. A number just above a tie falls onto it, and then down: errors have one direction.
    """

    def operand(self, x: Array) -> Array:
        """Cut to 11 bits; what is below the normal numbers of float16 has fewer."""
        word = bits_of(x)
        exponent = (word >> 23 & 0xFF) - 127
        cut = 13 + np.clip(-14 - exponent, 0, 18)
        return from_bits(np.where(word & 0x7FFFFFFF >= INFINITE, word, word >> cut << cut))


@exhibit(
    as_if="the sign of zero was lost",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-006",),
    may_also_break=less(ANY_WRITE, "KV-FMT-006"),
    verbs=_WRITE,
    formats=(*_E4M3, "fp8_e5m2"),
)
class SignOfZeroLost(Bitwise):
    """Zero has one code.

    A plant of an encoder that returns early for zero. Attention cannot tell; a hash of the cache can.
    """

    def signed_zero(self, bit: Array, x: Array, element: str) -> Array:
        """Return 0."""
        return np.zeros_like(bit)


@exhibit(
    as_if="one entry of a table of roundings was wrong",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-010",),
    may_also_break=less(ANY_WRITE, "KV-FMT-010"),
    verbs=_WRITE,
    formats=_E4M3,
)
class OneEntryWrong(Bitwise):
    """The code is looked up by the upper half of a number, and corrected by the lower one.

    A plant. One of 32768 entries is off by one, near no tie and no end of a range, so that no list of hard
    numbers has it.
    """

    def rounded(self, size: Array, fields: Fields, element: str) -> Array:
        """Add one in a stretch of numbers a little below 0.3, but where the lower half is zero."""
        entry = (size >> 16 == 0x3E96) & (size & 0xFFFF > 0)
        return np.asarray(super().rounded(size, fields, element) + entry)

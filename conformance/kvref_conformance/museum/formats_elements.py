"""Faults of elements: a code read as another number, a number stored as another code."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.bitwise import Bitwise
from kvref_conformance.subjects.bitwise.floats import FIELDS, INFINITE, Fields, bits_of, from_bits

_WRITE, _READ = ("quantize_kv",), ("dequantize_kv",)
_E4M3, _FNUZ = ("fp8_e4m3",), ("fp8_e4m3fnuz", "fp8_e5m2fnuz")

#: What hardly any reader satisfies that reads some code wrongly.
ANY_READ = tuple(f"KV-FMT-{number:03d}" for number in (1, 6, 20, 22, 36, 37, 41, 70, 71, 80, 81))
#: What hardly any writer satisfies whose casts are wrong.
ANY_WRITE = tuple(
    f"KV-FMT-{number:03d}" for number in (2, 3, 4, 5, 6, 7, 8, 9, 20, 21, 22, 23, 24, 25, 26, 100)
)


def less(names: tuple[str, ...], *broken: str) -> tuple[str, ...]:
    """Return requirements without those that are broken outright."""
    return tuple(name for name in names if name not in broken)


@exhibit(
    as_if="codes of E5M2 were read as E4M3",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-001",),
    may_also_break=less(ANY_READ, "KV-FMT-001"),
    verbs=_READ,
    formats=("fp8_e5m2",),
)
class E5M2ReadAsE4M3(Bitwise):
    """The reader has one FP8 format and does not ask which one was written.

    A plant: cache dtypes named `fp8` are E4M3 in most engines and were E5M2 in their first releases. Zero and
    one byte in a few come out right.
    """

    def read_float(self, codes: Array, element: str) -> Array:
        """Read E4M3, always."""
        return super().read_float(codes, "e4m3fn")


@exhibit(
    as_if="codes of E4M3FN were read as E4M3FNUZ: every number is half",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-001",),
    may_also_break=less(ANY_READ, "KV-FMT-001"),
    verbs=_READ,
    formats=_E4M3,
)
class FnReadAsFnuz(Bitwise):
    """A cache written on one vendor's hardware is read on another's.

    A plant of what a disaggregated pair does that skips the conversion: the bias differs by one, so every
    number is halved, and -0 becomes NaN. Scales that are doubled hide the first and not the second.
    """

    def read_float(self, codes: Array, element: str) -> Array:
        """Read the other flavour."""
        return super().read_float(codes, "e4m3fnuz" if element == "e4m3fn" else element)


@exhibit(
    as_if="codes of E4M3FNUZ were read as E4M3FN: every number is double",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-001",),
    may_also_break=less(ANY_READ, "KV-FMT-001"),
    verbs=_READ,
    formats=("fp8_e4m3fnuz",),
)
class FnuzReadAsFn(Bitwise):
    """A cache written in the FNUZ flavour is read as the other.

    A plant, the way back of the exhibit before: numbers are doubled, NaN is read as -0, and the largest code
    is read as NaN.
    """

    def read_float(self, codes: Array, element: str) -> Array:
        """Read the other flavour."""
        return super().read_float(codes, "e4m3fn" if element == "e4m3fnuz" else element)


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
    as_if="the NaN of FNUZ, 0x80, was read as -0",
    fault="F13 scale or encoding",
    seen_in=("triton-lang/triton#10745",),
    breaks=("KV-FMT-001",),
    may_also_break=less(ANY_READ, "KV-FMT-001"),
    verbs=_READ,
    formats=_FNUZ,
)
class FnuzNaNReadAsZero(Bitwise):
    """A software decoder has no word for the one NaN.

    The guard ran before the look-up of small magnitudes, which overwrote it: the magnitude of 0x80 is 0, and
    the sign went back on. NaN became a finite zero without an error.
    """

    def lone_nan(self) -> int:
        """Return -0."""
        return 1 << 31


@exhibit(
    as_if="a NaN was stored as the largest number",
    fault="F13 scale or encoding",
    seen_in=("vllm-project/vllm#49077",),
    breaks=("KV-FMT-005",),
    may_also_break=("KV-FMT-009",),
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
    as_if="the NaN of E4M3, 0x7F, was read as 480",
    fault="F13 scale or encoding",
    seen_in=("vllm-project/vllm#49077", "intel/intel-xpu-backend-for-triton#7029"),
    breaks=("KV-FMT-001",),
    may_also_break=less(ANY_READ, "KV-FMT-001"),
    verbs=_READ,
    formats=_E4M3,
)
class NaNReadAsNumber(Bitwise):
    """The decoder has no branch for NaN.

    Shift and multiply reads all codes alike, and the one after 448 would be 480. It is exact for every number
    there is, so a test over numbers passes.
    """

    def beyond(self, size: Array, element: str) -> Array:
        """Go on counting."""
        fields = FIELDS[element]
        exponent, mantissa = size >> fields.mantissa, size & (1 << fields.mantissa) - 1
        return (exponent - fields.bias + 127 << 23) | (mantissa << 23 - fields.mantissa)


@exhibit(
    as_if="numbers past the largest became NaN",
    fault="F11 overflow",
    seen_in=("pytorch/pytorch#178817",),
    breaks=("KV-FMT-003",),
    may_also_break=("KV-FMT-009", "KV-FMT-024"),
    verbs=_WRITE,
    formats=_E4M3,
)
class OverflowIsNaN(Bitwise):
    """A cast that is said to saturate does so up to the last tie only.

    The vector path of a framework turned 465 into NaN where its documentation and its GPU said 448. Whoever
    used it as an oracle had another truth with each version.
    """

    def past_largest(self, element: str) -> int:
        """Return the code after the largest number."""
        return FIELDS[element].largest + 1


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
    may_also_break=("KV-FMT-007", "KV-FMT-009", "KV-FMT-021"),
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
    as_if="subnormal codes were read with the exponent of a normal number",
    fault="F13 scale or encoding",
    seen_in=("1bit-MONSTER/1bit-MONSTER#300",),
    breaks=("KV-FMT-001",),
    may_also_break=less(ANY_READ, "KV-FMT-001"),
    verbs=_READ,
    formats=_E4M3,
)
class SubnormalsReadAsNormal(Bitwise):
    """A subnormal mantissa is put behind a leading one that it does not have.

    One line served all seven codes with one exponent. All seven were wrong, and no test had a number below
    0.0156.
    """

    def subnormal(self, mantissa: Array, fields: Fields) -> Array:
        """Return the mantissa under the exponent below the smallest normal one."""
        word = (127 - fields.bias << 23) | (mantissa << 23 - fields.mantissa)
        return np.where(mantissa == 0, 0, word)


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
    as_if="codes were taken for numbers",
    fault="F13 scale or encoding",
    seen_in=("vllm-project/vllm#13133",),
    breaks=("KV-FMT-001",),
    may_also_break=less(ANY_READ, "KV-FMT-001"),
    verbs=_READ,
    formats=_E4M3,
)
class CodesAsNumbers(Bitwise):
    """A cache of codes is handed to a reader that knows no formats.

    A new engine path passed an FP8 cache on and refused nothing. The output could not be read.
    """

    def read_float(self, codes: Array, element: str) -> Array:
        """Return the bytes themselves."""
        return codes.astype(np.float32)


@exhibit(
    as_if="codes were masked with two bits where they have more",
    fault="F13 scale or encoding",
    seen_in=("vllm-project/vllm#38479",),
    breaks=("KV-FMT-001",),
    may_also_break=("KV-FMT-053", "KV-FMT-070", "KV-FMT-080", "KV-FMT-081"),
    verbs=_READ,
    formats=("kivi_k4", "kivi_v4", "int4_token_head"),
)
class TwoBitMask(Bitwise):
    """The width of a code is written into the kernel.

    It was made for the smallest variant, and the next one shares it. Numbers in the lowest quarter of the
    range come out right.
    """

    def read_integer(self, codes: Array, element: str) -> Array:
        """Keep two bits."""
        return super().read_integer(np.asarray(codes) & 3, element)

"""Faults of reading elements: a code taken for another number."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.beside_formats import ANY_READ, less
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.bitwise import Bitwise
from kvref_conformance.subjects.bitwise.floats import FIELDS, Fields

_READ = ("dequantize_kv",)
_E4M3, _FNUZ = ("fp8_e4m3",), ("fp8_e4m3fnuz", "fp8_e5m2fnuz")


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
    may_also_break=("KV-FMT-053", "KV-FMT-070", "KV-FMT-073", "KV-FMT-080", "KV-FMT-081"),
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

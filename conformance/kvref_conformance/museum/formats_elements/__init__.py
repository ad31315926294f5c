"""Faults of elements: a code read as another number, a number stored as another code."""

from kvref_conformance.museum.formats_elements.reading import (
    CodesAsNumbers,
    E5M2ReadAsE4M3,
    FnReadAsFnuz,
    FnuzNaNReadAsZero,
    FnuzReadAsFn,
    NaNReadAsNumber,
    SubnormalsReadAsNormal,
    TwoBitMask,
)
from kvref_conformance.museum.formats_elements.writing import (
    MantissaCutOff,
    NaNSaturates,
    OneEntryWrong,
    OverflowIsInfinite,
    OverflowIsNaN,
    SignOfZeroLost,
    SubnormalsFlushed,
    SubnormalsRoundedTwice,
    ThroughBfloat16,
    ThroughTruncatedFloat16,
    TiesGoAway,
    TinyNegativeIsNaN,
)

__all__ = [
    "CodesAsNumbers",
    "E5M2ReadAsE4M3",
    "FnReadAsFnuz",
    "FnuzNaNReadAsZero",
    "FnuzReadAsFn",
    "MantissaCutOff",
    "NaNReadAsNumber",
    "NaNSaturates",
    "OneEntryWrong",
    "OverflowIsInfinite",
    "OverflowIsNaN",
    "SignOfZeroLost",
    "SubnormalsFlushed",
    "SubnormalsReadAsNormal",
    "SubnormalsRoundedTwice",
    "ThroughBfloat16",
    "ThroughTruncatedFloat16",
    "TiesGoAway",
    "TinyNegativeIsNaN",
    "TwoBitMask",
]

"""Faults of float32 scales: left out, applied the wrong way, another's, or derived from the wrong numbers."""

from kvref_conformance.museum.formats_scales.applied import (
    ClampedBeforeScaling,
    DividedInInputDtype,
    DividedOnRead,
    MultipliedByReciprocal,
    MultipliedOnWrite,
    ScaleIgnoredOnRead,
    ScaleIgnoredOnWrite,
    ScaleTwiceOnRead,
)
from kvref_conformance.museum.formats_scales.derived import (
    LargestOfAnotherFlavour,
    MaximumOfNeighbour,
    MaximumWithoutAbs,
    OneScaleForAllHeads,
    PowerOfTwoDoubled,
    ScaleOfPreviousToken,
    ScalesNotStored,
    ZeroGroupIsNaN,
)
from kvref_conformance.museum.formats_scales.heads import (
    ScaleOfFirstHead,
    ScaleOfNextHead,
    ScaleOfPreviousHead,
    ScalesOfHeadsReversed,
)

__all__ = [
    "ClampedBeforeScaling",
    "DividedInInputDtype",
    "DividedOnRead",
    "LargestOfAnotherFlavour",
    "MaximumOfNeighbour",
    "MaximumWithoutAbs",
    "MultipliedByReciprocal",
    "MultipliedOnWrite",
    "OneScaleForAllHeads",
    "PowerOfTwoDoubled",
    "ScaleIgnoredOnRead",
    "ScaleIgnoredOnWrite",
    "ScaleOfFirstHead",
    "ScaleOfNextHead",
    "ScaleOfPreviousHead",
    "ScaleOfPreviousToken",
    "ScaleTwiceOnRead",
    "ScalesNotStored",
    "ScalesOfHeadsReversed",
    "ZeroGroupIsNaN",
]

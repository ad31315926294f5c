"""Faults of attention over codes: the wrong scales, the wrong slot's scales, and codes that are nobody's."""

from kvref_conformance.museum.formats_attend.around import (
    DeadCodesMultiplied,
    TurnsIgnored,
    TurnsOverHeads,
)
from kvref_conformance.museum.formats_attend.scales import (
    KeyScalesForValues,
    KeyScaleTwice,
    KeysReadAsValues,
    ScaleByPosition,
    ScaleByQueryHead,
    ScaleOfSlotBefore,
    ScalesDropped,
    ScalesMultiplied,
    ScalesSwapped,
    ValueScalesForKeys,
)

__all__ = [
    "DeadCodesMultiplied",
    "KeyScaleTwice",
    "KeyScalesForValues",
    "KeysReadAsValues",
    "ScaleByPosition",
    "ScaleByQueryHead",
    "ScaleOfSlotBefore",
    "ScalesDropped",
    "ScalesMultiplied",
    "ScalesSwapped",
    "TurnsIgnored",
    "TurnsOverHeads",
    "ValueScalesForKeys",
]

"""Faults of shared blocks: forks, first writes, tokens that are taken back, appends that do not fit."""

from kvref_conformance.museum.block_sharing.cuts import (
    CopiedBeforeRefused,
    CutLengthens,
    CutRoundsDown,
    OwnerSinceTheCut,
    RefusedTokensCounted,
    TailBlockStranded,
)
from kvref_conformance.museum.block_sharing.forks import (
    CopiedBackwards,
    ForkNotCounted,
    ForkTakesBlocks,
    LastTokenLeftBehind,
    ParentWritesInPlace,
    WrittenInPlace,
)

__all__ = [
    "CopiedBackwards",
    "CopiedBeforeRefused",
    "CutLengthens",
    "CutRoundsDown",
    "ForkNotCounted",
    "ForkTakesBlocks",
    "LastTokenLeftBehind",
    "OwnerSinceTheCut",
    "ParentWritesInPlace",
    "RefusedTokensCounted",
    "TailBlockStranded",
    "WrittenInPlace",
]

"""One choice: a point where engines differ."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """A point where engines differ: the canonical answer, its named alternatives, and what each risks."""

    name: str
    canonical: str
    alternatives: Mapping[str, str]
    """Alternative -> the hazard it brings to whoever relies on the canonical answer."""

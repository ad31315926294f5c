"""A figure of `kvref show`: what computes it and what spells it out."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Figure(NamedTuple):
    """`compute` returns what `--json` prints; `spell` makes lines of it."""

    compute: Callable[[], dict[str, Any]]
    spell: Callable[[dict[str, Any]], str]

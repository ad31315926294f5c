"""Steps of a program, and the text they are written in.

A step is a word and integers. The text of a program joins its steps with semicolons; reading what was written
gives the same steps.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kvref.errors import ArgumentError

#: Steps of one program, and the digits of one number, which hold more than 32 bits: more is no program that a
#: reader could follow.
MAX_STEPS = 4096
MAX_DIGITS = 10

_STEP = re.compile(rf"[a-z]+(?:_[a-z]+)*(?: -?[0-9]{{1,{MAX_DIGITS}}})*")


@dataclass(frozen=True)
class Step:
    """One thing to do: its name, and the numbers it is given."""

    name: str
    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.name, *map(str, self.numbers)))


def parse(text: str) -> list[Step]:
    """Read the steps of a program; empty text is the empty program.

    Raises: ArgumentError naming the step that is none.
    """
    steps = []
    for part in text.split(";") if text.strip() else []:
        written = " ".join(part.split())
        if not _STEP.fullmatch(written):
            raise ArgumentError(f"program holds {written!r:.80}, expected a word and integers")
        name, *numbers = written.split(" ")
        steps.append(Step(name, tuple(map(int, numbers))))
    if len(steps) > MAX_STEPS:
        raise ArgumentError(f"program has {len(steps)} steps, expected at most {MAX_STEPS}")
    return steps


def written(steps: Iterable[Step]) -> str:
    """Return the text of a program."""
    return "; ".join(map(str, steps))

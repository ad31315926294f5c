"""What an interpreter says while a program runs: breaches, and a trace that two implementations can share.

The trace names blocks by when they were first handed out, never by their ids, so implementations that hand
out other blocks in another order still have equal traces.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Breach:
    """A requirement that does not hold."""

    requirement: str
    step: int
    """Which step of the program showed it, counted from 0; the number of steps if it showed at the end."""
    message: str


class Stop(Exception):
    """What follows would only repeat a breach: the subject and the shadow have parted."""


@dataclass
class Log:
    """What is written down while a program runs."""

    step: int = 0
    breaches: list[Breach] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)

    def breach(self, message: str, *requirements: str) -> None:
        """Write down that requirements do not hold; of each only the first breach counts."""
        known = {breach.requirement for breach in self.breaches}
        for requirement in requirements:
            if requirement not in known:
                self.breaches.append(Breach(requirement, self.step, message))

    def note(self, *words: object) -> None:
        """Write down something that every right implementation has in common."""
        self.trace.append(" ".join(map(str, words)))


@dataclass
class Names:
    """Numbers in place of ids: an id is named when it first appears, and again after it was forgotten."""

    _given: dict[Hashable, int] = field(default_factory=dict)
    _next: int = 0

    def name(self, own: Hashable) -> int:
        """Return the number of an id, a new one if it has none."""
        if own not in self._given:
            self._given[own] = self._next
            self._next += 1
        return self._given[own]

    def names(self, ids: Iterable[Hashable]) -> str:
        """Return the numbers of several ids as text."""
        return ",".join(str(self.name(own)) for own in ids)

    def forget(self, ids: Iterable[Hashable]) -> None:
        """Let ids be new when they appear again: they are something else by then."""
        for own in ids:
            self._given.pop(own, None)

    def keep(self, ids: Iterable[Hashable]) -> None:
        """Forget all other ids."""
        kept = set(ids)
        self._given = {own: number for own, number in self._given.items() if own in kept}

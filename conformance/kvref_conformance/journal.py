"""What was done to a manager and what it gave, entry by entry; and when two such journals say the same.

Which blocks a manager hands out is its own affair. So journals are compared with every block, slot, step and
key replaced by the order in which it first appeared: two managers with the same fault leave the same journal.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal

from kvref_conformance.cases import Case, opening
from kvref_conformance.contracts import Failed, FailureKind
from kvref_conformance.host import Session
from kvref_conformance.managers import Value

#: Names of arguments and answers that are names of a manager's own choosing -> what they name.
NAMED = {
    "blocks": "block",
    "copy_sources": "block",
    "copy_targets": "block",
    "slots": "slot",
    "source": "state",
    "state": "state",
    "save_states": "state",
    "step": "step",
    "keys": "key",
}

#: Entries of a list that a message shows, and characters of a text; of events, several.
SHOWN, CHARACTERS, OF_EVENTS = 8, 80, 400
#: Characters of a text that is shown as a whole: no subject is given a longer one.
WHOLE = 2**20


@dataclass(frozen=True)
class Entry:
    """One operation and its outcome."""

    operation: str
    arguments: Mapping[str, Value]
    given: Mapping[str, Value] = field(default_factory=dict)
    failure: FailureKind | Literal[""] = ""
    """The kind of failure where it gave nothing: refused, error, crash, …"""

    def __str__(self) -> str:
        """Return the operation as it would be written in Python, long lists and texts in part."""
        return self.spelled(CHARACTERS)

    def spelled(self, characters: int) -> str:
        """Return the operation as it would be written in Python, of a longer text its beginning and end."""
        spelled = ", ".join(f"{name}={_short(value, characters)}" for name, value in self.arguments.items())
        return f"{self.operation}({spelled})"


class Journaled:
    """A session that writes down what is done to it."""

    def __init__(self, session: Session, journal: list[Entry]) -> None:
        self._session = session
        self._journal = journal
        self.manager = session.manager

    @property
    def gone(self) -> bool:
        """Whether the program that held the state has ended."""
        return self._session.gone

    def do(self, operation: str, /, **arguments: Value) -> dict[str, Any]:
        """Do one operation, and note it.

        Raises: Failed.
        """
        # Whoever asks may go on with the same list, and the journal says what was asked then.
        asked = {name: copy(value) for name, value in arguments.items()}
        try:
            given = self._session.do(operation, **arguments)
        except Failed as failed:
            self._journal.append(Entry(operation, asked, {}, failed.kind))
            raise
        self._journal.append(Entry(operation, asked, given))
        return given

    def close(self) -> None:
        """Let the state go."""
        self._session.close()


class Recorded:
    """A session that gives again what a journal says, as long as it is asked the same."""

    def __init__(self, manager: str, journal: Iterable[Entry]) -> None:
        self.manager = manager
        self._left = iter(journal)

    @property
    def gone(self) -> bool:
        """Whether a program has ended: there is none."""
        return False

    def do(self, operation: str, /, **arguments: Value) -> dict[str, Any]:
        """Give what was given.

        Raises: Failed as it was noted; Failed (protocol) if something else was asked.
        """
        entry = next(self._left, None)
        if entry is None or (entry.operation, dict(entry.arguments)) != (operation, arguments):
            raise Failed("protocol", "this was not asked")
        if entry.failure:
            raise Failed(entry.failure, "as it was")
        return dict(entry.given)

    def close(self) -> None:
        """Do nothing."""


def lines_of(journal: Iterable[Entry]) -> list[str]:
    """Return a journal as lines: each operation, its texts as a whole, and what it gave or how it failed."""
    lines = []
    for entry in journal:
        long = OF_EVENTS if entry.operation == "take_events" else CHARACTERS
        gave = ", ".join(f"{name} = {_short(value, long)}" for name, value in entry.given.items())
        lines.append(f"{entry.spelled(WHOLE)} -> {entry.failure or gave or 'done'}")
    return lines


def _short(value: Value, characters: int) -> str:
    """Spell a value; of a long list its first entries and how many there are, of a text its beginning."""
    if isinstance(value, list) and len(value) > SHOWN:
        first = ", ".join(map(repr, value[:SHOWN]))
        return f"[{first}, … {len(value)} in all]"
    text = repr(value)
    half = characters // 2
    return text if len(text) <= characters else f"{text[:half]} … {text[-half:]}"


def logical(journal: Iterable[Entry], case: Case) -> list[Any]:
    """Return a journal with the names of a manager's own choosing replaced by their order of appearance.

    A slot becomes the order of its block, and its place in the block.
    """
    sizes = opening(case).get("block_sizes", [case.block_size])
    naming = _Naming([size for size in sizes if isinstance(size, int)] if isinstance(sizes, list) else [1])
    return [(e.operation, naming.plain(e.arguments), naming.plain(e.given), e.failure) for e in journal]


def outline(journal: Iterable[Entry]) -> list[Any]:
    """Return a journal without the names of a manager's own choosing: of those only how many there were."""

    def plain(values: Mapping[str, Value]) -> list[Any]:
        return [
            (name, value if name not in NAMED else len(value) if isinstance(value, list) else 1)
            for name, value in sorted(values.items())
        ]

    return [(e.operation, plain(e.arguments), plain(e.given), e.failure) for e in journal]


class _Naming:
    """Numbers in place of names, by when each first appeared."""

    def __init__(self, block_sizes: list[int]) -> None:
        self._block_sizes = block_sizes
        self._ranks: dict[str, dict[Any, int]] = {}

    def plain(self, values: Mapping[str, Value]) -> list[Any]:
        """Return arguments or answers with every name replaced."""
        return [(name, self._value(NAMED.get(name, ""), value)) for name, value in sorted(values.items())]

    def _value(self, kind: str, value: Value) -> Any:
        if not kind:
            return value
        if not isinstance(value, list):
            return self._rank(kind, value)
        if kind != "slot":
            return [self._rank(kind, x) for x in value]
        each = len(value) // len(self._block_sizes) or 1  # the slots of group 0 come first, then those of 1
        sizes = [self._block_sizes[at // each % len(self._block_sizes)] for at in range(len(value))]
        return [self._slot(slot, size) for slot, size in zip(value, sizes, strict=True)]

    def _slot(self, slot: Any, block_size: int) -> Any:
        return (self._rank("block", slot // block_size), slot % block_size)

    def _rank(self, kind: str, name: Any) -> int:
        if isinstance(name, int) and name < 0:
            return name  # null
        known = self._ranks.setdefault(kind, {})
        return known.setdefault(name, len(known))

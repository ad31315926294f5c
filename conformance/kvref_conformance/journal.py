"""What was done to a manager and what it gave, entry by entry; and when two such journals say the same.

Which blocks a manager hands out is its own affair. So journals are compared with every block, slot, step and
key replaced by the order in which it first appeared: two managers with the same fault leave the same journal.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvref_conformance.contracts import Failed
from kvref_conformance.host import Session
from kvref_conformance.managers import Value

#: Names of arguments and answers that are names of a manager's own choosing -> what they name.
NAMED = {
    "blocks": "block",
    "copy_sources": "block",
    "copy_targets": "block",
    "slots": "slot",
    "step": "step",
    "keys": "key",
    "parent": "",
}

#: Entries of a list that a message shows.
SHOWN = 8


@dataclass(frozen=True)
class Entry:
    """One operation and its outcome."""

    operation: str
    arguments: Mapping[str, Value]
    given: Mapping[str, Value] = field(default_factory=dict)
    failure: str = ""
    """The kind of failure where it gave nothing: refused, error, crash, …"""

    def __str__(self) -> str:
        """Return the operation as it would be written in Python."""
        spelled = ", ".join(f"{name}={_short(value)}" for name, value in self.arguments.items())
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

    def do(self, operation: str, /, **arguments: Value) -> dict[str, Value]:
        """Do one operation, and note it.

        Raises: Failed.
        """
        try:
            given = self._session.do(operation, **arguments)
        except Failed as failed:
            self._journal.append(Entry(operation, arguments, {}, failed.kind))
            raise
        self._journal.append(Entry(operation, arguments, given))
        return given

    def close(self) -> None:
        """Let the state go."""
        self._session.close()


def _short(value: Value) -> str:
    """Spell a value; of a long list, its first entries and how many there are."""
    if isinstance(value, list) and len(value) > SHOWN:
        first = ", ".join(map(repr, value[:SHOWN]))
        return f"[{first}, … {len(value)} in all]"
    return f"{value!r:.80}"


def logical(journal: Iterable[Entry], block_size: int) -> list[Any]:
    """Return a journal with the names of a manager's own choosing replaced by their order of appearance.

    A slot becomes the order of its block, and its place in the block.
    """
    ranks: dict[str, dict[Value, int]] = {}

    def rank(kind: str, name: Any) -> Any:
        if isinstance(name, int) and name < 0:
            return name  # null
        if kind == "slot":
            return (rank("block", name // block_size), name % block_size)
        known = ranks.setdefault(kind, {})
        return known.setdefault(name, len(known))

    def plain(values: Mapping[str, Value]) -> list[Any]:
        found: list[Any] = []
        for name, value in sorted(values.items()):
            kind = NAMED.get(name, "")
            if kind:
                value = [rank(kind, x) for x in value] if isinstance(value, list) else rank(kind, value)
            found.append((name, value))
        return found

    return [(e.operation, plain(e.arguments), plain(e.given), e.failure) for e in journal]

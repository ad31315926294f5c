"""The journal of a program, step by step: which operations each step called, and what was only asked.

A journal is a list of operations and says nothing of steps. But an interpreter that is given the same answers
asks the same, so each first part of the program is run again over the journal, without the subject, and how
much of it was used says where the next step begins. What a part asks at its own end is not in the journal,
and not counted.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kvref_conformance.cases import PROGRAM, Case
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Failed
from kvref_conformance.journal import Entry, Recorded, lines_of
from kvref_conformance.programs.running import run
from kvref_conformance.programs.shrinking import steps_of

#: Operations that change nothing: the suite asks them to look.
LOOKS = ("num_free", "block_table", "slots")
#: Steps of a program up to which it is taken apart, and calls of one step that a failure shows.
MAX_STEPS, MAX_CALLS = 64, 2


class _Counted(Recorded):
    """A recorded session that counts how much of the journal was used."""

    def __init__(self, manager: str, journal: Sequence[Entry]) -> None:
        super().__init__(manager, journal)
        self.entries, self.used = journal, 0

    def do(self, operation: str, /, **arguments: Any) -> dict[str, Any]:
        """Give what was given. Raises: Failed as it was noted."""
        due = self.entries[self.used] if self.used < len(self.entries) else None
        self.used += due is not None and (due.operation, dict(due.arguments)) == (operation, arguments)
        return super().do(operation, **arguments)


def by_step(case: Case, journal: Sequence[Entry], claims: Claims) -> list[list[Entry]] | None:
    """Return the entries before the first step, then those of each step; None where that is not known."""
    if PROGRAM not in case.options or not journal:
        return None
    steps = steps_of(case)
    if len(steps) > MAX_STEPS:
        return None
    ends = [_used(case, steps[:count], journal, claims) for count in range(len(steps) + 1)]
    if ends[-1] != len(journal) or ends != sorted(ends):
        return None
    return [list(journal[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


def calls_of(entries: Sequence[Entry]) -> str:
    """Return the operations of one step that are no looks, in a few words."""
    asked = (entry for entry in entries if entry.operation not in (*LOOKS, "take_events"))
    calls = [f"{entry} -> {entry.failure}" if entry.failure else str(entry) for entry in asked]
    more = f"; … {len(calls)} calls" if len(calls) > MAX_CALLS else ""
    return "; ".join(calls[:MAX_CALLS]) + more


def lines_of_step(entries: Sequence[Entry]) -> list[str]:
    """Return the entries of one step as lines: looks that follow each other are one line."""
    lines: list[str] = []
    looks: list[Entry] = []
    for entry in [*entries, None]:
        if entry is not None and entry.operation in LOOKS and not entry.failure:
            looks.append(entry)
            continue
        if looks:
            lines.append(f"looked: {'; '.join(dict.fromkeys(lines_of(looks)))}")
            looks = []
        if entry is not None:
            lines += lines_of([entry])
    return lines


def _used(case: Case, steps: Sequence[str], journal: Sequence[Entry], claims: Claims) -> int:
    """Return how many entries these steps ask for, before they ask for something else."""
    session = _Counted(case.verb, journal)
    with suppress(Failed):
        run("; ".join(steps), session, case, claims)
    return session.used

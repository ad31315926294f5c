"""The shadow of a prefix cache's memory: what each slot holds, held before, and will hold.

A slot that is given out for writing is lost to whoever reads it: it holds what was scheduled, and that is
not there before the step is committed. Under the choice `publish-time: scheduled` it counts as there at once,
for readers of the same step run after its writers.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvref_conformance.programs.prompts import Prompt, kept_apart


@dataclass
class Cell:
    """What one slot holds, or is about to."""

    label: int
    prompt: Prompt
    position: int
    request: int
    step: int
    epoch: int
    """How often the cache had been reset by then."""
    written: bool = False
    dropped: bool = False
    """Whether the request was aborted before it was written."""
    aborted: bool = False
    """Whether it was written before the request was aborted."""
    lost: bool = False
    """Whether the block was given out again."""

    def __str__(self) -> str:
        if self.lost:
            return (
                f"nothing any more: request {self.request} wrote position {self.position} of it, and lost it"
            )
        did = "wrote" if self.written else "dropped" if self.dropped else "is going to write"
        return f"what request {self.request} {did} at position {self.position}, from step {self.step}"


@dataclass
class Cells:
    """Every slot that was ever given out."""

    weak: bool = False
    """Whether keys collide: then every wrong hit is one that was not verified."""
    epoch: int = 0
    _cells: dict[int, Cell] = field(default_factory=dict)
    _past: dict[int, set[int]] = field(default_factory=dict)
    """Slot -> labels it held and lost since the last reset."""

    def at(self, slot: int) -> Cell | None:
        """Return what a slot holds; None if it was never given out."""
        return self._cells.get(slot)

    def give_out(self, slots: Iterable[int]) -> None:
        """Lose what a block holds: it is given out, for a few tokens or many."""
        for slot in slots:
            if (old := self._cells.get(slot)) is not None and old.epoch == self.epoch and old.written:
                self._past.setdefault(slot, set()).add(old.label)
                old.written, old.lost = False, True

    def schedule(self, slot: int, cell: Cell) -> None:
        """Give a slot out for writing."""
        self._cells[slot] = cell

    def commit(self, slots: Iterable[int], request: int) -> None:
        """Write what a request scheduled, where nobody else was given the slot since."""
        for slot in slots:
            if (cell := self._cells.get(slot)) is not None and cell.request == request:
                cell.written = True

    def abort(self, slots: Iterable[int], prompt: Prompt) -> None:
        """Give up what a request scheduled and has not written, and mark what it has."""
        for slot in slots:
            cell = self._cells.get(slot)
            if cell is not None and cell.prompt is prompt:
                cell.dropped, cell.aborted = not cell.written, cell.written

    def reset(self) -> None:
        """Let everything be of the past."""
        self.epoch += 1
        self._past.clear()

    def holds(self, slot: int, label: int) -> bool:
        """Say whether a slot holds what belongs to a label."""
        cell = self._cells.get(slot)
        return cell is not None and cell.written and cell.label == label and cell.epoch == self.epoch

    def keeps(self, slot: int, label: int) -> bool:
        """Say whether a slot holds what belongs to a label, of no aborted request: that may drop it."""
        return self.holds(slot, label) and not self._cells[slot].aborted

    def is_written(self, label: int) -> bool:
        """Say whether any slot holds what belongs to a label."""
        return any(self.holds(slot, label) for slot in self._cells)

    def blame(self, slot: int, reader: Prompt, at: int) -> tuple[str, str] | None:
        """Return the requirement that a reader of a slot breaches, and what it finds; None if all is well."""
        if self.holds(slot, reader.labels[at]):
            return None
        cell = self._cells.get(slot)
        if cell is None:
            return "KV-PREFIX-005", "what nobody has written"
        return self._requirement(slot, cell, reader, at), str(cell)

    def _requirement(self, slot: int, cell: Cell, reader: Prompt, at: int) -> str:
        expected = reader.labels[at]
        if cell.epoch < self.epoch:
            return "KV-PREFIX-015"
        if cell.label == expected and not cell.lost:
            return "KV-PREFIX-021" if cell.dropped else "KV-PREFIX-005"
        if expected in self._past.get(slot, ()):
            return "KV-PREFIX-017"
        if self.weak:
            return "KV-PREFIX-034"
        if cell.position == at and (apart := kept_apart(cell.prompt, reader, at + 1)) is not None:
            return apart
        return "KV-PREFIX-004" if cell.label in reader.labels else "KV-PREFIX-001"

"""The shadow of a snapshot cache's states: after which prefix each state slot holds the state.

A state sums up all tokens before it, so what a slot holds is the label of its last token. A step that is in
flight has written nothing yet: what it starts from is read, and what it leaves is written, at its commit.
"""

from dataclasses import dataclass, field

from kvref_conformance.programs.prompts import Prompt, kept_apart

ZEROS = -1


@dataclass
class StepTold:
    """What a subject has told of one step."""

    start: int
    stop: int
    source: int
    state: int
    saves: list[tuple[int, int]]
    num_drafts: int = 0

    @property
    def targets(self) -> dict[int, int]:
        """The slots that it writes -> after how many tokens their states are."""
        return {**{slot: position for position, slot in self.saves}, self.state: self.stop}

    @property
    def runs_in_place(self) -> bool:
        """Whether it goes on in the slot that it starts from."""
        return self.source == self.state


@dataclass
class StateCell:
    """What one state slot holds."""

    label: int
    prompt: Prompt
    position: int
    """After how many tokens."""
    request: int
    step: int
    epoch: int

    def __str__(self) -> str:
        return f"the state of request {self.request} after {self.position} tokens, from step {self.step}"


@dataclass
class StateCells:
    """Every state slot that was ever written."""

    epoch: int = 0
    _cells: dict[int, StateCell] = field(default_factory=dict)
    _past: dict[int, dict[int, bool]] = field(default_factory=dict)
    """Slot -> labels that it held since the last reset -> whether it went on from them in place."""
    _targets: dict[int, tuple[int, int, bool]] = field(default_factory=dict)
    """Slot that a step in flight writes -> the label it writes, its request, whether it runs in place."""
    _dropped: dict[int, set[int]] = field(default_factory=dict)
    """Slot -> labels that an aborted step was to write."""
    rejected: set[int] = field(default_factory=set)
    """Labels of prefixes that end with a rejected draft."""

    def holds(self, slot: int, label: int) -> bool:
        """Say whether a slot holds the state after a prefix."""
        cell = self._cells.get(slot)
        return cell is not None and cell.label == label and cell.epoch == self.epoch

    def writer(self, slot: int) -> int | None:
        """Return the request that wrote a slot."""
        cell = self._cells.get(slot)
        return None if cell is None else cell.request

    def schedule(self, step: StepTold, prompt: Prompt, request: int) -> None:
        """Let a step be in flight: what the slots hold that it writes is lost."""
        for slot, position in step.targets.items():
            in_place = step.runs_in_place and slot == step.state
            self.lose(slot, in_place=in_place)
            self._targets[slot] = (prompt.labels[position - 1], request, in_place)

    def run(self, step: StepTold, prompt: Prompt, request: int, at: int) -> None:
        """Write what a step leaves behind."""
        for slot, position in step.targets.items():
            self._targets.pop(slot, None)
            self._cells[slot] = StateCell(
                prompt.labels[position - 1], prompt, position, request, at, self.epoch
            )
            self._dropped.pop(slot, None)

    def lose(self, slot: int, *, in_place: bool = False) -> None:
        """Lose what a slot holds."""
        old = self._cells.pop(slot, None)
        if old is not None and old.epoch == self.epoch:
            self._past.setdefault(slot, {})[old.label] = in_place

    def is_coming(self, prompt: Prompt, count: int) -> bool:
        """Say whether a step in flight is going to write the state after the first tokens of a request."""
        return any(label == prompt.labels[count - 1] for label, _, _ in self._targets.values())

    def abort(self, step: StepTold, prompt: Prompt) -> None:
        """Let a step in flight never be run."""
        for slot, position in step.targets.items():
            self._targets.pop(slot, None)
            self._dropped.setdefault(slot, set()).add(prompt.labels[position - 1])

    def reset(self) -> None:
        """Let everything be of the past."""
        self.epoch += 1
        self._past.clear()
        self._dropped.clear()
        self.rejected.clear()

    def blame(self, slot: int, reader: Prompt, count: int) -> tuple[str, str] | None:
        """Return the requirement that a start from a slot breaches, and what it holds; None if none is."""
        expected = reader.labels[count - 1]
        if self.holds(slot, expected):
            return None
        cell, target = self._cells.get(slot), self._targets.get(slot)
        if target is not None:
            return self._of_target(target, expected), f"what request {target[1]} is going to write"
        if cell is None:
            return self._of_nothing(slot, expected), "nothing"
        return self._requirement(slot, cell, reader, count), str(cell)

    def _of_nothing(self, slot: int, expected: int) -> str:
        if expected in self._dropped.get(slot, ()):
            return "KV-SNAP-016"
        past = self._past.get(slot, {})
        return "KV-SNAP-006" if expected not in past else "KV-SNAP-005" if past[expected] else "KV-SNAP-010"

    def _of_target(self, target: tuple[int, int, bool], expected: int) -> str:
        label, _, in_place = target
        if label == expected:
            return "KV-SNAP-006"
        return "KV-SNAP-005" if in_place else "KV-SNAP-010"

    def _requirement(self, slot: int, cell: StateCell, reader: Prompt, count: int) -> str:
        expected = reader.labels[count - 1]
        if cell.epoch < self.epoch:
            return "KV-SNAP-020"
        if expected in self._dropped.get(slot, ()):
            return "KV-SNAP-016"
        if cell.label in self.rejected or expected in self.rejected:
            return "KV-SNAP-015"
        if expected in (past := self._past.get(slot, {})):
            return "KV-SNAP-005" if past[expected] else "KV-SNAP-010"
        if cell.position == count and kept_apart(cell.prompt, reader, count) is not None:
            return "KV-SNAP-019"
        return (
            "KV-SNAP-002"
            if cell.label in reader.labels or _is_of_same(cell, expected, count)
            else "KV-SNAP-001"
        )


def _is_of_same(cell: StateCell, expected: int, count: int) -> bool:
    """Say whether a state is of a request that begins with the expected prefix."""
    own = cell.prompt.labels
    return len(own) >= count and own[count - 1] == expected

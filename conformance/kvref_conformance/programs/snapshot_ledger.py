"""What a snapshot cache may hit and what it must: prefixes whose blocks and whose states are known.

Only prefixes of whole blocks are kept. A prefix must be hit as long as memory sufficed: no block and no state
slot had to be taken that held something known. After that, what still lies where it was must be hit.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from kvref_conformance.claims import Claims
from kvref_conformance.programs.prompts import Prompt

#: Orders of eviction in which more may go than is handed out.
BY_MORE = ("lru_node", "lru_node_renewed", "all_at_once", "unspecified")


@dataclass
class Part:
    """Blocks of a prefix, or states after it: where they lie, and who vouches for them."""

    slots: set[int] = field(default_factory=set)
    live: set[int] = field(default_factory=set)
    """Requests that have it as a part of their prompt, and have not ended."""
    finished: bool = False
    of_prompt: bool = False
    is_lost: bool = False
    """Whether one of several copies was lost: which of them the subject knows is open."""

    def add(self, slot: int) -> None:
        """Note where it lies; where all copies were lost, it is as new."""
        self.is_lost &= bool(self.slots)
        self.slots.add(slot)

    def lose(self, slots: Collection[int]) -> bool:
        """Note that slots were handed out; say whether it lay in one of them."""
        if self.slots.isdisjoint(slots):
            return False
        self.slots.difference_update(slots)
        self.is_lost = True
        return True

    def note(self, request: int, *, of_prompt: bool, finished: bool) -> None:
        """Note who has it."""
        self.finished |= finished
        if of_prompt:
            self.of_prompt = True
            self.live.add(request)

    def is_sure(self, *, outputs: bool, early: bool) -> bool:
        """Say whether it must be there, if nothing was evicted; `early`: before its request has finished."""
        return (early and bool(self.live)) or (self.finished and (self.of_prompt or outputs))


@dataclass
class Known:
    """One prefix."""

    blocks: Part = field(default_factory=Part)
    """Slots in which its last token was written."""
    states: Part = field(default_factory=Part)
    needs: set[int] = field(default_factory=set)
    """Labels of the prefixes without whose last blocks its state is of no use."""
    is_junction: bool = False
    """Whether it was saved because a request parted there."""
    is_stranded: bool = False
    """Whether its state may be there still, and blocks that it needs are not."""


@dataclass
class SnapshotLedger:
    """Prefixes by the label of their last token."""

    block_size: int
    interval: int
    window: int
    saves: str
    outputs: bool
    early: bool
    by_more: bool
    unnamed: bool
    """Whether requests hold state slots that no step names: what is evicted for these cannot be followed."""
    forced_blocks: bool = False
    """Whether a block had to be taken that held something known."""
    forced_states: bool = False
    entries: dict[int, Known] = field(default_factory=dict)

    @staticmethod
    def under(claims: Claims, block_size: int, interval: int, window: int) -> "SnapshotLedger":
        """Return an empty ledger for what a subject declares."""
        return SnapshotLedger(
            block_size,
            interval,
            window,
            claims.choice("snapshot-saves"),
            claims.choice("cached-outputs") == "yes",
            claims.choice("publish-time") != "finished",
            claims.choice("eviction-order") in BY_MORE,
            claims.choice("running-states") == "several",
        )

    def at(self, prompt: Prompt, count: int) -> Known:
        """Return what is known of the first tokens of a request."""
        return self.entries.setdefault(prompt.labels[count - 1], Known())

    def grid(self, start: int, stop: int) -> Iterator[int]:
        """Yield the numbers of tokens after `start` and up to `stop` that fill whole blocks."""
        yield from range(
            start // self.block_size * self.block_size + self.block_size, stop + 1, self.block_size
        )

    def due_saves(self, start: int, stop: int, junction: int) -> list[int]:
        """Return the positions of a step that the declared rule saves, and a junction."""
        found = {p for p in self.grid(start, stop) if p == junction}
        if self.saves in ("interval", "chunk_end"):
            found |= {p for p in self.grid(start, stop) if p % self.interval == 0}
        if self.saves == "chunk_end":
            found = {p for p in found if p in (stop, junction)}
        return sorted(found)

    def publish(
        self, prompt: Prompt, slots: list[int], request: int, start: int = 0, *, finished: bool = False
    ) -> None:
        """Note the blocks that a request has computed."""
        for count in self.grid(start, len(slots)):
            part = self.at(prompt, count).blocks
            part.note(request, of_prompt=count <= prompt.prompt_len, finished=finished)
            if slots[count - 1] >= 0:
                part.add(slots[count - 1])

    def save(self, prompt: Prompt, request: int, places: dict[int, int | None], junction: int) -> None:
        """Note the states that a request has saved, or that were there: position -> slot, None if unknown."""
        for position, slot in places.items():
            known = self.at(prompt, position)
            known.states.note(request, of_prompt=position <= prompt.prompt_len, finished=False)
            seen = [end for end in self.grid(0, position) if end > self.first_seen(position)]
            known.needs = {prompt.labels[end - 1] for end in seen or [position]}
            known.is_junction |= position == junction and position not in self.due_saves(0, position, 0)
            if slot is not None:
                known.states.add(slot)
                known.is_stranded = False

    def end(self, prompt: Prompt, request: int, positions: Iterable[int], *, finished: bool) -> None:
        """Note that a request has ended; what it saved stays if it has finished."""
        for position in positions:
            known = self.at(prompt, position)
            known.states.finished |= finished and not known.is_stranded
        for known in self.entries.values():
            known.blocks.live.discard(request)
            known.states.live.discard(request)

    def reset(self) -> None:
        """Forget everything."""
        self.forced_blocks = self.forced_states = False
        self.entries.clear()

    def first_seen(self, count: int) -> int:
        """Return the first position that the token after `count` others attends to."""
        return max(0, count - self.window + 1) if self.window else 0

    def due(self, prompt: Prompt) -> int:
        """Return how many tokens of a request must be hit."""
        if (self.by_more and self.forced_blocks) or (self.unnamed and self.forced_states):
            return 0
        ends = list(self.grid(0, len(prompt.tokens) - 1))
        for count in reversed(ends):
            known = self.entries.get(prompt.labels[count - 1])
            if known is None or not self._is_there(known.states, lying=self._may_be_overwritten):
                continue
            seen = [end for end in ends if self.first_seen(count) < end <= count] or [count]
            if all(self._has_block(prompt, end, lying=self.forced_blocks) for end in seen):
                return count
        return 0

    @property
    def _may_be_overwritten(self) -> bool:
        """Whether a state must be there only where it lies: without a rule, another may be saved over it."""
        return self.forced_states or self.saves == "unspecified"

    @property
    def is_forced(self) -> bool:
        """Whether something known had to go."""
        return self.forced_blocks or self.forced_states

    def _has_block(self, prompt: Prompt, count: int, *, lying: bool) -> bool:
        """Say whether the last block of a prefix must be there; `lying`: and lies where it was."""
        known = self.entries.get(prompt.labels[count - 1])
        return known is not None and self._is_there(known.blocks, lying=lying)

    def _is_there(self, part: Part, *, lying: bool) -> bool:
        sure = part.is_sure(outputs=self.outputs, early=self.early)
        return sure and not (lying and (part.is_lost or not part.slots))

    def junction(self, prompt: Prompt) -> int:
        """Return where the known blocks of a request end; 0 if that is not determined."""
        found = 0
        for count in self.grid(0, len(prompt.tokens) - 1):
            if not self._has_block(prompt, count, lying=True):
                known = self.entries.get(prompt.labels[count - 1])
                return 0 if known is not None and known.blocks.slots else found
            found = count
        return found

    def lose(self, slots: Collection[int], states: Collection[int]) -> None:
        """Note that slots of blocks, or state slots, were handed out."""
        gone = set()
        for label, known in self.entries.items():
            if known.blocks.lose(slots) and not known.blocks.slots:
                gone.add(label)
            known.states.lose(states)
        for known in self.entries.values() if gone else ():
            if not known.needs.isdisjoint(gone):
                known.is_stranded |= bool(known.states.slots)
                known.states = Part()  # whoever saved it may forget it

    def known_blocks(self) -> set[int]:
        """Return the slots of last tokens that lie where they were."""
        return {slot for known in self.entries.values() for slot in known.blocks.slots}

    def known_states(self) -> set[int]:
        """Return the state slots that hold the state after a known prefix."""
        return {slot for known in self.entries.values() for slot in known.states.slots}

    def idle_states(self) -> set[int]:
        """Return known states that lie in one slot alone, and are no part of a live request's prompt."""
        parts = [known.states for known in self.entries.values()]
        return {slot for part in parts if not part.live and len(part.slots) == 1 for slot in part.slots}

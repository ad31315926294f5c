"""What has been published since the last reset: what a request may hit, and what it must.

Only ends of blocks are kept, for a hit covers whole blocks, whatever else it may cover. What an aborted
request computed may be hit and need not be; so may what was decoded, until its request has finished. Nothing
must be hit once a block had to be taken from someone else's past, which is why blocks given out are counted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kvref_conformance.claims import Claims
from kvref_conformance.programs.cells import Cells
from kvref_conformance.programs.prompts import Prompt


@dataclass
class Entry:
    """What is known of one prefix that ends with a block."""

    parent: int | None
    """The prefix one block shorter."""
    of_prompt: bool = False
    """Whether some request had all of it as prompt; otherwise some of it was decoded."""
    finished: bool = False
    """Whether a request that had all of it has finished."""
    live: set[int] = field(default_factory=set)
    """Requests that have all of it as prompt, computed, and have not ended."""
    slots: set[int] = field(default_factory=set)
    """Slots in which its last token was ever written."""


@dataclass
class Ledger:
    """Prefixes by the label of their last token."""

    block_size: int
    capacity: int
    full_hit: str
    outputs: bool
    given_out: int = 0
    """Blocks given out for writing since the last reset."""
    unkept: bool = False
    """Whether a step was not run whose blocks were published when it was scheduled, and may be taken back."""
    entries: dict[int, Entry] = field(default_factory=dict)
    children: dict[int, set[int]] = field(default_factory=dict)

    @staticmethod
    def under(claims: Claims, block_size: int, capacity: int) -> "Ledger":
        """Return an empty ledger for what a subject declares."""
        outputs = claims.choice("cached-outputs") == "yes"
        return Ledger(block_size, capacity, claims.choice("full-hit"), outputs)

    def ends(self, num_tokens: int) -> Iterator[int]:
        """Yield the last position of every full block."""
        yield from range(self.block_size - 1, num_tokens, self.block_size)

    def publish(self, prompt: Prompt, slots: list[int], request: int, *, finished: bool = False) -> None:
        """Note what a request computed, up to the last of its slots."""
        parent = None
        for end in self.ends(len(slots)):
            own = prompt.labels[end]
            entry = self.entries.setdefault(own, Entry(parent))
            entry.finished |= finished
            if end < prompt.prompt_len:
                entry.of_prompt = True
                entry.live.add(request)
            entry.slots.add(slots[end])
            if parent is not None:
                self.children.setdefault(parent, set()).add(own)
            parent = own

    def end(self, request: int) -> None:
        """Note that a request has ended."""
        for entry in self.entries.values():
            entry.live.discard(request)

    def reset(self) -> None:
        """Forget everything."""
        self.given_out, self.unkept = 0, False
        self.entries.clear()
        self.children.clear()

    def most(self, num_tokens: int) -> int:
        """Return how many tokens of a request may be hit, if all of them are there."""
        floor = (num_tokens - 1) // self.block_size * self.block_size
        whole = self.full_hit == "last_token" and num_tokens % self.block_size == 0
        return num_tokens - 1 if whole else floor

    def due(self, prompt: Prompt, *, outputs: bool | None = None) -> int:
        """Return how many tokens of a request must be hit, if nothing had to be evicted."""
        if self.given_out > self.capacity or self.unkept:
            return 0
        return self._surely(prompt, self.outputs if outputs is None else outputs)

    def published(self, prompt: Prompt) -> int:
        """Return how many tokens of a request have been published at all."""
        return self._run(prompt, lambda entry: True)

    def allowed(self, prompt: Prompt) -> int:
        """Return how many tokens of a request have been published, decoded ones as declared."""
        return self._run(prompt, lambda entry: entry.of_prompt or self.outputs)

    def shared(self, prompt: Prompt, cells: Cells, held: set[int]) -> int:
        """Count the blocks of a request that it will surely find in blocks that others hold."""
        count = 0
        for end in self.ends(0 if self.unkept else self._surely(prompt, self.outputs)):
            slots = self.entries[prompt.labels[end]].slots
            if len(slots) > 1 or not all(slot // self.block_size in held for slot in slots):
                break
            count += all(cells.holds(slot, prompt.labels[end]) for slot in slots)
        return count

    def copies(self, prompt: Prompt, cells: Cells) -> int:
        """Count the blocks that hold one prefix of a request, the one that most hold."""
        names = [prompt.labels[end] for end in self.ends(len(prompt.labels))]
        known = [(own, self.entries[own].slots) for own in names if own in self.entries]
        return max((sum(cells.holds(slot, own) for slot in slots) for own, slots in known), default=0)

    def orphans(self, own: int, slot: int, cells: Cells, gone: set[int]) -> bool:
        """Say whether taking the only block of a prefix, which ends in a slot, leaves a longer one behind."""
        names = [name for name in self.children.get(own, ()) if self._has_one_copy(name)]
        left = {slot for name in names for slot in self.entries[name].slots if cells.keeps(slot, name)}
        only = self._has_one_copy(own) and slot in self.entries[own].slots and not self.unkept
        return only and any(slot // self.block_size not in gone for slot in left)

    def _has_one_copy(self, own: int) -> bool:
        """Say whether a prefix was published once, as far as outputs are at all."""
        entry = self.entries.get(own)
        return entry is not None and len(entry.slots) == 1 and (entry.of_prompt or self.outputs)

    def _surely(self, prompt: Prompt, outputs: bool) -> int:
        run = self._run(prompt, lambda e: bool(e.live) or (e.finished and (e.of_prompt or outputs)))
        return min(run, self.most(len(prompt.tokens)))

    def _run(self, prompt: Prompt, holds: Callable[[Entry], bool]) -> int:
        found = 0
        for end in self.ends(len(prompt.tokens)):
            entry = self.entries.get(prompt.labels[end])
            if entry is None or not holds(entry):
                break
            found = end + 1
        return found

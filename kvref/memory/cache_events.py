"""What a prefix cache tells others of itself: which keys it stored, removed, and that it forgot all.

Whoever applies the events in their order has a mirror of the cache: at any time, the keys under which a full
block is there. A key is told once, however many copies of its block there are, and removed with the last one.
Tails of prompts are not told: their keys change as they fill.

Realises: KV-PREFIX-040 event-parent-present, KV-PREFIX-041 event-stored-once, KV-PREFIX-042
event-removed-was-stored, KV-PREFIX-043 event-span-fits, KV-PREFIX-044 event-one-meaning, KV-PREFIX-045
event-after-clear, KV-PREFIX-046 mirror-equals.
For porters: tell of a key when it is new, not when a block gets it; an eviction is told before what it made
room for.
Source: vLLM's KV events (BlockStored, BlockRemoved, AllBlocksCleared), which tell of each copy.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from kvref.memory.keys import TOKEN, read_tokens
from kvref.memory.namespace import Namespace


class Stored(NamedTuple):
    """Blocks that follow each other can be hit now."""

    keys: list[bytes]
    parent: bytes | None
    """The key of the block before the first; None if that begins a prefix."""
    tokens: list[int]
    block_size: int
    namespace: Namespace


class Removed(NamedTuple):
    """No block is there under these keys any more."""

    keys: list[bytes]


class Cleared(NamedTuple):
    """No block is there under any key."""


Event: TypeAlias = Stored | Removed | Cleared


class Told:
    """Which keys the events so far say are there, and the events that nobody has taken."""

    def __init__(self) -> None:
        self._keys: set[bytes] = set()
        self._events: list[Event] = []

    def stored(
        self, keys: Sequence[bytes], start: int, raw: bytes, block_size: int, namespace: Namespace
    ) -> None:
        """Tell of the blocks of a request's `keys` from `start` on; `raw` are its tokens, written."""
        step, run = block_size * TOKEN, start
        for at in range(start, len(keys) + 1):
            if at == len(keys) or keys[at] in self._keys:
                if run < at:
                    tokens = read_tokens(raw[run * step : at * step])
                    before = keys[run - 1] if run else None
                    self._events.append(Stored(list(keys[run:at]), before, tokens, block_size, namespace))
                run = at + 1
        self._keys.update(keys[start:])

    def removed(self, keys: Iterable[bytes]) -> None:
        """Tell that keys are lost, those that were told of."""
        lost = [key for key in keys if key in self._keys]
        if lost:
            self._keys.difference_update(lost)
            self._events.append(Removed(lost))

    def cleared(self) -> None:
        """Tell that everything is forgotten."""
        self._keys.clear()
        self._events.append(Cleared())

    def take(self) -> list[Event]:
        """Return the events since the last time."""
        events, self._events = self._events, []
        return events

    def keys(self) -> set[bytes]:
        """Return the keys that a mirror has after all events, taken or not."""
        return set(self._keys)

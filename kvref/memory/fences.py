"""Steps in flight, and the blocks that wait for them to end.

A step that was begun may still write any block its requests held then. A block let go of while steps are in
flight waits for all of them: it is not free, so it cannot be handed out and written by two at once. Steps end
in the order in which they began, so the end of one is the end of those before it; a block waits for those
begun before it was let go of, and for no later one.

Realises: KV-BLOCK-011 fenced-free.
For porters: two numbers are enough, of the newest step and of the newest that has ended; and one number a
block, of the newest step when it was let go of. Numbers only rise, so the blocks wait in the order of theirs.
Source: vLLM's deferred frees (asynchronous scheduling, prefill and decode apart).
"""

from collections import OrderedDict
from collections.abc import Iterable, KeysView

from kvref.arrays import is_integer
from kvref.errors import ArgumentError, shown


class Fences:
    """Which steps are in flight, and which blocks wait for which step."""

    def __init__(self) -> None:
        self._begun = 0  # the number of the newest step; the first is 1
        self._ended = 0  # the number of the newest step that has ended
        self._waiting: OrderedDict[int, int] = OrderedDict()  # block -> newest step it waits for, rising

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def in_flight(self) -> bool:
        """Whether any step was begun and not ended."""
        return self._ended < self._begun

    def keys(self) -> KeysView[int]:
        """View the blocks that wait."""
        return self._waiting.keys()

    def begin(self) -> int:
        """Begin a step and return its number."""
        self._begun += 1
        return self._begun

    def wait(self, blocks: Iterable[int]) -> None:
        """Let blocks wait for every step in flight."""
        for block in blocks:
            self._waiting[block] = self._begun

    def take_back(self, blocks: list[int]) -> list[int]:
        """Let blocks wait no longer, for they have holders again; return those that did not wait."""
        if not self._waiting:
            return blocks
        waited = self._waiting.keys() & blocks
        for block in waited:
            del self._waiting[block]
        return [block for block in blocks if block not in waited]

    def end(self, step: int) -> list[int]:
        """End a step and each before it; return the blocks that wait no more, in the order they were let go.

        Raises: ArgumentError if the step is not in flight.
        """
        if not is_integer(step) or not self._ended < step <= self._begun:
            raise ArgumentError(f"step = {shown(step)}, expected a step in flight (KV-BLOCK-011 fenced-free)")
        self._ended = int(step)
        done = []
        while self._waiting and next(iter(self._waiting.values())) <= self._ended:
            done.append(self._waiting.popitem(last=False)[0])
        return done

    def check_invariants(self) -> None:
        """Assert that waiting blocks are in order, and that each waits for a step in flight."""
        waited = list(self._waiting.values())
        assert self._ended <= self._begun, "a step ended before it began"
        assert waited == sorted(waited), "blocks do not wait in the order of their steps"
        assert all(self._ended < step <= self._begun for step in waited), "a block waits for no step"

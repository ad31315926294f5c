"""Steps in flight, and the blocks that wait for them to end.

A step that was begun may still write any block its requests held then. A block let go of while steps are in
flight waits for all of them: it is not free, so it cannot be handed out and written by two at once. Steps
may end in any order; a block waits for those begun before it was let go of, and for no later one.

Realises: KV-BLOCK-011 fenced-free.
For porters: one number a block is enough, the newest step in flight when it was let go of. Numbers only
rise, so the blocks wait in the order of their numbers, and the oldest step in flight says how many may go.
Source: vLLM's deferred frees (asynchronous scheduling, prefill and decode apart).
"""

from collections import OrderedDict
from collections.abc import Iterable, KeysView

from kvref.arrays import is_integer
from kvref.errors import ArgumentError


class Fences:
    """Which steps are in flight, and which blocks wait for which step."""

    def __init__(self) -> None:
        self._begun = 0  # the number of the newest step; the first is 1
        self._in_flight: OrderedDict[int, None] = OrderedDict()  # the oldest first
        self._waiting: OrderedDict[int, int] = OrderedDict()  # block -> newest step it waits for, rising

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def in_flight(self) -> bool:
        """Whether any step was begun and not ended."""
        return bool(self._in_flight)

    def keys(self) -> KeysView[int]:
        """View the blocks that wait."""
        return self._waiting.keys()

    def begin(self) -> int:
        """Begin a step and return its number."""
        self._begun += 1
        self._in_flight[self._begun] = None
        return self._begun

    def wait(self, blocks: Iterable[int]) -> None:
        """Let blocks wait for every step in flight."""
        newest = next(reversed(self._in_flight))
        for block in blocks:
            self._waiting[block] = newest

    def take_back(self, blocks: list[int]) -> list[int]:
        """Let blocks wait no longer, for they have holders again; return those that did not wait."""
        if not self._waiting:
            return blocks
        waited = self._waiting.keys() & blocks
        for block in waited:
            del self._waiting[block]
        return [block for block in blocks if block not in waited]

    def end(self, step: int) -> list[int]:
        """End a step; return the blocks that wait for no step any more, in the order they were let go of.

        Raises: ArgumentError if the step is not in flight.
        """
        if not is_integer(step) or step not in self._in_flight:
            raise ArgumentError(f"step = {step!r}, expected a step in flight (KV-BLOCK-011 fenced-free)")
        del self._in_flight[step]
        oldest = next(iter(self._in_flight), self._begun + 1)
        done = []
        while self._waiting and next(iter(self._waiting.values())) < oldest:
            done.append(self._waiting.popitem(last=False)[0])
        return done

    def check_invariants(self) -> None:
        """Assert that steps and waiting blocks are in order, and that a step in flight is waited for."""
        steps, waited = list(self._in_flight), list(self._waiting.values())
        assert steps == sorted(set(steps)), "steps in flight are not in order"
        assert waited == sorted(waited), "blocks do not wait in the order of their steps"
        assert not waited or (steps and waited[0] >= steps[0]), "a block waits for steps that have ended"

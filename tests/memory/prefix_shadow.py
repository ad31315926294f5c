"""A shadow of a prefix cache's memory: which prefix wrote each slot, and whether a cache keeps its promises.

Drives any cache with the operations of a request: admit, extend, commit, slots, finish, abort, reset. A label
stands for a prefix in a namespace, exactly; a slot carries the label of what was written there last.
After each operation every live request must read its own labels, and the counts must agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from memory.request_machine import RequestMachine
from memory.states import state_of

from kvref.errors import KVError, OutOfBlocksError
from kvref.memory.namespace import Namespace


@dataclass
class Live:
    """A request that is there."""

    tokens: list[int]
    namespace: Namespace
    num_prompt: int
    num_scheduled: int = 0
    num_computed: int = 0
    sources: list[int] = field(default_factory=list)


class Shadow:
    """A cache, the labels of its slots, and the requests that are there."""

    def __init__(self, cache: Any, *, capacity: int) -> None:
        self.cache, self.capacity = cache, capacity
        self.size: int = cache.block_size
        self.early = cache.profile.publish == "scheduled"  # steps run in their order: as good as at once
        self.live: dict[int, Live] = {}
        self.memory: dict[int, int] = {}
        self._labels: dict[Any, int] = {}

    def labels(self, own: Live, stop: int) -> list[int]:
        """The labels of a request's first tokens."""
        label = self._label(None, own.namespace.salt, own.namespace.adapter, own.namespace.adapter_version)
        found = []
        for at, token in enumerate(own.tokens[:stop]):
            rows = [(s.kind, s.digest, at - s.offset) for s in own.namespace.spans if s.offset <= at < s.stop]
            label = self._label(label, token, *rows)
            found.append(label)
        return found

    def admit(
        self, request: int, tokens: Sequence[int], namespace: Namespace, most: int | None
    ) -> int | None:
        """Admit a request; return its hit, or None if it was refused, which must have been right."""
        needed, free = -(-len(tokens) // self.size), self.cache.num_free
        before = state_of(self.cache)
        try:
            cached, slots, copies = self.cache.admit(
                request, tokens, namespace=namespace, max_new_tokens=most
            )
        except OutOfBlocksError:
            assert needed > free, "refused, but all of the prompt fits"
            assert state_of(self.cache) == before, "a refused admission has changed something"
            return None
        own = Live(list(tokens), namespace, len(tokens), len(slots), cached)
        assert len(slots) == min(len(tokens), cached + (len(tokens) if most is None else most))
        self._check_limit(cached, len(tokens))
        for copy in copies:
            for at in range(copy.count):
                self.memory[copy.target * self.size + at] = self.memory[copy.source * self.size + at]
            own.sources.append(copy.source)
        read = [self.memory.get(slot) for slot in slots[:cached]]
        assert read == self.labels(own, cached), "a hit holds what another prefix wrote"
        self.live[request] = own
        self._given(request, slots[cached:])
        return int(cached)

    def extend(self, request: int, tokens: Sequence[int], most: int | None) -> bool:
        """Extend a request; say whether it was not refused."""
        own, before = self.live[request], state_of(self.cache)
        count = len(own.tokens) + len(tokens) - own.num_scheduled
        count = count if most is None else min(count, most)
        needed = -(-(own.num_scheduled + count) // self.size) - -(-own.num_scheduled // self.size)
        free = self.cache.num_free
        try:
            slots = self.cache.extend(request, tokens, max_new_tokens=most)
        except OutOfBlocksError:
            assert needed > free, "refused, but it fits"
            assert state_of(self.cache) == before, "a refused extension has changed something"
            return False
        assert len(slots) == count
        own.tokens += tokens
        own.num_scheduled += count
        self._given(request, slots)
        return True

    def commit(self, request: int) -> None:
        """Write what is scheduled, and say so."""
        own = self.live[request]
        self._write(own, self.cache.slots(request)[own.num_computed :], own.num_computed)
        self.cache.commit(request)
        own.num_computed, own.sources = own.num_scheduled, []

    def end(self, request: int, *, abort: bool) -> None:
        """Finish or abort a request."""
        if self.early:
            self.commit(request)  # a step that is scheduled is run
        del self.live[request]
        self.cache.abort(request) if abort else self.cache.finish(request)

    def reset(self) -> None:
        """Reset the cache; it must refuse while a request is there, and hit nothing afterwards."""
        if not self.live:
            self.cache.reset()
            self.memory.clear()
            return
        before = state_of(self.cache)
        with pytest.raises(KVError):
            self.cache.reset()
        assert state_of(self.cache) == before

    def check(self) -> None:
        """Every request reads its own, and the counts agree."""
        held = set()
        for request, own in self.live.items():
            slots = self.cache.slots(request)
            assert len(slots) == own.num_scheduled
            read = [self.memory.get(slot) for slot in slots[: own.num_computed]]
            assert read == self.labels(own, own.num_computed), "a request reads what another prefix wrote"
            held |= {slot // self.size for slot in slots} | set(own.sources)
        assert self.cache.num_free == self.capacity - len(held), "free blocks are miscounted"
        self.cache.check_invariants()

    def _given(self, request: int, slots: list[int]) -> None:
        """Slots given for new tokens are nobody else's."""
        own = self.live[request]
        others = {slot for other in self.live if other != request for slot in self.cache.slots(other)}
        sources = {source for live in self.live.values() for source in live.sources}
        assert not others & set(slots), "a slot is given to two"
        assert not sources & {slot // self.size for slot in slots}, "a block is given that is to be copied"
        if self.early:
            self._write(own, slots, own.num_scheduled - len(slots))

    def _write(self, own: Live, slots: list[int], start: int) -> None:
        self.memory.update(zip(slots, self.labels(own, own.num_scheduled)[start:], strict=True))

    def _check_limit(self, cached: int, count: int) -> None:
        profile = self.cache.profile
        assert cached <= count - (profile.last_token != "none"), "a full hit leaves nothing to compute"
        if profile.last_token == "block_floor":
            assert cached % self.size == 0, "a hit is off the grid"

    def _label(self, *content: Any) -> int:
        return self._labels.setdefault(content, len(self._labels))


class Requests(RequestMachine):
    """Any operations on a cache that `make` returns, with `capacity` blocks."""

    make: Any = None
    capacity = 0

    def shadowed(self) -> Shadow:
        """Return the cache and its shadow."""
        return Shadow(type(self).make(), capacity=self.capacity)

    def check_all_free(self) -> None:
        """All blocks are free."""
        assert self.shadow.cache.num_free == self.capacity

"""A shadow of a snapshot cache's memory: which prefix wrote each slot, and after which prefix each state is.

The steps a cache gives are run on labels. A step reads the state in its source, which must be the state after
exactly the tokens before it, writes a label into each slot, and leaves states where it was told to. What a
state slot holds in the middle of a step is poison, so a wrong order shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from memory.request_machine import RequestMachine
from memory.states import state_of

from kvref.errors import KVError, OutOfBlocksError, OutOfStatesError
from kvref.memory.keys import block_keys, sha256
from kvref.memory.namespace import Namespace
from kvref.memory.snapshot_cache import SnapshotCache
from kvref.memory.snapshot_request import first_seen

POISON = object()


@dataclass
class Step:
    """What a request does until its commit."""

    start: int
    stop: int
    source: int
    state: int
    saves: list[tuple[int, int]]
    num_drafts: int = 0


@dataclass
class Live:
    """A request that is there."""

    tokens: list[int]
    namespace: Namespace
    junction: int = 0
    num_computed: int = 0
    steps: list[Step] = field(default_factory=list)

    @property
    def num_scheduled(self) -> int:
        """How many tokens have slots."""
        return self.steps[-1].stop if self.steps else self.num_computed

    @property
    def written(self) -> list[int]:
        """The state slots that its steps write."""
        return [slot for step in self.steps for slot in (step.state, *(slot for _, slot in step.saves))]


class Shadow:
    """A cache, the labels of its slots and states, and the requests that are there."""

    def __init__(self, cache: SnapshotCache, *, ample: bool = False) -> None:
        self.cache, self.size, self.ample = cache, cache.block_size, ample
        self.num_blocks, self.num_states = cache.num_free, cache.num_free_states
        self.live: dict[int, Live] = {}
        self.memory: dict[int, Any] = {}
        self.states: dict[int, Any] = {}
        self.kept: set[Any] = set()
        """Prefixes whose last block was computed, or whose state was saved: all there if nothing is lost."""

    def prefix(self, own: Live, stop: int) -> Any:
        """What a request's first tokens are, in its namespace: equal ones may share."""
        space = own.namespace
        rows = [
            (s.kind, s.digest, s.offset, min(stop, s.stop) - s.offset) for s in space.spans if s.offset < stop
        ]
        names = (space.model, space.adapter, space.adapter_version, space.salt)
        return (*names, tuple(own.tokens[:stop]), tuple(rows))

    def admit(
        self, request: int, tokens: Sequence[int], namespace: Namespace, most: int | None
    ) -> int | None:
        """Admit a request; return its hit, or None if it was refused, which must have been right."""
        cache, own = self.cache, Live(list(tokens), namespace)
        before, longest = state_of(cache), self.longest(own)
        free, free_states = cache.num_free, cache.num_free_states
        try:
            found = cache.admit(request, tokens, namespace=namespace, max_new_tokens=most)
        except OutOfStatesError:
            assert not free_states, "refused, but a state slot can be had"
        except OutOfBlocksError:
            assert -(-len(tokens) // self.size) > free, "refused, but all of the prompt fits"
        else:
            return self._admitted(request, own, found, longest, most)
        assert state_of(cache) == before, "a refused admission has changed something"
        return None

    def extend(self, request: int, tokens: Sequence[int], most: int | None, num_drafts: int = 0) -> bool:
        """Extend a request; say whether it was not refused."""
        cache, own = self.cache, self.live[request]
        before, free, free_states = state_of(cache), cache.num_free, cache.num_free_states
        start, count = own.num_scheduled, len(own.tokens) + len(tokens)
        stop = count if most is None else min(count, start + most)
        try:
            slots, *given = cache.extend(request, tokens, max_new_tokens=most, num_drafts=num_drafts)
        except OutOfStatesError:
            assert num_drafts > free_states, "refused, but the state slots can be had"
        except OutOfBlocksError:
            assert -(-stop // self.size) - -(-start // self.size) > free, "refused, but it fits"
        else:
            assert len(slots) == stop - start
            own.tokens += tokens
            self._scheduled(request, start, stop, given, num_drafts)
            return True
        assert state_of(cache) == before, "a refused extension has changed something"
        return False

    def commit(self, request: int, num_accepted: int | None = None) -> None:
        """Run the steps of a request, and say so."""
        own, slots = self.live[request], self.cache.slots(request)
        for step in own.steps:
            self._run(own, step, slots)
        if num_accepted is None:
            self.cache.commit(request)
        else:
            self.cache.commit(request, num_accepted=num_accepted)
            rejected = own.steps[-1].num_drafts - num_accepted
            del own.tokens[len(own.tokens) - rejected :]
            own.steps[-1].stop -= rejected
        if own.steps:
            self._keep(own)
            own.num_computed, own.steps = own.num_scheduled, []

    def end(self, request: int, *, abort: bool) -> None:
        """Finish or abort a request."""
        del self.live[request]
        self.cache.abort(request) if abort else self.cache.finish(request)

    def reset(self) -> None:
        """Reset the cache; it must refuse while a request is there, and hit nothing afterwards."""
        if not self.live:
            self.cache.reset()
            self.memory, self.states, self.kept = {}, {}, set()
            return
        before = state_of(self.cache)
        with pytest.raises(KVError):
            self.cache.reset()
        assert state_of(self.cache) == before

    def longest(self, own: Live) -> int:
        """The longest joint hit there is, by trying every length: its blocks and its state are all there."""
        keys = block_keys(own.tokens, self.size, own.namespace, digest=self.cache._digest)
        blocks, snapshots = self.cache._index.keys(), self.cache._snapshots._index.keys()
        for stop in range((len(own.tokens) - 1) // self.size, 0, -1):
            first = first_seen(stop * self.size, self.cache.window) // self.size
            if keys[stop - 1] in snapshots and set(keys[first:stop]) <= blocks:
                return stop * self.size
        return 0

    def check(self) -> None:
        """Every request reads its own, and the counts agree."""
        blocks, states, more = set(), 0, 0
        for request, own in self.live.items():
            slots = self.cache.slots(request)
            assert len(slots) == own.num_scheduled
            self._check_read(own, slots, own.num_computed)
            blocks |= {slot // self.size for slot in slots if slot >= 0}
            sources = {step.source for step in own.steps} - {-1}
            states += len({*own.written, *sources}) if own.steps else 1
            more += not own.steps  # it may go on from a snapshot, which it holds
        assert self.cache.num_free == self.num_blocks - len(blocks), "free blocks are miscounted"
        held = self.num_states - self.cache.num_free_states
        assert held <= states + more, "free states are miscounted"
        self.cache.check_invariants()

    def _admitted(self, request: int, own: Live, found: Any, longest: int, most: int | None) -> int:
        hit, slots, *given = found
        weak = self.cache._digest is not sha256  # equal keys of other contents are none
        assert hit == longest or (weak and hit < longest), "not the longest joint hit"
        assert len(slots) == min(len(own.tokens), hit + (len(own.tokens) if most is None else most))
        assert hit < len(own.tokens), "nothing is left to compute"
        assert (given[0] == -1) == (hit == 0), "it starts from zeros although something is hit"
        if self.ample:
            assert hit == self._promised(own), "what was saved is not hit"
            own.junction = self._attention(own)
        self.live[request] = own
        self._check_read(own, slots, hit)
        own.num_computed = hit
        self._scheduled(request, hit, len(slots), given, 0)
        return int(hit)

    def _scheduled(self, request: int, start: int, stop: int, given: Sequence[Any], num_drafts: int) -> None:
        """A step is given memory that nobody else has, and saves positions that it passes."""
        own, (source, state, positions, states) = self.live[request], given
        assert len(positions) == len(states)
        assert positions == sorted(set(positions)), "saved positions do not rise"
        assert all(start < position <= stop for position in positions), "a position is saved outside the step"
        own.steps.append(
            Step(start, stop, source, state, list(zip(positions, states, strict=True)), num_drafts)
        )
        mine = set(own.written)
        for other, live in self.live.items():
            others = {*live.written, *(step.source for step in live.steps)} if other != request else set()
            assert not mine & others, "a state slot is given to two"

    def _run(self, own: Live, step: Step, slots: list[int]) -> None:
        if step.start == step.stop:
            return
        state = self.states.get(step.source) if step.source != -1 else self.prefix(own, 0)
        assert state == self.prefix(own, step.start), "a step starts from the state after another prefix"
        self._check_read(own, slots, step.start, step.start)
        self.states[step.state] = POISON
        saves = dict(step.saves)
        for at in range(step.start, step.stop):
            if slots[at] != -1:
                self.memory[slots[at]] = self.prefix(own, at + 1)
            if at + 1 in saves:
                self.states[saves[at + 1]] = self.prefix(own, at + 1)
        self.states[step.state] = self.prefix(own, step.stop)

    def _check_read(self, own: Live, slots: list[int], stop: int, position: int | None = None) -> None:
        """The next token reads what this prefix has written, as far as its window sees."""
        for at in range(first_seen(stop, self.cache.window), stop):
            assert self.memory.get(slots[at]) == self.prefix(own, at + 1), (
                "it reads what another prefix wrote"
            )

    def _keep(self, own: Live) -> None:
        """Note what is kept if nothing is lost: every block, and states by the rule of the profile."""
        grid, size = self.cache._grid, self.size
        for step in own.steps:
            for at in range(step.start + 1, step.stop + 1):
                if at % size == 0:
                    self.kept.add(("block", self.prefix(own, at)))
                due = {
                    "interval": at % grid == 0,
                    "chunk_end": at % grid == 0 and at == step.stop,
                    "branch": False,
                }
                if due[self.cache.profile.saves] or (self.cache.profile.junctions and at == own.junction):
                    self.kept.add(("state", self.prefix(own, at)))

    def _attention(self, own: Live) -> int:
        stops = range(self.size, len(own.tokens), self.size)
        kept = [("block", self.prefix(own, stop)) in self.kept for stop in stops]
        return self.size * (kept.index(False) if False in kept else len(kept))

    def _promised(self, own: Live) -> int:
        stops = range(self.size, self._attention(own) + 1, self.size)
        return max((stop for stop in stops if ("state", self.prefix(own, stop)) in self.kept), default=0)


class Hybrids(RequestMachine):
    """Any operations on a cache that `make` returns."""

    make: Any = None
    ample = False

    def shadowed(self) -> Shadow:
        """Return the cache and its shadow."""
        return Shadow(type(self).make(), ample=self.ample)

    @precondition(lambda self: self.shadow.live)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def draft(self, data: st.DataObject, tokens: list[int]) -> None:
        """Drafts join, are computed, and some of them stay."""
        request = self._one(data)
        num_drafts = data.draw(st.integers(1, len(tokens)))
        if self.shadow.extend(request, tokens, None, num_drafts):
            self.shadow.check()
            if data.draw(st.booleans()):
                self.shadow.end(request, abort=True)
            else:
                self.shadow.commit(request, data.draw(st.integers(0, num_drafts)))

    def check_all_free(self) -> None:
        """All blocks and state slots are free."""
        assert self.shadow.cache.num_free == self.shadow.num_blocks
        assert self.shadow.cache.num_free_states == self.shadow.num_states

"""A shadow of a snapshot cache's memory: which prefix wrote each slot, and after which prefix each state is.

The steps a cache gives are run on labels. A step reads the state in its source, which must be the state after
exactly the tokens before it, writes a label into each slot, and leaves states where it was told to. What a
state slot holds in the middle of a step is poison, so a wrong order shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from memory.request_machine import RequestMachine
from memory.states import state_of

from kvref.errors import ArgumentError, KVError, OutOfBlocksError, OutOfStatesError
from kvref.memory.keys import block_keys, sha256
from kvref.memory.namespace import Namespace
from kvref.memory.snapshot_cache import SnapshotCache
from kvref.memory.snapshot_groups import AttentionGroup

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

    @property
    def written(self) -> list[int]:
        """The state slots that it writes."""
        return [self.state, *(slot for _, slot in self.saves)]


@dataclass
class Live:
    """A request that is there."""

    tokens: list[int]
    namespace: Namespace
    junction: int = 0
    num_computed: int = 0
    step: Step | None = None

    @property
    def num_scheduled(self) -> int:
        """How many tokens have slots."""
        return self.step.stop if self.step else self.num_computed

    @property
    def is_in_flight(self) -> bool:
        """Whether tokens of it are scheduled and not computed."""
        return self.num_computed < self.num_scheduled


class Shadow:
    """A cache, the labels of its slots and states, and the requests that are there."""

    def __init__(self, cache: SnapshotCache, *, ample: bool = False) -> None:
        self.cache, self.groups, self.ample = cache, cache.groups, ample
        self.grid = next(p for p in range(1, 99) if not any(p % group.block_size for group in self.groups))
        self.num_blocks, self.num_states = cache.num_free, cache.num_free_states
        self.live: dict[int, Live] = {}
        self.memory: dict[int, tuple[int, dict[int, Any]]] = {}
        """Block -> the group that wrote it last, and what at which offset."""
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
            assert self.blocks_of(len(tokens)) > free, "refused, but all of the prompt fits"
        else:
            return self._admitted(request, own, found, longest, most)
        assert state_of(cache) == before, "a refused admission has changed something"
        return None

    def extend(self, request: int, tokens: Sequence[int], most: int | None, num_drafts: int = 0) -> bool:
        """Extend a request, when its step is done; say whether it was not refused."""
        cache, own = self.cache, self.live[request]
        self._settle(request, lambda: cache.extend(request, tokens, max_new_tokens=most))
        before, free, free_states = state_of(cache), cache.num_free, cache.num_free_states
        start, count = own.num_scheduled, len(own.tokens) + len(tokens)
        stop = count if most is None else min(count, start + most)
        blocks, states = (
            self.blocks_of(stop) - self.blocks_of(start),
            self._states_of(request, num_drafts, stop),
        )
        try:
            slots, *given = cache.extend(request, tokens, max_new_tokens=most, num_drafts=num_drafts)
        except OutOfStatesError:
            assert states > free_states, "refused, but the state slots can be had"
        except OutOfBlocksError:
            assert blocks > free, "refused, but it fits"
        else:
            assert blocks <= free, "there are no such blocks"
            assert states <= free_states, "there are no such state slots"
            assert len(slots) == stop - start
            own.tokens += tokens
            self._scheduled(request, start, stop, given, num_drafts)
            return True
        assert state_of(cache) == before, "a refused extension has changed something"
        return False

    def commit(self, request: int, num_accepted: int | None = None) -> None:
        """Run the step of a request, and say so."""
        own, step = self.live[request], self.live[request].step
        if step:
            self._run(own, step, self.slots(request))
        if num_accepted is None:
            self.cache.commit(request)
        else:
            self.cache.commit(request, num_accepted=num_accepted)
            assert step
            rejected = step.num_drafts - num_accepted
            del own.tokens[len(own.tokens) - rejected :]
            step.stop -= rejected
        if step:
            self._keep(own, step)
            own.num_computed, own.step = own.num_scheduled, None

    def end(self, request: int, *, abort: bool) -> None:
        """Finish a request, when its step is done, or abort it."""
        if not abort:
            self._settle(request, lambda: self.cache.finish(request))
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
        spaces = [
            block_keys(own.tokens, group.block_size, own.namespace, digest=self.cache._digest)
            for group in self.groups
        ]
        blocks, snapshots = self.cache._index.keys(), self.cache._snapshots._index.keys()
        for stop in range((len(own.tokens) - 1) // self.grid * self.grid, 0, -self.grid):
            needed = {
                (number, keys[end // group.block_size - 1])
                for number, (group, keys) in enumerate(zip(self.groups, spaces, strict=True))
                for end in self.ends(group, stop)
            }
            if spaces[0][stop // self.groups[0].block_size - 1] in snapshots and needed <= blocks:
                return stop
        return 0

    def blocks_of(self, num_tokens: int) -> int:
        """Count the blocks of so many tokens in all groups."""
        return sum(-(-num_tokens // group.block_size) for group in self.groups)

    def ends(self, group: AttentionGroup, stop: int) -> list[int]:
        """List where the blocks end that hold a position which the token at `stop` attends to."""
        size, sees = group.block_size, group.window or stop + 1
        return [end for end in range(size, stop + 1, size) if end > stop - sees + 1]

    def slots(self, request: int) -> list[list[int]]:
        """The slots of a request, group by group."""
        return [self.cache.slots(request, number) for number in range(len(self.groups))]

    def check(self) -> None:
        """Every request reads its own, and the counts agree."""
        blocks, states, more = set(), 0, 0
        for request, own in self.live.items():
            slots = self.slots(request)
            self._check_read(own, slots, own.num_computed)
            for number, group in enumerate(self.groups):
                assert len(slots[number]) == own.num_scheduled
                blocks |= {(number, slot // group.block_size) for slot in slots[number] if slot >= 0}
            sources = {own.step.source} - {-1} if own.step else set()
            states += len({*own.step.written, *sources}) if own.step else 1
            more += own.step is None  # it may go on from a snapshot, which it holds
        assert len({block for _, block in blocks}) == len(blocks), "a block is of two groups"
        assert self.cache.num_free == self.num_blocks - len(blocks), "free blocks are miscounted"
        held = self.num_states - self.cache.num_free_states
        assert held <= states + more, "free states are miscounted"
        self.cache.check_invariants()

    def _settle(self, request: int, call: Any) -> None:
        """While a step is in flight a call must be refused; then let the step be done."""
        if not self.live[request].is_in_flight:
            return
        before = state_of(self.cache)
        with pytest.raises(ArgumentError, match="has a step in flight"):
            call()
        assert state_of(self.cache) == before, "a refused call has changed something"
        self.commit(request)

    def _states_of(self, request: int, num_drafts: int, stop: int) -> int:
        """Count the new slots of a step: one state more than drafts, but for those that have a place."""
        if not num_drafts:
            return 0
        own = self.cache._requests[request]
        all_drafts = num_drafts == stop - self.live[request].num_scheduled
        return num_drafts + 1 - all_drafts - (not all_drafts or own.source != own.state)

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
        self._check_read(own, self.slots(request), hit)
        own.num_computed = hit
        self._scheduled(request, hit, len(slots), given, 0)
        return int(hit)

    def _scheduled(self, request: int, start: int, stop: int, given: Sequence[Any], num_drafts: int) -> None:
        """A step is given memory that nobody else has, and saves positions that it passes."""
        own, (source, state, positions, states) = self.live[request], given
        assert len(positions) == len(states)
        assert positions == sorted(set(positions)), "saved positions do not rise"
        assert all(start < position <= stop for position in positions), "a position is saved outside the step"
        own.step = Step(start, stop, source, state, list(zip(positions, states, strict=True)), num_drafts)
        mine = set(own.step.written)
        for other, live in self.live.items():
            others = {*live.step.written, live.step.source} if live.step and other != request else set()
            assert not mine & others, "a state slot is given to two"

    def _run(self, own: Live, step: Step, slots: list[list[int]]) -> None:
        if step.start == step.stop:
            return
        state = self.states.get(step.source) if step.source != -1 else self.prefix(own, 0)
        assert state == self.prefix(own, step.start), "a step starts from the state after another prefix"
        self._check_read(own, slots, step.start)
        self.states[step.state] = POISON
        saves = dict(step.saves)
        for at in range(step.start, step.stop):
            for number in range(len(self.groups)):
                self._write(number, slots[number][at], self.prefix(own, at + 1))
            if at + 1 in saves:
                self.states[saves[at + 1]] = self.prefix(own, at + 1)
        self.states[step.state] = self.prefix(own, step.stop)

    def _write(self, number: int, slot: int, label: Any) -> None:
        """Write a label; what another group has left in the block is gone."""
        block, offset = divmod(slot, self.groups[number].block_size)
        if self.memory.get(block, (None,))[0] != number:
            self.memory[block] = number, {}
        self.memory[block][1][offset] = label

    def _check_read(self, own: Live, slots: list[list[int]], stop: int) -> None:
        """The next token reads what this prefix has written, as far as each group's window sees."""
        for number, group in enumerate(self.groups):
            for at in range(max(0, stop - group.window + 1) if group.window else 0, stop):
                block, offset = divmod(slots[number][at], group.block_size)
                writer, labels = self.memory.get(block, (None, {}))
                assert writer == number, "it reads what another group wrote"
                assert labels.get(offset) == self.prefix(own, at + 1), "it reads what another prefix wrote"

    def _keep(self, own: Live, step: Step) -> None:
        """Note what is kept if nothing is lost: every block, and states by the rule of the profile."""
        profile, grid = self.cache.profile, self.cache.snapshot_grid
        for at in range(step.start + 1, step.stop + 1):
            for number, group in enumerate(self.groups):
                if at % group.block_size == 0:
                    self.kept.add((number, self.prefix(own, at)))
            on_grid = at % grid == 0
            due = {"interval": on_grid, "chunk_end": on_grid and at == step.stop, "branch": False}
            if due[profile.saves] or (profile.junctions and at == own.junction):
                self.kept.add(("state", self.prefix(own, at)))

    def _can_resume(self, own: Live, stop: int) -> bool:
        return all(
            (number, self.prefix(own, end)) in self.kept
            for number, group in enumerate(self.groups)
            for end in self.ends(group, stop)
        )

    def _attention(self, own: Live) -> int:
        stops = range(self.grid, len(own.tokens), self.grid)
        return max((stop for stop in stops if self._can_resume(own, stop)), default=0)

    def _promised(self, own: Live) -> int:
        stops = range(self.grid, self._attention(own) + 1, self.grid)
        return max(
            (p for p in stops if self._can_resume(own, p) and ("state", self.prefix(own, p)) in self.kept),
            default=0,
        )


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

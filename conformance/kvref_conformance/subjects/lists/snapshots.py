"""A naive snapshot cache: the naive prefix cache, and a list of names and the state slots that hold them.

A step in flight is kept as it was told: where it starts, from which slot, in which it runs, what it saves.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from kvref.errors import ArgumentError, OutOfBlocksError, OwnershipError
from kvref_conformance.subjects.lists.naming import Content, Name
from kvref_conformance.subjects.lists.prefix import PrefixLists
from kvref_conformance.subjects.lists.requests import Request
from kvref_conformance.subjects.lists.states import States
from kvref_conformance.subjects.lists.steps import NULL, ZEROS, Running, Step


class SnapshotLists(PrefixLists):
    """Whose tokens are computed already, states included, kept in lists.

    The attributes are the declared choices of the same names.
    """

    snapshot_saves = "interval"
    saves_junctions = True

    def __init__(
        self, num_blocks: int, block_size: int, num_states: int, snapshot_interval: int, window: int = 0
    ) -> None:
        self.states = States(num_states)
        super().__init__(num_blocks, block_size)
        self.interval, self.window = snapshot_interval, window
        self.running: dict[int, Running] = {}

    # --- operations

    def admit(  # type: ignore[override]  # a step has more to tell than slots
        self, request: int, tokens: Sequence[int], max_new_tokens: int, **given: Any
    ) -> tuple[int, list[int], int, int, list[int], list[int]]:
        """Begin a request: find what is cached in blocks and states, and schedule the first step."""
        one = self.requests.read(request, tokens, max_new_tokens, given)
        if one.num_tokens > self.num_blocks * self.block_size:
            raise OutOfBlocksError(f"{one.num_tokens} tokens do not fit (KV-SNAP-017)")
        one.hit, hits, source = self.joint_hit(one.content, one.num_tokens)
        own = Running(ZEROS, None, self.junction_of(one))
        self.make_room(self.missing(one, one.hit + max_new_tokens, hits), [b for b in hits if b != NULL])
        self.states.check_room(1)
        self.begin(one, hits)
        self.running[request] = own
        self.schedule(one, max_new_tokens)
        own.step = self.restore(one, source)
        self.save(one, own.step)
        return one.hit, self.slots(request), *self.told(own.step)

    def extend(  # type: ignore[override]  # as admit
        self, request: int, tokens: Sequence[int], max_new_tokens: int, num_drafts: int = 0
    ) -> tuple[list[int], int, int, list[int], list[int]]:
        """Let tokens join a request, some of them drafts, and schedule the next step."""
        one = self.requests.idle(request, tokens, max_new_tokens)
        start, count = one.scheduled, one.num_tokens + len(tokens)
        self.check_drafts(num_drafts, len(tokens), count - start, max_new_tokens)
        stop = min(start + max_new_tokens, count)
        self.make_room(-(-stop // self.block_size) - len(one.blocks), [])
        own = self.running[request]
        self.states.check_room(num_drafts + (self.states.holders[own.slot] > 1))
        one.content.tokens += tokens
        self.schedule(one, max_new_tokens)
        own.step = self.go_on(own, start, one.scheduled, num_drafts)
        self.save(one, own.step)
        return self.slots(request)[start:], *self.told(own.step)

    def commit(self, request: int, num_accepted: int | None = None) -> None:
        """Let the step be computed; of its drafts the first `num_accepted` stay."""
        one, own = self.requests.get(request), self.running[request]
        step = own.step
        drafts = 0 if step is None else step.num_drafts
        accepted = drafts if num_accepted is None else num_accepted
        if not 0 <= accepted <= drafts:
            raise ArgumentError(f"num_accepted = {accepted}, expected 0 to {drafts} (KV-SNAP-021)")
        if step is None:
            return
        kept = step.stop - drafts + accepted
        self.cut(one, kept)
        one.computed = kept
        self.publish(one, kept)
        self.prune(one)
        own.slot, own.step = self.slot_after(step, kept), None
        self.states.hold(own.slot)
        self.publish_states(one, step, kept)
        self.let_go_of(step)

    def finish(self, request: int) -> None:
        """End a request."""
        self.requests.get(request)
        if self.running[request].step is not None:
            raise OwnershipError(f"request {request} has a step in flight (KV-SNAP-023)")
        self.abort(request)

    def abort(self, request: int) -> None:
        """End a request in the middle."""
        one = self.requests.get(request)
        self.end(one)
        self.end_states(one)

    def num_free_states(self) -> int:
        """Count the state slots that nobody holds."""
        return len(self.states.waiting)

    def reset(self) -> None:
        """Forget every name."""
        if self.requests.live:
            raise OwnershipError("requests are there, expected none (KV-SNAP-020)")
        self.known.clear()
        self.states.known.clear()

    # --- hits

    def joint_hit(self, content: Content, num_tokens: int) -> tuple[int, list[int], int]:
        """Return the longest prefix that has a snapshot and its blocks; the blocks, and the slot."""
        for count in range((num_tokens - 1) // self.block_size, 0, -1):
            stop = count * self.block_size
            slot = self.find_state(content, stop)
            blocks = self.find_blocks(content, stop)
            if slot is not None and blocks is not None:
                return stop, blocks, slot
        return 0, [], ZEROS

    def find_state(self, content: Content, stop: int) -> int | None:
        """Return the slot of the state after exactly so many tokens."""
        return self.states.look_up(self.name(content, stop))

    def find_blocks(self, content: Content, stop: int) -> list[int] | None:
        """Return the blocks of a prefix, null where its next token sees none of them; None if one is lost."""
        found: list[int] = []
        for end in range(self.block_size, stop + 1, self.block_size):
            block = self.look_up(self.name(content, end)) if end > self.first_seen(stop) else NULL
            if block is None:
                return None
            found.append(block)
        return found

    def first_seen(self, position: int) -> int:
        """Return the first position that the token at `position` attends to."""
        return max(0, position - self.window + 1) if self.window else 0

    def junction_of(self, one: Request) -> int:
        """Return where the blocks of a request are hit to, if that is further than its hit."""
        found = len(self.find(one.content, one.num_tokens - 1)) * self.block_size
        return found if self.saves_junctions and found > one.hit else 0

    # --- steps

    def restore(self, one: Request, source: int) -> Step:
        """Return the first step: it copies its snapshot, which is held until then.

        Where no other slot can be had, the snapshot is one no more, and the step runs in its slot.
        """
        if self.states.waiting == [source]:
            self.states.withdraw(source)
            self.states.hold(source)
            return Step(one.hit, one.scheduled, source, source)
        if source != ZEROS:
            self.states.hold(source)
        return Step(one.hit, one.scheduled, source, self.states.take())

    def go_on(self, own: Running, start: int, stop: int, num_drafts: int) -> Step:
        """Return a later step: it runs in the slot of its state, unless that has to stay as it is."""
        state = own.slot
        if num_drafts and stop - num_drafts == start:
            state = self.states.take()  # all of the step may be taken back
        elif self.states.is_snapshot(own.slot):
            if len(self.states.waiting) > num_drafts:
                state = self.states.take()
            else:
                self.states.withdraw(own.slot)
        return Step(start, stop, own.slot, state, [], num_drafts)

    def save(self, one: Request, step: Step) -> None:
        """Take slots for what a step saves: what a rejection needs, then snapshots while there are slots."""
        needed = range(step.stop - step.num_drafts, step.stop)
        positions = {p: self.states.take() for p in needed if p > step.start}
        junction = self.running[one.number].junction
        for position in sorted(self.positions(one, step), key=lambda p: (p != junction, -p)):
            if position not in positions and self.states.waiting and self.is_new(one, position):
                positions[position] = self.states.take()
        step.saves = sorted(positions.items())

    def positions(self, one: Request, step: Step) -> list[int]:
        """Return the positions in a step that a snapshot is due at."""
        found = [p for p in range(step.start + 1, step.stop + 1) if self.is_due(one, p, step.stop)]
        return [p for p in found if p % self.block_size == 0]

    def is_due(self, one: Request, position: int, stop: int) -> bool:
        """Say whether a snapshot is due after so many tokens."""
        if position == self.running[one.number].junction:
            return True
        if self.snapshot_saves == "chunk_end" and position != stop:
            return False
        return self.snapshot_saves != "branch" and position % self.interval == 0

    def is_new(self, one: Request, position: int) -> bool:
        """Say whether a prefix has no snapshot."""
        return self.find_state(one.content, position) is None

    def told(self, step: Step) -> tuple[int, int, list[int], list[int]]:
        """Return what the caller is told of a step."""
        return step.source, step.state, [p for p, _ in step.saves], [slot for _, slot in step.saves]

    # --- commits and ends

    def slot_after(self, step: Step, kept: int) -> int:
        """Return the slot that holds the state after the tokens of a step that are kept."""
        return {step.start: step.source, **dict(step.saves), step.stop: step.state}[kept]

    def cut(self, one: Request, kept: int) -> None:
        """Let rejected tokens leave a request, and the blocks that held nothing else."""
        if kept < one.scheduled:
            del one.content.tokens[kept:]
            one.scheduled = kept
            blocks = -(-kept // self.block_size)
            self.release(one.blocks[blocks:][::-1])
            del one.blocks[blocks:]

    def prune(self, one: Request) -> None:
        """Let go of the blocks that the next token sees nothing of."""
        stop = self.first_seen(one.computed) // self.block_size
        gone = [block for block in one.blocks[:stop] if block != NULL]
        one.blocks[:stop] = [NULL] * stop
        self.release(gone[::-1])

    def publish(self, one: Request, stop: int) -> None:
        """Let others find a request's full blocks, up to a position."""
        for at in range(stop // self.block_size):
            if one.blocks[at] != NULL:
                self.store(self.name(one.content, (at + 1) * self.block_size), one.blocks[at])

    def publish_states(self, one: Request, step: Step, kept: int) -> None:
        """Let others find what a step saved, unless it was for a rejection alone."""
        due = self.positions(one, step)
        for position, slot in step.saves:
            if position in due and position <= kept:
                self.states.store(self.name(one.content, position), slot)

    def let_go_of(self, step: Step) -> None:
        """Let go of every slot of a step: the earliest state first, so that it is the oldest."""
        slots = [*([] if step.source in (ZEROS, step.state) else [step.source])]
        for slot in [*slots, *(slot for _, slot in step.saves if slot != step.state), step.state]:
            self.states.let_go(slot)

    def end_states(self, one: Request) -> None:
        """Let go of the states of a request."""
        own = self.running.pop(one.number)
        if own.step is not None:
            self.let_go_of(own.step)
        elif own.slot != ZEROS:
            self.states.let_go(own.slot)

    # --- blocks

    def slot(self, one: Request, at: int) -> int:
        """Return where a position of a request lies; null if its block is."""
        return NULL if one.blocks[at // self.block_size] == NULL else super().slot(one, at)

    def hold(self, blocks: list[int]) -> None:
        """Hold blocks once more, but for null."""
        super().hold([block for block in blocks if block != NULL])

    def release(self, blocks: Iterable[int]) -> None:
        """Let go of blocks, but for null."""
        super().release([block for block in blocks if block != NULL])

    def forget(self, block: int) -> None:
        """Let a block hold no name, and let the snapshots go that need it."""
        names: list[Name] = [name for name, known in self.known if known == block]
        super().forget(block)
        for name in names:
            if not self.window and self.look_up(name) is None:
                self.states.forget_under(name)

    def check_drafts(self, num_drafts: int, num_joining: int, missing: int, most: int) -> None:
        """Refuse drafts that are no tokens of this step.

        Raises: ArgumentError.
        """
        if not 0 <= num_drafts <= num_joining or (num_drafts and most < missing):
            raise ArgumentError(f"num_drafts = {num_drafts}, expected 0 to {num_joining} (KV-SNAP-021)")

"""vLLM's hybrid cache in its mode "align": states lie in blocks of the one pool, in a row of their own.

What a block holds has equal bytes for both kinds of layers, so it holds either a few tokens of all attention
layers or one state. The row of states has an entry for each block of tokens: entry i is the state after (i +
1) · block_size tokens, or null. A running request has one entry, its last: the state it writes, which becomes
the snapshot of its position when the step ends there. A step that begins in a new block reads the entry
before it and writes a new one; the one it read is let go of two steps later, and stays in the queue as a
snapshot until it is evicted. So only the ends of steps are kept. A prefill is cut where its state is wanted:
on the grid, at the last boundary of the prompt, and at the junction, where the blocks of the request are hit
further than its state.

Both kinds are published as a step is scheduled. A state cannot be read before the step that writes it is
done, so a request that would resume from such a state is refused until then. What a running request needs no
more is let go of as its next step is scheduled, even if that is refused.

Realises: KV-SNAP-003 hit-in-every-group, KV-SNAP-005 restore-copies, KV-SNAP-006 snapshot-committed,
KV-SNAP-008 snapshot-leaves-one, KV-SNAP-012 tombstone-keeps-kv, KV-SNAP-013 junction-snapshot.
For porters: `kvref.memory.snapshot_cache` is the canonical cache; this one is for comparing with vLLM.
Source: vLLM 0.32.0, v1/core: single_type_kv_cache_manager.py (MambaManager), kv_cache_coordinator.py,
sched/scheduler.py (_mamba_block_aligned_split); without drafts and with one size of blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvref.arrays import check_count
from kvref.errors import OutOfBlocksError, OwnershipError
from kvref.memory.admission import check_fits, new_request, scheduled_until, unknown_request
from kvref.memory.blocks import BlockPool
from kvref.memory.keys import TOKEN, check_spans, sha256, written_tokens
from kvref.memory.namespace import COMMON, Namespace, check_namespace
from kvref.memory.prefix import PrefixIndex
from kvref.memory.prefix_request import PrefixRequest
from kvref.memory.snapshot_request import ZEROS, SnapshotAdmission, SnapshotStep

#: The block that stands for none.
NULL_BLOCK = 0
BLOCKS, STATES = 0, 1

Key = tuple[int, bytes]


@dataclass(slots=True)
class AlignRequest:
    """What the cache knows of a request: its tokens and blocks, and the row of its states."""

    prefix: PrefixRequest
    states: list[int] = field(default_factory=list)
    last: int | None = None
    """The entry that the step before the last one wrote, or the hit."""
    retired: int = 0
    """Entries that were looked at and let go of."""
    junction: int = 0
    pending: set[Key] = field(default_factory=set)
    """Names of states that its steps write or write on, and that are not committed."""

    def keys(self, group: int, start: int, stop: int) -> list[Key]:
        """List what names its full blocks, or the states at their ends."""
        return [(group, key) for key in self.prefix.keys[start:stop]]


class AlignCache:
    """Requests over `num_blocks` blocks, block 0 null, which hold tokens or states.

    Raises: ArgumentError if a number is no count or no block is left to hand out.
    """

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        self.block_size = check_count("block_size", block_size)
        self._index: PrefixIndex[Key] = PrefixIndex(num_blocks, "vllm")
        self._requests: dict[int, AlignRequest] = {}

    @property
    def pool(self) -> BlockPool:
        """The blocks, of tokens and of states."""
        return self._index.pool

    @property
    def num_free(self) -> int:
        """How many blocks a request can have now; cached ones that nobody holds count."""
        return self._index.pool.num_free

    @property
    def num_free_states(self) -> int:
        """How many states a request can have now: as many as blocks."""
        return self.num_free

    def admit(
        self,
        request: int,
        tokens: Sequence[int],
        *,
        namespace: Namespace = COMMON,
        max_new_tokens: int | None = None,
    ) -> SnapshotAdmission:
        """Begin a request: hit what both groups have of its prompt, and schedule its first step.

        Raises: OutOfBlocksError if the blocks cannot be had, or the state hit is still to be written;
        UnknownRequestError if the request is there; ArgumentError.
        """
        raw, own = written_tokens(tokens), new_request(request, self._requests)
        count = len(raw) // TOKEN
        check_spans(check_namespace(namespace), count)
        check_fits(count, self.block_size, self.pool.capacity)
        scheduled_until(0, count, max_new_tokens)  # to be refused before anything is looked up
        new = AlignRequest(PrefixRequest(namespace, self.block_size, sha256, verified=False))
        new.prefix.join(raw)
        new.prefix.num_prompt = count
        hits, source = self._hit(new)
        start = len(hits) * self.block_size
        stop = self._step_end(new, start, max_new_tokens)
        new.prefix.row = list(hits)
        sources = [] if source == ZEROS else [source]
        new.states = [NULL_BLOCK] * (len(hits) - 1) + sources
        new.prefix.num_computed = start
        new.prefix.num_published = len(hits)
        step = self._step(new, start, stop, [*hits, *sources])
        self._requests[own] = new
        return SnapshotAdmission(start, new.prefix.slots(0, stop), *step[1:])

    def extend(
        self, request: int, tokens: Sequence[int] = (), *, max_new_tokens: int | None = None
    ) -> SnapshotStep:
        """Let tokens join and schedule the next step, up to `max_new_tokens` or to where a state is wanted.

        Raises: OutOfBlocksError if the blocks cannot be had; UnknownRequestError; ArgumentError.
        """
        raw, own = written_tokens(tokens), self._known(request)
        prefix, start = own.prefix, own.prefix.num_scheduled
        scheduled_until(start, prefix.num_tokens, max_new_tokens)
        self._let_go(own)
        known = prefix.num_tokens
        prefix.join(raw)
        stop = self._step_end(own, start, max_new_tokens)
        try:
            return self._step(own, start, stop, [])
        except OutOfBlocksError:
            prefix.cut(known)
            raise

    def commit(self, request: int) -> None:
        """Say that everything scheduled of a request has been computed.

        Raises: UnknownRequestError.
        """
        own = self._known(request)
        own.pending.clear()
        own.prefix.num_computed = own.prefix.num_scheduled

    def slots(self, request: int) -> list[int]:
        """List the slots of all scheduled tokens of a request.

        Raises: UnknownRequestError.
        """
        own = self._known(request)
        return own.prefix.slots(0, own.prefix.num_scheduled)

    def rows(self, request: int) -> tuple[list[int], list[int]]:
        """Return the row of blocks and the row of states of a request.

        Raises: UnknownRequestError.
        """
        own = self._known(request)
        return list(own.prefix.row), list(own.states)

    def finish(self, request: int) -> None:
        """End a request; what it computed stays.

        Raises: UnknownRequestError.
        """
        own = self._known(request)
        first, stop = own.prefix.num_computed // self.block_size, own.prefix.num_published
        lost = [*own.prefix.row[first:stop], *own.states[first:stop]]
        self._index.withdraw([block for block in lost if block != NULL_BLOCK])
        del self._requests[int(request)]
        self._index.release(own.prefix.row)
        self._index.release([block for block in own.states if block != NULL_BLOCK])

    def abort(self, request: int) -> None:
        """End a request that is wanted no more; nothing stays that was not computed.

        Raises: UnknownRequestError.
        """
        self.finish(request)

    def reset(self) -> None:
        """Forget everything cached.

        Raises: OwnershipError if a request is there.
        """
        if self._requests:
            raise OwnershipError(
                f"{len(self._requests)} requests hold blocks, expected none "
                "(KV-SNAP-020 snapshot-reset-forgets)"
            )
        self._index.reset()

    def check_invariants(self) -> None:
        """Assert that blocks are held by exactly the requests that have them, as tokens or as states."""
        self._index.check_invariants()
        held = 0
        for own in self._requests.values():
            own.prefix.check_invariants()
            states = [block for block in own.states if block != NULL_BLOCK]
            assert own.states[-1:] != [NULL_BLOCK], "a request has no state to write"
            assert not set(states) & set(own.prefix.row), "a block holds tokens and a state"
            held += len(states) + len(own.prefix.row)
        counts = [self.pool.ref_count(block) for block in range(1, self.pool.capacity + 1)]
        assert sum(counts) == held, "blocks are not held once a row"

    def _hit(self, new: AlignRequest) -> tuple[list[int], int]:
        """Find the blocks of the longest prefix that ends at a state, and the state; note the junction."""
        full = (new.prefix.num_prompt - 1) // self.block_size
        blocks = self._index.match(new.keys(BLOCKS, 0, full))
        for stop in range(len(blocks), 0, -1):
            (key,) = new.keys(STATES, stop - 1, stop)
            state = self._index.find(key)
            if state is not None:
                if any(key in own.pending for own in self._requests.values()):
                    raise OutOfBlocksError(
                        f"the state after {stop * self.block_size} tokens is written by a step that is not "
                        "committed, expected to be asked again after it (KV-SNAP-006 snapshot-committed)"
                    )
                new.junction = len(blocks) * self.block_size if stop < len(blocks) else 0
                return blocks[:stop], state
        new.junction = len(blocks) * self.block_size
        return [], ZEROS

    def _step_end(self, own: AlignRequest, start: int, max_new_tokens: int | None) -> int:
        """Return where a step ends: a prefill stops where a state is to be kept."""
        size, count = self.block_size, own.prefix.num_tokens
        end = scheduled_until(start, count, max_new_tokens)
        prefill_end = max(own.prefix.num_prompt, count - 1)
        if start >= prefill_end:
            return end
        if end < prefill_end:
            aligned = end // size * size
            if aligned > start or size <= end - start:
                end = aligned
        stops = [(count - 1) // size * size]
        if start % size:
            stops.append(start // size * size + size)
        if start < own.junction < end:
            stops.append(start + (own.junction - start) // size * size)
        return min((stop for stop in stops if start < stop < end), default=end)

    def _step(self, own: AlignRequest, start: int, stop: int, hits: Sequence[int]) -> SnapshotStep:
        """Take blocks for the tokens of a step and one for its state if it has to have a new one; publish."""
        prefix, blocks = own.prefix, -(-stop // self.block_size)
        fresh = max(0, blocks - len(prefix.row))
        grows = blocks > len(own.states)
        taken = self._index.take(hits, fresh + grows)
        prefix.row += taken[:fresh]
        source = own.states[-1] if start else ZEROS
        if grows:
            own.last = len(own.states) - 1 if own.states else None
            own.states += [NULL_BLOCK] * (blocks - 1 - len(own.states)) + taken[fresh:]
        prefix.num_scheduled = stop
        self._publish(own, stop // self.block_size)
        state = own.states[-1]
        saved = [stop] if stop % self.block_size == 0 and stop > start else []
        return SnapshotStep(prefix.slots(start, stop), source, state, saved, [state] * len(saved))

    def _publish(self, own: AlignRequest, stop: int) -> None:
        """Let others find the full blocks and the states at their ends.

        The state at the last boundary of a prompt counts as written in every step until the next boundary.
        """
        first, last = own.prefix.num_published, (own.prefix.num_prompt - 1) // self.block_size
        if first < stop:
            self._index.publish(own.keys(BLOCKS, first, stop), own.prefix.row, first)
            own.prefix.num_published = stop
        for at in range(first, stop):
            if own.states[at] != NULL_BLOCK:
                self._index.publish(own.keys(STATES, at, at + 1), own.states, at)
                own.pending.update(own.keys(STATES, at, at + 1))
        if 0 < stop == last and own.states[stop - 1] != NULL_BLOCK:
            own.pending.update(own.keys(STATES, stop - 1, stop))

    def _let_go(self, own: AlignRequest) -> None:
        """Let go of the states before the one that the next step reads."""
        done = own.prefix.num_computed
        stop = min((done - 1) // self.block_size, len(own.states))
        if stop > own.retired:
            gone = [at for at in range(own.retired, stop) if own.states[at] != NULL_BLOCK]
            self._drop(own, gone)
            own.retired = stop
        if own.last is not None and own.last < -(-done // self.block_size) - 1:
            self._drop(own, [own.last] if own.states[own.last] != NULL_BLOCK else [])

    def _drop(self, own: AlignRequest, entries: Sequence[int]) -> None:
        self._index.release([own.states[at] for at in entries])
        for at in entries:
            own.states[at] = NULL_BLOCK

    def _known(self, request: int) -> AlignRequest:
        try:
            return self._requests[check_count("request", request, minimum=0)]
        except KeyError:
            raise unknown_request(request) from None

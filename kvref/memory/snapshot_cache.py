"""A prefix cache of a hybrid model: blocks for its attention layers, snapshots for its recurrent ones.

A block holds a piece of a request, a state sums up all of it. So a hit is one number for all groups of
layers: the most tokens p, less than all, whose blocks are all there and after exactly which a snapshot was
taken. Where only one group has something, nothing is hit.

`admit` hits, `extend` schedules, `commit` says that what was scheduled has been computed; then the blocks can
be hit and the states restored, and not before. A request has one step in flight at a time. A snapshot is
never written again: who restores it copies it into a state slot of its own. Blocks and states are evicted
apart, each the least recently used first. A snapshot that is evicted leaves its blocks (a tombstone); blocks
that are evicted take their snapshots along.

Where the blocks of a request are hit further than its state, others part from a prefix that has no snapshot
there. The request saves one where its blocks end: the junction, which the next of them hits.

Drafts: a recurrence cannot take a token back. The last `num_drafts` tokens of a step may be rejected, so the
step saves the state before each of them; `commit` goes on from the one that the accepted ones lead to.

Realises: KV-SNAP-001 snapshot-own-prefix to KV-SNAP-023 one-step-in-flight, of which here KV-SNAP-013
junction-snapshot, KV-SNAP-015 draft-rollback, KV-SNAP-016 abort-saves-nothing, KV-SNAP-017
snapshot-admit-atomic, KV-SNAP-019 snapshot-namespaces, KV-SNAP-020 snapshot-reset-forgets, KV-SNAP-021
snapshot-request-known, KV-SNAP-023 one-step-in-flight.
For porters: build `admit`, `commit` and `finish` with snapshots at the multiples of an interval. Junctions
and drafts come after, and change no line of that.
Source: vLLM's hybrid coordinator (one length for all groups, junctions), SGLang's MambaRadixCache (copies on
restore, separate orders of eviction, tombstones); the order of the eviction follows from LRU.
"""

from collections import Counter
from collections.abc import Sequence
from math import lcm

from kvref.arrays import check_count, is_index
from kvref.errors import ArgumentError, OwnershipError, shown
from kvref.memory.admission import new_request, scheduled_until, unknown_request
from kvref.memory.blocks import BlockPool
from kvref.memory.keys import TOKEN, Digest, check_digest, check_spans, sha256, written_tokens
from kvref.memory.namespace import COMMON, Namespace, check_namespace
from kvref.memory.prefix import PrefixIndex
from kvref.memory.profiles import PROFILES
from kvref.memory.snapshot_groups import AttentionGroup, GroupKey, as_groups, check_prompt_fits, grid_of
from kvref.memory.snapshot_profiles import SnapshotProfile, snapshot_profile_of
from kvref.memory.snapshot_request import SnapshotAdmission, SnapshotRequest, SnapshotStep, new_request_of
from kvref.memory.snapshot_steps import num_states_of_drafts, prune, publish, save, settle, take
from kvref.memory.snapshots import Snapshots


class SnapshotCache:
    """Requests over `num_blocks` blocks and `num_states` state slots, under a profile.

    A snapshot is taken at the multiples of `snapshot_interval` that end a block too. With `window`, attention
    sees that many tokens, the query's own counted, and blocks below are let go of. `groups` are for several
    kinds of attention layers, in place of a `block_size` and a `window`. `digest` makes the keys.
    Raises: ArgumentError if the profile is unknown, a number is no count or not given, the groups are none,
    or `digest` is none.
    """

    def __init__(
        self,
        num_blocks: int,
        num_states: int,
        profile: SnapshotProfile | str = "kvref",
        block_size: int | None = None,
        snapshot_interval: int | None = None,
        *,
        window: int | None = None,
        groups: Sequence[AttentionGroup] | None = None,
        digest: Digest = sha256,
    ) -> None:
        self.profile = snapshot_profile_of(profile)
        size = self.profile.block_size if block_size is None and groups is None else block_size
        self.groups = as_groups(groups, size, window)
        interval = self.profile.interval if snapshot_interval is None else snapshot_interval
        grid = grid_of(self.groups)
        self.snapshot_interval = check_count("snapshot_interval", grid if interval is None else interval)
        self.snapshot_grid = lcm(self.snapshot_interval, grid)
        """Tokens between snapshots: the multiples of the interval that end a block in every group."""
        self._digest = check_digest(digest)
        self._index: PrefixIndex[GroupKey] = PrefixIndex(num_blocks, PROFILES["kvref"])
        self._snapshots = Snapshots(num_states, PROFILES["kvref"])
        self._requests: dict[int, SnapshotRequest] = {}

    @property
    def pool(self) -> BlockPool:
        """The blocks."""
        return self._index.pool

    @property
    def state_pool(self) -> BlockPool:
        """The state slots, each a block of one state."""
        return self._snapshots.pool

    @property
    def num_free(self) -> int:
        """How many blocks a request can have now; cached blocks that nobody holds count."""
        return self._index.pool.num_free

    @property
    def num_free_states(self) -> int:
        """How many state slots a request can have now; snapshots that nobody restores count."""
        return self._snapshots.num_free

    def admit(
        self,
        request: int,
        tokens: Sequence[int],
        *,
        namespace: Namespace = COMMON,
        max_new_tokens: int | None = None,
    ) -> SnapshotAdmission:
        """Begin a request: hit what every group has of its prompt, and schedule up to `max_new_tokens` more.

        Raises: OutOfBlocksError or OutOfStatesError if the memory cannot be had; UnknownRequestError if the
        request is there; ArgumentError if the prompt is empty or a token is none, or a span ends behind it.
        """
        raw, own = written_tokens(tokens), new_request(request, self._requests)
        count = len(raw) // TOKEN
        check_spans(check_namespace(namespace), count)
        check_prompt_fits(count, self.groups, self.pool.capacity)
        scheduled_until(0, count, max_new_tokens)  # to be refused before anything is looked up
        new = new_request_of(self.groups, namespace, self._digest, raw, count)
        hit = take(self._index, self._snapshots, new, max_new_tokens)
        if self.profile.junctions and hit.attention_tokens > hit.num_tokens:
            new.junction = hit.attention_tokens
        self._requests[own] = new
        source, (positions, states) = new.source, self._saved(new, hit.num_tokens)
        slots = new.slots(0, new.prefix.num_scheduled)
        return SnapshotAdmission(hit.num_tokens, slots, source, new.state, positions, states)

    def extend(
        self,
        request: int,
        tokens: Sequence[int] = (),
        *,
        max_new_tokens: int | None = None,
        num_drafts: int = 0,
    ) -> SnapshotStep:
        """Let tokens join, of which the last `num_drafts` may be rejected, and schedule up to so many.

        Raises: OutOfBlocksError or OutOfStatesError if the memory cannot be had; UnknownRequestError;
        ArgumentError, also if a draft is not scheduled in this step, or a step of the request is in flight.
        """
        raw, own = written_tokens(tokens), self._settled(request)
        prefix, start = own.prefix, own.prefix.num_scheduled
        count = prefix.num_tokens + len(raw) // TOKEN
        stop = scheduled_until(start, count, max_new_tokens)
        drafts = _checked_drafts(num_drafts, len(raw) // TOKEN if stop == count else 0)
        self._snapshots.check_free(num_states_of_drafts(own, drafts, stop - start))
        missing = own.missing(stop)
        blocks = self._index.take((), sum(missing))
        self._snapshots.forget(self._index.lost)
        own.join(raw)
        own.schedule(stop, missing, blocks)
        own.num_drafts, source = drafts, own.source
        if drafts and drafts == stop - start and source == own.state:
            own.saves[start] = source  # all of the step may be rejected: it leaves the state before it alone
            (own.state,) = self._snapshots.take(1)
        positions, states = self._saved(own, start)
        return SnapshotStep(own.slots(start, stop), source, own.state, positions, states)

    def commit(self, request: int, *, num_accepted: int | None = None) -> None:
        """Say that everything scheduled of a request has been computed, its states restored and saved.

        `num_accepted` is how many of the drafts stay, the first ones; all of them if it is left out.
        Raises: UnknownRequestError; ArgumentError if there are not so many drafts.
        """
        own = self._known(request)
        drafts = own.num_drafts
        accepted = drafts if num_accepted is None else check_count("num_accepted", num_accepted, minimum=0)
        if accepted > drafts:
            raise ArgumentError(
                f"num_accepted = {accepted}, expected 0 to {drafts}, the drafts of request {request} "
                "(KV-SNAP-021 snapshot-request-known)"
            )
        kept = own.prefix.num_scheduled - drafts + accepted
        settle(self._snapshots, own, kept)
        if accepted < drafts:
            self._index.release([block for prefix in own.rows for block in prefix.cut(kept)])
        publish(self._index, own, kept)
        prune(self._index, own)

    def slots(self, request: int, group: int = 0) -> list[int]:
        """List the slots of all scheduled tokens of a request in a group, −1 below what its window sees.

        Raises: UnknownRequestError; ArgumentError if there is no such group.
        """
        own = self._known(request)
        if not is_index(group, len(self.groups)):
            raise ArgumentError(f"group = {shown(group)}, expected 0 to {len(self.groups) - 1}")
        return own.slots(0, own.prefix.num_scheduled, group)

    def finish(self, request: int) -> None:
        """End a request; what it computed stays.

        Raises: UnknownRequestError; ArgumentError if a step of the request is in flight.
        """
        own = self._settled(request)
        at, settled = own.prefix.num_computed, own.source == own.state
        if self.profile.finish == "donates" and settled and at % grid_of(self.groups) == 0:
            self._snapshots.publish(own.prefix_of(at), own.state, own.needs(at))
        self._end(request, own)

    def abort(self, request: int) -> None:
        """End a request that is wanted no more; what it computed stays, and of a step in flight nothing.

        Raises: UnknownRequestError.
        """
        self._end(request, self._known(request))

    def reset(self) -> None:
        """Forget everything cached, as a change of the model's weights requires.

        Raises: OwnershipError if a request is there (KV-SNAP-020 snapshot-reset-forgets).
        """
        if self._requests:
            raise OwnershipError(
                f"{len(self._requests)} requests hold blocks and states, expected none "
                "(KV-SNAP-020 snapshot-reset-forgets)"
            )
        self._snapshots.reset()
        self._index.reset()

    def check_invariants(self) -> None:
        """Assert that blocks and states are held by exactly the requests that have them, and counts agree."""
        self._index.check_invariants()
        self._snapshots.check_invariants()
        blocks: Counter[int] = Counter()
        states: Counter[int] = Counter()
        for own in self._requests.values():
            own.check_invariants()
            blocks.update(own.blocks)
            states.update(own.states)
        for pool, held in ((self.pool, blocks), (self.state_pool, states)):
            assert pool.num_held == len(held), "memory is held by no request"
            assert all(pool.ref_count(at) == count for at, count in held.items()), "holders are miscounted"
        written = [slot for own in self._requests.values() for slot in (own.state, *own.saves.values())]
        assert len(set(written)) == len(written), "two requests write one state slot"
        assert not any(map(self._snapshots.is_snapshot, written)), "a snapshot is written"
        assert self._snapshots.needed() <= self._index.keys(), "a snapshot has lost its blocks"

    def _saved(self, own: SnapshotRequest, start: int) -> tuple[list[int], list[int]]:
        """Take state slots for what the step from `start` on saves; the next one goes on from its end."""
        stop = own.prefix.num_scheduled
        own.before = own.source
        if start < stop:
            own.source = own.state
        return save(self._snapshots, own, start, stop, self.snapshot_grid, self.profile.saves)

    def _end(self, request: int, own: SnapshotRequest) -> None:
        del self._requests[int(request)]
        self._snapshots.release(own.states)
        self._index.release(own.blocks)

    def _known(self, request: int) -> SnapshotRequest:
        try:
            return self._requests[check_count("request", request, minimum=0)]
        except KeyError:
            raise unknown_request(request) from None

    def _settled(self, request: int) -> SnapshotRequest:
        """Return a request that has no step in flight. Raises: UnknownRequestError; ArgumentError."""
        own = self._known(request)
        if own.is_in_flight:
            raise ArgumentError(
                f"request = {request} has a step in flight, expected its commit first "
                "(KV-SNAP-023 one-step-in-flight)"
            )
        return own


def _checked_drafts(num_drafts: int, most: int) -> int:
    """Return how many tokens of a step are drafts: only of such as join it, and all of them scheduled.

    Raises: ArgumentError.
    """
    drafts = check_count("num_drafts", num_drafts, minimum=0)
    if drafts > most:
        raise ArgumentError(
            f"num_drafts = {shown(num_drafts)}, expected at most {most}, the tokens that join and are "
            "scheduled (KV-SNAP-021 snapshot-request-known)"
        )
    return drafts

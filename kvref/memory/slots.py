"""A prefix cache of a few rows: each keeps one request's tokens, and the next request continues the best row.

Nothing is shared. A row is a request's alone while it runs; afterwards its tokens stay, and a request that
begins like them takes the row over, keeps the common prefix to the token, and drops the rest:

    hit = min(tokens in common with the row, tokens of the prompt - 1)

Of the rows without a request, the one with the most in common is taken, if that is more than a tenth of the
prompt; otherwise the one used longest ago, which also keeps what it has in common. If blocks are missing,
other rows are emptied, longest ago first, each as a whole. Beside blocks, rows can run out too: with all of
them busy, no admission succeeds.

Realises: KV-PREFIX-001 hit-own-prefix, KV-PREFIX-002 hit-leaves-one, KV-PREFIX-004 hit-contiguous,
KV-PREFIX-019 admit-atomic, KV-PREFIX-022 prefix-counts, KV-PREFIX-027 prefix-request-known, KV-PREFIX-028
writes-private.
For porters: compare namespaces before tokens; a row filled under another adapter has nothing in common.
Source: the server of llama.cpp (tools/server/server-context.cpp at 001d906): the choice of a slot, the common
prefix, all cells in one buffer. Its copies of rows in RAM, and its shifted chunks, are not here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvref.arrays import check_count
from kvref.errors import ArgumentError, OutOfBlocksError, OwnershipError
from kvref.memory.admission import (
    Admission,
    check_fits,
    hit_limit,
    new_request,
    scheduled_until,
    unknown_request,
)
from kvref.memory.blocks import BlockPool
from kvref.memory.namespace import COMMON, Namespace, written
from kvref.memory.profiles import Profile, profile_of
from kvref.memory.radix_contents import block_contents
from kvref.memory.rows import Row as BlockRow

#: Rows, where the caller names no other number, and the share of a prompt that makes a row the best.
NUM_ROWS, SIMILARITY = 4, 0.1


@dataclass(slots=True, eq=False)
class Row:
    """One row: the tokens in it, the blocks they lie in, and the request that has it."""

    name: bytes = b""
    """The namespace, spans left out."""
    contents: list[bytes] = field(default_factory=list)
    """What each token is, with the row of a span that stands in its place."""
    blocks: list[int] = field(default_factory=list)
    num_scheduled: int = 0
    num_computed: int = 0
    last_used: int = 0
    busy: bool = False

    def common(self, name: bytes, contents: Sequence[bytes]) -> int:
        """How many first tokens the row and a prompt have in common."""
        if self.name != name:
            return 0
        pairs = zip(self.contents, contents, strict=False)
        same = next((at for at, (a, b) in enumerate(pairs) if a != b), None)
        return min(len(self.contents), len(contents)) if same is None else same


class SlotCache:
    """Requests over `num_rows` rows that share a pool of blocks, under a profile of structure "slot".

    Raises: ArgumentError if the profile is unknown or of another structure, or a number is no count.
    """

    def __init__(
        self,
        num_blocks: int,
        profile: Profile | str = "llama.cpp",
        block_size: int | None = None,
        *,
        num_rows: int = NUM_ROWS,
    ) -> None:
        self.profile = _slot(profile_of(profile))
        size = self.profile.block_size if block_size is None else block_size
        self.block_size = check_count("block_size", size)
        self.evictions = 0
        """Blocks evicted so far."""
        self._pool = BlockPool(num_blocks, plain=self.profile.plain)
        self._rows = [Row() for _ in range(check_count("num_rows", num_rows))]
        self._requests: dict[int, Row] = {}
        self._now = 0

    @property
    def num_free(self) -> int:
        """How many blocks are free, or in a row that no request has."""
        return self._pool.num_free + sum(len(row.blocks) for row in self._idle())

    def admit(
        self,
        request: int,
        tokens: Sequence[int],
        *,
        namespace: Namespace = COMMON,
        max_new_tokens: int | None = None,
    ) -> Admission:
        """Begin a request in the best row, and schedule up to `max_new_tokens` tokens it lacks.

        Raises: OutOfBlocksError if the blocks, or a row, cannot be had; UnknownRequestError if the request is
        there; ArgumentError if the prompt is empty or a token is none, or a span ends behind it.
        """
        contents, own = block_contents(tokens, 1, namespace), new_request(request, self._requests)
        count, name = len(contents), written(namespace)
        check_fits(count, self.block_size, self._pool.capacity)
        row = self._best(name, contents)
        limit = hit_limit(self.profile.last_token, count, self.block_size)
        hit = min(row.common(name, contents), limit)
        stop, kept = scheduled_until(hit, count, max_new_tokens), -(-hit // self.block_size)
        self._check_had(-(-stop // self.block_size) - kept, self.num_free - kept)
        self.evictions += self._cut(row, kept)
        row.busy, row.name, row.contents = True, name, contents
        row.num_scheduled = row.num_computed = hit
        self._schedule(row, stop)
        self._requests[own] = row
        return Admission(hit, self._slots(row, 0), [])

    def extend(
        self, request: int, tokens: Sequence[int] = (), *, max_new_tokens: int | None = None
    ) -> list[int]:
        """Let decoded tokens join, schedule up to `max_new_tokens` tokens, and return their slots.

        Raises: OutOfBlocksError if the blocks cannot be had; UnknownRequestError; ArgumentError.
        """
        joined, row = block_contents(tokens, 1), self._known(request)
        start = row.num_scheduled
        stop = scheduled_until(start, len(row.contents) + len(joined), max_new_tokens)
        self._check_had(-(-stop // self.block_size) - len(row.blocks), self.num_free)
        row.contents += joined
        self._schedule(row, stop)
        return self._slots(row, start)

    def commit(self, request: int) -> None:
        """Say that everything scheduled of a request has been computed.

        Raises: UnknownRequestError.
        """
        row = self._known(request)
        row.num_computed = row.num_scheduled

    def slots(self, request: int) -> list[int]:
        """List the slots of all scheduled tokens of a request.

        Raises: UnknownRequestError.
        """
        return self._slots(self._known(request), 0)

    def finish(self, request: int) -> None:
        """End a request; what it computed stays in its row.

        Raises: UnknownRequestError.
        """
        row = self._known(request)
        del row.contents[row.num_computed :]
        self._cut(row, -(-row.num_computed // self.block_size))
        self._now += 1
        row.busy, row.last_used = False, self._now
        del self._requests[int(request)]

    def abort(self, request: int) -> None:
        """End a request that is wanted no more; what it computed stays in its row.

        Raises: UnknownRequestError.
        """
        self.finish(request)

    def reset(self) -> None:
        """Forget everything cached.

        Raises: OwnershipError if a request is there (KV-PREFIX-015 reset-forgets).
        """
        if self._requests:
            raise OwnershipError(
                f"{len(self._requests)} requests hold blocks, expected none (KV-PREFIX-015 reset-forgets)"
            )
        for row in self._rows:
            self._cut(row, 0)
        self._rows = [Row() for _ in self._rows]

    def check_invariants(self) -> None:
        """Assert that every block is free or in one row, and that rows have the blocks their tokens need."""
        self._pool.check_invariants()
        used = [block for row in self._rows for block in row.blocks]
        assert sorted(used + self._pool.free_order()) == list(range(self._pool.capacity)), "a block is lost"
        assert {id(row) for row in self._rows if row.busy} == {id(row) for row in self._requests.values()}
        for row in self._rows:
            count = row.num_scheduled if row.busy else len(row.contents)
            assert len(row.blocks) == -(-count // self.block_size), "a row has blocks it does not need"
            assert row.num_computed <= row.num_scheduled <= len(row.contents) or not row.busy

    def _idle(self) -> list[Row]:
        """List the rows that no request has, the one used longest ago first."""
        return sorted((row for row in self._rows if not row.busy), key=lambda row: row.last_used)

    def _best(self, name: bytes, contents: Sequence[bytes]) -> Row:
        idle = self._idle()
        if not idle:
            raise OutOfBlocksError(f"all {len(self._rows)} rows are busy, expected one that no request has")
        common = {at: row.common(name, contents) for at, row in enumerate(self._rows) if not row.busy}
        best = max(common, key=lambda at: common[at])  # of equal ones the first
        return self._rows[best] if common[best] > SIMILARITY * len(contents) else idle[0]

    def _schedule(self, row: Row, stop: int) -> None:
        """Give a row blocks up to a token, emptying others as far as blocks are missing."""
        needed = -(-stop // self.block_size) - len(row.blocks)
        for other in self._idle():
            if needed > self._pool.num_free:
                self.evictions += self._cut(other, 0)
                other.contents = []
        row.blocks += self._pool.allocate(needed).blocks
        row.num_scheduled = stop

    def _cut(self, row: Row, kept: int) -> int:
        """Free the blocks of a row but the first ones, and count them."""
        gone = row.blocks[kept:]
        del row.blocks[kept:]
        self._pool.free(gone[::-1])
        return len(gone)

    def _slots(self, row: Row, start: int) -> list[int]:
        return BlockRow(self.block_size, blocks=row.blocks).slots(start, row.num_scheduled)

    def _check_had(self, needed: int, available: int) -> None:
        if needed > available:
            raise OutOfBlocksError(
                f"{needed} blocks are needed, but {available} of {self._pool.capacity} can be had "
                "(KV-PREFIX-018 evict-before-refuse)"
            )

    def _known(self, request: int) -> Row:
        try:
            return self._requests[check_count("request", request, minimum=0)]
        except KeyError:
            raise unknown_request(request) from None


def _slot(profile: Profile) -> Profile:
    needed = {"structure": "slot", "evict_unit": "slot", "publish": "finished", "cached_outputs": True}
    for name, value in needed.items():
        if getattr(profile, name) != value:
            raise ArgumentError(
                f"profile {profile.name!r} has {name} = {getattr(profile, name)!r}, expected {value!r}"
            )
    return profile

"""Block tables: where each request's tokens lie, and who may write where.

Token i of a request lies in slot

    table[i // block_size] · block_size + i % block_size.

A request holds ceil(num_tokens / block_size) blocks, so it wastes less than one. A fork shares all blocks of
its parent. Sharing ends at the first write: a request that appends into a tail block which somebody else
holds, or which is published, first gets a copy of the slots that hold its tokens. That also covers a request
cut back into a block it shares. Layers of unlike kinds form groups: each has a block size and a table of its
own, all draw from one pool, and an operation succeeds for all groups or for none. In a group with a sliding
window, blocks wholly below the window can be pruned: their entries become None.

Realises: KV-BLOCK-020 token-slot, KV-BLOCK-021 reads-own-tokens, KV-BLOCK-022 write-private, KV-BLOCK-023
fork-shares, KV-BLOCK-024 copy-on-write, KV-BLOCK-025 copy-extent, KV-BLOCK-026 truncate-keeps, KV-BLOCK-027
truncate-shared, KV-BLOCK-028 tables-atomic, KV-BLOCK-029 free-once, KV-BLOCK-031 groups-together,
KV-BLOCK-032 waste-bound, KV-BLOCK-033 request-known, KV-BLOCK-034 truncate-within.
For porters: build `append` first, and in it the order: count what every group needs, copies included;
allocate it in one call, which may refuse; only then change a table.
Source: PagedAttention (Kwon et al. 2023, sections 4.3 and 4.4); vLLM's groups over one pool.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from kvref.arrays import check_count
from kvref.errors import ArgumentError, LengthError, OutOfBlocksError, UnknownRequestError, shown
from kvref.memory.blocks import BlockPool
from kvref.memory.holdings import Allocation
from kvref.memory.ids import as_ids
from kvref.memory.rows import Row, as_windows


@dataclass(frozen=True, slots=True)
class Copy:
    """The first `count` slots of block `source`, to be copied into block `target` of the same group."""

    source: int
    target: int
    count: int
    group: int = 0


class Appended(NamedTuple):
    """The slots of the new tokens, one list a group; the copies to make first; the blocks that were evicted.

    The copies are made in their order, before the slots are written.
    """

    slots: list[list[int]]
    copies: list[Copy]
    evicted: list[int]


class BlockTables:
    """The tables of all requests, with one row a group; every block comes from `pool`.

    `windows` gives a group's sliding window in tokens, its own token counted, or None where it attends to
    all. Raises: ArgumentError, LengthError.
    """

    def __init__(
        self, pool: BlockPool, block_sizes: Sequence[int], *, windows: Sequence[int | None] | None = None
    ) -> None:
        if not isinstance(pool, BlockPool):
            raise ArgumentError(f"pool = {shown(pool)}, expected a BlockPool")
        sizes = [check_count("block_sizes", size) for size in as_ids("block_sizes", block_sizes)]
        if not sizes:
            raise LengthError("block_sizes is empty, expected one block size a group")
        self._pool = pool
        self._block_sizes = sizes
        self._windows = as_windows(windows, len(sizes))
        self._rows: dict[int, list[Row]] = {}
        self._num_tokens: dict[int, int] = {}

    def add(self, request: int) -> None:
        """Begin a request without tokens.

        Raises: UnknownRequestError if it is there already; ArgumentError.
        """
        new = self._new("request", request)
        self._rows[new] = [Row(size) for size in self._block_sizes]
        self._num_tokens[new] = 0

    def append(self, request: int, num_tokens: int) -> Appended:
        """Give slots to the next tokens of a request; none of them is reachable from another request.

        Raises: OutOfBlocksError if the pool cannot serve every group; UnknownRequestError; ArgumentError.
        """
        own = self._known("request", request)
        start, count = self._num_tokens[own], check_count("num_tokens", num_tokens, minimum=0)
        rows, stop = self._rows[own], start + count
        if not count:
            return Appended([[] for _ in rows], [], [])
        shared = [start % row.block_size > 0 and not self._pool.is_writable(row.blocks[-1]) for row in rows]
        needed = [row.missing(stop) for row in rows]
        total = sum(needed) + sum(shared)
        if total > self._pool.num_free:
            raise OutOfBlocksError(
                f"num_tokens = {count} of request {own} need {total} blocks, but {self._pool.num_free} of "
                f"{self._pool.capacity} are free (KV-BLOCK-028 tables-atomic)"
            )
        blocks, evicted = self._pool.allocate(total) if total else Allocation([], [])
        fresh, copies = iter(blocks), []
        for group, row in enumerate(rows):
            if shared[group]:
                copies.append(Copy(row.blocks[-1], next(fresh), start % row.block_size, group))
                row.blocks[-1] = copies[-1].target
            row.blocks.extend(islice(fresh, needed[group]))
        if copies:
            self._pool.free([copy.source for copy in copies])
        self._num_tokens[own] = stop
        return Appended([row.slots(start, stop) for row in rows], copies, evicted)

    def fork(self, parent: int, child: int) -> None:
        """Begin a request that shares every token and every block of another.

        Raises: UnknownRequestError if the parent is not there, or the child is; ArgumentError.
        """
        old, new = self._known("parent", parent), self._new("child", child)
        self._pool.touch([block for row in self._rows[old] for block in row.blocks])
        self._rows[new] = [row.copy() for row in self._rows[old]]
        self._num_tokens[new] = self._num_tokens[old]

    def truncate(self, request: int, num_tokens: int) -> None:
        """Cut a request back to its first tokens, and let go of the blocks beyond them, the tail first.

        Raises: LengthError if it has fewer tokens (KV-BLOCK-034 truncate-within), or if the next token would
        attend to a pruned one (KV-BLOCK-026 truncate-keeps); UnknownRequestError; ArgumentError.
        """
        own = self._known("request", request)
        count, had = check_count("num_tokens", num_tokens, minimum=0), self._num_tokens[own]
        if count > had:
            raise LengthError(
                f"num_tokens = {count}, but request {own} has {had} tokens (KV-BLOCK-034 truncate-within)"
            )
        for group, (row, window) in enumerate(zip(self._rows[own], self._windows, strict=True)):
            if row.first_attended(count, window) < row.num_pruned * row.block_size:
                raise LengthError(
                    f"num_tokens = {count}, but group {group} of request {own} has no tokens below "
                    f"{row.num_pruned * row.block_size} any more (KV-BLOCK-026 truncate-keeps)"
                )
        self._pool.free([block for row in self._rows[own] for block in row.beyond(count)])
        for row in self._rows[own]:
            row.cut(count)
        self._num_tokens[own] = count

    def prune(self, request: int, *, num_settled: int | None = None) -> list[int]:
        """Let go of the blocks that no later token attends to, and return them.

        `num_settled` counts the tokens that stay whatever happens: a token of a step in flight may still
        attend from its own window, and a drafted one may be taken back. All of them, if not given.
        Realises: KV-BLOCK-030 window-pruned.
        Raises: LengthError if the request has fewer tokens; UnknownRequestError; ArgumentError.
        """
        own = self._known("request", request)
        settled = had = self._num_tokens[own]
        if num_settled is not None:
            settled = check_count("num_settled", num_settled, minimum=0)
        if settled > had:
            raise LengthError(
                f"num_settled = {settled}, but request {own} has {had} tokens (KV-BLOCK-030 window-pruned)"
            )
        pairs = list(zip(self._rows[own], self._windows, strict=True))
        pruned = [block for row, window in pairs for block in row.below(settled, window)]
        self._pool.free(pruned)
        for row, window in pairs:
            row.prune(settled, window)
        return pruned

    def free(self, request: int) -> None:
        """End a request and let go of each of its blocks once, the tail first.

        Raises: UnknownRequestError; ArgumentError.
        """
        own = self._known("request", request)
        self._pool.free([block for row in self._rows[own] for block in reversed(row.blocks)])
        del self._rows[own], self._num_tokens[own]

    def requests(self) -> list[int]:
        """List the requests in the order in which they began."""
        return list(self._rows)

    def num_tokens(self, request: int) -> int:
        """How many tokens a request has.

        Raises: UnknownRequestError; ArgumentError.
        """
        return self._num_tokens[self._known("request", request)]

    def table(self, request: int, group: int = 0) -> list[int | None]:
        """List the blocks of a request, the first token's first; None where a block was pruned.

        Raises: UnknownRequestError; ArgumentError if there is no such group.
        """
        row = self._row(request, group)
        return [None] * row.num_pruned + row.blocks

    def slots(self, request: int, group: int = 0) -> list[int | None]:
        """List the slot of every token of a request; None where its block was pruned.

        Raises: as `table`.
        """
        row = self._row(request, group)
        start = row.num_pruned * row.block_size
        return [None] * start + row.slots(start, self._num_tokens[request])

    def check_invariants(self) -> None:
        """Assert that every row fits its tokens and that no block is in more rows than it has holders."""
        entries: Counter[int] = Counter()
        for request, rows in self._rows.items():
            for row, window in zip(rows, self._windows, strict=True):
                row.check_invariants(self._num_tokens[request], window)
                entries.update(row.blocks)
        assert self._rows.keys() == self._num_tokens.keys(), "a request has tokens but no row, or the reverse"
        for block, count in entries.items():
            assert count <= self._pool.ref_count(block), f"block {block} has more rows than holders"

    def _known(self, name: str, request: int) -> int:
        own = check_count(name, request, minimum=0)
        if own not in self._rows:
            raise UnknownRequestError(
                f"{name} = {own}, expected one of the {len(self._rows)} requests there "
                "(KV-BLOCK-033 request-known)"
            )
        return own

    def _new(self, name: str, request: int) -> int:
        own = check_count(name, request, minimum=0)
        if own in self._rows:
            raise UnknownRequestError(
                f"{name} = {own} is there already, expected a new request (KV-BLOCK-033 request-known)"
            )
        return own

    def _row(self, request: int, group: int) -> Row:
        rows = self._rows[self._known("request", request)]
        at = check_count("group", group, minimum=0)
        if at >= len(rows):
            raise LengthError(f"group = {at}, expected 0 to {len(rows) - 1} (KV-BLOCK-031 groups-together)")
        return rows[at]

"""The reference's managers under the suite's contracts.

Only spelling changes: a null entry is -1 in a table, a window of 0 is none, and slots and copies of all
groups stand in one list each.
"""

from kvref.memory.blocks import BlockPool
from kvref.memory.tables import BlockTables
from kvref_conformance.claims import Claims
from kvref_conformance.subjects.reference_prefix import (
    NAMESPACES,
    ReferenceIndex,
    ReferenceKeys,
    ReferencePrefixCache,
)
from kvref_conformance.subjects.reference_snapshots import ReferenceSnapshotCache

NULL = -1


class Allocator:
    """`kvref.memory.blocks.BlockPool`; what is handed out comes without the list of what was evicted."""

    def __init__(self, num_blocks: int) -> None:
        self._pool = BlockPool(num_blocks, plain="back")

    def allocate(self, num_blocks: int) -> list[int]:
        """Hand out blocks."""
        return self._pool.allocate(num_blocks).blocks

    def free(self, blocks: list[int]) -> None:
        """Let go of each block once."""
        self._pool.free(blocks)

    def touch(self, blocks: list[int]) -> None:
        """Hold each block once more."""
        self._pool.touch(blocks)

    def pin(self, blocks: list[int]) -> None:
        """Pin each block once more."""
        self._pool.pin(blocks)

    def unpin(self, blocks: list[int]) -> None:
        """Take back one pin of each block."""
        self._pool.unpin(blocks)

    def begin_step(self) -> int:
        """Begin a step."""
        return self._pool.begin_step()

    def end_step(self, step: int) -> None:
        """End a step."""
        self._pool.end_step(step)

    def num_free(self) -> int:
        """Return how many blocks are free."""
        return self._pool.num_free


class Tables:
    """`kvref.memory.tables.BlockTables` over a pool of its own."""

    def __init__(self, num_blocks: int, block_sizes: list[int], windows: list[int] | None = None) -> None:
        self._pool = BlockPool(num_blocks)
        own = None if windows is None else [window or None for window in windows]
        self._tables = BlockTables(self._pool, block_sizes, windows=own)

    def add(self, request: int) -> None:
        """Begin a request."""
        self._tables.add(request)

    def append(self, request: int, num_tokens: int) -> dict[str, list[int]]:
        """Give slots to new tokens."""
        slots, copies, _ = self._tables.append(request, num_tokens)
        return {
            "slots": [slot for own in slots for slot in own],
            "copy_sources": [copy.source for copy in copies],
            "copy_targets": [copy.target for copy in copies],
            "copy_counts": [copy.count for copy in copies],
            "copy_groups": [copy.group for copy in copies],
        }

    def fork(self, parent: int, child: int) -> None:
        """Begin a request with all tokens of another."""
        self._tables.fork(parent, child)

    def truncate(self, request: int, num_tokens: int) -> None:
        """Keep only the first tokens."""
        self._tables.truncate(request, num_tokens)

    def free(self, request: int) -> None:
        """End a request."""
        self._tables.free(request)

    def prune(self, request: int) -> None:
        """Let go of what no later token attends to."""
        self._tables.prune(request)

    def block_table(self, request: int, group: int) -> list[int]:
        """Return the blocks of a request."""
        return [NULL if block is None else block for block in self._tables.table(request, group)]

    def num_free(self) -> int:
        """Return how many blocks are free."""
        return self._pool.num_free


class ReferenceMemory:
    """Offers the managers of `kvref.memory`."""

    claims = Claims(
        name="reference_memory",
        block_sizes=(4, 1, 3, 16),
        features=(
            *("pin", "steps", "groups", "pruning", *NAMESPACES, "weak_hash", "events"),
            *("drafts", "junctions", "window"),
        ),
        choices={"free-order": "fifo", "key-scheme": "kvref"},
    )
    block_allocator = Allocator
    block_tables = Tables
    prefix_cache = ReferencePrefixCache
    snapshot_cache = ReferenceSnapshotCache
    block_keys = ReferenceKeys
    block_index = ReferenceIndex

"""Which requests share which blocks: what block tables should hold, without a block id.

Blocks are numbered as they are needed. The numbers are nobody's but the shadow's: they say how many blocks
are in use, and whose last block is shared.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Sharing:
    """The rows of all requests over a pool of `capacity` blocks; a window of 0 is none."""

    capacity: int
    block_sizes: Sequence[int]
    windows: Sequence[int]
    num_tokens: dict[int, int] = field(default_factory=dict)
    rows: dict[int, list[list[int | None]]] = field(default_factory=dict)
    """Request -> for each group its blocks; None where one was pruned."""
    _holders: Counter[int] = field(default_factory=Counter)
    _next: int = 0

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return self.capacity - len(self._holders)

    def num_pruned(self, request: int, group: int) -> int:
        """How many blocks of a row were pruned."""
        return self.rows[request][group].count(None)

    def first_attended(self, num_tokens: int, group: int) -> int:
        """Return the first position that the next token attends to."""
        window = self.windows[group]
        return max(0, num_tokens - window + 1) if window else 0

    def add(self, request: int) -> None:
        """Begin a request without tokens."""
        self.num_tokens[request] = 0
        self.rows[request] = [[] for _ in self.block_sizes]

    def valid_in_tail(self, request: int, group: int) -> int:
        """How many tokens the last block of a row holds, if it is not full; else 0."""
        return self.num_tokens[request] % self.block_sizes[group]

    def is_shared(self, request: int, group: int) -> bool:
        """Say whether the next token goes into a block that another request holds."""
        row = self.rows[request][group]
        return bool(self.valid_in_tail(request, group)) and self._holders[row[-1] or 0] > 1

    def needed(self, request: int, num_tokens: int) -> int:
        """How many blocks an append takes from the pool, those of copies included."""
        stop, taken = self.num_tokens[request] + num_tokens, 0
        for group, size in enumerate(self.block_sizes):
            taken += -(-stop // size) - len(self.rows[request][group]) + self.is_shared(request, group)
        return taken

    def most(self, request: int) -> int:
        """How many tokens may be appended at most."""
        low, high = 0, self.num_free * min(self.block_sizes) + max(self.block_sizes)
        while low < high:
            middle = (low + high + 1) // 2
            if self.needed(request, middle) <= self.num_free:
                low = middle
            else:
                high = middle - 1
        return low

    def append(self, request: int, num_tokens: int) -> None:
        """Let a request have more tokens, and a last block of its own."""
        stop = self.num_tokens[request] + num_tokens
        for group, size in enumerate(self.block_sizes):
            row = self.rows[request][group]
            if self.is_shared(request, group):
                self._release([row.pop()])
                row.append(self._new())
            while len(row) < -(-stop // size):
                row.append(self._new())
        self.num_tokens[request] = stop

    def fork(self, parent: int, child: int) -> None:
        """Let a child hold every block of its parent."""
        self.rows[child] = [list(row) for row in self.rows[parent]]
        self.num_tokens[child] = self.num_tokens[parent]
        self._holders.update(block for row in self.rows[child] for block in row if block is not None)

    def may_truncate(self, request: int, num_tokens: int) -> bool:
        """Say whether the next token would find all that it attends to."""
        groups = range(len(self.block_sizes))
        return 0 <= num_tokens <= self.num_tokens[request] and all(
            self.first_attended(num_tokens, group) >= self.num_pruned(request, group) * size
            for group, size in zip(groups, self.block_sizes, strict=True)
        )

    def truncate(self, request: int, num_tokens: int) -> None:
        """Keep only the first tokens."""
        for group, size in enumerate(self.block_sizes):
            row = self.rows[request][group]
            keep = -(-num_tokens // size)
            self._release(row[keep:])
            del row[keep:]
        self.num_tokens[request] = num_tokens

    def prune(self, request: int) -> None:
        """Let go of the blocks wholly before the first position that the next token attends to."""
        for group, size in enumerate(self.block_sizes):
            row = self.rows[request][group]
            count = min(self.first_attended(self.num_tokens[request], group) // size, len(row))
            self._release(row[:count])
            row[:count] = [None] * count

    def free(self, request: int) -> bool:
        """Let go of all blocks of a request; say whether any was shared."""
        blocks = [block for row in self.rows.pop(request) for block in row if block is not None]
        del self.num_tokens[request]
        shared = any(self._holders[block] > 1 for block in blocks)
        self._release(blocks)
        return shared

    def _new(self) -> int:
        self._next += 1
        self._holders[self._next] = 1
        return self._next

    def _release(self, blocks: Sequence[int | None]) -> None:
        for block in blocks:
            if block is not None:
                self._holders[block] -= 1
                if not self._holders[block]:
                    del self._holders[block]

"""Block tables as lists of blocks, one for each request and group."""

from collections.abc import Iterable

from kvref.errors import LengthError, UnknownRequestError
from kvref_conformance.subjects.lists.allocator import ListAllocator

NULL = -1
#: What an append gives: slots; sources, targets, counts and groups of the copies.
Appended = tuple[list[int], list[int], list[int], list[int], list[int]]


class ListTables:
    """Every table has one block for each begun stretch of `block_size` tokens."""

    pool_class = ListAllocator

    def __init__(self, num_blocks: int, block_sizes: list[int], windows: list[int] | None = None) -> None:
        self.pool = self.pool_class(num_blocks)
        self.block_sizes = block_sizes
        self.windows = windows or [0] * len(block_sizes)
        self.tables: dict[int, list[list[int]]] = {}
        self.lengths: dict[int, int] = {}

    def add(self, request: int) -> None:
        """Begin a request."""
        self.check_new(request)
        self.tables[request] = [[] for _ in self.block_sizes]
        self.lengths[request] = 0

    def append(self, request: int, num_tokens: int) -> Appended:
        """Give slots to new tokens; of a shared last block make a copy first."""
        self.check_known(request)
        if not num_tokens:
            return [], [], [], [], []
        groups = range(len(self.block_sizes))
        start, stop = self.lengths[request], self.lengths[request] + num_tokens
        copied = [group for group in groups if self.needs_copy(request, group)]
        self.pool.check_room(len(copied) + sum(self.num_missing(request, group, stop) for group in groups))
        sources, targets, counts = [], [], []
        for group in copied:
            source, target = self.replace_tail(request, group)
            sources.append(source)
            targets.append(target)
            counts.append(self.num_copied(start, group))
        for group in groups:
            self.grow(request, group, stop)
        self.lengths[request] = stop
        slots = [slot for group in groups for slot in self.slots(request, group, start, stop)]
        return slots, sources, targets, counts, copied

    def fork(self, parent: int, child: int) -> None:
        """Share every block of the parent with the child."""
        self.check_known(parent)
        self.check_new(child)
        self.tables[child] = [list(table) for table in self.tables[parent]]
        self.lengths[child] = self.lengths[parent]
        for table in self.tables[child]:
            self.share(table)

    def truncate(self, request: int, num_tokens: int) -> None:
        """Keep the first tokens, and the blocks they need."""
        self.check_known(request)
        self.check_truncation(request, num_tokens)
        for table, size in zip(self.tables[request], self.block_sizes, strict=True):
            keep = self.num_kept(num_tokens, size)
            self.drop(table[keep:])
            del table[keep:]
        self.lengths[request] = num_tokens

    def prune(self, request: int) -> None:
        """Let go of the blocks that no later token attends to."""
        self.check_known(request)
        for group, table in enumerate(self.tables[request]):
            count = min(self.num_prunable(request, group), len(table))
            self.drop(table[:count])
            table[:count] = [NULL] * count

    def free(self, request: int) -> None:
        """End a request."""
        self.check_known(request)
        for table in self.tables[request]:
            self.drop(table)
        self.forget(request)

    def block_table(self, request: int, group: int) -> list[int]:
        """Return the blocks of a request."""
        self.check_known(request)
        return list(self.tables[request][group])

    def num_free(self) -> int:
        """Return how many blocks nobody holds."""
        return self.pool.num_free()

    def check_known(self, request: int) -> None:
        """Refuse a request that is not there."""
        if request not in self.tables:
            raise UnknownRequestError(f"request {request} is not there")

    def check_new(self, request: int) -> None:
        """Refuse a request that is there."""
        if request in self.tables:
            raise UnknownRequestError(f"request {request} is there already")

    def check_truncation(self, request: int, num_tokens: int) -> None:
        """Refuse to cut back to more tokens than there are, or to less than the window needs."""
        if not 0 <= num_tokens <= self.lengths[request]:
            raise LengthError(f"request {request} has {self.lengths[request]} tokens, not {num_tokens}")
        for group, table in enumerate(self.tables[request]):
            if table.count(NULL) * self.block_sizes[group] > self.first_attended(num_tokens, group):
                raise LengthError(f"request {request} has been pruned too far for {num_tokens} tokens")

    def needs_copy(self, request: int, group: int) -> bool:
        """Say whether the next token goes into a block that somebody else holds too."""
        if self.lengths[request] % self.block_sizes[group] == 0:
            return False
        return self.pool.holders[self.tables[request][group][-1]] > 1

    def num_missing(self, request: int, group: int, num_tokens: int) -> int:
        """Return how many more blocks a table needs for that many tokens."""
        size = self.block_sizes[group]
        return (num_tokens + size - 1) // size - len(self.tables[request][group])

    def replace_tail(self, request: int, group: int) -> tuple[int, int]:
        """Put a block of its own in place of a shared last one; return both."""
        table = self.tables[request][group]
        source = table[-1]
        (table[-1],) = self.pool.take(1)
        self.drop([source])
        return source, table[-1]

    def num_copied(self, num_tokens: int, group: int) -> int:
        """Return how many slots of the last block hold tokens."""
        return num_tokens % self.block_sizes[group]

    def grow(self, request: int, group: int, num_tokens: int) -> None:
        """Give a table the blocks it lacks for that many tokens."""
        missing = self.num_missing(request, group, num_tokens)
        self.tables[request][group] += self.pool.take(missing)

    def slots(self, request: int, group: int, start: int, stop: int) -> list[int]:
        """Return the slots of consecutive tokens."""
        return [self.slot(request, group, position) for position in range(start, stop)]

    def slot(self, request: int, group: int, position: int) -> int:
        """Return the slot of a token."""
        size = self.block_sizes[group]
        return self.tables[request][group][position // size] * size + position % size

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks once more."""
        for block in blocks:
            if block != NULL:
                self.pool.hold(block)

    def drop(self, blocks: Iterable[int]) -> None:
        """Let go of blocks."""
        for block in blocks:
            if block != NULL:
                self.pool.let_go(block)

    def num_kept(self, num_tokens: int, block_size: int) -> int:
        """Return how many blocks hold the first tokens."""
        return (num_tokens + block_size - 1) // block_size

    def first_attended(self, num_tokens: int, group: int) -> int:
        """Return the first position that the token after `num_tokens` others attends to."""
        window = self.windows[group]
        return max(0, num_tokens - window + 1) if window else 0

    def num_prunable(self, request: int, group: int) -> int:
        """Return how many blocks lie wholly before what the next token attends to."""
        return self.first_attended(self.lengths[request], group) // self.block_sizes[group]

    def forget(self, request: int) -> None:
        """Let a request be unknown."""
        del self.tables[request]
        del self.lengths[request]

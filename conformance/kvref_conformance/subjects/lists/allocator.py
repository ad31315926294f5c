"""An allocator as a list of free blocks and a count of holders for each block."""

from collections.abc import Iterable

from kvref.errors import ArgumentError, OutOfBlocksError, OwnershipError


class ListAllocator:
    """Blocks leave the list at the front and return at its end."""

    first = 0
    """The first block that is handed out; 1 where block 0 is null."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free_blocks = list(range(self.first, num_blocks))
        self.holders = [0] * num_blocks
        self.pins = [0] * num_blocks
        self.steps: list[int] = []
        """Steps in flight."""
        self.steps_begun = 0
        self.waiting: list[tuple[int, int]] = []
        """Blocks to be free once a step and all before it have ended, and that step."""

    def allocate(self, num_blocks: int) -> list[int]:
        """Hand out blocks."""
        self.check_count(num_blocks)
        self.check_room(num_blocks)
        return self.take(num_blocks)

    def free(self, blocks: list[int]) -> None:
        """Let go of each block once."""
        self.check_in_pool(blocks)
        self.check_held(blocks)
        for block in blocks:
            self.let_go(block)

    def touch(self, blocks: list[int]) -> None:
        """Hold each block once more."""
        self.check_in_pool(blocks)
        self.check_somebody_holds(blocks)
        for block in blocks:
            self.hold(block)

    def pin(self, blocks: list[int]) -> None:
        """Pin each block once more."""
        self.check_in_pool(blocks)
        self.check_somebody_holds(blocks)
        for block in blocks:
            self.pins[block] += 1

    def unpin(self, blocks: list[int]) -> None:
        """Take back one pin of each block."""
        self.check_in_pool(blocks)
        for block in blocks:
            if blocks.count(block) > self.pins[block]:
                raise OwnershipError(f"block {block} has {self.pins[block]} pins")
        for block in blocks:
            self.pins[block] -= 1
            self.release_if_idle(block)

    def begin_step(self) -> int:
        """Begin a step."""
        self.steps_begun += 1
        self.steps.append(self.steps_begun)
        return self.steps_begun

    def end_step(self, step: int) -> None:
        """End a step and all before it."""
        if step not in self.steps:
            raise ArgumentError(f"step {step} is not in flight")
        self.steps = [other for other in self.steps if other > step]
        for block, last in self.waiting:
            if last <= step:
                self.put_back(block)
        self.waiting = [(block, last) for block, last in self.waiting if last > step]

    def num_free(self) -> int:
        """Return how many blocks may be handed out."""
        return len(self.free_blocks)

    def check_count(self, num_blocks: int) -> None:
        """Refuse a number that is no count."""
        if num_blocks < 0:
            raise ArgumentError(f"num_blocks is {num_blocks}")

    def check_room(self, num_blocks: int) -> None:
        """Refuse more blocks than are free."""
        if num_blocks > len(self.free_blocks):
            raise OutOfBlocksError(f"{len(self.free_blocks)} blocks are free, not {num_blocks}")

    def check_in_pool(self, blocks: Iterable[int]) -> None:
        """Refuse blocks that are not handed out by this pool."""
        for block in blocks:
            if not self.first <= block < self.num_blocks:
                raise OwnershipError(f"block {block} is not of the pool")

    def check_held(self, blocks: list[int]) -> None:
        """Refuse blocks that are named more often than they are held."""
        for block in blocks:
            if blocks.count(block) > self.holders[block]:
                raise OwnershipError(f"block {block} has {self.holders[block]} holders")

    def check_somebody_holds(self, blocks: Iterable[int]) -> None:
        """Refuse blocks that hold nothing; a pin is a holder."""
        for block in blocks:
            if not self.is_kept(block):
                raise OwnershipError(f"block {block} has no holder")

    def take(self, count: int) -> list[int]:
        """Take blocks from the list."""
        taken, self.free_blocks = self.free_blocks[:count], self.free_blocks[count:]
        for block in taken:
            self.holders[block] = 1
        return taken

    def hold(self, block: int) -> None:
        """Count one more holder."""
        self.holders[block] += 1

    def let_go(self, block: int) -> None:
        """Count one holder less."""
        self.holders[block] -= 1
        self.release_if_idle(block)

    def release_if_idle(self, block: int) -> None:
        """Let a block be free if nothing keeps it, or let it wait for the steps in flight."""
        if self.is_kept(block):
            return
        if self.steps:
            self.waiting.append((block, self.steps[-1]))
        else:
            self.put_back(block)

    def is_kept(self, block: int) -> bool:
        """Say whether a holder or a pin keeps a block."""
        return self.holders[block] > 0 or self.pins[block] > 0

    def put_back(self, block: int) -> None:
        """Let a block be free."""
        self.free_blocks.append(block)

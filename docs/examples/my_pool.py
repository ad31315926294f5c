"""A pool of blocks as an engine would have it, and the subject that offers it to the suite."""

from collections import Counter, deque

from kvref.errors import OutOfBlocksError, OwnershipError
from kvref_conformance.claims import Claims


class Pool:
    def __init__(self, num_blocks):
        self.free_blocks = deque(range(num_blocks))
        self.holders = [0] * num_blocks

    def allocate(self, num_blocks):
        if not 0 <= num_blocks <= len(self.free_blocks):
            raise OutOfBlocksError(f"{len(self.free_blocks)} blocks are free, expected {num_blocks}")
        blocks = [self.free_blocks.popleft() for _ in range(num_blocks)]
        for block in blocks:
            self.holders[block] = 1
        return blocks

    def touch(self, blocks):
        self.check_held(set(blocks))
        for block in blocks:
            self.holders[block] += 1

    def free(self, blocks):
        self.check_held(blocks)
        for block in blocks:
            self.holders[block] -= 1
            if self.holders[block] == 0:
                self.free_blocks.append(block)

    def num_free(self):
        return len(self.free_blocks)

    def check_held(self, blocks):
        for block, times in Counter(blocks).items():
            if not 0 <= block < len(self.holders) or self.holders[block] < times:
                raise OwnershipError(f"block {block} has not {times} holders")


class Subject:
    claims = Claims(name="my_pool", choices={"free-order": "fifo"})
    block_allocator = Pool

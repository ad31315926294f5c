"""Faults of what is still in flight: blocks that a step may write, or that a transfer has pinned."""

from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.lists.allocator import ListAllocator

ALLOCATOR = ("block_allocator",)


@exhibit(
    as_if="a block was free while a step could still write it",
    fault="F05 still in flight",
    seen_in=("vllm-project/vllm#45357",),
    breaks=("KV-BLOCK-011",),
    verbs=ALLOCATOR,
    features=("steps",),
    program="rest 0; begin 0; free 0; allocate 1 1",
)
class FreedUnderTheStep(ListAllocator):
    """Freeing does not wait for the step that was told to write the block.

    Scheduling runs a step ahead of the device. A request ends, its blocks go to another one, and the step
    that is still running writes the first one's tokens into them.
    """

    def release_if_idle(self, block: int) -> None:
        """Let the block be free at once."""
        if not self.is_kept(block):
            self.put_back(block)


@exhibit(
    as_if="a block waited for the oldest step in flight only",
    fault="F05 still in flight",
    breaks=("KV-BLOCK-011",),
    may_also_break=("KV-BLOCK-002",),
    verbs=ALLOCATOR,
    features=("steps",),
    program="rest 0; begin 0; begin 1; free 0; end 0; allocate 1 1",
)
class WaitsForTheOldestStep(ListAllocator):
    """With two steps in flight, a block is free when the first has ended.

    A plant: one step in flight was all there was when the rule was written.
    """

    def release_if_idle(self, block: int) -> None:
        """Wait for the wrong step."""
        if self.steps and not self.is_kept(block):
            self.waiting.append((block, self.steps[0]))
        else:
            super().release_if_idle(block)


@exhibit(
    as_if="the end of a step left the steps before it in flight",
    fault="F22 no progress",
    breaks=("KV-BLOCK-003",),
    may_also_break=("KV-BLOCK-004", "KV-BLOCK-011"),
    verbs=ALLOCATOR,
    features=("steps",),
    program="rest 0; begin 0; begin 1; free 0; end 1; allocate 1 1",
)
class EarlierStepsGoOn(ListAllocator):
    """Only the step that is named ends.

    A plant: an engine that hears of the last of several steps never hears of the others. What was freed while
    they ran stays away.
    """

    def end_step(self, step: int) -> None:
        """End one step, and let go of what waits for none that is left."""
        self.steps.remove(step)
        oldest = min(self.steps, default=self.steps_begun + 1)
        for block, last in self.waiting:
            if last < oldest:
                self.put_back(block)
        self.waiting = [(block, last) for block, last in self.waiting if last >= oldest]


@exhibit(
    as_if="the pin was put on another block than the one that is sent",
    fault="F07 ownership",
    seen_in=("NVIDIA/TensorRT-LLM#12648",),
    breaks=("KV-BLOCK-012",),
    may_also_break=("KV-BLOCK-004", "KV-BLOCK-006", "KV-BLOCK-007"),
    verbs=ALLOCATOR,
    features=("pin",),
    program="allocate 0 2; pin 0 1; free 0; rest 1",
)
class PinOnTheTwin(ListAllocator):
    """Pins go to the block that holds the same tokens first, not to the one that the request has.

    Two requests compute one prefix at the same time. The tree keeps the first one's block, the second one's
    is sent, and the pin is put on the tree's. Here the twin is the block before.
    """

    def pin(self, blocks: list[int]) -> None:
        """Pin the twins."""
        super().pin([max(block - 1, 0) for block in blocks])

    def unpin(self, blocks: list[int]) -> None:
        """Unpin the twins."""
        super().unpin([max(block - 1, 0) for block in blocks])


@exhibit(
    as_if="the end of a request freed what was pinned for a transfer",
    fault="F05 still in flight",
    seen_in=("NVIDIA/TensorRT-LLM#14565",),
    breaks=("KV-BLOCK-012",),
    may_also_break=("KV-BLOCK-004", "KV-BLOCK-005", "KV-BLOCK-006"),
    verbs=ALLOCATOR,
    features=("pin",),
    program="rest 0; pin 0; free 0; allocate 1 1",
)
class TimeoutFreesThePinned(ListAllocator):
    """A request that times out is cleaned up although its blocks are still being sent.

    The transfer goes on reading, and sends what the next owner writes.
    """

    def is_kept(self, block: int) -> bool:
        """Ask for holders only."""
        return self.holders[block] > 0


@exhibit(
    as_if="a pin was taken back that nobody had put",
    fault="F07 ownership",
    breaks=("KV-BLOCK-006",),
    may_also_break=("KV-BLOCK-007", "KV-BLOCK-012"),
    verbs=ALLOCATOR,
    features=("pin",),
    program="allocate 0 1; unpin_twice 0 0",
)
class UnpinnedByAnybody(ListAllocator):
    """Unpinning a block that is not pinned does nothing and says so to nobody.

    A plant: a transfer that is cancelled and then fails unpins twice. The second time takes the pin of
    another transfer of the same block, which goes on reading.
    """

    def unpin(self, blocks: list[int]) -> None:
        """Take back what there is."""
        super().unpin([block for block in dict.fromkeys(blocks) if self.pins[block : block + 1] > [0]])

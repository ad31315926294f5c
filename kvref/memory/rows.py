"""One row of a block table: the blocks of one request in one group.

Blocks below a sliding window of W tokens are pruned from the front. The query at position t attends to the
positions j with t − W < j <= t, so once n tokens are settled nothing below n − W + 1 is read again, and

    num_pruned = max(0, n − W + 1) // block_size

blocks may go. The block of the first attended token stays.

Realises: KV-BLOCK-020 token-slot, KV-BLOCK-030 window-pruned, KV-BLOCK-032 waste-bound.
For porters: count with the next query's position, n, and not with the last one's; and round down.
Source: vLLM's sliding-window groups: skipped tokens = max(0, computed − W + 1), whole blocks only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvref.arrays import check_count
from kvref.errors import ArgumentError, LengthError, shown


@dataclass(slots=True)
class Row:
    """The blocks that a request holds in a group, after `num_pruned` that it holds no more."""

    block_size: int
    num_pruned: int = 0
    blocks: list[int] = field(default_factory=list)

    def copy(self) -> "Row":
        """Return the same blocks in a row of their own."""
        return Row(self.block_size, self.num_pruned, self.blocks.copy())

    def missing(self, num_tokens: int) -> int:
        """Count the blocks that must join before the row has room for `num_tokens` tokens."""
        return -(-num_tokens // self.block_size) - self.num_pruned - len(self.blocks)

    def slots(self, start: int, stop: int) -> list[int]:
        """List the slots of the tokens from `start` to below `stop`, none of them pruned."""
        size = self.block_size
        slots: list[int] = []
        for at in range(start // size, -(-stop // size)):
            base = self.blocks[at - self.num_pruned] * size
            slots += range(base + max(start - at * size, 0), base + min(stop - at * size, size))
        return slots

    def beyond(self, num_tokens: int) -> list[int]:
        """List the blocks beyond `num_tokens` tokens, the tail first."""
        return self.blocks[len(self.blocks) + self.missing(num_tokens) :][::-1]

    def cut(self, num_tokens: int) -> None:
        """Drop the blocks beyond `num_tokens` tokens."""
        del self.blocks[len(self.blocks) + self.missing(num_tokens) :]

    def below(self, num_settled: int, window: int | None) -> list[int]:
        """List the blocks wholly below the window, the deepest first."""
        return self.blocks[: self._num_below(num_settled, window)][::-1]

    def prune(self, num_settled: int, window: int | None) -> None:
        """Drop the blocks wholly below the window."""
        count = self._num_below(num_settled, window)
        del self.blocks[:count]
        self.num_pruned += count

    @staticmethod
    def first_attended(num_tokens: int, window: int | None) -> int:
        """Return the first position that the token after `num_tokens` others attends to."""
        return 0 if window is None else max(0, num_tokens - window + 1)

    def _num_below(self, num_settled: int, window: int | None) -> int:
        return max(0, self.first_attended(num_settled, window) // self.block_size - self.num_pruned)

    def check_invariants(self, num_tokens: int, window: int | None) -> None:
        """Assert that the row has the blocks its tokens need, each once, and lacks none attended to."""
        assert self.missing(num_tokens) == 0, "a row has too many or too few blocks"
        assert len(set(self.blocks)) == len(self.blocks), "a block is twice in a row"
        assert self.num_pruned * self.block_size <= self.first_attended(num_tokens, window), (
            "attended, but pruned"
        )


def as_windows(windows: Sequence[int | None] | None, num_groups: int) -> list[int | None]:
    """Return one window a group, in tokens, or None.

    Raises: ArgumentError if one is neither None nor at least 1; LengthError if there are more or fewer.
    """
    if windows is None:
        return [None] * num_groups
    if not isinstance(windows, list | tuple):
        raise ArgumentError(f"windows = {shown(windows)}, expected a list with one window a group")
    if len(windows) != num_groups:
        raise LengthError(f"windows has {len(windows)} entries, expected {num_groups}, one a group")
    return [None if window is None else check_count("windows", window) for window in windows]

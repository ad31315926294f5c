"""Groups of attention layers in a hybrid model: what each needs of a prefix, and where it finds that.

Layers of attention form groups. Each has a block size, a window or none, and rows of blocks of its own, all
out of one pool; a block of one group is none of another, whatever tokens it holds. After p tokens a group can
resume if it has the blocks of every position that the next token attends to: all of them, or with a window of
W tokens those of the last W − 1. A hit lies where every group can resume, so it ends a block in each: its
places are the multiples of the least common multiple of the block sizes.

Realises: KV-SNAP-003 hit-in-every-group, KV-SNAP-022 window-group-hit.
For porters: with one group this is a prefix cache's row and one number.
Source: vLLM's groups over one pool, whose keys carry the group, and the alignment of its hybrid coordinator.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

from kvref.arrays import check_count
from kvref.errors import ArgumentError, OutOfBlocksError, shown
from kvref.memory.prefix import PrefixIndex
from kvref.memory.prefix_request import NULL, PrefixRequest

#: What names a block: its group, and the key of its prefix.
GroupKey = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Layers that share a row of blocks; with `window`, they see that many tokens, the query's own counted.

    Raises: ArgumentError if a number is no count.
    """

    block_size: int
    window: int | None = None

    def __post_init__(self) -> None:
        check_count("block_size", self.block_size)
        if self.window is not None:
            check_count("window", self.window)

    def first_block(self, position: int) -> int:
        """Return the first block that the token at a position attends to."""
        return first_seen(position, self.window) // self.block_size

    def num_blocks(self, num_tokens: int) -> int:
        """Count the blocks of so many tokens, none of them let go of."""
        return -(-num_tokens // self.block_size)


def first_seen(position: int, window: int | None) -> int:
    """Return the first position that the token at `position` attends to."""
    return 0 if window is None else max(0, position - window + 1)


def as_groups(groups: Any, block_size: int | None, window: int | None) -> tuple[AttentionGroup, ...]:
    """Return the groups given, or the one of a block size and a window.

    Raises: ArgumentError if there is no group, or one is none, or it is said twice what they are.
    """
    if groups is None:
        return (AttentionGroup(check_count("block_size", block_size), window),)
    for name, value in (("block_size", block_size), ("window", window)):
        if value is not None:
            raise ArgumentError(f"{name} = {shown(value)}, expected none beside groups, which have their own")
    found = tuple(groups) if isinstance(groups, list | tuple) else ()
    if not found or not all(isinstance(group, AttentionGroup) for group in found):
        raise ArgumentError(f"groups = {shown(groups)}, expected a list of at least one AttentionGroup")
    return found


def grid_of(groups: Sequence[AttentionGroup]) -> int:
    """Return the distance between positions that end a block in every group."""
    return lcm(*(group.block_size for group in groups))


def check_prompt_fits(num_tokens: int, groups: Sequence[AttentionGroup], capacity: int) -> None:
    """Check that a prompt has tokens, and that they would fit if the cache were empty.

    Raises: ArgumentError; OutOfBlocksError.
    """
    if not num_tokens:
        raise ArgumentError("tokens is empty, expected at least one token to compute")
    needed = sum(group.num_blocks(num_tokens) for group in groups)
    if needed > capacity:
        raise OutOfBlocksError(
            f"tokens has {num_tokens} tokens, which take {needed} blocks, but {capacity} are all there is "
            "(KV-SNAP-021 snapshot-request-known)"
        )


@dataclass(slots=True)
class Found:
    """Which of the first blocks of a prompt one group has; None where it has none."""

    group: AttentionGroup
    blocks: list[int | None]
    runs: list[int]
    """Before each block, and behind the last: how many blocks are there one after another."""

    def can_resume(self, stop: int) -> bool:
        """Say whether the group has every block that the token at `stop`, the end of a block, attends to."""
        at = stop // self.group.block_size
        return self.runs[at] >= at - self.group.first_block(stop)

    def row(self, stop: int) -> list[int]:
        """Return the blocks of a hit of `stop` tokens, null below the window."""
        first = self.group.first_block(stop)
        seen = [block for block in self.blocks[first : stop // self.group.block_size] if block is not None]
        return [NULL] * first + seen


def find_blocks(
    index: PrefixIndex[GroupKey], number: int, group: AttentionGroup, prefix: PrefixRequest, stop: int
) -> Found:
    """Find which blocks of the first `stop` tokens of a prompt a group has."""
    found = Found(group, [], [0])
    for at in range(stop // group.block_size):
        (key,), contents = prefix.of_blocks(at, at + 1)
        found.blocks.append(index.find((number, key), contents[0] if contents else None))
        found.runs.append(0 if found.blocks[-1] is None else found.runs[-1] + 1)
    return found

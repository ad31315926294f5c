"""What an append gave: the slots of each group and the copies to make first, held to the tables.

Each function yields faults: a message, and the requirements that it breaches.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from kvref_conformance.programs.watched_tables import WatchedTables

Fault = tuple[str, tuple[str, ...]]


class Copy(NamedTuple):
    """The first `num_slots` slots of a block go to another, before anything is written."""

    group: int
    source: int
    target: int
    num_slots: int


@dataclass(frozen=True)
class Appended:
    """One append that was not refused."""

    request: int
    start: int
    """Position of the first new token."""
    num_tokens: int
    given: Sequence[int]
    """Slots as they came: those of group 0, then those of group 1, …"""
    copies: Sequence[Copy]
    tails: Mapping[int, int]
    """Group -> the block that the first new token would lie in, where another request holds it too."""

    def slots(self, group: int) -> Sequence[int]:
        """Return the slots of a group."""
        return self.given[group * self.num_tokens : (group + 1) * self.num_tokens]

    def __str__(self) -> str:
        return f"append({self.request}, {self.num_tokens})"


def copies_of(answer: Mapping[str, Any]) -> list[Copy]:
    """Return the copies of an answer; lists of unequal lengths give those that are whole."""
    names = ("copy_groups", "copy_sources", "copy_targets", "copy_counts")
    return [Copy(*parts) for parts in zip(*(answer[name] for name in names), strict=False)]


def out_of_form(
    appended: Appended, answer: Mapping[str, Any], block_sizes: Sequence[int], num_blocks: int
) -> Iterator[Fault]:
    """Yield what cannot be read: too few slots, copies of no group, of no block, of more than a block."""
    groups = len(block_sizes)
    if len(appended.given) != groups * appended.num_tokens:
        due = f"{groups * appended.num_tokens}, {appended.num_tokens} in each of {groups} groups"
        message = f"{appended} gave {len(appended.given)} slots, expected {due}"
        yield message, ("KV-BLOCK-031" if groups > 1 else "KV-BLOCK-020",)
    lengths = [len(answer[name]) for name in answer if name.startswith("copy_")]
    if any(a != b for a, b in pairwise(lengths)):
        yield f"{appended} gave lists of {lengths} sources, targets, counts and groups", ("KV-BLOCK-024",)
    for copy in appended.copies:
        there = all(0 <= block < num_blocks for block in (copy.source, copy.target))
        if not there or not 0 <= copy.group < groups or not 0 <= copy.num_slots <= block_sizes[copy.group]:
            yield f"{appended} gave {copy}, which the pool cannot make", ("KV-BLOCK-024",)


def out_of_place(appended: Appended, watched: WatchedTables) -> Iterator[Fault]:
    """Yield in each group the first slot that is not that of its position in the table."""
    right_before = True
    for group, size in enumerate(watched.block_sizes):
        table = watched.tables[appended.request][group]
        for position, slot in enumerate(appended.slots(group), appended.start):
            at = position // size
            due = table[at] * size + position % size if at < len(table) else None
            if slot != due:
                where = f" of group {group}" if len(watched.block_sizes) > 1 else ""
                expected = "which is beyond the table" if due is None else f"expected {due} by the table"
                also = ("KV-BLOCK-031",) if group and right_before else ()
                yield (
                    f"{appended} gave position {position}{where} slot {slot}, {expected}",
                    ("KV-BLOCK-020", *also),
                )
                right_before = False
                break


def reachable(appended: Appended, watched: WatchedTables) -> Iterator[Fault]:
    """Yield the first slot in each group that another request can reach, too."""
    for group, size in enumerate(watched.block_sizes):
        firsts = {slot // size: slot for slot in reversed(appended.slots(group))}
        for slot in reversed(firsts.values()):
            other = watched.holder_of(slot // size, but=appended.request)
            if other is not None:
                into_shared = ("KV-BLOCK-024",) if appended.tails.get(group) == slot // size else ()
                where = f"block {slot // size}, slot {slot % size}"
                message = f"{appended} writes slot {slot} ({where}), which request {other} has in its table"
                yield message, ("KV-BLOCK-022", *into_shared)
                break


def short_copies(appended: Appended, watched: WatchedTables) -> Iterator[Fault]:
    """Yield the copies into the last block that leave tokens of the request behind."""
    for group, tail in appended.tails.items():
        size = watched.block_sizes[group]
        valid, at = appended.start % size, appended.start // size
        table = watched.tables[appended.request][group]
        for copy in appended.copies:
            to_tail = copy.group == group and at < len(table) and copy.target == table[at]
            if to_tail and copy.source == tail and copy.num_slots < valid:
                message = f"{appended} copies {copy.num_slots} slots of block {tail}, of {valid} tokens"
                yield message, ("KV-BLOCK-025",)

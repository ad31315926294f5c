"""A node of a radix tree: a run of blocks, what they hold, who needs them, and where a walk ends.

The path from a root to a node spells a prefix, one content a block. A node with `locks` > 0 is held, and so
is every node above it: `locks` counts the holders of the whole subtree, `held` those of this node alone.

Realises: KV-PREFIX-003 hit-on-grid, KV-PREFIX-004 hit-contiguous.
For porters: a split makes the upper half new, so that whoever holds the node still holds its end.
Source: SGLang's TreeNode (radix_cache.py, 0.5.23), counted in blocks instead of tokens.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

#: What one block holds; equal bytes, equal contents.
Content = bytes


class Node:
    """A run of blocks below its parent; a root has none, and a name: its namespace."""

    __slots__ = (
        "blocks",
        "children",
        "contents",
        "created",
        "end",
        "held",
        "last_access",
        "locks",
        "name",
        "parent",
        "priority",
        "uses",
    )

    def __init__(self, parent: "Node | None", contents: list[Content], blocks: list[int], now: int) -> None:
        self.parent = parent
        self.name = b""
        self.contents, self.blocks = contents, blocks
        self.children: dict[Content, Node] = {}
        self.end = len(blocks)  # in blocks from the root on
        self.locks = self.held = 0
        self.last_access = self.created = now
        self.uses = self.priority = 0
        if parent:
            self.end += parent.end
            parent.children[contents[0]] = self

    @property
    def start(self) -> int:
        """Where its first block stands, counted from the root."""
        return self.end - len(self.blocks)

    def path(self) -> Iterator["Node"]:
        """Yield this node and all above it, the root last."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def below(self) -> Iterator["Node"]:
        """Yield every node of the subtree, this one first and each before its children."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += reversed(node.children.values())

    def prefix(self) -> list[int]:
        """List the blocks from the root to the end of this node."""
        runs = [node.blocks for node in self.path()]
        return [block for run in reversed(runs) for block in run]

    def others(self, blocks: Sequence[int], first: int, stop: int) -> list[int]:
        """List those of `blocks` that are not this path's, from block `first` to below `stop`."""
        others: list[list[int]] = []
        for node in takewhile(lambda node: node.start >= first, self.path()):
            given = blocks[node.start : min(node.end, stop)]
            if node.blocks != given:
                others.append([a for a, b in zip(given, node.blocks, strict=False) if a != b])
        return [block for run in reversed(others) for block in run]

    def common(self, contents: Sequence[Content]) -> int:
        """How many of its blocks hold what `contents` does from the node's start on."""
        own, start = self.contents, self.start
        most = min(len(own), len(contents) - start)
        if own[:most] == contents[start : start + most]:
            return most
        same, other = 0, most  # the first `same` agree, the first `other` do not
        while other - same > 1:
            middle = (same + other) // 2
            if own[same:middle] == contents[start + same : start + middle]:
                same = middle
            else:
                other = middle
        return same

    def split(self, inside: int, now: int) -> "Node":
        """Put a new node above this one that takes its first `inside` blocks, and return it."""
        assert self.parent is not None
        assert 0 < inside < len(self.blocks)
        upper = Node(self.parent, self.contents[:inside], self.blocks[:inside], now)
        upper.locks, upper.uses, upper.priority = self.locks, self.uses, self.priority
        self.parent, self.contents, self.blocks = upper, self.contents[inside:], self.blocks[inside:]
        upper.children[self.contents[0]] = self
        return upper

    def lengthen(self, contents: Sequence[Content], blocks: Sequence[int]) -> None:
        """Put blocks behind its last one."""
        assert not self.children
        self.contents += contents
        self.blocks += blocks
        self.end += len(blocks)

    def cut(self, most: int) -> list[int]:
        """Take up to `most` blocks off its end, the last first, and with its first block the node itself."""
        assert not self.children
        assert self.parent is not None
        kept = max(len(self.blocks) - most, 0)
        victims = self.blocks[kept:]
        if not kept:
            del self.parent.children[self.contents[0]]
            self.parent = None
        del self.blocks[kept:], self.contents[kept:]
        self.end -= len(victims)
        return victims[::-1]


class Found(NamedTuple):
    """Where the longest cached prefix ends, in a tree that has not changed since."""

    name: bytes
    """The namespace."""
    node: Node | None
    """The deepest node it enters; None if the namespace holds nothing."""
    inside: int
    """How many of that node's blocks belong to it."""
    num_blocks: int

    @classmethod
    def below(cls, name: bytes, start: Node | None, contents: Sequence[Content]) -> "Found":
        """Walk on from a node that `contents` is known to pass."""
        node, inside, stop = start, len(start.blocks) if start else 0, len(contents)
        while node and node.end < stop and inside == len(node.blocks):
            child = node.children.get(contents[node.end])
            if child is None:
                break
            node, inside = child, child.common(contents)
        return cls(name, node, inside, node.start + inside if node else 0)


class Match(NamedTuple):
    """A cached prefix: its blocks from the root on, and the node that ends where it does."""

    num_blocks: int
    blocks: list[int]
    node: Node


class Inserted(NamedTuple):
    """What became of a prefix: the node that ends where it does, and what the tree did not take."""

    num_present: int
    """How many of its blocks the tree held before."""
    duplicates: list[int]
    """The caller's copies of those, to be freed by the caller."""
    node: Node

"""What holds in a radix tree between any two operations.

Counts are made anew from the nodes, so that a count kept in passing is held against one that is not.

Realises: KV-PREFIX-022 prefix-counts, KV-PREFIX-023 leaf-first.
For porters: build these checks with the tree, and call them after every operation of a random run.
Source: invariants D1 to D7 of radix trees: unequal first blocks, one block one place, locks of a subtree,
evictable and protected.
"""

from collections.abc import Mapping, Set

from kvref.memory.radix_leaves import Leaves
from kvref.memory.radix_node import Node


def check_tree(
    roots: Mapping[bytes, Node], owned: Set[int], leaves: Leaves, num_evictable: int, num_protected: int
) -> None:
    """Assert that a tree's nodes agree with each other and with its counts."""
    every = [node for root in roots.values() for node in root.below()]
    blocks = [block for node in every for block in node.blocks]
    assert len(blocks) == len(set(blocks)), "a block is in the tree twice"
    assert set(blocks) == owned, "the tree owns blocks that no node has, or the other way round"
    assert sum(len(node.blocks) for node in every if node.locks) == num_protected, "protected is miscounted"
    assert sum(len(node.blocks) for node in every if not node.locks) == num_evictable, (
        "evictable is miscounted"
    )
    for name, root in roots.items():
        assert root.name == name, "a root stands under another's name"
        assert root.parent is None, "a root has a parent"
        assert not root.blocks, "a root has blocks"
    for node in every:
        _check_node(node)
        evictable = not node.children and not node.locks and node.parent is not None
        assert (node in leaves) == evictable, "the leaves that nobody holds are others"
    leaves.check_invariants()


def _check_node(node: Node) -> None:
    assert len(node.contents) == len(node.blocks), "a node has not one block a content"
    assert node.blocks or node.parent is None, "a node is empty"
    assert node.end == len(node.blocks) + (node.parent.end if node.parent else 0), "a node ends elsewhere"
    assert node.held >= 0, "a node is held less often than never"
    assert node.locks == node.held + sum(child.locks for child in node.children.values()), (
        "locks do not add up"
    )
    for first, child in node.children.items():
        assert child.parent is node, "a child has another parent"
        assert child.contents[0] == first, "a child is not found by its first block"

"""What a radix tree is given, checked before anything in it changes.

A prefix that was found stands for a place in the tree. Whoever lets the tree change in between and then takes
it would read blocks that have gone to others, so the place is looked at again.

Realises: KV-PREFIX-017 evicted-not-hit.
For porters: in a language without references to nodes, a number that every change of the tree raises will do.
Source: the definition.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any

from kvref.errors import ArgumentError, OwnershipError, shown
from kvref.memory.radix_node import Content, Found, Node


def as_contents(contents: Any) -> list[Content]:
    """Return what blocks hold as a list.

    Raises: ArgumentError if it is no list, nor anything else that has an order and a length.
    """
    if isinstance(contents, list):
        return contents
    if not isinstance(contents, Sequence) or isinstance(contents, str | bytes | bytearray):
        raise ArgumentError(f"contents = {shown(contents)}, expected a list of what each block holds")
    return list(contents)


def check_found(found: Any, roots: Mapping[bytes, Node]) -> None:
    """Check that a prefix that was found still ends where it did.

    Raises: OwnershipError; ArgumentError if it is no such prefix.
    """
    if not isinstance(found, Found):
        raise ArgumentError(f"found = {shown(found)}, expected what `find` has returned")
    node = found.node
    if node is None:
        same = found.name not in roots
    else:
        same = _is_here(node, roots) and found.inside <= len(node.blocks)
        same = same and node.start + found.inside == found.num_blocks
    if not same:
        raise OwnershipError(
            f"found has {found.num_blocks} blocks of a tree that has changed, expected a prefix found now"
        )


def check_here(node: Any, roots: Mapping[bytes, Node]) -> None:
    """Check that a node is in the tree.

    Raises: OwnershipError; ArgumentError if it is no node.
    """
    if not isinstance(node, Node):
        raise ArgumentError(f"node = {shown(node)}, expected a node of this tree")
    if not _is_here(node, roots):
        raise OwnershipError(f"node ends at block {node.end}, expected a node of this tree")


def check_new(blocks: Sequence[int], owned: Set[int]) -> None:
    """Check that the tree has none of these blocks, and that none is named twice.

    Raises: OwnershipError.
    """
    if len(set(blocks)) < len(blocks) or not owned.isdisjoint(blocks):
        twice = next(b for at, b in enumerate(blocks) if b in owned or b in blocks[:at])
        raise OwnershipError(f"blocks names block {shown(twice)}, expected a block that is not in the tree")


def _is_here(node: Node, roots: Mapping[bytes, Node]) -> bool:
    root = node
    while root.parent is not None:
        root = root.parent
    return roots.get(root.name) is root

"""A radix tree over blocks: which prefixes are cached, in which blocks, and which of them may go.

A request is the list of what its full blocks hold (`contents.py`), and a node is a run of blocks. Runs split
between blocks and nowhere else, so a match ends on the grid, and what it compares is the contents themselves:
no digest is trusted. Each namespace has a root of its own, and no path leads from one to another.

    match    the longest cached prefix; the node it ends in is split there, and its path is used now
    insert   what is not there yet becomes one new leaf; what was there already is the caller's to free
    lock     holds a node and every node above it, until it is unlocked
    evict    takes leaves that nobody holds (or blocks off their ends) until there are enough

The tree owns the blocks that are in it and no others. Evicted ones are returned; the caller frees them. In
blocks, `num_evictable` + `num_protected` = `num_blocks` after every operation, and all that is evictable can
be evicted: who holds a node holds all above it, so what nobody holds is always below.

Realises: KV-PREFIX-001 hit-own-prefix, KV-PREFIX-003 hit-on-grid, KV-PREFIX-004 hit-contiguous, KV-PREFIX-016
held-not-evicted, KV-PREFIX-017 evicted-not-hit, KV-PREFIX-023 leaf-first, KV-PREFIX-034 weak-hash-verified.
For porters: build `find`, then `insert` with its split, then locks. A split must leave both halves locked,
counted once, and reachable by the first block of each; its lower half stays the node that others hold.
Source: SGLang's RadixAttention (Zheng et al. 2024) and its radix_cache.py (0.5.23), counted in blocks.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from kvref.arrays import check_count, check_flag
from kvref.errors import ArgumentError, OwnershipError
from kvref.memory.ids import as_ids
from kvref.memory.namespace import COMMON, Namespace, check_namespace, written
from kvref.memory.radix_arguments import as_contents, check_found, check_here, check_new
from kvref.memory.radix_checks import check_tree
from kvref.memory.radix_leaves import Leaves
from kvref.memory.radix_node import Content, Found, Inserted, Match, Node
from kvref.memory.radix_policies import Policy, policy_of


class RadixTree:
    """Cached prefixes, and the blocks they are in.

    `policy` is the order of eviction. With `whole_nodes`, a leaf goes as a whole even if fewer blocks would
    do; with `split_renews`, a walk that ends inside a node accesses all of it.
    Raises: ArgumentError if the policy is unknown.
    """

    def __init__(
        self, policy: Policy | str = "lru", *, whole_nodes: bool = False, split_renews: bool = False
    ) -> None:
        self.policy = policy_of(policy)
        self.whole_nodes = check_flag("whole_nodes", whole_nodes)
        self.split_renews = check_flag("split_renews", split_renews)
        self.num_evictable = self.num_protected = 0
        self._owned: set[int] = set()
        self._roots: dict[bytes, Node] = {}
        self._leaves = Leaves(self.policy)
        self._now = 0

    @property
    def num_blocks(self) -> int:
        """How many blocks the tree owns."""
        return len(self._owned)

    def find(self, contents: Sequence[Content], namespace: Namespace = COMMON) -> Found:
        """Find the longest cached prefix, and change nothing.

        Raises: ArgumentError if `contents` is no list.
        """
        name = written(check_namespace(namespace))
        return Found.below(name, self._roots.get(name), as_contents(contents))

    def num_takeable(self, found: Found) -> int:
        """How many blocks of a prefix found are evictable now, and are not once it is locked."""
        if not found.node or found.node.locks:
            return 0
        idle = sum(len(node.blocks) for node in takewhile(lambda node: not node.locks, found.node.path()))
        return idle - len(found.node.blocks) + found.inside

    def take(self, found: Found) -> Match:
        """Use a prefix found: let it end with a node, and access its path now.

        A namespace met for the first time gets a root. It goes with the last lock or block below it.
        Raises: OwnershipError if the tree has changed there since; ArgumentError.
        """
        check_found(found, self._roots)
        node = self._accessed(found)
        self._settle(node)
        return Match(found.num_blocks, node.prefix(), node)

    def match(self, contents: Sequence[Content], namespace: Namespace = COMMON) -> Match:
        """Find the longest cached prefix, and use it now."""
        return self.take(self.find(contents, namespace))

    def access(self, node: Node) -> None:
        """Access the path of a node now.

        Raises: OwnershipError if the node is not in this tree, or no more.
        """
        check_here(node, self._roots)
        now = self._tick()
        for passed in node.path():
            passed.last_access = now
        self._settle(node)

    def insert(
        self,
        contents: Sequence[Content],
        blocks: Sequence[int],
        namespace: Namespace = COMMON,
        *,
        below: Node | None = None,
        priority: int = 0,
        counted: int = 0,
        grow: bool = False,
    ) -> Inserted:
        """Put a prefix in: the tree takes the blocks of which it has no copy, as one new leaf.

        The walk begins at `below`, a locked node that the prefix is known to pass, or at the root. Nodes of
        the path that end behind `counted` blocks are used once more. With `grow`, a leaf `below` that only
        its one holder needs becomes longer and gets no child.
        Raises: ArgumentError if there are not as many blocks as contents, or the prefix ends before `below`;
        OwnershipError if nobody holds `below`, or the tree has a block that it is given, or a block is given
        twice. Nothing has changed then.
        """
        if below is not None:
            self._check_held(below)
        first = below.end if below else 0
        contents, blocks = as_contents(contents), as_ids("blocks", blocks)
        rank, used = check_count("priority", priority, minimum=0), check_count("counted", counted, minimum=0)
        if len(blocks) != len(contents) or len(contents) < first:
            raise ArgumentError(
                f"blocks holds {len(blocks)} blocks for {len(contents)} contents, "
                f"expected one for each, and at least {first}"
            )
        found = Found.below(b"", below, contents) if below else self.find(contents, namespace)
        rest = slice(found.num_blocks, None)
        duplicates = found.node.others(blocks, first, found.num_blocks) if found.node else []
        check_new(duplicates + blocks[rest] if duplicates else blocks[rest], self._owned)
        node = self._accessed(found)
        for passed in node.path():
            passed.priority = max(passed.priority, rank)
            passed.uses += passed.end > used
        if found.num_blocks == len(contents):
            self._settle(node)
        elif grow and node is below and node.parent and node.locks == 1 and not node.children:
            self._lengthen(node, contents[rest], blocks[rest])
        else:
            node = self._add(node, contents[rest], blocks[rest], rank)
        return Inserted(found.num_blocks, duplicates, node)

    def lock(self, node: Node) -> None:
        """Hold a node and all above it: none is evicted before it is unlocked as often.

        Raises: OwnershipError if the node is not in this tree, or no more.
        """
        check_here(node, self._roots)
        node.held += 1
        self._count_locks(node.path(), 1)
        self._settle(node)

    def unlock(self, node: Node) -> None:
        """Take back one lock of a node.

        Raises: OwnershipError if nobody holds this very node, or it is not in this tree.
        """
        self._check_held(node)
        node.held -= 1
        self._count_locks(node.path(), -1)
        self._settle(node)
        self._drop(node)

    def move_lock(self, node: Node, deeper: Node) -> None:
        """Take back one lock of a node and lock one below it; costs the nodes between them.

        Raises: OwnershipError if nobody holds `node`; ArgumentError if `deeper` is not below it.
        """
        self._check_held(node)
        between = list(takewhile(lambda passed: passed is not node, deeper.path()))
        if between and between[-1].parent is not node:
            raise ArgumentError(f"deeper ends at block {deeper.end}, expected a node below `node`")
        node.held -= 1
        deeper.held += 1
        self._count_locks(between, 1)
        self._settle(deeper)

    def evict(self, num_blocks: int) -> list[int]:
        """Take out at least this many blocks, or all that nobody holds, and return them in order.

        The first leaf under the policy goes, its last block first, then the next leaf; a parent that has lost
        its last child is one.
        Raises: ArgumentError if the number is no count.
        """
        wanted = check_count("num_blocks", num_blocks, minimum=0)
        victims: list[int] = []
        while len(victims) < wanted and (leaf := self._leaves.first()):
            victims += self._cut(leaf, len(leaf.blocks) if self.whole_nodes else wanted - len(victims))
        return victims

    def clear(self) -> list[int]:
        """Forget every prefix, and return the blocks the tree owned.

        Raises: OwnershipError if a node is held (KV-PREFIX-015 reset-forgets).
        """
        locks = sum(root.locks for root in self._roots.values())
        if locks:
            raise OwnershipError(f"the tree has {locks} locks, expected none (KV-PREFIX-015 reset-forgets)")
        blocks = self.evict(len(self._owned))
        self._roots.clear()
        return blocks

    def nodes(self) -> Iterator[Node]:
        """Yield every node but the roots, each before its children, the oldest namespace first."""
        return (node for root in self._roots.values() for node in root.below() if node is not root)

    def check_invariants(self) -> None:
        """Assert what holds between any two operations; costs time in the size of the tree."""
        check_tree(self._roots, self._owned, self._leaves, self.num_evictable, self.num_protected)

    def _accessed(self, found: Found) -> Node:
        """Return the node a prefix ends with, split off if it must be, its path accessed now."""
        now, node = self._tick(), found.node
        if node is None:
            node = self._roots[found.name] = Node(None, [], [], now)
            node.name = found.name
        elif found.inside < len(node.blocks):
            lower, node = node, node.split(found.inside, self._tick())
            lower.last_access = now if self.split_renews else lower.last_access
            self._settle(lower)
        for passed in node.path():
            passed.last_access = now
        return node

    def _add(self, parent: Node, contents: Sequence[Content], blocks: Sequence[int], priority: int) -> Node:
        leaf = Node(parent, list(contents), list(blocks), self._tick())
        leaf.uses, leaf.priority = 1, priority
        self._owned.update(blocks)
        self.num_evictable += len(blocks)
        self._settle(parent)
        self._settle(leaf)
        return leaf

    def _lengthen(self, leaf: Node, contents: Sequence[Content], blocks: Sequence[int]) -> None:
        leaf.lengthen(contents, blocks)
        self._owned.update(blocks)
        self.num_protected += len(blocks)

    def _cut(self, leaf: Node, most: int) -> list[int]:
        parent, victims = leaf.parent, leaf.cut(most)
        assert parent is not None
        self._owned.difference_update(victims)
        self.num_evictable -= len(victims)
        if not leaf.blocks:
            self._leaves.remove(leaf)
            self._settle(parent)
            self._drop(parent)
        return victims

    def _count_locks(self, path: Iterable[Node], change: int) -> None:
        for node in path:
            was, node.locks = node.locks, node.locks + change
            if not was or not node.locks:
                moved = len(node.blocks) if node.locks else -len(node.blocks)
                self.num_protected += moved
                self.num_evictable -= moved

    def _settle(self, node: Node) -> None:
        """Let a node stand among the leaves that nobody holds, where its key belongs, or not."""
        if node.locks or node.children:
            self._leaves.remove(node)
        elif node.parent:
            self._leaves.put(node)

    def _drop(self, root: Node) -> None:
        """Let a root go that nobody needs."""
        if not (root.parent or root.children or root.locks):
            self._roots.pop(root.name, None)

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def _check_held(self, node: Node) -> None:
        check_here(node, self._roots)
        if not node.held:
            raise OwnershipError(f"node has {node.held} locks of its own, expected at least 1")

"""The leaves of a radix tree that nobody holds, first to be evicted first.

A heap of (key, creation, node). A leaf whose key changes is put in once more, and the entry it had before is
passed over when it comes up; when most entries are such, the heap is built anew. So finding a victim costs
the logarithm of the number of leaves, and never a look at all of them.

Realises: KV-PREFIX-023 leaf-first, KV-PREFIX-024 eviction-order.
For porters: an ordered set does as well; what must not happen is a sort of all leaves at every eviction.
Source: the definition; lazy deletion from a binary heap is folklore.
"""

import heapq

from kvref.memory.radix_node import Node
from kvref.memory.radix_policies import Key, Policy

#: Entries passed over may be this many, and as many as the leaves themselves, before the heap is built anew.
_SLACK = 64

Entry = tuple[Key, int, Node]


class Leaves:
    """Nodes in the order of a policy's keys; ties go in the order of creation."""

    def __init__(self, policy: Policy) -> None:
        self._key = policy.key
        self._heap: list[Entry] = []
        self._current: dict[Node, Entry] = {}

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, node: Node) -> bool:
        return node in self._current

    def put(self, node: Node) -> None:
        """Put a leaf in, or where its key belongs by now."""
        entry = (self._key(node), node.created, node)
        self._current[node] = entry
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._current) + _SLACK:
            self._heap = list(self._current.values())
            heapq.heapify(self._heap)

    def remove(self, node: Node) -> None:
        """Take a node out, if it is in: it is held, has a child, or is gone."""
        self._current.pop(node, None)

    def first(self) -> Node | None:
        """The leaf with the smallest key, or None if there is no leaf that nobody holds."""
        while self._heap:
            entry = self._heap[0]
            if self._current.get(entry[2]) is entry:
                return entry[2]
            heapq.heappop(self._heap)
        return None

    def clear(self) -> None:
        """Forget every leaf."""
        self._heap.clear()
        self._current.clear()

    def check_invariants(self) -> None:
        """Assert that every leaf stands in the heap under the key it has now."""
        entries = {id(entry) for entry in self._heap}
        for node, entry in self._current.items():
            assert id(entry) in entries, "a leaf is not in the heap"
            assert entry[0] == self._key(node), "a leaf stands under an old key"

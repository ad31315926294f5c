"""SGLang's tree of hybrid prefixes: runs of tokens whose nodes may hold the state after their last token.

A node is a run of tokens and the slots of their keys and values. It may own one state, which is the state
after its last token and after no other, so a node that is split leaves its state with the lower half. A match
walks as far as the tokens agree and comes back to the deepest node with a state; slots behind it are known
and not used.

Slots and states age in two lists of their own. Evicting slots takes leaves whole, with the state each holds.
Evicting states takes the state of any node; one with children stays as a tombstone, a leaf goes whole. A leaf
always has a state: whoever deletes one deletes the tombstones above it that have no other child.

The tree owns the slots and states that are in it. Evicted ones are returned; the caller frees them.

Realises: KV-SNAP-002 snapshot-exact-position, KV-SNAP-003 hit-in-every-group, KV-SNAP-005 restore-copies,
KV-SNAP-012 tombstone-keeps-kv, KV-SNAP-013 junction-snapshot.
For porters: `kvref.memory.snapshot_cache` is the canonical cache; this tree is for comparing with SGLang. Who
restores a matched state locks its node, copies the state into a slot of its own, and unlocks.
Source: SGLang 0.5.6, srt/mem_cache/mamba_radix_cache.py (blocks of one token); branching positions of 0.5.23.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvref.arrays import check_count
from kvref.errors import ArgumentError, OwnershipError, shown
from kvref.memory.ids import as_ids


class StateNode:
    """A run of tokens below its parent; the root has no parent and no tokens."""

    __slots__ = ("children", "locks", "parent", "slots", "state", "state_locks", "tokens")

    def __init__(self, parent: "StateNode | None", tokens: list[int], slots: list[int]) -> None:
        self.parent, self.tokens, self.slots = parent, tokens, slots
        self.children: dict[int, StateNode] = {}
        self.state: int | None = None
        self.locks = self.state_locks = 0
        if parent:
            parent.children[tokens[0]] = self

    def path(self) -> "list[StateNode]":
        """List the nodes from below the root to this one."""
        found: list[StateNode] = []
        node: StateNode | None = self
        while node and node.parent:
            found.append(node)
            node = node.parent
        return found[::-1]

    def agreeing(self, tokens: Sequence[int], at: int) -> int:
        """Count its first tokens that a prompt has from position `at` on."""
        pairs = zip(self.tokens, tokens[at:], strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(self.tokens), len(tokens) - at))


class StateMatch(NamedTuple):
    """A prefix that has slots and a state: its slots, the state after it, and the node that owns the state.

    `known_tokens` is how far the slots alone go; the state is None and the node the root if nothing is hit.
    """

    slots: list[int]
    state: int | None
    node: StateNode
    known_tokens: int

    def branching(self, grid: int) -> int:
        """Return where the next prefill should save a state, on a grid; 0 if nowhere."""
        at = self.known_tokens // grid * grid
        return at if at > len(self.slots) else 0


class StateInsertion(NamedTuple):
    """How many tokens were known, so that their slots are the caller's to free, and whether the state was."""

    known_tokens: int
    state_known: bool


class Evicted(NamedTuple):
    """What the tree owns no more."""

    slots: list[int]
    states: list[int]


class SnapshotTree:
    """Prefixes of one namespace, and the slots and states they own."""

    def __init__(self) -> None:
        self.root = StateNode(None, [], [])
        self._nodes: OrderedDict[StateNode, None] = OrderedDict()  # the one used longest ago first
        self._states: OrderedDict[StateNode, None] = OrderedDict()  # those of them that hold a state

    def match(self, tokens: Sequence[int]) -> StateMatch:
        """Find the deepest node with a state on the path of a prompt, and use its path now.

        A path that ends inside a node splits it there. Raises: ArgumentError if a token is no integer.
        """
        last, known = self._walk(as_ids("tokens", tokens))
        best = self.root
        for node in last.path():
            best = best if node.state is None else node
        for node in best.path():
            self._use(node)
        slots = [slot for node in best.path() for slot in node.slots]
        return StateMatch(slots, best.state, best, known)

    def insert(self, tokens: Sequence[int], slots: Sequence[int], state: int) -> StateInsertion:
        """Put a prefix and the state after it in; the tree takes the slots it has none for, and the state.

        A state it has already stays, and the given one is the caller's to free.
        Raises: ArgumentError if there are not as many slots as tokens, or no token, or the state is no slot.
        """
        own, given = as_ids("tokens", tokens), as_ids("slots", slots)
        new_state = check_count("state", state, minimum=0)
        if not own or len(own) != len(given):
            raise ArgumentError(
                f"slots holds {len(given)} slots for {len(own)} tokens, expected one for each"
            )
        node, known = self._walk(own, use=True)
        if known < len(own):
            node = StateNode(node, own[known:], given[known:])
            self._nodes[node] = None
        self._nodes.move_to_end(node)
        if node.state is not None:
            self._states.move_to_end(node)
            return StateInsertion(known, True)
        node.state = new_state
        self._states[node] = None
        return StateInsertion(known, False)

    def lock(self, node: StateNode) -> None:
        """Keep a node, all above it, and its own state until it is unlocked as often.

        Raises: ArgumentError if it is no node of the tree.
        """
        self._check_node(node)
        node.state_locks += node.state is not None
        for passed in node.path():
            passed.locks += 1

    def unlock(self, node: StateNode) -> None:
        """Take back one lock of a node.

        Raises: OwnershipError if it is not locked; ArgumentError if it is no node of the tree.
        """
        self._check_node(node)
        if node.parent and not node.locks:
            raise OwnershipError("node has 0 locks, expected at least 1")
        node.state_locks -= node.state is not None
        for passed in node.path():
            passed.locks -= 1

    def evict(self, num_tokens: int) -> Evicted:
        """Take out leaves that nobody holds, the one used longest ago first, until so many slots are."""
        wanted, gone = check_count("num_tokens", num_tokens, minimum=0), Evicted([], [])
        while len(gone.slots) < wanted and (leaf := self._oldest_leaf()):
            self._remove_leaf(leaf, gone)
        return gone

    def evict_states(self, num_states: int) -> Evicted:
        """Take out states that nobody holds, the one used longest ago first, until there are so many."""
        wanted, gone = check_count("num_states", num_states, minimum=0), Evicted([], [])
        while len(gone.states) < wanted and (node := self._oldest_state()):
            if node.children:
                self._take_state(node, gone)
            else:
                self._remove_leaf(node, gone)
        return gone

    def nodes(self) -> Iterator[StateNode]:
        """Yield every node but the root, the one used longest ago first."""
        return iter(self._nodes)

    def check_invariants(self) -> None:
        """Assert what holds between any two operations."""
        found, stack = set(), list(self.root.children.values())
        while stack:
            node = stack.pop()
            found.add(node)
            stack += node.children.values()
            assert len(node.tokens) == len(node.slots) > 0, "a run has not one slot a token"
            assert node.children or node.state is not None, "a leaf has no state"
            parent = node.parent or node
            assert parent.children.get(node.tokens[0]) is node, "a node is not its parent's"
            assert node.locks >= sum(child.locks for child in node.children.values()), "a lock is lost above"
            assert node.locks >= node.state_locks >= 0, "a state is held and its slots are not"
        assert found == set(self._nodes), "a node has no age"
        assert {node for node in found if node.state is not None} == set(self._states), "a state has no age"
        slots = [slot for node in found for slot in node.slots]
        states = [node.state for node in found if node.state is not None]
        assert len(set(slots)) == len(slots), "a slot is owned twice"
        assert len(set(states)) == len(states), "a state is owned twice"

    def _check_node(self, node: StateNode) -> None:
        if node is not self.root and not (isinstance(node, StateNode) and node in self._nodes):
            raise ArgumentError(f"node = {shown(node)}, expected a node of this tree")

    def _walk(self, tokens: Sequence[int], *, use: bool = False) -> tuple[StateNode, int]:
        """Return the last node that a prompt agrees with, split off if it must be, and how many tokens do."""
        node, at = self.root, 0
        while at < len(tokens) and tokens[at] in node.children:
            node = node.children[tokens[at]]
            if use:
                self._use(node)
            count = node.agreeing(tokens, at)
            at += count
            if count < len(node.tokens):
                return self._split(node, count), at
        return node, at

    def _split(self, node: StateNode, count: int) -> StateNode:
        """Cut a run in two; the upper one is new, has no state, and both are used now, the lower one last."""
        assert node.parent
        upper = StateNode(node.parent, node.tokens[:count], node.slots[:count])
        upper.locks = node.locks
        node.parent, node.tokens, node.slots = upper, node.tokens[count:], node.slots[count:]
        upper.children[node.tokens[0]] = node
        self._nodes[upper] = None
        self._use(node)
        return upper

    def _use(self, node: StateNode) -> None:
        self._nodes.move_to_end(node)
        if node in self._states:
            self._states.move_to_end(node)

    def _oldest_leaf(self) -> StateNode | None:
        return next((node for node in self._nodes if not node.locks and not node.children), None)

    def _oldest_state(self) -> StateNode | None:
        return next((node for node in self._states if not node.state_locks), None)

    def _remove_leaf(self, leaf: StateNode, gone: Evicted) -> None:
        """Take a leaf out, and the tombstones above it that have no other child."""
        node: StateNode = leaf
        while True:
            if node.state is not None:
                self._take_state(node, gone)
            gone.slots.extend(node.slots)
            del self._nodes[node]
            assert node.parent
            del node.parent.children[node.tokens[0]]
            node = node.parent
            if not node.parent or node.children or node.locks or node.state is not None:
                return

    def _take_state(self, node: StateNode, gone: Evicted) -> None:
        assert node.state is not None
        gone.states.append(node.state)
        node.state = None
        del self._states[node]

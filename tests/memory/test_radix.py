"""A radix tree: what it finds, where it splits, who holds what, and what may go."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from memory.graphs import graph_of
from memory.sglang import sglang_runs

from kvref.errors import ArgumentError, KVError, OwnershipError
from kvref.memory.namespace import Namespace, Span
from kvref.memory.radix import RadixTree
from kvref.memory.radix_contents import block_contents
from kvref.memory.radix_node import Inserted, Node
from kvref.memory.radix_policies import POLICIES


def held(text: str) -> list[bytes]:
    """Contents, one block a letter."""
    return [letter.encode() for letter in text]


def put(tree: RadixTree, text: str, first: int, **how: Any) -> Inserted:
    """Insert a text in blocks from `first` on."""
    return tree.insert(held(text), range(first, first + len(text)), **how)


def drawn(tree: RadixTree) -> dict[str, list[int]]:
    """Every node as its path, and its blocks."""
    paths = {}
    for node in tree.nodes():
        runs = [b"".join(above.contents).decode() for above in node.path()]
        paths["/".join(filter(None, reversed(runs)))] = node.blocks
    return paths


def test_second_prefix_splits_the_first() -> None:
    """Both halves are found, and no block is in two nodes."""
    tree = RadixTree()
    assert put(tree, "abcdef", 0)[:2] == (0, [])
    assert put(tree, "abcx", 10)[:2] == (3, [10, 11, 12])
    assert drawn(tree) == {"abc": [0, 1, 2], "abc/def": [3, 4, 5], "abc/x": [13]}
    assert tree.match(held("abcdefg")).blocks == [0, 1, 2, 3, 4, 5]
    assert tree.match(held("abcxe")).blocks == [0, 1, 2, 13]
    tree.check_invariants()


def test_match_splits_where_it_ends() -> None:
    """So that a lock covers what was matched and nothing behind it (sglang#508 of a fork, M121)."""
    tree = RadixTree()
    put(tree, "abcd", 0)
    match = tree.match(held("abx"))
    assert (match.num_blocks, match.blocks) == (2, [0, 1])
    tree.lock(match.node)
    assert drawn(tree) == {"ab": [0, 1], "ab/cd": [2, 3]}
    assert (tree.num_protected, tree.num_evictable) == (2, 2)
    put(tree, "aby", 10)
    tree.unlock(match.node)
    assert (tree.num_protected, tree.num_evictable) == (0, 5)
    assert sorted(tree.evict(5)) == [0, 1, 2, 3, 12]


def test_lookup_changes_nothing() -> None:
    """A refused admission looks up and leaves: no split, no use, no root for an unknown namespace."""
    tree = RadixTree()
    put(tree, "abcd", 0)
    before = graph_of(tree)
    found = tree.find(held("abx"))
    assert (found.num_blocks, found.inside) == (2, 2)
    assert tree.find(held("abx"), Namespace(salt="s")).num_blocks == 0
    assert graph_of(tree) == before


@pytest.mark.parametrize("text", ["", "q"])
def test_nothing_found_is_the_root(text: str) -> None:
    """An empty prefix and an unknown one end at the root, which has no blocks and is not evicted."""
    tree = RadixTree()
    put(tree, "abc", 0)
    match = tree.match(held(text))
    assert (match.num_blocks, match.blocks, match.node.parent) == (0, [], None)
    tree.lock(match.node)
    assert (tree.num_protected, tree.evict(9)) == (0, [2, 1, 0])
    tree.unlock(match.node)


def test_empty_prefix_makes_no_node() -> None:
    """Of a request shorter than a block nothing is inserted (sglang#10637, #28692, #35821)."""
    tree = RadixTree()
    assert put(tree, "", 0)[:2] == (0, [])
    assert drawn(tree) == {}
    tree.check_invariants()


def test_insertion_again_adds_nothing() -> None:
    """Everything the caller brings is a duplicate; its own blocks, once in the tree, are none."""
    tree = RadixTree()
    first = put(tree, "abc", 0)
    again = put(tree, "abc", 10)
    assert again[:2] == (3, [10, 11, 12])
    assert put(tree, "abc", 0) == Inserted(3, [], first.node)
    assert (tree.num_blocks, tree.num_evictable) == (3, 3)


def test_only_copies_are_duplicates() -> None:
    """The part of a prefix that was hit is the tree's; what another request added meanwhile is not."""
    tree = RadixTree()
    hit = put(tree, "ab", 0).node
    tree.lock(hit)
    put(tree, "abcd", 10)
    inserted = tree.insert(held("abcde"), [0, 1, 20, 21, 22], below=hit)
    assert inserted[:2] == (4, [20, 21])
    assert inserted.node.prefix() == [0, 1, 12, 13, 22]


def test_split_leaves_both_halves_locked() -> None:
    """A lock taken before a split holds both halves, once, and its end stays the end (D4)."""
    tree = RadixTree()
    node = put(tree, "abcd", 0).node
    tree.lock(node)
    put(tree, "abx", 10)
    assert node.prefix() == [0, 1, 2, 3]
    assert (tree.num_protected, tree.num_evictable) == (4, 1)
    assert tree.evict(9) == [12]
    tree.unlock(node)
    assert (tree.num_protected, tree.num_evictable) == (0, 4)


def test_children_go_before_their_parent() -> None:
    """Whatever the order of use, a parent with a child is no victim (TensorRT-LLM#3735)."""
    tree = RadixTree()
    put(tree, "ab", 0)
    put(tree, "abcd", 10)
    put(tree, "abef", 20)
    tree.match(held("ab"))
    tree.match(held("abcd"))
    assert tree.evict(6) == [23, 22, 13, 12, 1, 0]


def test_leaf_loses_its_end_or_goes_whole() -> None:
    """One block is needed: a tree of blocks gives one, a tree of nodes the node."""
    for whole, victims in ((False, [3]), (True, [3, 2, 1, 0])):
        tree = RadixTree(whole_nodes=whole)
        put(tree, "abcd", 0)
        assert tree.evict(1) == victims
        assert tree.match(held("abcd")).num_blocks == 4 - len(victims)
        tree.check_invariants()


def test_eviction_ends_when_all_is_held() -> None:
    """What is held stays, and the answer is shorter than was asked for."""
    tree = RadixTree()
    put(tree, "ab", 0)
    tree.lock(put(tree, "cd", 10).node)
    assert tree.evict(5) == [1, 0]
    assert tree.evict(1) == []
    assert tree.evict(0) == []


def test_split_off_rest_keeps_its_age() -> None:
    """Only the prefix was used; the rest is as old as it was, unless renewed (sglang#24892, M261)."""
    for renews, victim in ((False, 3), (True, 10)):
        tree = RadixTree(split_renews=renews)
        put(tree, "abcd", 0)
        put(tree, "q", 10)
        tree.match(held("abx"))
        assert tree.evict(1) == [victim]


def test_locks_are_counted_by_node() -> None:
    """Two holders of one node; the holder of a deeper one does not stand for either."""
    tree = RadixTree()
    upper = put(tree, "ab", 0).node
    lower = put(tree, "abcd", 10).node
    tree.lock(upper)
    tree.lock(upper)
    tree.lock(lower)
    assert (upper.locks, upper.held, lower.locks) == (3, 2, 1)
    tree.unlock(upper)
    tree.unlock(upper)
    assert (tree.num_protected, tree.num_evictable) == (4, 0)
    with pytest.raises(OwnershipError, match="0 locks of its own"):
        tree.unlock(upper)
    tree.unlock(lower)
    assert tree.num_evictable == 4


def test_lock_moves_down() -> None:
    """It costs the nodes between, which are held now; above them nothing changes."""
    tree = RadixTree()
    upper = put(tree, "ab", 0).node
    put(tree, "abcd", 10)
    lower = put(tree, "abcdef", 20).node
    tree.lock(upper)
    tree.move_lock(upper, lower)
    assert (upper.locks, upper.held, lower.held, tree.num_protected) == (1, 0, 1, 6)
    tree.move_lock(lower, lower)
    assert (lower.held, tree.num_protected) == (1, 6)
    with pytest.raises(ArgumentError, match="below"):
        tree.move_lock(lower, upper)
    tree.unlock(lower)
    assert tree.num_protected == 0


def test_leaf_of_one_holder_grows() -> None:
    """Decoded tokens lengthen one node; a leaf that another holds, or that has a child, gets a child."""
    tree = RadixTree()
    leaf = put(tree, "ab", 0).node
    tree.lock(leaf)
    grown = tree.insert(held("abcd"), [0, 1, 2, 3], below=leaf, counted=2, grow=True)
    assert (grown.node, drawn(tree), leaf.uses) == (leaf, {"abcd": [0, 1, 2, 3]}, 1)
    assert tree.num_protected == 4
    tree.lock(leaf)
    child = tree.insert(held("abcde"), [0, 1, 2, 3, 4], below=leaf, counted=4, grow=True).node
    assert child is not leaf
    tree.unlock(leaf)
    tree.insert(held("abcdx"), [0, 1, 2, 3, 5], below=leaf, counted=4, grow=True)
    assert drawn(tree) == {"abcd": [0, 1, 2, 3], "abcd/e": [4], "abcd/x": [5]}
    tree.check_invariants()


def test_namespaces_share_nothing() -> None:
    """Equal tokens under two salts are two prefixes, and neither evicts into the other's (D12)."""
    tree = RadixTree()
    for first, space in ((0, Namespace(salt="a")), (10, Namespace(adapter="a")), (20, Namespace())):
        assert tree.match(held("ab"), space).num_blocks == 0
        put(tree, "ab", first, namespace=space)
    assert tree.match(held("ab"), Namespace(salt="a")).blocks == [0, 1]
    assert tree.match(held("ab"), Namespace(adapter="a")).blocks == [10, 11]
    assert tree.match(held("ab"), Namespace(salt="")).blocks == [20, 21]
    assert sorted(tree.clear()) == [0, 1, 10, 11, 20, 21]


def test_namespace_without_prefixes_is_forgotten() -> None:
    """A salt a tenant must not be a root a tenant for ever: who was there last takes it along."""
    tree = RadixTree()
    for salt in "ab":
        put(tree, "xy", 10 * (salt == "b"), namespace=Namespace(salt=salt))
    locked = tree.match(held("x"), Namespace(salt="a")).node
    tree.lock(locked)
    waiting = tree.match(held("x"), Namespace(salt="c")).node
    tree.lock(waiting)
    tree.evict(9)
    assert len(tree._roots) == 2
    tree.unlock(waiting)
    tree.unlock(locked)
    assert tree.evict(9) == [0]
    assert tree._roots == {}


def test_rest_of_a_node_is_no_part_of_what_is_taken() -> None:
    """A prefix takes its own blocks out of what can be evicted, and not those behind it."""
    tree = RadixTree()
    put(tree, "abcdef", 0)
    assert tree.num_takeable(tree.find(held("abx"))) == 2
    assert tree.num_takeable(tree.find(held("abcdef"))) == 6
    assert tree.num_takeable(tree.find(held("x"))) == 0
    tree.lock(tree.match(held("abc")).node)
    assert tree.num_takeable(tree.find(held("abcde"))) == 2
    assert tree.num_takeable(tree.find(held("ab"))) == 0


def test_contents_hold_the_rows_of_their_block() -> None:
    """A span concerns the blocks it lies in, by which of its rows lie where."""
    tokens = [7] * 12

    def contents(*spans: tuple[str, int, int], kind: str = "media") -> list[bytes]:
        listed = [Span(kind=kind, digest=d, offset=at, length=n) for d, at, n in spans]
        return block_contents(tokens, 4, Namespace(spans=tuple(listed)))

    plain = block_contents(tokens, 4)
    one = contents(("x", 4, 4))
    assert one[::2] == plain[::2]
    others = [contents(("y", 4, 4)), contents(("x", 4, 4), kind="embeddings")]
    others += [contents(*spans) for spans in ([("x", 5, 3)], [("x", 4, 3)], [("x", 2, 6)])]
    others.append(contents(("x", 4, 2), ("x", 6, 2)))
    assert len({second for _, second, _ in [plain, one, *others]}) == 8
    assert contents(("x", 2, 8))[1] == contents(("x", 2, 8), ("y", 10, 1))[1]


def test_refusals_change_nothing() -> None:
    """Nodes of another tree, evicted nodes, locks nobody has, blocks that are in the tree."""
    tree, other = RadixTree(), RadixTree()
    node = put(tree, "abc", 0).node
    gone = put(tree, "xy", 5).node
    tree.lock(node)
    tree.evict(9)
    foreign = put(other, "abc", 0).node
    before = graph_of(tree)
    refused: list[tuple[type[KVError], Any]] = [
        (OwnershipError, lambda: tree.lock(gone)),
        (OwnershipError, lambda: tree.lock(foreign)),
        (OwnershipError, lambda: tree.unlock(gone)),
        (OwnershipError, lambda: tree.unlock(foreign)),
        (OwnershipError, lambda: tree.access(gone)),
        (OwnershipError, lambda: tree.move_lock(foreign, node)),
        (ArgumentError, lambda: tree.move_lock(node, foreign)),
        (OwnershipError, lambda: put(tree, "xyz", 2)),
        (OwnershipError, lambda: tree.insert(held("xyz"), [7, 8, 7])),
        (ArgumentError, lambda: tree.insert(held("xyz"), [7, 8])),
        (ArgumentError, lambda: tree.insert(held("ab"), [0, 1], below=node)),
        (OwnershipError, lambda: tree.insert(held("xyz"), [7, 8, 9], below=gone)),
        (OwnershipError, lambda: tree.insert(held("abcd"), [0, 1, 2, 9], below=foreign)),
        (ArgumentError, lambda: tree.evict(-1)),
        (ArgumentError, lambda: tree.evict(1.5)),  # type: ignore[arg-type]
        (ArgumentError, lambda: tree.match(held("a"), "salt")),  # type: ignore[arg-type]
        (OwnershipError, tree.clear),
    ]
    for error, call in refused:
        with pytest.raises(error, match="expected"):
            call()
        assert graph_of(tree) == before
    for argument in ({"policy": "random"}, {"policy": 3}, {"whole_nodes": 1}, {"split_renews": None}):
        with pytest.raises(ArgumentError, match="expected"):
            RadixTree(**argument)


@pytest.mark.parametrize("run", sglang_runs("trees"), ids=lambda run: f"{run['policy']}-{run['size']}")
def test_sglang_answers_the_same(run: dict[str, Any]) -> None:
    """Operation by operation: lengths of matches, what was present, who was evicted in order, counts."""
    tree = RadixTree(run["policy"], whole_nodes=True, split_renews=True)
    locked: dict[int, Node] = {}
    for at, (kind, *step, evictable, protected) in enumerate(run["steps"]):
        if kind in ("match", "lock"):
            text, space, answer = step
            match = tree.match(letters(text, run["size"]), Namespace(adapter=space))
            assert match.num_blocks == answer
            if kind == "lock" and answer:
                tree.lock(match.node)
                locked[at] = match.node
        elif kind == "insert":
            text, space, first, priority, counted, answer = step
            contents = letters(text, run["size"])
            if contents:
                blocks = range(first, first + len(contents))
                result = tree.insert(
                    contents, blocks, Namespace(adapter=space), priority=priority, counted=counted
                )
                assert result[:2] == (answer, list(blocks[:answer]))
        elif kind == "unlock":
            tree.unlock(locked.pop(step[0]))
        elif kind == "evict":
            assert tree.evict(step[0]) == step[1]
        assert (tree.num_evictable, tree.num_protected) == (evictable, protected)
        tree.check_invariants()


def letters(text: str, size: int) -> list[bytes]:
    """Contents of a text, one token a letter."""
    return block_contents([ord(letter) for letter in text], size)


texts = st.text("ab", max_size=7)
spaces = st.sampled_from([Namespace(), Namespace(), Namespace(salt="s")])
Prefix = tuple[str, str]  # salt, text: one block a letter


class NaiveTree:
    """Every prefix on its own: its block, when it was last on a path, and how often it is locked."""

    def __init__(self) -> None:
        self.blocks: dict[Prefix, int] = {}
        self.used: dict[Prefix, int] = {}
        self.locks: Counter[Prefix] = Counter()
        self.now = 0

    def use(self, prefixes: Iterable[Prefix]) -> None:
        self.now += 1
        self.used.update(dict.fromkeys(prefixes, self.now))

    def found(self, salt: str, text: str) -> list[Prefix]:
        prefixes = [(salt, text[: n + 1]) for n in range(len(text))]
        return prefixes[: next((n for n, p in enumerate(prefixes) if p not in self.blocks), len(prefixes))]

    def leaves(self) -> list[Prefix]:
        parents = {(salt, text[:-1]) for salt, text in self.blocks}
        return [p for p in self.blocks if p not in parents and not self.locks[p]]

    def evict(self, count: int) -> list[int]:
        victims: list[int] = []
        while len(victims) < count and (leaves := self.leaves()):
            oldest = min(leaves, key=self.used.__getitem__)
            victims.append(self.blocks.pop(oldest))
        return victims


class TreeAgainstPrefixes(RuleBasedStateMachine):
    """Any calls in any order: an LRU tree of blocks is a table of prefixes that evicts leaf by leaf."""

    @initialize(policy=st.sampled_from(sorted(POLICIES)), whole=st.booleans(), renews=st.booleans())
    def start(self, policy: str, whole: bool, renews: bool) -> None:
        self.tree = RadixTree(policy, whole_nodes=whole, split_renews=renews)
        self.exact = policy == "lru" and not whole and not renews
        self.naive = NaiveTree()
        self.given = 0
        self.nodes: list[tuple[Node, Prefix]] = []

    @rule(text=texts, space=spaces)
    def match(self, text: str, space: Namespace) -> None:
        found = self.naive.found(space.salt, text)
        assert self.tree.match(held(text), space).blocks == [self.naive.blocks[p] for p in found]
        self.naive.use(found)

    @rule(text=texts, space=spaces, priority=st.integers(0, 3))
    def insert(self, text: str, space: Namespace, priority: int) -> None:
        blocks = list(range(self.given, self.given + len(text)))
        self.given += len(text)
        present = len(self.naive.found(space.salt, text))
        result = self.tree.insert(held(text), blocks, space, priority=priority)
        assert (result.num_present, result.duplicates) == (present, blocks[:present])
        prefixes = [(space.salt, text[: n + 1]) for n in range(len(text))]
        self.naive.blocks.update(zip(prefixes[present:], blocks[present:], strict=True))
        self.naive.use(prefixes)
        assert result.node.prefix() == [self.naive.blocks[p] for p in prefixes]

    @rule(text=texts, space=spaces)
    def lock(self, text: str, space: Namespace) -> None:
        self.match(text, space)
        node = self.tree.match(held(text), space).node
        self.tree.lock(node)
        found = self.naive.found(space.salt, text)
        self.naive.locks.update(found)
        self.nodes.append((node, found[-1] if found else (space.salt, "")))

    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        if self.nodes:
            node, (salt, text) = self.nodes.pop(data.draw(st.integers(0, len(self.nodes) - 1)))
            self.tree.unlock(node)
            self.naive.locks.subtract((salt, text[: n + 1]) for n in range(len(text)))

    @rule(data=st.data(), tail=texts)
    def continue_below(self, data: st.DataObject, tail: str) -> None:
        """Insert from a locked node on, and move its lock to the end."""
        if not self.nodes:
            return
        at = data.draw(st.integers(0, len(self.nodes) - 1))
        node, (salt, text) = self.nodes[at]
        prefixes = [(salt, (text + tail)[: n + 1]) for n in range(len(text + tail))]
        present = len(self.naive.found(salt, text + tail))
        fresh = list(range(self.given, self.given + len(tail)))
        self.given += len(tail)
        blocks = [self.naive.blocks[p] for p in prefixes[: len(text)]] + fresh
        result = self.tree.insert(held(text + tail), blocks, below=node, grow=data.draw(st.booleans()))
        assert (result.num_present, result.duplicates) == (present, blocks[len(text) : present])
        self.naive.blocks.update(zip(prefixes[present:], blocks[present:], strict=True))
        self.naive.use(prefixes)
        self.tree.move_lock(node, result.node)
        self.naive.locks.subtract(prefixes[: len(text)])
        self.naive.locks.update(prefixes)
        self.nodes[at] = (result.node, (salt, text + tail))

    @rule(count=st.integers(0, 4))
    def evict(self, count: int) -> None:
        free = sum(not self.naive.locks[p] for p in self.naive.blocks)
        if self.exact:
            assert self.tree.evict(count) == self.naive.evict(count)
            return
        victims = self.tree.evict(count)
        assert len(victims) >= min(count, free)
        at = {block: prefix for prefix, block in self.naive.blocks.items()}
        for block in victims:
            assert at[block] in self.naive.leaves(), "a held block, or a parent before its child, was evicted"
            del self.naive.blocks[at[block]]

    @rule(text=texts)
    def misuse(self, text: str) -> None:
        before = graph_of(self.tree)
        calls: list[Any] = [lambda: self.tree.unlock(Node(None, [], [], 0)), lambda: self.tree.evict(-1)]
        if self.naive.blocks:
            taken = next(iter(self.naive.blocks.values()))
            calls.append(lambda: self.tree.insert([b"z"], [taken]))
        if self.nodes:
            calls.append(self.tree.clear)
        for call in calls:
            with pytest.raises(KVError, match="expected"):
                call()
        assert graph_of(self.tree) == before

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "tree"):
            return
        self.tree.check_invariants()
        protected = sum(bool(self.naive.locks[p]) for p in self.naive.blocks)
        assert self.tree.num_blocks == len(self.naive.blocks)
        assert self.tree.num_protected == protected


TestTreeAgainstPrefixes = TreeAgainstPrefixes.TestCase


@given(st.lists(st.tuples(texts, st.integers(0, 7)), max_size=12), st.booleans())
def test_all_that_nobody_holds_can_be_evicted(prefixes: list[tuple[str, int]], whole: bool) -> None:
    """`num_evictable` promises as many blocks as an eviction of everything gives."""
    tree = RadixTree(whole_nodes=whole)
    for at, (text, cut) in enumerate(prefixes):
        put(tree, text, 10 * at)
        if cut < len(text):
            tree.lock(tree.match(held(text[:cut])).node)
    free = tree.num_evictable
    assert len(tree.evict(10**6)) == free
    assert tree.num_evictable == 0
    tree.check_invariants()

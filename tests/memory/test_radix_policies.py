"""Orders of eviction: each policy's key by hand, against a sort, and where they differ on real workloads."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory import workloads

from kvref.errors import ArgumentError
from kvref.memory.profiles import NAMED, PROFILES
from kvref.memory.radix import RadixTree
from kvref.memory.radix_cache import RadixCache
from kvref.memory.radix_node import Node
from kvref.memory.radix_policies import POLICIES, Policy, policy_of


def held(text: str) -> list[bytes]:
    """Contents, one block a letter."""
    return [letter.encode() for letter in text]


def test_policies_are_those_of_profiles() -> None:
    """Each name a profile may say has an order, and is found by it; a record of one's own is one too."""
    assert tuple(POLICIES) == NAMED["policy"]
    assert all(policy_of(name) is policy and policy.name == name for name, policy in POLICIES.items())
    own = Policy(name="smallest first", key=lambda node: (-node.created,), summary="an order of one's own")
    assert policy_of(own) is own
    for wrong in ("LRU", "", None, 3):
        with pytest.raises(ArgumentError, match="expected a Policy or one of lru, lfu"):
            policy_of(wrong)  # type: ignore[arg-type]


#: Policy -> the order of a, b, c and d after the same history.
ORDERS = {
    "lru": "dbca",
    "lfu": "dcba",
    "fifo": "abcd",
    "mru": "acbd",
    "filo": "dcba",
    "slru": "dcba",
    "priority": "bdca",
}


@pytest.mark.parametrize(("policy", "order"), ORDERS.items())
def test_order_of_four_leaves(policy: str, order: str) -> None:
    """Put in: a, b, c, d; a is put in twice more, b once; then found: d, b, c, a."""
    tree = RadixTree(policy)
    for block, (text, priority) in enumerate([("a", 2), ("b", 0), ("c", 1), ("d", 1)]):
        tree.insert(held(text), [block], priority=priority)
    for text in "aab":
        tree.insert(held(text), [9])
    for text in "dbca":
        tree.match(held(text))
    if policy == "priority":
        tree.match(held("b"))  # its priority is lower than what its age says
    assert "".join("abcd"[block] for block in tree.evict(4)) == order


def test_use_is_counted_once_a_request() -> None:
    """A request that puts in a longer and longer prefix uses each node once; a match is no use."""
    tree = RadixTree("lfu")
    first = tree.insert(held("ab"), [0, 1]).node
    tree.lock(first)
    second = tree.insert(held("abcd"), [0, 1, 2, 3], below=first, counted=2).node
    tree.match(held("abcd"))
    assert (first.uses, second.uses) == (1, 1)
    tree.insert(held("abc"), [7, 8, 9])
    upper = second.parent
    assert upper is not None
    assert (first.uses, upper.uses, second.uses) == (2, 2, 1)


def test_priority_rises_on_the_whole_path() -> None:
    """A parent is worth as much as its dearest child, and stays so when the child is gone."""
    tree = RadixTree("priority")
    tree.insert(held("ab"), [0, 1], priority=1)
    tree.insert(held("abcd"), [8, 9, 2, 3], priority=9)
    tree.insert(held("x"), [4], priority=5)
    tree.match(held("ab"))
    assert tree.evict(5) == [4, 3, 2, 1, 0]


texts = st.text("ab", min_size=1, max_size=6)
histories = st.lists(
    st.tuples(st.sampled_from(["insert", "match", "lock"]), texts, st.integers(0, 2)), max_size=14
)


@pytest.mark.parametrize("policy", POLICIES)
@given(history=histories, renews=st.booleans())
def test_victims_are_sorted_leaves(policy: str, history: list[tuple[str, str, int]], renews: bool) -> None:
    """At each step the smallest key among the leaves that nobody holds; no two keys are equal (D11)."""
    tree = RadixTree(policy, whole_nodes=True, split_renews=renews)
    for at, (kind, text, priority) in enumerate(history):
        if kind == "insert":
            tree.insert(held(text), range(10 * at, 10 * at + len(text)), priority=priority)
        elif kind == "match" or priority:
            tree.match(held(text))
        else:
            tree.lock(tree.match(held(text)).node)
    while leaves := [node for node in tree.nodes() if not node.children and not node.locks]:
        key = POLICIES[policy].key
        assert len({key(node) for node in leaves}) == len(leaves)
        victim = min(leaves, key=key)
        blocks = list(victim.blocks)
        assert tree.evict(1) == blocks[::-1]
        tree.check_invariants()
    assert tree.num_evictable == 0


@given(history=histories)
def test_blocks_of_one_node_go_in_the_order_of_its_key(history: list[tuple[str, str, int]]) -> None:
    """Block by block or node by node, the order is the same; only where an eviction ends differs."""
    trees = [RadixTree("lru", whole_nodes=whole) for whole in (False, True)]
    for tree in trees:
        for at, (kind, text, _) in enumerate(history):
            if kind == "insert":
                tree.insert(held(text), range(10 * at, 10 * at + len(text)))
            else:
                tree.match(held(text))
    blocks, nodes = trees
    order = [block for _ in range(blocks.num_blocks) for block in blocks.evict(1)]
    assert nodes.evict(10**6) == order


def test_stale_entries_are_forgotten() -> None:
    """A leaf that is used over and over is in the heap a bounded number of times."""
    tree = RadixTree()
    for at in range(5):
        tree.insert(held("abcde"[at]), [at])
    for _ in range(1_000):
        for letter in "abcde":
            tree.match(held(letter))
    assert len(tree._leaves._heap) <= 2 * 5 + 64 + 1
    assert tree.evict(5) == [0, 1, 2, 3, 4]


def test_leaves_know_a_node_that_is_none() -> None:
    """Taking out what is not in changes nothing."""
    tree = RadixTree()
    tree._leaves.remove(Node(None, [], [], 0))
    assert tree._leaves.first() is None


@cache
def shared_documents() -> list[list[int]]:
    """W1, drawn once."""
    return workloads.w1()


def served(policy: str) -> tuple[int, int]:
    """Hits and evictions, in tokens, of W1 under a policy of SGLang's."""
    cache = RadixCache(workloads.NUM_BLOCKS, replace(PROFILES["sglang"], policy=policy), workloads.BLOCK_SIZE)
    hits = 0
    for request, prompt in enumerate(shared_documents()):
        hits += cache.admit(request, prompt).num_cached_tokens
        cache.commit(request)
        cache.finish(request)
    return hits, cache.evictions * workloads.BLOCK_SIZE


#: What SGLang 0.5.23 does on W1 under its other policies: hits and evictions in tokens (run with its wheel).
SGLANG_W1 = {
    "lfu": (2_543_616, 1_744_640),
    "fifo": (2_342_912, 1_944_576),
    "mru": (2_086_912, 2_201_472),
    "filo": (2_334_720, 1_952_768),
    "slru": (2_492_416, 1_795_968),
}


@pytest.mark.parametrize(("policy", "expected"), SGLANG_W1.items())
def test_sglang_policies_on_shared_documents(policy: str, expected: tuple[int, int]) -> None:
    """Documents are used again and tails are not, so counting uses wins; each figure is SGLang's, exactly."""
    assert served(policy) == expected

"""Every argument of the caches of hybrid models, and of the arrays of their states, that cannot be."""

from collections.abc import Callable
from typing import Any

import pytest
from memory.graphs import graph_of
from memory.test_bad_arguments import CACHE, LARGE, NO_COUNT, NO_LIST

from kvref.errors import KVError
from kvref.memory.snapshot_align import AlignCache
from kvref.memory.snapshot_cache import SnapshotCache
from kvref.memory.snapshot_groups import AttentionGroup
from kvref.memory.snapshot_tree import SnapshotTree, StateNode
from kvref.recurrent.sizes import StateShape
from kvref.storage.state_arrays import StateArrays

NO_SIZE = [0, *NO_COUNT]
NO_WORD: list[Any] = [None, "nobody", 5, True, b"kvref", ["kvref"], object()]
LAYERS = (StateShape((2, 3, 4), (5, 3)),)

Wrong = dict[str, list[Any]]
#: What makes each, with arguments that are fine, and what each argument cannot be.
MADE: dict[str, tuple[Callable[..., Any], dict[str, Any], Wrong]] = {
    "cache": (
        SnapshotCache,
        {"num_blocks": 8, "num_states": 4, "block_size": 2},
        {
            "num_blocks": [None, *NO_SIZE],
            "num_states": [None, *NO_SIZE],
            "profile": NO_WORD,
            "block_size": NO_SIZE,
            "snapshot_interval": NO_SIZE,
            "window": NO_SIZE,
            "digest": [None, "sha256", 5],
        },
    ),
    "group": (AttentionGroup, {"block_size": 2}, {"block_size": [None, *NO_SIZE], "window": NO_SIZE}),
    "grouped": (
        SnapshotCache,
        {"num_blocks": 8, "num_states": 4, "groups": [AttentionGroup(2), AttentionGroup(4, 3)]},
        {
            "groups": [5, (), [], [None], [(2, None)], "12", AttentionGroup(2)],
            "block_size": [2, *NO_SIZE],
            "window": [2, *NO_SIZE],
            "snapshot_interval": NO_SIZE,
        },
    ),
    "lmcache": (
        SnapshotCache,
        {"num_blocks": 8, "num_states": 4, "profile": "lmcache-k3"},
        {"block_size": [None]},
    ),
    "align": (
        AlignCache,
        {"num_blocks": 8},
        {"num_blocks": [None, 1, *NO_SIZE], "block_size": [None, *NO_SIZE]},
    ),
    "arrays": (
        StateArrays,
        {"num_states": 3, "layers": LAYERS},
        {
            "num_states": [None, *NO_SIZE],
            "layers": [None, 5, (), [], [None], [(2, 3)], "12", {}, StateShape((1,), (1, 1))],
            "recurrent_dtype": [*NO_WORD, "int64", "bool"],
            "conv_dtype": [*NO_WORD, "uint8"],
            "recurrent_layout": NO_WORD,
        },
    ),
}
MAKING = [(kind, name) for kind, (_, _, wrong) in MADE.items() for name in wrong]


@pytest.mark.parametrize(("kind", "name"), MAKING)
def test_what_something_cannot_be_made_with_is_named(kind: str, name: str) -> None:
    """The error begins with the argument's own name, and not with that of a part inside."""
    make, fine, wrong = MADE[kind]
    for value in wrong[name]:
        with pytest.raises(KVError, match=rf"^{name}\b"):
            make(**{**fine, name: value})


def used_cache() -> SnapshotCache:
    """A request that has ended and one that has not."""
    cache = SnapshotCache(8, 6, block_size=4)
    cache.admit(1, range(9))
    cache.commit(1)
    cache.finish(1)
    cache.admit(2, range(12))
    cache.commit(2)
    return cache


def used_align() -> AlignCache:
    """The same in vLLM's way."""
    cache = AlignCache(24, 4)
    cache.admit(1, range(9))
    cache.commit(1)
    cache.finish(1)
    cache.admit(2, range(12))
    cache.commit(2)
    return cache


def used_tree() -> SnapshotTree:
    """Two prefixes, one of them held."""
    tree = SnapshotTree()
    tree.insert([1, 2, 3], [0, 1, 2], 0)
    tree.insert([1, 2, 4, 5], [0, 1, 3, 4], 1)
    tree.lock(tree.match([1, 2, 3]).node)
    return tree


def arrays() -> StateArrays:
    """Three states of one layer."""
    found = StateArrays(3, LAYERS)
    for slot in range(3):
        found.copy(-1, slot)
    return found


NO_SLOTS = [*NO_LIST, [None], ["1"], [1.0], [True], [3], [-2], *([n] for n in LARGE)]
NO_PLACE = [None, 3, -2, *NO_COUNT[1:]]
#: Call -> each argument: a value that is fine, and those that are not.
CALLED: dict[str, tuple[Callable[[], Any], Any]] = {
    "cache": (
        used_cache,
        {**CACHE, "extend": {**CACHE["extend"], "num_drafts": (1, [None, 2, *NO_COUNT])}}
        | {"slots": {**CACHE["slots"], "group": (0, [None, 1, *NO_COUNT])}}
        | {"commit": {**CACHE["commit"], "num_accepted": (0, [1, *NO_COUNT])}},
    ),
    "align": (used_align, CACHE),
    "tree": (
        used_tree,
        {
            "match": {"tokens": ([1], [*NO_LIST, [None], [1.0], [True]])},
            "insert": {
                "tokens": ([1, 2], [*NO_LIST, [None, 1], [1.0, 2], []]),
                "slots": ([7, 8], [*NO_LIST, [7], [7, None], [1.0, 2]]),
                "state": (9, [None, *NO_COUNT]),
            },
            "lock": {"node": (None, [None, 5, object()])},
            "unlock": {"node": (None, [None, 5, object()])},
            "evict": {"num_tokens": (1, [None, *NO_COUNT])},
            "evict_states": {"num_states": (1, [None, *NO_COUNT])},
        },
    ),
    "arrays": (
        arrays,
        {
            "gather": {"layer": (0, [None, 1, *NO_COUNT]), "slots": ([0], NO_SLOTS)},
            "copy": {"source": (0, NO_PLACE), "target": (1, [-1, *NO_PLACE])},
            "poison": {"slots": ([0], [*NO_SLOTS, [-1]])},
        },
    ),
}
CALLS = [(kind, verb) for kind, (_, verbs) in CALLED.items() for verb in verbs]


@pytest.mark.parametrize(("kind", "verb"), CALLS)
def test_what_cannot_be_asked_is_named_and_changes_nothing(kind: str, verb: str) -> None:
    """An error of kvref in a line that can be read, whichever argument is wrong."""
    make, verbs = CALLED[kind]
    fine = {name: good for name, (good, _) in verbs[verb].items()}
    for name, (_, wrong) in verbs[verb].items():
        made = make()
        before = seen(made)
        for value in wrong:
            with pytest.raises(KVError, match=name) as raised:
                getattr(made, verb)(**{**fine, name: value})
            assert len(str(raised.value)) < 250
            assert seen(made) == before, (name, type(value))


def seen(made: Any) -> Any:
    """Everything that an object holds."""
    if isinstance(made, StateArrays):
        return [part.tobytes() for part in (*made.recurrent, *made.conv)]
    return shape_of(made) if isinstance(made, SnapshotTree) else graph_of(made)


def shape_of(tree: SnapshotTree) -> Any:
    """Every node in the order of its age."""

    def one(node: StateNode) -> Any:
        return (node.tokens, node.slots, node.state, node.locks, node.state_locks)

    return [one(node) for node in tree.nodes()], [one(node) for node in tree._states]

"""The mirror of a stream against a naive one: whatever events come, keys and tokens find the same."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.errors import HistoryError
from kvref.sanitizer.kv_event_content import digest, written
from kvref.sanitizer.kv_event_fields import Key
from kvref.sanitizer.kv_event_kinds import Cleared, Lookup, Place, Removed, Source, Stored, Where
from kvref.sanitizer.mirror import Limits, Mirror

A, B = Source("a", 0), Source("b", 1)
SIZE = 2
Prefix = tuple[int, ...]


def key(prefix: Prefix) -> int:
    """The key of the last block of a prefix."""
    return int.from_bytes(digest(written(prefix))[:8], "little")


def stored(prefix: Prefix, blocks: int = 1, **more: Any) -> Stored:
    """The last blocks of a prefix are stored."""
    start = len(prefix) - blocks * SIZE
    keys: list[Key] = [key(prefix[:stop]) for stop in range(start + SIZE, len(prefix) + 1, SIZE)]
    parent = key(prefix[:start]) if start else None
    return Stored(Where(), keys, parent, SIZE, list(prefix[start:]), **more)


def keys_of(prefix: Prefix) -> list[int]:
    """The keys of all blocks of a prefix."""
    return [key(prefix[:stop]) for stop in range(SIZE, len(prefix) + 1, SIZE)]


prefixes = st.lists(st.integers(1, 2), min_size=1, max_size=3).map(
    lambda blocks: (*(b for b in blocks for _ in "xy"),)
)
operations = st.lists(
    st.tuples(st.sampled_from(("store", "store", "remove", "clear")), st.sampled_from((A, B)), prefixes),
    max_size=40,
)


@given(operations, st.booleans())
def test_mirror_equals_the_naive_one(done: list[tuple[str, Source, Prefix]], each_copy: bool) -> None:
    """A count of each key, and a walk from the first block: what is removed in the middle cuts a prefix."""
    mirror, counts = Mirror(each_copy=each_copy), {A: Counter[Prefix](), B: Counter[Prefix]()}
    for what, source, prefix in done:
        count = counts[source]
        if what == "store":
            mirror.apply(source, stored(prefix))
            count[prefix] = count[prefix] + 1 if each_copy else 1
        elif what == "remove":
            mirror.apply(source, Removed(Where(), [key(prefix)]))
            count[prefix] -= count[prefix] > 0
        elif not source.rank:
            mirror.apply(source, Cleared())
            count.clear()
    for prefix in [(a, a, b, b, c, c) for a in (1, 2) for b in (1, 2) for c in (1, 2)]:
        runs = {}
        for source, count in counts.items():
            ends = range(SIZE, len(prefix) + 1, SIZE)
            runs[source] = next((at for at, stop in enumerate(ends) if not count[prefix[:stop]]), len(ends))
        expected = {source: run for source, run in runs.items() if run}
        assert mirror.match(keys_of(prefix)) == expected
        assert mirror.match_tokens([*prefix, 7]) == {s: run * SIZE for s, run in expected.items()}
    held = sum(len(+count) for count in counts.values())
    assert mirror.num_held == held


def test_prefix_is_found_in_its_namespace_alone() -> None:
    """Equal tokens under another adapter, salt or image are another prefix."""
    mirror = Mirror()
    spaces: list[dict[str, Any]] = [
        {},
        {"adapter": "x"},
        {"salt": "x"},
        {"extras": [(("x", 0),), None]},
        {"extras": [(("x", 1),), None]},
    ]
    for number, space in enumerate(spaces):
        mirror.apply(A, Stored(Where(), [10 * number, 10 * number + 1], None, 2, [5, 6, 7, 8], **space))
    for number, space in enumerate(spaces):
        assert mirror.match_tokens([5, 6, 7, 8, 9], **space) == {A: 4}
        mirror.apply(A, Removed(Where(), [10 * number]))
        assert mirror.match_tokens([5, 6, 7, 8, 9], **space) == {}


def test_salt_is_one_thing_to_vllm_and_sglang() -> None:
    """vLLM tells it among the extra keys of the first block, SGLang beside the tokens of each event."""
    mirror = Mirror()
    mirror.apply(A, Stored(Where(), [1], None, 2, [5, 6], extras=[("t",)]))
    mirror.apply(A, Stored(Where(), [2], 1, 2, [7, 8], extras=[None]))
    mirror.apply(B, Stored(Where(), [1], None, 2, [5, 6], salt="t"))
    mirror.apply(B, Stored(Where(), [2], 1, 2, [7, 8], salt="t"))
    assert mirror.match_tokens([5, 6, 7, 8], salt="t") == {A: 4, B: 4}


def test_adapter_is_told_twice_by_vllm() -> None:
    """By name, and in front of the extra keys of every block."""
    mirror = Mirror()
    mirror.apply(A, Stored(Where(), [1, 2], None, 2, [5, 6, 7, 8], adapter="x", extras=[("x", "t"), ("x",)]))
    assert mirror.match_tokens([5, 6, 7, 8], adapter="x", salt="t") == {A: 4}
    assert mirror.match_tokens([5, 6, 7, 8], adapter="x") == {}


def test_places_are_apart() -> None:
    """A tier or a group that holds a block does not make another hold it."""
    mirror, cpu, second = Mirror(), Where("CPU"), Where(group=1)
    mirror.apply(A, Stored(cpu, [1], None, 2, [5, 6]))
    mirror.apply(A, Stored(second, [1], None, 4, [5, 6, 7, 8]))
    assert mirror.match([1]) == {}
    assert mirror.match([1], cpu) == {A: 1}
    assert mirror.match_tokens([5, 6, 7, 8], where=second) == {A: 4}
    mirror.apply(A, Cleared())
    assert mirror.match([1], cpu) == {}


def test_blocks_of_several_sizes_are_followed() -> None:
    """A last block may be shorter."""
    mirror = Mirror()
    mirror.apply(A, Stored(Where(), [1], None, 4, [5, 6, 7, 8]))
    mirror.apply(A, Stored(Where(), [2], 1, 2, [9, 9]))
    assert mirror.match_tokens([5, 6, 7, 8, 9, 9, 9]) == {A: 6}
    assert mirror.size_of(Place(A, Where())) == 4


def test_tokens_may_be_pairs() -> None:
    """Where a cache keys pairs of tokens, it is asked for pairs."""
    mirror = Mirror()
    mirror.apply(A, Stored(Where(), [1], None, 2, [5, 6, 6, 7], width=2))
    run = mirror.run(Place(A, Where()), Lookup("GPU", 0, 0, tokens=[5, 6, 6, 7, 7, 8], width=2))
    assert (run.tokens, run.keys) == (2, [1])


def test_keys_without_tokens_are_found_by_key() -> None:
    """A tier that does not tell what it holds can be asked by keys alone."""
    mirror = Mirror()
    mirror.apply(A, Stored(Where(), [1, 2], None, 0, []))
    assert mirror.match([1, 2, 3]) == {A: 2}
    assert mirror.match_tokens([5, 6]) == {}


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(keys=3), "more than 3 keys are held, expected at most that"),
        (Limits(places=3), "more than 3 workers, ranks, media and groups, expected at most that"),
    ],
)
def test_a_stream_cannot_fill_the_memory(limits: Limits, said: str) -> None:
    """A mirror holds so much and no more."""
    mirror, event = Mirror(limits=limits), Stored(Where(), [1], None, 2, [5, 6])
    for number in range(3):
        mirror.apply(Source(number, 0), event)
    with pytest.raises(HistoryError, match=said):
        mirror.apply(Source(3, 0), event)


def test_what_is_gone_is_remembered_for_a_while() -> None:
    """The memory of keys that nobody holds is bounded, and what is held is never forgotten."""
    mirror, place = Mirror(limits=Limits(past=8)), Place(A, Where())
    mirror.apply(A, Stored(Where(), [-1], None, 1, [1]))
    for number in range(100):
        mirror.apply(A, Stored(Where(), [number], None, 1, [number + 10]))
        mirror.apply(A, Removed(Where(), [number]))
    assert [n for n in range(100) if mirror.gone(place, n)] == list(range(92, 100))
    assert mirror.forgets
    assert mirror.match_tokens([1]) == {A: 1}
    remembered = [len(part) for part in vars(mirror.meanings).values() if isinstance(part, dict)]
    assert max(remembered) <= 9

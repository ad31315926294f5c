"""Histories: what a line may say, and that anything else is refused with its field."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.errors import HistoryError, shown
from kvref.memory.events import EVENTS, FIELDS
from kvref.memory.fields import KINDS, SCHEMA
from kvref.memory.history import check, compressed, expanded, written

#: One value for every kind of field, and some that only look like one.
GOOD: dict[str, list[Any]] = {
    "count": [0, 7, 2**32 - 1],
    "size": [1, 2**32 - 1],
    "counts": [[], [5, 2**32 - 1]],
    "tokens": [[], [5, 2**31 - 1]],
    "sizes": [[1, 16]],
    "ids": [[], [3, 1, 2], [-1, 4], [[0, 8], 9, [20, 1]]],
    "name": [0, 2**64 - 1, "cmpl-1", "ü"],
    "names": [[], [1, 2], ["a", 1]],
    "text": ["", "llama", "ü" * 256],
    "flag": [True, False],
    "windows": [[None, 128], []],
    "tiers": [{}, {"host": 100}],
    "spans": [[], [{"kind": "media", "digest": "d", "offset": 0, "length": 4}]],
    "schema": [SCHEMA],
    "publish": ["computed", "scheduled"],
    "transfer": ["send", "receive"],
}
HUGE, DEEP = 10**5000, [[[[[[[[[[]]]]]]]]]]
BAD: dict[str, list[Any]] = {
    "count": [-1, 2**32, 1.0, True, "1", None, [1], HUGE, float("nan"), 1e400],
    "size": [0, -1, 1.5, False, None],
    "counts": [[-1], [1.0], [True], [2**32], [HUGE], ["1"], [None], 5, None, [[1]], (1, 2), DEEP],
    "tokens": [[-1], [1.0], [True], [2**31], [HUGE], ["1"], 5, None, [[1]], DEEP],
    "sizes": [[0], [16, None]],
    "ids": [
        [-2],
        [2**32],
        [5, 2**32],
        [[1, 0]],
        [[1]],
        [[1, 2, 3]],
        [[-1, 2]],
        [[2**32 - 1, 2]],
        [1.0],
        [True],
        "1",
        DEEP,
    ],
    "name": [-1, 2**64, "", "x" * 257, 1.0, True, None, "\ud800"],
    "names": [[-1], [2**64], [HUGE], [1, ""], [1.0], [None], "a", [True]],
    "text": ["x" * 257, 1, None, "\ud800"],
    "flag": [0, 1, "true", None],
    "windows": [[0], [True], 128, [1.0]],
    "tiers": [{"host": 0}, {"host": None}, [], {"x" * 257: 1}],
    "spans": [
        [{}],
        [{"kind": "audio", "digest": "d", "offset": 0, "length": 4}],
        [{"kind": "media", "digest": "", "offset": 0, "length": 4}],
        [{"kind": "media", "digest": "d", "offset": -1, "length": 4}],
        [{"kind": "media", "digest": "d", "offset": 0, "length": 0}],
        [{"kind": "media", "digest": "d", "offset": 0, "length": 4, "x": 1}],
        {},
    ],
    "schema": ["kvref-history/2", 1, None],
    "publish": ["finished", 1],
    "transfer": ["", "pull"],
}


def example(kind: str, /, **changed: Any) -> dict[str, Any]:
    """An event with every field it must have."""
    return {"event": kind} | {name: GOOD[FIELDS[name][0]][-1] for name in EVENTS[kind].required} | changed


def test_the_tables_name_each_other() -> None:
    """No field without a kind, none that no event has, no kind that no field has."""
    used = {name for fields in EVENTS.values() for name in (*fields.required, *fields.optional)}
    assert used == set(FIELDS)
    assert {kind for kind, _ in FIELDS.values()} == set(KINDS) == set(GOOD) == set(BAD)
    for fields in EVENTS.values():
        assert not set(fields.required) & set(fields.optional)
        assert set(fields.parallel[:1]) <= set(fields.required)
        assert set(fields.parallel) <= {*fields.required, *fields.optional}


@pytest.mark.parametrize("kind", EVENTS)
def test_every_field_of_an_event_is_held_to_its_kind(kind: str) -> None:
    """A message names event and field, what was found, what was expected."""
    fields = EVENTS[kind]
    for name in (*fields.required, *fields.optional):
        field_kind = FIELDS[name][0]
        if name not in fields.parallel:
            for value in GOOD[field_kind]:
                check(example(kind, **{name: value}))
        for value in BAD[field_kind]:
            with pytest.raises(HistoryError) as error:
                check(example(kind, **{name: value}))
            assert str(error.value).startswith(f"{kind}.{name} = ")
            assert str(error.value).endswith(f", expected {KINDS[field_kind].expected}")


@pytest.mark.parametrize("kind", EVENTS)
def test_a_missing_and_an_unknown_field_are_refused(kind: str) -> None:
    """A writer that misspells a field learns it at once."""
    for name in EVENTS[kind].required:
        event = example(kind)
        del event[name]
        with pytest.raises(HistoryError, match=f"{kind} has no field {name}, expected"):
            check(event)
    with pytest.raises(HistoryError, match=f"{kind} has the field 'block', expected"):
        check(example(kind, block=3))


def test_what_is_no_event_is_refused() -> None:
    """The names of all events are told."""
    for event in (None, 3, [], "open", {}, {"event": "opne"}, {"event": ["open"]}, {"event": HUGE}):
        with pytest.raises(HistoryError, match=r"expected (an object|one of open, request, tokens)"):
            check(event)


def test_lists_of_a_batch_have_one_item_each() -> None:
    """A row without a start would shift all that follow."""
    check({"event": "compute", "requests": [1, "a"], "starts": [0, 5], "counts": [5, 1]})
    with pytest.raises(
        HistoryError, match=r"compute\.counts has 1 items, expected 2, one for each of compute\.requests"
    ):
        check({"event": "compute", "requests": [1, "a"], "starts": [0, 5], "counts": [5]})


def test_an_event_is_one_line() -> None:
    """Texts with line ends in them are written with escapes."""
    event = {"event": "open", "schema": SCHEMA, "num_blocks": 8, "block_size": 4, "writer": "a\nb\u2028"}
    assert json.loads(written(event)) == event
    assert written(event).splitlines() == [written(event)]
    with pytest.raises(HistoryError, match="num_blocks"):
        written(event | {"num_blocks": 0})


@given(st.lists(st.integers(-1, 30), max_size=40))
def test_runs_say_the_same_ids(ids: list[int]) -> None:
    """In their order, -1 for none included, and never longer than the ids."""
    runs = compressed(ids)
    assert expanded(runs) == ids
    assert len(json.dumps(runs)) <= len(json.dumps(ids))
    check({"event": "hit", "request": 1, "count": 1, "blocks": runs})


def test_a_run_does_not_begin_with_none() -> None:
    """-1 is no id, though 0 is the number after it."""
    runs = compressed([-1, 0, 1, 2])
    assert runs == [-1, [0, 3]]
    check({"event": "allocate", "request": 1, "blocks": runs})


def test_a_short_run_of_very_many_ids_is_refused() -> None:
    """A line of forty bytes must not fill the memory."""
    assert expanded([[0, 1 << 20]]) == list(range(1 << 20))
    with pytest.raises(HistoryError, match="runs of 2147483648 ids, expected at most 1048576"):
        expanded([[0, 2**31 - 1], 5])


def test_any_value_can_be_shown() -> None:
    """A message stays one short line."""
    for value in (HUGE, -HUGE, DEEP * 1000, "x" * 10**6, {"a": {"b": [HUGE]}}, [HUGE]):
        assert len(shown(value)) <= 80
        assert "\n" not in shown(value)

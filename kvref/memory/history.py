"""Histories: what an engine did with its cache, one event a line, as a program can check it afterwards.

A line is a flat JSON object: its `event` says what happened, its other fields are those that
`kvref.memory.events` gives the event. One event covers a run of tokens, of blocks, or a whole batch, so a
step of an engine is a few lines; slots follow from the block tables, and are named only where a kernel was
given others. The first line opens the history and names the pool, and the order of the lines is the order in
which things happened.

Realises: KV-BLOCK-042 history-wellformed.
For porters: write `open`, `request`, `allocate`, `compute`, `decode`, `free` and `finish` first; a prefix
cache adds `hit`, `publish` and `evict`.
Source: JSON Lines; the events are those of the chapter on memory.
"""

import json
from collections.abc import Iterable
from typing import Any

from kvref.errors import HistoryError, shown
from kvref.memory.events import EVENTS, FIELDS
from kvref.memory.fields import KINDS, Test

Event = dict[str, Any]

_INT = frozenset({int})


def _rules(kind: str) -> tuple[dict[str, Test], dict[str, Test], tuple[str, ...]]:
    """Return the tests of the fields an event must have, of those it may have, and the parallel lists."""
    fields = EVENTS[kind]
    required, optional = (
        {name: KINDS[FIELDS[name][0]].holds for name in names} for names in (fields.required, fields.optional)
    )
    return required, optional, fields.parallel


_RULES = {kind: _rules(kind) for kind in EVENTS}


def check(event: Any) -> None:
    """Check that an event has the fields of its kind, and each of them its own.

    Raises: HistoryError naming event and field, what was found, what was expected.
    """
    kind = event.get("event") if type(event) is dict else None
    if type(kind) is not str or kind not in _RULES:
        raise _no_event(event, kind)
    required, optional, parallel = _RULES[kind]
    for name, holds in required.items():
        if name not in event or not holds(event[name]):
            raise _no_field(event, kind, name)
    if len(event) > len(required) + 1:
        for name, value in event.items():
            if name in optional:
                if not optional[name](value):
                    raise _no_field(event, kind, name)
            elif name not in required and name != "event":
                raise _no_field(event, kind, name)
    if parallel:
        first, *rest = parallel
        for name in rest:
            if name in event and len(event[name]) != len(event[first]):
                raise HistoryError(
                    f"{kind}.{name} has {len(event[name])} items, expected {len(event[first])}, one for each "
                    f"of {kind}.{first}"
                )


def written(event: Event) -> str:
    """Return an event as the line that says it, without the end of the line.

    Raises: HistoryError, as `check`.
    """
    check(event)
    return json.dumps(event, separators=(",", ":"))


def expanded(blocks: list[Any], limit: int = 1 << 20) -> list[int]:
    """Return the ids of a list of ids and runs.

    Raises: HistoryError if there are more than `limit`.
    """
    if _INT.issuperset(map(type, blocks)):
        return blocks
    count = sum(1 if type(item) is int else item[1] for item in blocks)
    if count > limit:
        raise HistoryError(f"runs of {count} ids, expected at most {limit} in one event")
    runs = (range(i, i + 1) if type(i) is int else range(i[0], i[0] + i[1]) for i in blocks)
    return [block for run in runs for block in run]


def compressed(blocks: Iterable[int]) -> list[Any]:
    """Return ids with every three or more that count upwards written as a run [first, count]."""
    runs: list[list[int]] = []
    for block in blocks:
        if runs and block > 0 and block == sum(runs[-1]):  # 0 follows no other: −1 is no id
            runs[-1][1] += 1
        else:
            runs.append([block, 1])
    return [
        item
        for first, count in runs
        for item in ([[first, count]] if count > 2 else range(first, first + count))
    ]


def _no_event(event: Any, kind: Any) -> HistoryError:
    if type(event) is not dict:
        return HistoryError(f"the line holds {shown(event)}, expected an object")
    if "event" not in event:
        return HistoryError(f"no field event, expected one of {', '.join(EVENTS)}")
    return HistoryError(f"event = {shown(kind)}, expected one of {', '.join(EVENTS)}")


def _no_field(event: Event, kind: str, name: str) -> HistoryError:
    """Say what is wrong with a field of an event: it is unknown, missing, or of another kind."""
    fields = EVENTS[kind]
    if name not in (*fields.required, *fields.optional):
        return HistoryError(f"{kind} has the field {shown(name)}, expected {_listed(kind)}")
    expected = KINDS[FIELDS[name][0]].expected
    found = f".{name} = {shown(event[name])}" if name in event else f" has no field {name}"
    return HistoryError(f"{kind}{found}, expected {expected}")


def _listed(kind: str) -> str:
    names = (*EVENTS[kind].required, *EVENTS[kind].optional)
    return f"{', '.join(names)} at most" if names else "none but event"

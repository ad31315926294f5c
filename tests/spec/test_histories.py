"""The chapter's tables of histories say what the reader accepts, and what the checker does."""

import json
import sys
from typing import Any

from kvref.memory.events import EVENTS, FIELDS, Fields
from kvref.memory.fields import KINDS
from kvref.sanitizer.sanitizer import Sanitizer
from kvref_conformance.requirements import read_directives, spec_dir

sys.path.insert(0, str(spec_dir().parent / "docs" / "_ext"))


def table(name: str) -> list[tuple[str, str, str]]:
    """The entries of one table of the chapter, as its page is drawn from them."""
    from kvref_written import entries

    (found,) = [d for d in read_directives(spec_dir() / "memory.md") if d.name == name]
    return entries(found.body)


def head(event: str, fields: Fields) -> str:
    """An event as the chapter writes it: what may be left out in brackets."""
    return f"{event}({', '.join([*fields.required, *(f'[{name}]' for name in fields.optional)])})"


def test_event_table() -> None:
    """A porter who reads the chapter writes events that are accepted, all of them and no others."""
    assert [entry[:2] for entry in table("events")] == [
        (head(event, fields), fields.summary) for event, fields in EVENTS.items()
    ]


def test_every_event_has_an_effect() -> None:
    """What an event does to holders, tables and contents is said of each."""
    assert all(effect for _, _, effect in table("events"))


def test_field_table() -> None:
    """Every field holds what the chapter says of it."""
    assert [entry[:2] for entry in table("eventfields")] == [
        (f"{name}: {KINDS[kind].expected}", says) for name, (kind, says) in FIELDS.items()
    ]


def judged(*events: dict[str, Any]) -> list[str]:
    """The requirements that a history of two requests breaks: one of ten tokens, and its fork."""
    prompt = list(range(10, 20))
    shared = [
        {"event": "open", "schema": "kvref-history/1", "num_blocks": 8, "block_size": 4},
        {"event": "request", "request": 0, "tokens": prompt},
        {"event": "allocate", "request": 0, "blocks": [1, 2, 3]},
        {"event": "compute", "requests": [0], "starts": [0], "counts": [10]},
        {"event": "fork", "request": 1, "parent": 0},
        {"event": "decode", "requests": [1], "tokens": [5]},
    ]
    ends = [
        {"event": "compute", "requests": [1], "starts": [10]},
        {"event": "finish", "request": 1},
        {"event": "free", "request": 1, "blocks": [1, 2, 4]},
        {"event": "finish", "request": 0},
        {"event": "free", "request": 0, "blocks": [1, 2, 3]},
        {"event": "close", "num_free": 8},
    ]
    sanitizer = Sanitizer()
    for line, event in enumerate([*shared, *events, *ends], 1):
        sanitizer.feed(line, json.loads(json.dumps(event)))
    sanitizer.check_invariants()
    return [finding.requirement for finding in sanitizer.findings]


COPY = {"event": "copy", "request": 1, "source": 3, "target": 4, "count": 2}


def test_a_copy_for_a_request_is_the_whole_of_copy_on_write() -> None:
    """It takes the target and lets go of the source, as the table says: nothing else is logged."""
    assert judged(COPY) == []


def test_what_a_copy_does_is_not_logged_again() -> None:
    """With an allocate the target is handed out while held; with a free the source goes once too often."""
    again = {"event": "allocate", "request": 1, "blocks": [4]}
    assert "KV-BLOCK-001" in judged(again, COPY)
    assert "KV-BLOCK-006" in judged(COPY, {"event": "free", "request": 1, "blocks": [3]})

"""The chapter on memory and the sanitizer say the same of histories, word for word."""

import re

import pytest

from kvref.memory.events import EVENTS, FIELDS
from kvref.memory.fields import KINDS
from kvref.sanitizer.findings import RULES
from kvref.sanitizer.sanitizer import HANDLERS
from kvref_conformance.requirements import load_requirements, spec_dir


def rows(heading: str) -> list[list[str]]:
    """The cells of the table of the chapter that has this heading row."""
    text = (spec_dir() / "memory.md").read_text(encoding="utf-8")
    if heading not in text:
        pytest.skip("not written yet: the tables of histories in spec/memory.md")
    table = text.partition(heading)[2].partition("\n\n")[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_of_events() -> None:
    """A writer in another language finds every event, and the fields it may have."""
    stated = rows("| event | fields | what happened |")
    expected = []
    for name, fields in EVENTS.items():
        said = [f"`{field}`" for field in fields.required] + [f"[`{field}`]" for field in fields.optional]
        expected.append([f"`{name}`", ", ".join(said) or "none", fields.summary])
    assert stated == expected


def test_the_table_of_fields() -> None:
    """And what each field may hold."""
    stated = rows("| field | value | meaning |")
    assert stated == [[f"`{name}`", KINDS[kind].expected, text] for name, (kind, text) in FIELDS.items()]


def test_every_event_is_handled() -> None:
    """No event that is well formed and means nothing."""
    assert set(HANDLERS) == set(EVENTS)


def test_rules_are_those_of_the_spec() -> None:
    """A finding cites a requirement that exists, by its own slug."""
    spec = load_requirements()
    assert {identity: spec[identity].slug for identity in RULES} == dict(RULES)


def test_the_chapter_names_every_rule_that_a_history_can_break() -> None:
    """By event, and no rule that the sanitizer never cites."""
    cited = set()
    for event, held_to in rows("| event | held to |"):
        assert set(re.findall(r"`(\w+)`", event)) <= set(EVENTS)
        cited |= set(re.findall(r"KV-[A-Z]+-\d{3}", held_to))
    between = {f"KV-PREFIX-{number:03}" for number in range(7, 13)}  # written as "to"
    assert cited | between == set(RULES) - {"KV-BLOCK-042"}

"""The chapter on memory and the sanitizer name the same events and the same rules."""

import re

from kvref.memory.events import EVENTS
from kvref.sanitizer.findings import RULES
from kvref.sanitizer.sanitizer import HANDLERS
from kvref_conformance.requirements import load_requirements, spec_dir


def rows(heading: str) -> list[list[str]]:
    """The cells of the table of the chapter that has this heading row."""
    text = (spec_dir() / "memory.md").read_text(encoding="utf-8")
    assert heading in text
    table = text.partition(heading)[2].partition("\n\n")[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


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

"""The tables of histories in the chapter on memory: every event, every field.

An entry begins at the left margin. What follows it is indented: `# what it says`, then `= what it does`.
"""

from collections.abc import Iterable

import kvref_tables
from docutils import nodes
from kvref_domain import SpecDirective
from sphinx.application import Sphinx

from kvref.memory.events import EVENTS, FIELDS


def entries(lines: Iterable[str]) -> list[tuple[str, str, str]]:
    """Split a body into entries: head, summary, effect; the effect is empty where there is none."""
    joined: list[str] = []
    for line in lines:
        if line.startswith(" "):
            joined[-1] += " " + line.strip()
        elif line.strip():
            joined.append(line.strip())
    found = []
    for entry in joined:
        head, _, rest = entry.partition(" # ")
        summary, _, effect = rest.partition(" = ")
        found.append((head, summary, effect))
    return found


class EventsDirective(SpecDirective):
    """The events: `name(fields)`, what happened, and what it does to holders, tables and contents."""

    def run(self) -> list[nodes.Node]:
        """Draw the table."""
        rows = []
        for head, summary, effect in entries(self.content):
            name, _, fields = head.partition("(")
            assert name in EVENTS, f"{name} is no event"
            what = [nodes.paragraph("", "", nodes.strong(text=name)), nodes.paragraph(text=fields[:-1])]
            rows.append([what, [nodes.paragraph(text=summary), nodes.paragraph(text=effect)]])
        return [kvref_tables.table(["event and fields", "what it does"], rows, widths=[34, 66])]


class EventFieldsDirective(SpecDirective):
    """The fields of events: `name: what it holds`, and what it says."""

    def run(self) -> list[nodes.Node]:
        """Draw the table."""
        rows = []
        for head, summary, _ in entries(self.content):
            name, _, holds = head.partition(": ")
            assert name in FIELDS, f"{name} is no field"
            rows.append([nodes.literal(text=name), holds, summary])
        return [kvref_tables.table(["field", "holds", "says"], rows, widths=[18, 38, 44])]


def setup(app: Sphinx) -> None:
    """Register the directives."""
    app.add_directive("events", EventsDirective)
    app.add_directive("eventfields", EventFieldsDirective)

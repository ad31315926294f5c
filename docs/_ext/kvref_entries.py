"""Tables of the spec that are lists of entries: events of a history and their fields, steps of programs."""

import kvref_tables
from docutils import nodes
from kvref_domain import SpecDirective
from kvref_written import entries
from sphinx.application import Sphinx

from kvref.memory.events import EVENTS, FIELDS


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


class StepsDirective(SpecDirective):
    """The steps of programs: `manager: step and numbers`, what it does, and the operations it calls."""

    def run(self) -> list[nodes.Node]:
        """Draw one table a manager."""
        rows: dict[str, list[list[kvref_tables.Cell]]] = {}
        for head, summary, operations in entries(self.content):
            manager, _, step = head.partition(": ")
            calls = nodes.paragraph("", "", nodes.literal(text=operations))
            rows.setdefault(manager, []).append([nodes.literal(text=step), summary, calls])
        shown: list[nodes.Node] = []
        for manager, steps in rows.items():
            shown.append(nodes.paragraph("", "", nodes.literal(text=manager)))
            shown.append(kvref_tables.table(["step", "what it does", "calls"], steps, widths=[24, 54, 22]))
        return shown


def setup(app: Sphinx) -> None:
    """Register the directives."""
    app.add_directive("events", EventsDirective)
    app.add_directive("steps", StepsDirective)
    app.add_directive("eventfields", EventFieldsDirective)

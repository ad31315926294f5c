"""Sphinx shows the spec: the fenced directives of its chapters, as cards and tables.

A chapter says ```{req} KV-ATTN-021 window-own-token```; what is shown is the record that
`kvref_conformance.requirements` reads from the same file, so the pages and the suite cannot disagree.
"""

from collections.abc import Iterator
from typing import Any

import kvref_domain
import kvref_entries
import kvref_evidence as evidence
import kvref_formats
import kvref_output
import kvref_suite
import kvref_tables
from docutils import nodes
from kvref_docstrings import as_rst
from kvref_domain import SpecDirective, fields, joined, link, link_to_code
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from kvref_conformance.choices import CHOICES, Choice
from kvref_conformance.contracts import VERBS
from kvref_conformance.managers import MANAGERS, offering
from kvref_conformance.requirements import Requirement, read_directives, spec_dir

_TESTED = {
    "core": "decided by exact cases",
    "numeric": "decided by the derived bound",
    "fuzz": "searched for, never decides",
    "untestable": "not testable from outside",
}


class ReqDirective(SpecDirective):
    """A requirement as a card: what it says, how it is tested, and everything that cites it."""

    def run(self) -> list[nodes.Node]:
        """Draw the card."""
        identity = self.arguments[0].split()[0]
        r = evidence.requirements()[identity]
        card = nodes.container(classes=["req", f"req-{r.level.lower()}"])
        self.anchor("req", r.id, card)
        head = nodes.paragraph(classes=["req-head"])
        head += nodes.strong(r.id, r.id)
        head += nodes.Text(" ")
        head += nodes.inline(r.slug, r.slug, classes=["req-slug"])
        head += nodes.reference("¶", "¶", internal=True, refid=r.id, classes=["req-link"])
        card += head
        card += self.markdown(r.text)
        card += fields(self._facts(r))
        return [card]

    def _facts(self, r: Requirement) -> Iterator[tuple[str, list[nodes.Node]]]:
        yield "Level", [nodes.Text(f"{r.level} · {r.law} · "), nodes.Text(_TESTED[r.test])]
        if r.reason:
            yield "Untestable", _inline(self, r.reason)
        if r.feature:
            yield "In force with", [link("feature", r.feature)]
        if r.choices:
            yield "Choices", joined(link("choice", name) for name in r.choices)
        if r.source:
            yield "Source", _inline(self, r.source)
        if r.id in evidence.checks():
            yield "Checks", joined(link("check", c.name) for c in evidence.checks()[r.id])
        if r.id in evidence.exhibits():
            yield "Broken by", joined(link("exhibit", e.name) for e in evidence.exhibits()[r.id])
        if r.id in evidence.code():
            yield "Code", joined(link_to_code(name) for name in evidence.code()[r.id])


class ChoiceDirective(SpecDirective):
    """A point on which engines differ: the canonical answer, the alternatives, and their hazards."""

    def run(self) -> list[nodes.Node]:
        """Draw the card."""
        choice: Choice = CHOICES[self.arguments[0]]
        card = nodes.container(classes=["choice"])
        self.anchor("choice", choice.name, card)
        head = nodes.paragraph(classes=["req-head"])
        head += nodes.strong(choice.name, choice.name)
        card += head
        rows: list[list[Any]] = [[nodes.literal(text=choice.canonical), "canonical"]]
        rows += [[nodes.literal(text=name), f"hazard: {text}"] for name, text in choice.alternatives.items()]
        card += kvref_tables.table(["answer", ""], rows, widths=[20, 80])
        opened = [r.id for r in evidence.requirements().values() if choice.name in r.choices]
        card += fields([("Opened by", joined(link("req", identity) for identity in opened))])
        return [card]


class FeaturesDirective(SpecDirective):
    """The table of features, one `name: text` a line."""

    def run(self) -> list[nodes.Node]:
        """Draw the table; each name is a place to link to."""
        rows = []
        for line in self.content:
            name, _, text = line.partition(": ")
            target = nodes.inline(name, "", nodes.literal(text=name))
            self.anchor("feature", name, target)
            rows.append([target, text])
        return [
            kvref_tables.table(["feature", "what a subject that claims it supports"], rows, widths=[20, 80])
        ]


class VerbsDirective(SpecDirective):
    """The verbs with their arguments: signatures, each followed by `# what it does`."""

    known = frozenset(VERBS)

    def run(self) -> list[nodes.Node]:
        """Draw one entry a verb."""
        shown = nodes.definition_list(classes=["verbs"])
        statement: list[str] = []
        for line in self.content:
            if not line.strip().startswith("#"):
                statement.append(line.strip())
                continue
            signature = " ".join(statement)
            name = signature.partition("(")[0]
            assert name in self.known, f"{name} is not of the contract"
            term = nodes.term("", "", nodes.literal(text=signature))
            self.anchor("verb", name, term)
            text = nodes.paragraph(text=line.strip().removeprefix("# "))
            shown += nodes.definition_list_item("", term, nodes.definition("", text))
            statement = []
        return [shown]


class ManagersDirective(VerbsDirective):
    """The managers with what opens them, and their operations, in the same form."""

    known = frozenset(name for manager in MANAGERS for name in offering(manager))


class TensorsDirective(SpecDirective):
    """The axes of every tensor: `name [axes] in verbs` a line."""

    def run(self) -> list[nodes.Node]:
        """Draw the table."""
        rows: list[list[Any]] = []
        for line in self.content:
            name, _, rest = line.partition(" [")
            axes, _, where = rest.partition("]")
            verbs = where.removeprefix(" in ")
            rows.append([nodes.literal(text=name), nodes.literal(text=f"[{axes}]"), verbs])
        return [kvref_tables.table(["tensor", "axes", "in"], rows, widths=[22, 40, 38])]


def _inline(directive: SpecDirective, text: str) -> list[nodes.Node]:
    return list(directive.parse_inline(text)[0])


def process_docstring(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Let autodoc show our docstrings, which are prose with Markdown's single backticks."""
    lines[:] = as_rst(lines)


def outdated(app: Sphinx, env: BuildEnvironment, *changes: set[str]) -> list[str]:
    """Pages made from the suite are made again in every build: no file says when they changed."""
    return [name for name in env.found_docs if name.startswith(("spec/", "evidence/", "formats/"))]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the domain, its roles and the directives."""
    directives = {d.name for path in spec_dir().glob("*.md") for d in read_directives(path)}
    known = {"req", "choice", "verbs", "managers", "steps", "tensors", "features", "events", "eventfields"}
    assert directives <= known, directives - known
    app.add_domain(kvref_domain.KvrefDomain)
    for kind in kvref_domain.KINDS:
        app.add_role(kind, kvref_domain.NameRole())
    app.add_directive("req", ReqDirective)
    app.add_directive("choice", ChoiceDirective)
    app.add_directive("verbs", VerbsDirective)
    app.add_directive("managers", ManagersDirective)
    app.add_directive("tensors", TensorsDirective)
    app.add_directive("features", FeaturesDirective)
    kvref_formats.setup(app)
    kvref_entries.setup(app)
    kvref_output.setup(app)
    kvref_suite.setup(app)
    app.connect("autodoc-process-docstring", process_docstring)
    app.connect("env-get-outdated", outdated)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

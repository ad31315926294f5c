"""Sphinx shows the spec: the directives of its chapters, and links between rules, code, checks and exhibits.

A chapter says ```{req} KV-ATTN-021 window-own-token```; what is shown is the record that
`kvref_conformance.requirements` reads from the same file, so the pages and the suite cannot disagree. Every
requirement, choice, check and exhibit is an object of the domain `kvref`, with its name as its anchor, and
stands in objects.inv for other projects to link to.
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import kvref_evidence as evidence
import kvref_output
import kvref_tables
from docutils import nodes
from docutils.statemachine import StringList
from kvref_docstrings import as_rst
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.builders import Builder
from sphinx.domains import Domain, ObjType
from sphinx.environment import BuildEnvironment
from sphinx.roles import XRefRole
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

from kvref_conformance.claims import CHOICES, Choice
from kvref_conformance.contracts import VERBS
from kvref_conformance.requirements import Requirement, read_directives, spec_dir

KINDS = ("req", "choice", "check", "exhibit", "feature", "verb")


class KvrefDomain(Domain):
    """Names of the spec and the suite that a page can link to."""

    name = "kvref"
    label = "kvref"
    object_types: ClassVar = {kind: ObjType(kind, kind) for kind in KINDS}
    roles: ClassVar = {kind: XRefRole() for kind in KINDS}
    initial_data: ClassVar = {"objects": {}}
    data_version = 1

    def note(self, kind: str, name: str, anchor: str) -> None:
        """Remember where a name is explained."""
        self.data["objects"][kind, name] = (self.env.docname, anchor)

    def clear_doc(self, docname: str) -> None:
        """Forget what a page explained."""
        objects = self.data["objects"]
        self.data["objects"] = {key: place for key, place in objects.items() if place[0] != docname}

    def merge_domaindata(self, docnames: set[str], otherdata: dict[str, Any]) -> None:
        """Take over what another process read."""
        for key, place in otherdata["objects"].items():
            if place[0] in docnames:
                self.data["objects"][key] = place

    def get_objects(self) -> Iterator[tuple[str, str, str, str, str, int]]:
        """Yield every object, for search and objects.inv."""
        for (kind, name), (docname, anchor) in self.data["objects"].items():
            yield name, _title(kind, name), kind, docname, anchor, 1

    def resolve_xref(
        self,
        env: BuildEnvironment,
        fromdocname: str,
        builder: Builder,
        typ: str,
        target: str,
        node: pending_xref,
        contnode: nodes.Element,
    ) -> nodes.reference | None:
        """Link to a name; an unknown one is left to the warning of nitpicky mode."""
        place = self.data["objects"].get((typ, target))
        if place is None:
            return None
        text = contnode.astext()
        shown = _title(typ, target) if text == target else text.removeprefix("~")
        return make_refnode(
            builder, fromdocname, place[0], place[1], nodes.inline(shown, shown), _hint(typ, target)
        )

    def resolve_any_xref(self, *unused: Any) -> list[tuple[str, nodes.reference]]:
        """Names of the spec are linked by their own roles only."""
        return []


class NameRole(XRefRole):
    """A role of the domain under its bare name: {req}`KV-ATTN-021`, {choice}`lse-base`, {verb}`write_kv`."""

    def process_link(
        self, env: BuildEnvironment, refnode: nodes.Element, has_explicit_title: bool, title: str, target: str
    ) -> tuple[str, str]:
        """Set the domain, which a bare role does not carry."""
        refnode["refdomain"] = KvrefDomain.name
        return title, target.removeprefix("~")


class SpecDirective(SphinxDirective):
    """A directive of the spec: one argument at most, and a body that is read here, fields included."""

    has_content = True
    optional_arguments = 1
    final_argument_whitespace = True

    def domain(self) -> KvrefDomain:
        """The domain of this build."""
        return self.env.domains[KvrefDomain.name]  # type: ignore[return-value]

    def anchor(self, kind: str, name: str, node: nodes.Element) -> None:
        """Make a node the place where a name is explained."""
        anchor = name if kind == "req" else f"{kind}-{name}"
        node["ids"].append(anchor)
        self.state.document.note_explicit_target(node, node)
        self.domain().note(kind, name, anchor)

    def markdown(self, text: str) -> list[nodes.Node]:
        """Parse text in the language of the page."""
        return self.parse_text_to_nodes(StringList(text.splitlines(), self.get_source_info()[0]))


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
            assert name in VERBS, f"{name} is no verb of the contract"
            term = nodes.term("", "", nodes.literal(text=signature))
            self.anchor("verb", name, term)
            text = nodes.paragraph(text=line.strip().removeprefix("# "))
            shown += nodes.definition_list_item("", term, nodes.definition("", text))
            statement = []
        return [shown]


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


class ChecksDirective(SpecDirective):
    """Every check of the suite, by topic."""

    def run(self) -> list[nodes.Node]:
        """Draw a section a topic."""
        shown: list[nodes.Node] = []
        for topic, checks in evidence.checks_by_topic().items():
            section = topic_section(self, f"checks-{topic}", topic)
            for check in checks:
                card = nodes.container(classes=["entry"])
                self.anchor("check", check.name, card)
                card += nodes.paragraph("", "", nodes.strong(text=check.name.replace("_", " ")))
                card += self.markdown(check.summary)
                facts = [
                    ("Requirement", [link("req", check.requirement)]),
                    ("Ring", [nodes.Text(check.ring)]),
                ]
                facts.append(("Verbs", joined(link("verb", verb) for verb in check.verbs)))
                if check.features:
                    facts.append(("Features", joined(link("feature", name) for name in check.features)))
                card += fields(facts)
                section += card
            shown.append(section)
        return shown


class ExhibitsDirective(SpecDirective):
    """Every exhibit of the museum, by topic: the fault, its story, where it was seen, what it breaks."""

    def run(self) -> list[nodes.Node]:
        """Draw a section a topic."""
        shown: list[nodes.Node] = []
        for topic, exhibits in evidence.exhibits_by_topic().items():
            section = topic_section(self, f"museum-{topic}", topic)
            for exhibit in exhibits:
                card = nodes.container(classes=["entry"])
                self.anchor("exhibit", exhibit.name, card)
                card += nodes.paragraph("", "", nodes.strong(text=exhibit.name))
                card += self.markdown(exhibit.summary)
                card += self.markdown(exhibit.story)
                facts = [
                    ("Reported as", [nodes.Text(f"as if: {exhibit.as_if}")]),
                    ("Fault", [nodes.Text(exhibit.fault)]),
                    ("Breaks", joined(link("req", identity) for identity in exhibit.breaks)),
                ]
                seen = joined(bug_link(place) for place in exhibit.seen_in)
                facts.append(("Seen in", seen or [nodes.Text("no public report: a plant")]))
                card += fields(facts)
                section += card
            shown.append(section)
        return shown


class EvidenceDirective(SpecDirective):
    """A table made from the suite: `matrix`, `kills`, `bugs` or `reports`."""

    def run(self) -> list[nodes.Node]:
        """Draw the table that the argument names."""
        tables = {
            "matrix": kvref_tables.requirement_matrix,
            "kills": kvref_tables.kill_matrix,
            "bugs": kvref_tables.bug_table,
            "reports": kvref_tables.report_table,
        }
        return tables[self.arguments[0]](link, link_to_code)


_TESTED = {
    "core": "decided by exact cases",
    "numeric": "decided by the derived bound",
    "fuzz": "searched for, never decides",
    "untestable": "not testable from outside",
}


def link(kind: str, name: str, shown: str | None = None) -> pending_xref:
    """A link to a name of the domain; requirements show their slug, unless `shown` says otherwise."""
    text = name if shown is None else shown
    return pending_xref(
        "", nodes.inline(text, text), refdomain="kvref", reftype=kind, reftarget=name, refwarn=True
    )


def link_to_code(name: str) -> pending_xref:
    """A link to the API page of a function, class or module of kvref."""
    kind = "mod" if name.rpartition(".")[2].islower() and _is_module(name) else "obj"
    shown = name.removeprefix("kvref.")
    return pending_xref(
        "", nodes.literal(text=shown), refdomain="py", reftype=kind, reftarget=name, refwarn=True
    )


def bug_link(place: str) -> nodes.reference:
    """A link to a public report."""
    bug = evidence.Bug(place, ())
    return nodes.reference("", place, refuri=bug.url, internal=False)


def joined(items: Iterable[nodes.Node]) -> list[nodes.Node]:
    """Nodes with commas between them."""
    out: list[nodes.Node] = []
    for item in items:
        out += [nodes.Text(", ")] if out else []
        out.append(item)
    return out


def fields(facts: Iterable[tuple[str, list[nodes.Node]]]) -> nodes.Element:
    """A small list of facts, a name and its content each."""
    shown = nodes.definition_list(classes=["facts"])
    for name, content in facts:
        definition = nodes.definition("", nodes.paragraph("", "", *content))
        shown += nodes.definition_list_item("", nodes.term(text=name), definition)
    return shown


def topic_section(directive: SphinxDirective, identity: str, topic: str) -> nodes.section:
    """A section of a generated page, which the table of contents lists."""
    section = nodes.section(ids=[identity], names=[identity])
    section += nodes.title(text=_TOPIC_TITLES.get(topic, topic.capitalize()))
    directive.state.document.note_implicit_target(section, section)
    return section


_TOPIC_TITLES = {
    "dense": "The formula",
    "paged": "Slots and blocks",
    "masks": "What a token may see",
    "merge": "Partial states",
    "logits": "Caps, sinks and slopes",
    "writes": "Writing",
    "mla": "Latent attention",
    "sparse": "Sparse attention",
    "rope": "Positions",
    "layouts": "Layouts",
    "calls": "Manners",
    "drawn": "Drawn at random",
}


def _is_module(name: str) -> bool:
    path = evidence.ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def _title(kind: str, name: str) -> str:
    """How a name is shown where the text does not say: requirements with their slug, checks as words."""
    if kind == "req" and name in evidence.requirements():
        return evidence.requirements()[name].title
    return name.replace("_", " ") if kind == "check" else name


def _hint(kind: str, name: str) -> str:
    """What a link says when it is pointed at."""
    return evidence.requirements()[name].text if kind == "req" else ""


def _inline(directive: SpecDirective, text: str) -> list[nodes.Node]:
    return list(directive.parse_inline(text)[0])


def process_docstring(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Let autodoc show our docstrings, which are prose with Markdown's single backticks."""
    lines[:] = as_rst(lines)


def outdated(app: Sphinx, env: BuildEnvironment, *changes: set[str]) -> list[str]:
    """Pages made from the suite are made again in every build: no file says when they changed."""
    return [name for name in env.found_docs if name.startswith(("spec/", "evidence/"))]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the domain, its roles and the directives."""
    directives = {d.name for path in spec_dir().glob("*.md") for d in read_directives(path)}
    assert directives <= {"req", "choice", "verbs", "tensors", "features"}, directives
    app.add_domain(KvrefDomain)
    for kind in KINDS:
        app.add_role(kind, NameRole())
    app.add_directive("req", ReqDirective)
    app.add_directive("choice", ChoiceDirective)
    app.add_directive("verbs", VerbsDirective)
    app.add_directive("tensors", TensorsDirective)
    app.add_directive("features", FeaturesDirective)
    app.add_directive("checks", ChecksDirective)
    app.add_directive("exhibits", ExhibitsDirective)
    app.add_directive("evidence", EvidenceDirective)
    kvref_output.setup(app)
    app.connect("autodoc-process-docstring", process_docstring)
    app.connect("env-get-outdated", outdated)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

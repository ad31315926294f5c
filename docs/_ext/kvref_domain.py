"""The names of the spec and the suite, as things a page can link to, and the small nodes that do.

Every requirement, choice, feature, verb, check and exhibit is an object of the domain `kvref`, with its name
as its anchor, and stands in objects.inv for other projects to link to.
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import kvref_evidence as evidence
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref
from sphinx.builders import Builder
from sphinx.domains import Domain, ObjType
from sphinx.environment import BuildEnvironment
from sphinx.roles import XRefRole
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

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

"""Pages made from the suite: its checks, the museum, and the tables of evidence."""

import kvref_evidence as evidence
import kvref_tables
from docutils import nodes
from kvref_domain import SpecDirective, bug_link, fields, joined, link, link_to_code
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_TOPIC_TITLES = {
    "dense": "The formula",
    "paged": "Slots and blocks",
    "dead_slots": "What must not be read",
    "strides": "Caches that are views",
    "masks": "What a token may see",
    "spans": "Spans and masks",
    "merge": "Partial states",
    "logits": "Caps, sinks and slopes",
    "writes": "Writing",
    "mla": "Latent attention",
    "sparse": "Sparse attention",
    "rope": "Positions",
    "layouts": "Layouts",
    "formats_elements": "Elements and their codes",
    "formats_scales": "Scales",
    "formats_micro": "Shared exponents, and two levels of scales",
    "formats_integers": "Integers, and ggml's records",
    "formats_bytes": "Bytes and their places",
    "formats_attend": "Attention over codes",
    "formats_contexts": "Long contexts and many heads over codes",
    "formats_readout": "Codes read by attention",
    "formats_variants": "Variants over codes",
    "calls": "Manners",
    "drawn": "Drawn at random",
}


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


def topic_section(directive: SphinxDirective, identity: str, topic: str) -> nodes.section:
    """A section of a generated page, which the table of contents lists."""
    section = nodes.section(ids=[identity], names=[identity])
    section += nodes.title(text=_TOPIC_TITLES.get(topic, topic.capitalize()))
    directive.state.document.note_implicit_target(section, section)
    return section


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("checks", ChecksDirective)
    app.add_directive("exhibits", ExhibitsDirective)
    app.add_directive("evidence", EvidenceDirective)
    return {"parallel_read_safe": True}

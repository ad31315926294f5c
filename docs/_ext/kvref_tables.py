"""Tables made from the suite when the pages are built: requirements, kills, bugs, reports."""

from collections.abc import Callable, Iterable, Sequence

import kvref_evidence as evidence
from docutils import nodes

#: (kind, name, text or None) -> a link to something of the spec or the suite.
Link = Callable[..., nodes.Node]
CodeLink = Callable[[str], nodes.Node]
Cell = str | nodes.Node | Sequence[nodes.Node]


def table(
    headings: Sequence[str], rows: Iterable[Sequence[Cell]], *, widths: Sequence[int], wide: bool = False
) -> nodes.table:
    """A table with one heading row; widths are percentages; a wide one widens its page."""
    group = nodes.tgroup(cols=len(headings))
    group += [nodes.colspec(colwidth=width) for width in widths]
    head = nodes.thead()
    head += _row(headings)
    body = nodes.tbody()
    body += [_row(row) for row in rows]
    group += [head, body]
    shown = nodes.table(classes=["kvref-table", "colwidths-given", *(["wide", "fixed"] if wide else [])])
    shown += group
    return shown


def requirement_matrix(link: Link, code_link: CodeLink) -> list[nodes.Node]:
    """Every requirement with what realises it, what checks it, and what breaks it."""
    rows: list[list[Cell]] = []
    for r in evidence.requirements().values():
        checks = evidence.checks().get(r.id, ())
        exhibits = evidence.exhibits().get(r.id, ())
        tested: Cell = _lines(link("check", check.name) for check in checks)
        if r.test == "untestable":
            tested = r.reason
        code = _lines(code_link(name) for name in evidence.code().get(r.id, ()))
        broken_by = _lines(link("exhibit", e.name) for e in exhibits)
        rows.append([link("req", r.id), r.test, code, tested, broken_by])
    headings = ["requirement", "test", "code", "checks", "exhibits"]
    return [table(headings, rows, widths=[21, 9, 25, 25, 20], wide=True)]


def kill_matrix(link: Link, code_link: CodeLink) -> list[nodes.Node]:
    """Which requirement fails for which exhibit, as the suite found it."""
    from kvref_kills import kills

    rows: list[list[Cell]] = []
    for row in kills():
        declared, others = row.declared, row.others
        rows.append(
            [
                link("exhibit", row.exhibit),
                _lines(link("req", name) for name in declared),
                _joined(link("req", name, name.removeprefix("KV-").removeprefix("ATTN-")) for name in others),
            ]
        )
    headings = ["exhibit", "caught by the checks of", "also failing, as the exhibit says it may"]
    return [table(headings, rows, widths=[24, 32, 44], wide=True)]


def bug_table(link: Link, code_link: CodeLink) -> list[nodes.Node]:
    """Public report -> the exhibits of its fault -> the requirements they break."""
    rows: list[list[Cell]] = []
    for bug in evidence.bugs():
        broken = dict.fromkeys(identity for exhibit in bug.exhibits for identity in exhibit.breaks)
        rows.append(
            [
                nodes.reference("", bug.place, refuri=bug.url, internal=False),
                _lines(link("exhibit", exhibit.name) for exhibit in bug.exhibits),
                _lines(link("req", identity) for identity in broken),
            ]
        )
    return [table(["report", "exhibit", "breaks"], rows, widths=[36, 28, 36])]


def report_table(link: Link, code_link: CodeLink) -> list[nodes.Node]:
    """Every committed report, an area a line."""
    shown: list[nodes.Node] = []
    for name, report in evidence.reports().items():
        section = nodes.section(ids=[f"report-{nodes.make_id(name)}"], names=[name])
        section += nodes.title(text=f"{report.subject} {report.subject_version}".strip())
        section += nodes.literal_block(text=report.command, language="text")
        rows: list[list[Cell]] = []
        for area in report.areas:
            if area.verdict == "not claimed":
                continue
            failed = [link("req", r.requirement) for r in report.failures if r.area == area.area]
            share = f"{area.claimed_share:.0%}"
            rows.append([link("verb", area.area), area.verdict, str(area.cases), share, _lines(failed)])
        headings = ["area", "verdict", "cases", "claimed share", "failing requirements"]
        section += table(headings, rows, widths=[22, 18, 8, 12, 40])
        if report.deviations:
            items = nodes.bullet_list()
            for d in report.deviations:
                text = f"{d.choice} = {d.declared} instead of {d.canonical}: {d.hazard}"
                items += nodes.list_item("", nodes.paragraph(text=text))
            section += [nodes.paragraph(text="Choices that differ from the canonical ones:"), items]
        shown.append(section)
    return shown or [nodes.paragraph(text="No report is committed yet.")]


def _row(cells: Sequence[Cell]) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        row += nodes.entry("", *_blocks(cell))
    return row


def _blocks(cell: Cell) -> list[nodes.Node]:
    """A cell's content as block nodes: text and inline nodes stand in a paragraph."""
    if isinstance(cell, str):
        return [nodes.paragraph(text=cell)]
    content = [cell] if isinstance(cell, nodes.Node) else list(cell)
    if content and all(isinstance(node, nodes.paragraph) for node in content):
        return content
    return [nodes.paragraph("", "", *content)]


def _lines(items: Iterable[nodes.Node]) -> list[nodes.Node]:
    """One paragraph for each node."""
    return [nodes.paragraph("", "", item) for item in items]


def _joined(items: Iterable[nodes.Node]) -> list[nodes.Node]:
    out: list[nodes.Node] = []
    for item in items:
        out += [nodes.Text(" ")] if out else []
        out.append(item)
    return out

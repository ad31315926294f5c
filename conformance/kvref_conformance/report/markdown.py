"""The report as Markdown, for a pull request or a page of the docs."""

from html import escape

from kvref_conformance.report.model import ChoiceFound, Report
from kvref_conformance.report.terminal import failure_lines


def to_markdown(report: Report) -> str:
    """Return the report as Markdown."""
    name = f"{report.subject} {report.subject_version}".strip()
    lines = [f"# {_cell(name)}: conformance to spec {report.spec_version}", ""]
    lines += ["Reproduce: `" + report.command.replace("`", "'") + "`", ""]
    lines += [
        "| area | verdict | cases | failed | claimed share | margin used |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for area in report.areas:
        if area.verdict == "not claimed":
            lines.append(f"| {area.area} | not claimed | | | | |")
        else:
            share, margin = f"{area.claimed_share:.1%}", f"{area.margin:.3f}"
            lines.append(
                f"| {area.area} | {area.verdict} | {area.cases} | {area.failed} | {share} | {margin} |"
            )
    lines.append("")
    offers = [f"{area.area} offers {', '.join(area.operations)}." for area in report.areas if area.operations]
    lines += [*offers, ""] if offers else []
    caveats = [f"{area.area}: {area.caveat}" for area in report.areas if area.caveat]
    lines += [*caveats, ""] if caveats else []
    if report.failures:
        lines += ["## Failures", "", "```text"]
        for result in report.failures:
            lines += [line.replace("```", "'''") for line in failure_lines(result)]
        lines += ["```", ""]
        for identity, text in report.requirement_texts.items():
            lines.append(f"- **{identity}** {text}")
        lines.append("")
    if report.deviations:
        lines += ["## Choices that differ from canonical", ""]
        lines += [
            f"- `{d.choice}` = `{d.declared}` instead of `{d.canonical}`: {d.hazard}"
            for d in report.deviations
        ]
        lines.append("")
    if report.choices:
        lines += ["## Choices found by running it", "", "| choice | declared | found |", "|---|---|---|"]
        lines += [f"| `{c.choice}` | `{c.declared}` | {_found(c)} |" for c in report.choices]
        lines.append("")
    if report.disagreements or report.survivors:
        lines += ["## Arithmetic", ""]
        lines += [f"- {line}" for line in report.disagreements]
        lines += [f"- faults that would pass as declared: {name}" for name in report.survivors]
        lines.append("")
    if report.known:
        lines += ["## Known failures", ""]
        lines += [f"- {k.requirement} ({k.kind}, {k.outcome}): {_cell(k.reason)}" for k in report.known]
        lines.append("")
    return "\n".join(lines)


def _found(choice: ChoiceFound) -> str:
    """Return what was found, in bold where it is not what is declared."""
    shown = " or ".join(f"`{answer}`" for answer in choice.found) or choice.shown
    return shown if choice.agrees else f"**{shown}**"


def _cell(text: str) -> str:
    """Return text of a subject or a user for one cell or line: no markup of theirs is anybody's markup."""
    return escape(text, quote=False).replace("|", "\\|").replace("\n", " ")

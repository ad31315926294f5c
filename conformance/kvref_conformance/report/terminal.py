"""The report for a terminal: failures first, enough to start debugging, then the verdicts."""

from rich.console import Console
from rich.text import Text

from kvref_conformance.managers import MANAGERS
from kvref_conformance.report.model import AreaResult, Report, RequirementResult

_COLOURS = {"conformant": "green", "not conformant": "red", "not claimed": "dim"}
_HEADINGS = ("area", "verdict", "cases", "failed", "claimed share", "margin used")
_NUMERIC_FROM = 2


def render(report: Report, console: Console, *, seconds: float | None = None) -> None:
    """Print a report; `seconds` of wall time appear here and in no file."""
    first: dict[tuple[str, str, str], str] = {}
    for result in report.failures:
        told = first.setdefault(_said(result), result.requirement)
        _print_failure(result, console, told if told != result.requirement else "")
    for line in report.broken:
        console.print(Text(f"BROKEN  the suite itself failed: {line}", "red"))
    if report.failures or report.broken:
        console.print()
    for row in _areas(report):
        console.print(row, soft_wrap=True)
    others = [area.area for area in report.areas if area.verdict == "not claimed"]
    if others:
        console.print(Text(f"not claimed: {', '.join(others)}", "dim"), soft_wrap=True)
    for area in report.areas:
        if area.operations:
            console.print(Text(f"{area.area} offers {_operations(area)}", "dim"), soft_wrap=True)
        if area.reason:
            console.print(Text(f"{area.area}: {area.reason}"), soft_wrap=True)
        if area.caveat:
            console.print(Text(f"{area.area}: {area.caveat}", "yellow"), soft_wrap=True)
    _print_declarations(report, console)
    _print_known(report, console)
    console.print(Text(_summary(report, seconds), "bold"), soft_wrap=True)


def _said(result: RequirementResult) -> tuple[str, str, str]:
    """Return what two failures have in common where one form that cannot be read fails them both."""
    failure = result.failure
    if failure is None or failure.kind != "shape":
        return (result.area, result.requirement, "")
    return (result.area, failure.kind, failure.message)


def failure_lines(result: RequirementResult, told: str = "") -> list[str]:
    """Return a failure as lines: requirement, how many, what was seen; then diagnosis and replay.

    `told` is the requirement under which the same was told before: then one line is enough.
    """
    failure = result.failure
    word = "FAIL" if result.level == "MUST" else "WARN"
    head = f"{result.requirement} {result.slug}".ljust(38)
    count = f"{result.failed} of {result.cases} cases"
    kind = f"{failure.kind}: " if failure and failure.kind else ""
    message = failure.message if failure else ""
    if told:
        return [f"{word}  {head} {count}   {result.area}: the same as {told}"]
    lines = [f"{word}  {head} {count}   {result.area}: {kind}{message}"]
    if failure is not None:
        lines += [f"      {line}" for line in failure.program]
        lines += [f"      as if: {sentence}" for sentence in failure.as_if]
        if failure.replay:
            lines.append(f"      replay: {failure.replay}")
    return lines


def _print_failure(result: RequirementResult, console: Console, told: str) -> None:
    first, *rest = failure_lines(result, told)
    line = Text(first)
    line.stylize("bold red" if result.level == "MUST" else "bold yellow", 0, 4)
    console.print(line, soft_wrap=True)
    for more in rest:
        console.print(Text(more, "dim" if "replay:" in more else ""), soft_wrap=True)


def _areas(report: Report) -> list[Text]:
    """Lay the areas out in columns: never cut, whatever the width, because the last digits count."""
    shown = [area for area in report.areas if area.verdict != "not claimed"]
    rows = [_HEADINGS, *(_row(area) for area in shown)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEADINGS))]
    widths[1] = max(map(len, _COLOURS))  # two reports side by side have their numbers in line
    lines = []
    for area, row in zip([None, *shown], rows, strict=True):
        cells = [
            cell.ljust(width) if at < _NUMERIC_FROM else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        line = Text("  ".join(cells))
        if area is not None:
            begin = widths[0] + 2
            line.stylize(_COLOURS[area.verdict], begin, begin + len(area.verdict))
        lines.append(line)
    return lines


def _operations(area: AreaResult) -> str:
    """Return the operations that a manager offers, and those that it does not."""
    others = [name for name in MANAGERS[area.area].operations if name not in area.operations]
    return ", ".join(area.operations) + (f"; not {', '.join(others)}" if others else "")


def _row(area: AreaResult) -> tuple[str, ...]:
    numbers = (str(area.cases), str(area.failed), f"{area.claimed_share:.0%}", f"{area.margin:.2f}")
    return (area.area, area.verdict, *numbers)


def _print_declarations(report: Report, console: Console) -> None:
    if report.deviations:
        ignored = " (ignored: --canonical)" if report.canonical else ""
        console.print(Text(f"choices that differ from canonical{ignored}:"))
    for choice in report.deviations:
        spelled = f"{choice.choice} = {choice.declared} instead of {choice.canonical}"
        console.print(Text(f"  {spelled}: {choice.hazard}"), soft_wrap=True)
    if report.choices:
        spelled = ", ".join(f"{c.choice} = {c.shown}" for c in report.choices)
        console.print(Text(f"choices found by running it: {spelled}", "dim"), soft_wrap=True)
    for found in report.choices:
        if not found.agrees:
            line = f"choices: {found.choice} is declared {found.declared}, the answers show {found.shown}"
            console.print(Text(line, "yellow"), soft_wrap=True)
    for dtype, stages in report.inferred.items():
        spelled = ", ".join(f"{name} {form}" for name, form in stages.items())
        console.print(Text(f"arithmetic inferred for {dtype}: {spelled}", "dim"), soft_wrap=True)
    for line in report.disagreements:
        console.print(Text(f"arithmetic: {line}", "yellow"), soft_wrap=True)
    if report.survivors:
        names = ", ".join(report.survivors)
        console.print(Text(f"faults that would pass as declared: {names}", "yellow"), soft_wrap=True)


def _print_known(report: Report, console: Console) -> None:
    for entry in report.known:
        if entry.outcome == "passes":
            line = f"line {entry.line}: delete the entry of {entry.requirement}, which passes now"
            console.print(Text(f"known failures, {line}", "red"))
        else:
            does = "still fails" if entry.outcome == "fails" else "was not run"
            console.print(
                Text(f"known failure {entry.requirement} {does} ({entry.kind}: {entry.reason})", "dim")
            )


def _summary(report: Report, seconds: float | None) -> str:
    cases = sum(area.cases for area in report.areas)
    time = "" if seconds is None else f" in {seconds:.1f} s"
    name = f"{report.subject} {report.subject_version}".strip()
    mode = ", canonical choices" if report.canonical else ""
    return f"{name}: {cases} cases{time}, spec {report.spec_version}, level {report.level}{mode}"

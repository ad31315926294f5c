"""`kvref sanitize`: replay what an engine logged against shadow memory, and name whose data was read."""

import json
import sys
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from kvref.cli.errors import friendly
from kvref.cli.sanitize_events import check_options, event_options, judged, told

if TYPE_CHECKING:
    from kvref.sanitizer.kv_event_findings import KVEventReport
    from kvref.sanitizer.sanitizer import Report


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--max",
    "max_findings",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="End after N faults.",
)
@click.option(
    "--max-wait",
    type=click.IntRange(min=1),
    metavar="STEPS",
    help="How many steps a request may wait while others are computed; else what the history says.",
)
@event_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@friendly
def sanitize(file: str, max_findings: int, max_wait: int | None, as_json: bool, **of_events: Any) -> None:
    """Check the history in FILE, plain or gzip, or from a pipe if FILE is -.

    With --kv-events, check the events that a cache published. Exits with 0 if nothing was found, with 1 if
    something was, with 2 if it is no history.
    """
    from kvref.errors import HistoryError

    check_options(of_events, max_wait)
    name = "standard input" if file == "-" else file
    if file == "-" and sys.stdin is None:
        raise HistoryError(f"{name} is closed, expected a history")
    source = sys.stdin.buffer if file == "-" else file
    report: Report | KVEventReport
    try:
        if of_events["kv_events"]:
            report = judged(source, name, max_findings, of_events)
            text = told(report)
        else:
            report = _judged(source, name, max_findings, max_wait)
            text = _told(report)
    except OSError as error:
        raise HistoryError(f"{name}: {error.strerror or error}") from None
    click.echo(json.dumps(report.as_json(), indent=1, ensure_ascii=False) if as_json else text)
    sys.exit(1 if report.findings else 0)


def _judged(source: str | BinaryIO, name: str, max_findings: int, max_wait: int | None) -> "Report":
    """Judge a history."""
    from kvref.errors import HistoryError
    from kvref.sanitizer import sanitizer

    try:
        return sanitizer.sanitize(source, name=name, max_findings=max_findings, max_wait=max_wait)
    except HistoryError as error:
        raise HistoryError(f"{error}{_perhaps_events(str(error))}") from None


def _perhaps_events(said: str) -> str:
    """Return a hint where a file is no history because it may be what a cache published."""
    other = (": no field event", ": the line holds [", ": no JSON")
    return "; for events that a cache published, add --kv-events" if any(o in said for o in other) else ""


def _told(report: "Report") -> str:
    count = len(report.findings)
    lines = [finding.told() for finding in report.findings]
    lines.append(f"{count or 'no'} fault{'s' * (count != 1)} in {report.events} events")
    if not report.complete:
        lines.append("the rest was not read: --max faults were found")
    elif not report.closed:
        lines.append("the history has no close: what is still held at its end was not looked at")
    return "\n".join(lines)

"""`kvref sanitize`: replay what an engine logged against shadow memory, and name whose data was read."""

import json
import sys
from typing import TYPE_CHECKING

import click

from kvref.cli.errors import friendly

if TYPE_CHECKING:
    from kvref.sanitizer.sanitizer import Report


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--max", "max_findings", type=click.IntRange(min=1), default=100, show_default=True, metavar="N"
)
@click.option(
    "--max-wait",
    type=click.IntRange(min=1),
    metavar="STEPS",
    help="How many steps a request may wait while others are computed; else what the history says.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@friendly
def sanitize(file: str, max_findings: int, max_wait: int | None, as_json: bool) -> None:
    """Check the history in FILE, plain or gzip, or from a pipe if FILE is -.

    Exits with 0 if nothing was found, with 1 if something was, with 2 if it is no history. --max ends the
    search after N faults.
    """
    from kvref.sanitizer import sanitizer

    source = sys.stdin.buffer if file == "-" else file
    name = "standard input" if file == "-" else file
    report = sanitizer.sanitize(source, name=name, max_findings=max_findings, max_wait=max_wait)
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=1, ensure_ascii=False))
    else:
        click.echo(_told(report))
    sys.exit(1 if report.findings else 0)


def _told(report: "Report") -> str:
    count = len(report.findings)
    lines = [finding.told() for finding in report.findings]
    lines.append(f"{count or 'no'} fault{'s' * (count != 1)} in {report.events} events")
    if not report.complete:
        lines.append("the rest was not read: --max faults were found")
    elif not report.closed:
        lines.append("the history has no close: what is still held at its end was not looked at")
    return "\n".join(lines)

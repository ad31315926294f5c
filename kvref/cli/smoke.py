"""`kvref smoke`: does the harness work at all? Each verb and operation once, before any judgement."""

import json
import sys
from typing import Any

import click

from kvref.cli.errors import BROKEN, friendly
from kvref.cli.given import target_of


@click.command()
@click.argument("subject", required=False)
@click.option("--python", "python", metavar="INTERP", help="Interpreter to run the subject in.")
@click.option("--exec", "program", metavar="CMD", help="Program that speaks the wire, instead of SUBJECT.")
@click.option("--in-process", is_flag=True, help="Run the subject in this process.")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=60.0, show_default=True, metavar="S")
@click.option("--wire", is_flag=True, help="Print every line that crosses the wire, on stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@friendly
def smoke(**options: Any) -> None:
    """Ask SUBJECT what it is and call each of its verbs and operations once, on the smallest input.

    Of the answers only the delivery is judged. Exit code 0: all is well. 1: the harness works, the
    implementation fails a call. 3: the harness is broken.
    """
    from kvref_conformance.host.smoke import check_transcript
    from kvref_conformance.host.smoke import smoke as try_out

    target = target_of(options)
    lines: list[tuple[str, bytes]] = []

    def trace(direction: str, line: bytes) -> None:
        lines.append((direction, line))
        if options["wire"]:
            click.echo(f"{direction} {line.decode('utf-8', 'replace').rstrip()}", err=True)

    host = target.open(trace=trace)
    try:
        steps = try_out(host)
    finally:
        host.close()
    faults = check_transcript(lines)
    blamed = {step.blame for step in steps} | ({"harness"} if faults else set())
    if options["as_json"]:
        rows = [{"name": step.name, "blame": step.blame, "detail": step.detail} for step in steps]
        click.echo(json.dumps({"steps": rows, "wire": faults}, indent=1, ensure_ascii=False))
    else:
        for line in [*map(str, steps), *(f"wire: {fault}" for fault in faults)]:
            click.echo(line)
    sys.exit(BROKEN if "harness" in blamed else 1 if "implementation" in blamed else 0)

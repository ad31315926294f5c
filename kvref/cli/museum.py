"""`kvref museum`: faults that happened, each as the smallest change to a correct implementation."""

import json
from typing import Any

import click

from kvref.cli.errors import friendly


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@friendly
def museum(name: str | None, as_json: bool) -> None:
    """List the exhibits, or show the one with this NAME."""
    from kvref.errors import ArgumentError
    from kvref_conformance.museum import all_exhibits
    from kvref_conformance.nearest import meant

    rows = [_row(exhibit) for exhibit in all_exhibits()]
    if name is not None:
        near = meant(name, [row["name"] for row in rows])
        rows = [row for row in rows if row["name"].lower() == name.lower()]
        if not rows:
            raise ArgumentError(
                f"exhibit {name!r}{near}, expected one of the museum (`kvref museum` lists them)"
            )
    if as_json:
        click.echo(json.dumps(rows if name is None else rows[0], indent=1, ensure_ascii=False))
    elif name is not None:
        click.echo(_spelled(rows[0]))
    else:
        for row in rows:
            click.echo(f"{row['name']:<34} {', '.join(row['breaks']):<26} {row['summary']}")
        click.echo(f"{len(rows)} exhibits")


def _row(exhibit: Any) -> dict[str, Any]:
    return {
        "name": exhibit.name,
        "summary": exhibit.summary,
        "fault": exhibit.fault,
        "seen_in": list(exhibit.seen_in),
        "breaks": list(exhibit.breaks),
        "may_also_break": list(exhibit.may_also_break),
        "program": exhibit.program,
    }


def _spelled(row: dict[str, Any]) -> str:
    lines = [f"{row['name']}  ({row['fault']})", "", row["summary"], ""]
    for name in ("seen_in", "breaks", "may_also_break"):
        if row[name]:
            lines.append(f"{name.replace('_', ' ')}: {', '.join(row[name])}")
    if row["program"]:
        lines.append(f"program: {row['program']}")
    return "\n".join(lines)

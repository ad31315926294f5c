"""`kvref spec`: the requirements, or one of them with its checks and the faults it stops."""

import json
from typing import Any

import click

from kvref.cli.errors import friendly


@click.command()
@click.argument("requirement", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@friendly
def spec(requirement: str | None, as_json: bool) -> None:
    """List the requirements of the spec, or show the one with this id or slug."""
    from kvref_conformance.requirements import load_requirements, spec_version

    found = load_requirements()
    if requirement is None:
        rows = [
            {"id": r.id, "slug": r.slug, "level": r.level, "law": r.law, "test": r.test}
            for r in found.values()
        ]
        if as_json:
            click.echo(json.dumps({"spec_version": spec_version(), "requirements": rows}, indent=1))
            return
        for row in rows:
            click.echo(f"{row['id']}  {row['slug']:<28} {row['level']:<7} {row['law']:<13} {row['test']}")
        click.echo(f"{len(rows)} requirements, spec {spec_version()}")
        return
    data = _one(requirement, found)
    click.echo(json.dumps(data, indent=1, ensure_ascii=False) if as_json else _spelled(data))


def _one(name: str, found: dict[str, Any]) -> dict[str, Any]:
    from kvref.errors import ArgumentError
    from kvref_conformance.checks import all_checks
    from kvref_conformance.museum import all_exhibits

    by_slug = {r.slug: r.id for r in found.values()}
    identity = by_slug.get(name, name.upper())
    if identity not in found:
        raise ArgumentError(
            f"requirement {name!r}, expected an id or slug of the spec (`kvref spec` lists them)"
        )
    r = found[identity]
    checks = [
        {
            "name": c.name,
            "summary": c.summary,
            "ring": c.ring,
            "verbs": list(c.verbs),
            "features": list(c.features),
        }
        for c in all_checks()
        if c.requirement == identity
    ]
    exhibits = [
        {"name": e.name, "summary": e.summary, "seen_in": list(e.seen_in)}
        for e in all_exhibits()
        if identity in e.breaks
    ]
    return {
        "id": r.id,
        "slug": r.slug,
        "level": r.level,
        "law": r.law,
        "test": r.test,
        "reason": r.reason,
        "feature": r.feature,
        "choices": list(r.choices),
        "source": r.source,
        "chapter": r.chapter,
        "section": r.section,
        "text": r.text,
        "checks": checks,
        "exhibits": exhibits,
    }


def _spelled(data: dict[str, Any]) -> str:
    lines = [f"{data['id']} {data['slug']}  ({data['chapter']}, {data['section']})", "", data["text"], ""]
    for name in ("level", "law", "test", "reason", "feature", "source"):
        if data[name]:
            lines.append(f"{name:<8} {data[name]}")
    if data["choices"]:
        lines.append(f"{'choices':<8} {', '.join(data['choices'])}")
    lines += [f"check    {c['name']}: {c['summary']}" for c in data["checks"]]
    for e in data["exhibits"]:
        seen = f" (seen in {', '.join(e['seen_in'])})" if e["seen_in"] else ""
        lines.append(f"exhibit  {e['name']}: {e['summary']}{seen}")
    return "\n".join(lines)

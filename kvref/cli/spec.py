"""`kvref spec`: the requirements, one of them with its checks and faults, or a choice with its answers."""

import json
from typing import Any

import click

from kvref.cli.errors import friendly


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@friendly
def spec(name: str | None, as_json: bool) -> None:
    """List the requirements of the spec, or show the one with this id or slug, or the choice of this name."""
    from kvref_conformance.requirements import load_requirements, spec_version

    found = load_requirements()
    if name is None:
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
    data = _named(name, found)
    click.echo(json.dumps(data, indent=1, ensure_ascii=False) if as_json else _spelled(data))


def _named(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return the requirement of this id or slug, the choice of this name, or the first holding the second."""
    from kvref.errors import ArgumentError
    from kvref_conformance.choices import CHOICES
    from kvref_conformance.nearest import meant

    identity = {r.slug: r.id for r in found.values()}.get(name, name.upper())
    chosen = CHOICES.get(name.replace("_", "-"))
    if identity in found:
        requirement = _requirement(found[identity])
        return requirement if chosen is None else {**requirement, "choice": _choice(chosen, found)}
    if chosen is None:
        near = meant(name, [*found, *(r.slug for r in found.values()), *CHOICES])
        raise ArgumentError(
            f"requirement {name!r}{near}, expected an id or slug of the spec (`kvref spec` lists them) "
            "or a choice"
        )
    return {"choice": _choice(chosen, found)}


def _choice(choice: Any, found: dict[str, Any]) -> dict[str, Any]:
    opens = [{"id": r.id, "slug": r.slug} for r in found.values() if choice.name in r.choices]
    return {
        "name": choice.name,
        "canonical": choice.canonical,
        "alternatives": dict(choice.alternatives),
        "requirements": opens,
    }


def _requirement(r: Any) -> dict[str, Any]:
    from kvref_conformance.checks import all_checks
    from kvref_conformance.museum import all_exhibits

    checks = [
        {
            "name": c.name,
            "summary": c.summary,
            "ring": c.ring,
            "verbs": list(c.verbs),
            "features": list(c.features),
        }
        for c in all_checks()
        if c.requirement == r.id
    ]
    exhibits = [
        {"name": e.name, "summary": e.summary, "seen_in": list(e.seen_in)}
        for e in all_exhibits()
        if r.id in e.breaks
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
    parts = [_spelled_requirement(data)] if "id" in data else []
    return "\n\n".join([*parts, _spelled_choice(data["choice"])] if "choice" in data else parts)


def _spelled_choice(data: dict[str, Any]) -> str:
    answers = {data["canonical"]: "canonical", **data["alternatives"]}
    width = max(map(len, answers))
    lines = [f"choice   {data['name']}"]
    lines += [f"answer   {answer:<{width}}  {hazard}" for answer, hazard in answers.items()]
    lines += [f"opens    {r['id']} {r['slug']}" for r in data["requirements"]]
    return "\n".join(lines)


def _spelled_requirement(data: dict[str, Any]) -> str:
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

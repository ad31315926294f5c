"""The report as one HTML page that needs nothing from anywhere else."""

import json
import re
from collections.abc import Iterable
from html import escape
from typing import Any

from kvref_conformance.report.drawing import LEGEND, draw
from kvref_conformance.report.model import Failure, Report, RequirementResult

STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --paper: #fdfdfb; --rule: #c9cdd6; --good: #1a7f4b;
  --bad: #b3261e; --quiet: #6a7180; --hit: #9ad1b1; --live: #d9dee8; --other: #e7e0f2; --dead: #f1f1ef; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ee; --paper: #15181e; --rule: #3a404c;
  --good: #6cc495; --bad: #f2918a; --quiet: #9aa1b0; --hit: #2d6b48; --live: #39404d; --other: #453a58;
  --dead: #22262e; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .3rem .6rem;
  border-bottom: 1px solid var(--rule); vertical-align: top; } td.n, th.n { text-align: right; }
code, pre { font: 13px/1.45 ui-monospace, monospace; } pre { white-space: pre-wrap; }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; } .quiet { color: var(--quiet); }
article { border-top: 2px solid var(--rule); padding: .6rem 0 1.2rem; } h3 { margin-bottom: .2rem; }
svg { max-width: 100%; height: auto; margin-top: .6rem; }
svg text { fill: var(--ink); font: 11px sans-serif; }
svg .m { text-anchor: middle; font-weight: 700; } rect { stroke: var(--rule); } .hit { fill: var(--hit); }
.missed { fill: none; stroke: var(--bad); stroke-width: 2; } .stray { fill: var(--bad); }
.live { fill: var(--live); } .other { fill: var(--other); } .dead { fill: var(--dead); }
ul.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0; }
"""


def to_html(report: Report) -> str:
    """Return the report as one self-contained HTML page."""
    name = f"{report.subject} {report.subject_version}".strip()
    title = f"{name}: conformance to the KV cache spec {report.spec_version}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="quiet">kvref {escape(report.kvref_version)}, level {escape(report.level)}'
        f"{', canonical choices' if report.canonical else ''}. "
        f"Reproduce: <code>{escape(report.command)}</code></p>",
        *(f'<p class="bad">The suite itself failed: {escape(line)}</p>' for line in report.broken),
        _areas(report),
        _failures(report),
        _declared(report),
        _requirements(report),
    ]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def _areas(report: Report) -> str:
    rows = []
    for area in report.areas:
        if area.verdict == "not claimed":
            rows.append([area.area, _tag("quiet", "not claimed"), "", "", "", ""])
            continue
        verdict = _tag("good" if area.verdict == "conformant" else "bad", area.verdict)
        offers = f"offers {', '.join(area.operations)}" if area.operations else ""
        said = "; ".join(words for words in (area.reason, offers, area.caveat) if words)
        numbers = [str(area.cases), str(area.failed), f"{area.claimed_share:.1%}", f"{area.margin:.3f}"]
        rows.append([area.area, f"{verdict} <span class='quiet'>{escape(said)}</span>", *numbers])
    heads = ["area", "verdict", "cases", "failed", "claimed share", "margin used"]
    return "<h2>Verdicts</h2>" + _table(heads, rows, numeric_from=2)


def _failures(report: Report) -> str:
    if not report.failures:
        return ""
    legend = "".join(
        f'<li><svg width="15" height="15"><rect class="{kind}" x="1" y="1" width="13" height="13"/></svg> '
        f"{escape(meaning)}</li>"
        for kind, meaning in LEGEND.items()
    )
    articles = "\n".join(_article(report, result) for result in report.failures)
    return f'<h2>Failures</h2><ul class="legend">{legend}</ul>{articles}'


def _article(report: Report, result: RequirementResult) -> str:
    failure: Failure | None = result.failure
    heading = f"{result.requirement} {result.slug}"
    count = f"{result.failed} of {result.cases} cases in {result.area}"
    parts = [f"<h3>{escape(heading)} <span class='quiet'>{escape(count)}</span></h3>"]
    if text := report.requirement_texts.get(result.requirement):
        parts.append(f"<p>{_prose(text)}</p>")
    if failure is not None:
        kind = f"{failure.kind}: " if failure.kind else ""
        parts.append(f'<p class="bad">{escape(kind + failure.message)}</p>')
        if failure.program:
            parts.append(f"<pre>{escape(chr(10).join(failure.program))}</pre>")
        parts += [f"<p>as if: {escape(sentence)}</p>" for sentence in failure.as_if]
        if failure.replay:
            parts.append(f"<pre>{escape(failure.replay)}</pre>")
        if not failure.program:
            parts.append(f"<p class='quiet'><code>{escape(_spelled(failure.case))}</code></p>")
        if failure.picture is not None:
            parts.append(draw(failure.picture))
    return f"<article>{''.join(parts)}</article>"


def _declared(report: Report) -> str:
    parts = []
    if report.deviations:
        rows = [[d.choice, d.declared, d.canonical, escape(d.hazard)] for d in report.deviations]
        parts.append("<h2>Choices that differ from canonical</h2>")
        parts.append(_table(["choice", "declared", "canonical", "hazard"], rows))
    if report.choices:
        rows = [
            [c.choice, escape(c.declared), _tag("" if c.agrees else "bad", c.shown)] for c in report.choices
        ]
        parts += ["<h2>Choices found by running it</h2>", _table(["choice", "declared", "found"], rows)]
    parts.append("<h2>Arithmetic</h2>")
    declared = report.claims.get("arithmetic", {})
    dtypes = list(report.inferred)
    rows = [
        [name, escape(_spelled(value)), *(escape(report.inferred[dtype].get(name, "—")) for dtype in dtypes)]
        for name, value in declared.items()
    ]
    parts.append(_table(["fact", "declared", *(f"inferred for {dtype}" for dtype in dtypes)], rows))
    parts += [f'<p class="bad">{escape(line)}</p>' for line in report.disagreements]
    if report.survivors:
        names = escape(", ".join(report.survivors))
        parts.append(f"<p>Faults that would pass under the declared arithmetic: {names}</p>")
    if report.known:
        rows = [[k.requirement, k.kind, k.outcome, escape(k.reason)] for k in report.known]
        parts += ["<h2>Known failures</h2>", _table(["requirement", "kind", "outcome", "reason"], rows)]
    return "".join(parts)


def _requirements(report: Report) -> str:
    rows = [
        [
            f"{r.requirement} {escape(r.slug)}",
            r.area,
            _tag("good" if r.status == "pass" else "bad", r.status),
            str(r.cases),
            str(r.failed),
            f"{r.margin:.3f}",
        ]
        for r in report.requirements
    ]
    heads = ["requirement", "area", "status", "cases", "failed", "margin used"]
    return "<h2>Requirements</h2>" + _table(heads, rows, numeric_from=3)


def _table(heads: list[str], rows: Iterable[list[str]], numeric_from: int = 99) -> str:
    def cells(tag: str, row: list[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if at >= numeric_from else ''}>{cell}</{tag}>" for at, cell in enumerate(row)
        )

    lines = [f"<tr>{cells('td', row)}</tr>" for row in rows]
    return f"<table><tr>{cells('th', heads)}</tr>{''.join(lines)}</table>"


def _tag(kind: str, text: str) -> str:
    return f'<span class="{kind}">{escape(text)}</span>'


def _prose(text: str) -> str:
    """Escape a sentence of the spec, its backticks made code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

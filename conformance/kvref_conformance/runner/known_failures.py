"""The known-failures file of an implementation: it changes the exit code, never a verdict.

    [[known_failure]]
    id = "KV-ATTN-021"
    kind = "bug"            # or "wontfix"
    reason = "the window kernel is being rewritten"
    url = "https://…"       # optional

The file is strict: an id the spec does not have is an error, and an entry that passes fails the run, so the
file can only shrink.

Realises: KV-CONF-007 known-failures.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvref.errors import ArgumentError
from kvref_conformance.foreign_text import read_text
from kvref_conformance.report.model import KnownResult, RequirementResult

KINDS = ("bug", "wontfix")
MAX_BYTES = 2**20
_FIELDS = {"id", "kind", "reason", "url"}
_HEADER = re.compile(r"\s*\[\[\s*known_failure\s*\]\]")


@dataclass(frozen=True)
class KnownFailure:
    """One entry: a requirement that is known to fail, and why."""

    id: str
    kind: str
    reason: str
    url: str
    line: int
    """Line of the file where the entry begins."""


def load_known_failures(path: Path, known_ids: Iterable[str]) -> list[KnownFailure]:
    """Read a known-failures file.

    Raises: ArgumentError naming the line, what was found and what was expected.
    """
    text = read_text(path, MAX_BYTES)
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{path.name} is not TOML: {error}") from None
    entries = data.pop("known_failure", [])
    if data or not isinstance(entries, list):
        found = sorted(data)[0] if data else "known_failure"
        raise ArgumentError(f"{path.name} has {found!r}, expected [[known_failure]] tables and nothing else")
    lines = [at for at, line in enumerate(text.splitlines(), 1) if _HEADER.match(line)]
    lines += [1] * (len(entries) - len(lines))  # an inline array of tables has no headers
    ids = set(known_ids)
    found_entries = [_entry(path.name, entry, line, ids) for entry, line in zip(entries, lines, strict=False)]
    first: dict[str, int] = {}
    for entry in found_entries:
        if entry.id in first:
            raise ArgumentError(
                f"{path.name}:{entry.line}: {entry.id} again, first on line {first[entry.id]}"
            )
        first[entry.id] = entry.line
    return found_entries


def settle(known: Iterable[KnownFailure], results: Iterable[RequirementResult]) -> tuple[KnownResult, ...]:
    """Compare the entries with what a run found: an entry that ran and failed nowhere passes."""
    outcomes: dict[str, str] = {}
    for result in results:
        if result.status == "fail" or result.requirement not in outcomes:
            outcomes[result.requirement] = "fails" if result.status == "fail" else "passes"
    return tuple(
        KnownResult(
            requirement=entry.id,
            kind=entry.kind,
            reason=entry.reason,
            url=entry.url,
            line=entry.line,
            outcome=outcomes.get(entry.id, "not run"),  # type: ignore[arg-type]  # one of three literals
        )
        for entry in known
    )


def _entry(name: str, entry: Any, line: int, known_ids: set[str]) -> KnownFailure:
    where = f"{name}:{line}"
    if not isinstance(entry, Mapping) or not all(isinstance(value, str) for value in entry.values()):
        raise ArgumentError(
            f"{where}: an entry holds something other than text, expected id, kind, reason, url"
        )
    unknown = sorted(set(entry) - _FIELDS)
    missing = sorted({"id", "kind", "reason"} - set(entry))
    if unknown or missing:
        found = f"has {unknown[0]!r}" if unknown else f"lacks {missing[0]!r}"
        raise ArgumentError(f"{where}: an entry {found}, expected id, kind, reason and perhaps url")
    if entry["id"] not in known_ids:
        raise ArgumentError(f"{where}: id = {entry['id']!r}, expected the id of a requirement of the spec")
    if entry["kind"] not in KINDS:
        raise ArgumentError(f"{where}: kind = {entry['kind']!r}, expected one of {', '.join(KINDS)}")
    if not entry["reason"].strip():
        raise ArgumentError(f"{where}: reason is empty, expected a sentence")
    return KnownFailure(entry["id"], entry["kind"], entry["reason"], entry.get("url", ""), line)

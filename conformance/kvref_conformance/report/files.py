"""A report as a file, its form chosen by the file's name."""

import os
from collections.abc import Callable
from pathlib import Path

from kvref.errors import ArgumentError
from kvref_conformance.report.badge import to_badge
from kvref_conformance.report.html import to_html
from kvref_conformance.report.junit import to_junit
from kvref_conformance.report.markdown import to_markdown
from kvref_conformance.report.model import Report

#: Name endings, the longest first, and what is written under them.
FORMS: dict[str, Callable[[Report], str]] = {
    "badge.json": to_badge,
    ".json": Report.to_json,
    ".html": to_html,
    ".xml": to_junit,
    ".md": to_markdown,
}


def check_suffix(path: Path) -> Callable[[Report], str]:
    """Return what writes a report under this name.

    Raises: ArgumentError if no form has such a name.
    """
    for ending, form in FORMS.items():
        if path.name.endswith(ending):
            return form
    raise ArgumentError(f"report file {path.name!r}, expected a name ending in {', '.join(FORMS)}")


def write_report(report: Report, path: Path) -> None:
    """Write a report as a whole or not at all.

    Raises: ArgumentError if the name has no form or the file cannot be written.
    """
    text = check_suffix(path)(report)
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise ArgumentError(f"report file {path.name!r} cannot be written: {error.strerror}") from None

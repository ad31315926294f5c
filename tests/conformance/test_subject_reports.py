"""The committed reports of real implementations, and the page that explains them."""

import re
from pathlib import Path

import pytest

from kvref_conformance.report.model import Report, load_report
from kvref_conformance.subjects import BUILT_IN

FOLDER = Path(__file__).resolve().parents[2] / "conformance" / "reports"
REPORTS = sorted(FOLDER.glob("*.json"))
README = (FOLDER / "README.md").read_text(encoding="utf-8")
TEXT = " ".join(README.split())


def load(path: Path) -> Report:
    """Return a report; its file is named after the subject's name on the command line and its version."""
    return load_report(path)


def test_there_are_reports() -> None:
    """An empty folder would pass every test below."""
    assert len(REPORTS) >= 35


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: str(path.stem))
def test_name_says_subject_and_version(path: Path) -> None:
    """NAME-VERSION.json, beside the same as Markdown."""
    name, _, version = path.stem.rpartition("-")
    report = load(path)
    assert name in BUILT_IN
    assert report.subject_version.split("+")[0] == version
    assert path.with_suffix(".md").is_file()


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: str(path.stem))
def test_page_holds_command_and_every_failure(path: Path) -> None:
    """Each failing requirement and each choice has its words, and the command is the one the report names."""
    report = load(path)
    name, _, _ = path.stem.rpartition("-")
    command = next(line for line in README.splitlines() if line.startswith(f"kvref check {name} "))
    assert f"--level {report.level}" in command
    assert f"reports/{path.name}" in command
    for failure in report.failures:
        assert f"{failure.requirement} {failure.slug}" in TEXT
    for deviation in report.deviations:
        said = re.search(rf"`{name}`[^#]*?`{deviation.choice}`[^#]*?`{deviation.declared}`", TEXT)
        assert said or f"`{deviation.choice}` is `{deviation.declared}`" in TEXT


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: str(path.stem))
def test_table_says_the_verdict(path: Path) -> None:
    """The last column counts the requirements that fail, whatever areas they fail in."""
    row = next(line for line in README.splitlines() if line.startswith(f"| [{path.stem}]("))
    count = len({failure.requirement for failure in load(path).failures})
    words = {0: "conformant", 1: "1 requirement fails"}.get(count, f"{count} requirements fail")
    assert row.endswith(f" {words} |")

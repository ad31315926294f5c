"""What stands behind each requirement: code that realises it, checks that hold it, exhibits that break it."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvref_conformance.checks import all_checks
from kvref_conformance.checks.check import Check
from kvref_conformance.museum import all_exhibits
from kvref_conformance.museum.exhibit import Exhibit
from kvref_conformance.report.model import Report, load_report
from kvref_conformance.requirements import Requirement, load_requirements

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "conformance" / "reports"

_ID = re.compile(r"KV-[A-Z]+-\d{3}")


@dataclass(frozen=True)
class Bug:
    """One public report, and the exhibits that show its fault."""

    place: str
    """`owner/repo#number`."""
    exhibits: tuple[Exhibit, ...]

    @property
    def url(self) -> str:
        """Where to read it; GitHub forwards an issue that is a pull request."""
        repository, _, number = self.place.partition("#")
        return f"https://github.com/{repository}/issues/{number}"


@cache
def requirements() -> dict[str, Requirement]:
    """Every requirement, by id, in the order of the chapters."""
    return load_requirements()


@cache
def code() -> dict[str, tuple[str, ...]]:
    """Requirement id -> dotted names of the functions, classes and modules whose docstring cites it.

    A function is named before its module; where a function cites an id, its module is left out.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for name, doc in _docstrings():
        for identity in dict.fromkeys(_ID.findall(doc)):
            found[identity].append(name)
    return {
        identity: tuple(n for n in names if not any(other.startswith(f"{n}.") for other in names))
        for identity, names in found.items()
    }


@cache
def checks() -> dict[str, tuple[Check, ...]]:
    """Requirement id -> its checks, in the order of the suite."""
    return _grouped((check.requirement, check) for check in all_checks())


@cache
def checks_by_topic() -> dict[str, tuple[Check, ...]]:
    """Topic -> its checks."""
    return _grouped((check.run.__module__.rpartition(".")[2], check) for check in all_checks())


@cache
def exhibits() -> dict[str, tuple[Exhibit, ...]]:
    """Requirement id -> the exhibits that break it."""
    return _grouped((identity, exhibit) for exhibit in all_exhibits() for identity in exhibit.breaks)


@cache
def exhibits_by_topic() -> dict[str, tuple[Exhibit, ...]]:
    """Topic -> its exhibits."""
    return _grouped((exhibit.topic, exhibit) for exhibit in all_exhibits())


@cache
def bugs() -> tuple[Bug, ...]:
    """Every public report that an exhibit shows, by repository and number."""
    found = _grouped((place, exhibit) for exhibit in all_exhibits() for place in exhibit.seen_in)

    def rank(place: str) -> tuple[str, int]:
        repository, _, number = place.lower().partition("#")
        return repository.rpartition("/")[2], int(number)

    return tuple(Bug(place, found[place]) for place in sorted(found, key=rank))


@cache
def reports() -> dict[str, Report]:
    """File name -> committed report, by name."""
    return {path.name: load_report(path) for path in sorted(REPORTS.glob("*.json"))}


def _docstrings() -> Iterator[tuple[str, str]]:
    """Every docstring of the reference, as (dotted name, text); private functions speak for their module."""
    for path in sorted((ROOT / "kvref").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if module.split(".")[1:2] == ["cli"]:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        yield module, ast.get_docstring(tree) or ""
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                owner = next(
                    (c for c in ast.walk(tree) if isinstance(c, ast.ClassDef) and node in c.body), None
                )
                name = f"{owner.name}.{node.name}" if owner else node.name
                yield f"{module}.{name}", ast.get_docstring(node) or ""
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield f"{module}.{node.name}", ast.get_docstring(node) or ""


def _grouped(pairs: Iterator[tuple[str, Any]]) -> dict[str, tuple[Any, ...]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return {key: tuple(values) for key, values in found.items()}

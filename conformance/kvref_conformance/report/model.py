"""The report of one run, as data. JSON is the truth; every other form is drawn from these records.

A report holds nothing of the machine it was made on: no clock, no path, no host name. Two runs of one subject
give the same bytes, so a committed report can be compared with a fresh one.

Realises: KV-CONF-006 honest-verdicts.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from kvref.errors import ArgumentError
from kvref_conformance.foreign_text import read_text

SCHEMA = "kvref-report/1"
#: Bytes of the largest report that is read back.
MAX_BYTES = 2**26
Verdict = Literal["conformant", "not conformant", "not claimed"]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The cache of a failing input, seen from one query token: which slots it may read, and which it read."""

    request: int
    token: int
    head: int
    block_size: int
    num_blocks: int
    owners: tuple[tuple[int, int, int, int], ...]
    """(block, request, entry of its block table, tokens held) of every block that is in use."""
    should: tuple[int, ...]
    """Slots of the attended set."""
    read: tuple[int, ...]
    """Slots found to have weight."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One requirement's failure at the smallest input found."""

    message: str
    kind: str
    """Empty where the answer was wrong; crash, timeout, error, … where there was none."""
    check: str
    case: Mapping[str, Any]
    as_if: tuple[str, ...] = ()
    """Sentences of known faults that give the same answer on this input."""
    find: str | None = None
    """Name of the file that replays it."""
    replay: str | None = None
    picture: Picture | None = None
    program: tuple[str, ...] = ()
    """What was done to a manager, a step a line, the one that shows the failure marked."""


@dataclass(frozen=True, kw_only=True)
class RequirementResult:
    """One requirement in one area."""

    requirement: str
    slug: str
    level: str
    area: str
    ring: str
    cases: int
    failed: int
    margin: float
    """Largest error over bound among the cases that passed."""
    unbounded: int = 0
    """Cases that passed with some component which the declared arithmetic leaves without a bound."""
    failure: Failure | None = None

    @property
    def status(self) -> Literal["pass", "fail"]:
        """Whether every case passed."""
        return "fail" if self.failed else "pass"


@dataclass(frozen=True, kw_only=True)
class AreaResult:
    """The verdict on one verb or manager."""

    area: str
    verdict: Verdict
    reason: str
    """Why it is not conformant, in words; empty otherwise."""
    cases: int = 0
    failed: int = 0
    requirements: int = 0
    claimed_share: float = 0.0
    """Claimed cases over the cases of the whole domain."""
    margin: float = 0.0
    unbounded: int = 0
    """Cases that passed with some component which the declared arithmetic leaves without a bound."""
    operations: tuple[str, ...] = ()
    """What a manager offers; empty where the area is a verb."""

    @property
    def caveat(self) -> str:
        """What the numbers do not say: how many cases a lax arithmetic has emptied; empty where none."""
        if not self.unbounded:
            return ""
        return (
            f"in {self.unbounded} of {self.cases} cases the declared arithmetic leaves components without a "
            "bound, where any answer passes"
        )


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A declared choice that is not the canonical one."""

    choice: str
    declared: str
    canonical: str
    hazard: str


@dataclass(frozen=True, kw_only=True)
class ChoiceFound:
    """One choice inside formats: what is declared, and every answer that agrees with the subject's."""

    choice: str
    declared: str
    found: tuple[str, ...]
    """Several where nothing told them apart; empty where no answer agrees."""

    @property
    def agrees(self) -> bool:
        """Whether the declared answer is among those found."""
        return self.declared in self.found

    @property
    def shown(self) -> str:
        """What was found, in words."""
        return " or ".join(self.found) or "none of the answers"


@dataclass(frozen=True, kw_only=True)
class KnownResult:
    """One entry of the known-failures file, and what became of it."""

    requirement: str
    kind: str
    reason: str
    url: str
    line: int
    outcome: Literal["fails", "passes", "not run"]


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything one run says."""

    schema: str = SCHEMA
    kvref_version: str
    spec_version: str
    subject: str
    subject_version: str
    command: str
    """What reproduces the report."""
    level: str
    canonical: bool
    environment: Mapping[str, str]
    claims: Mapping[str, Any]
    deviations: tuple[Deviation, ...]
    inferred: Mapping[str, Mapping[str, str]]
    """The arithmetic that probes found: dtype of q -> stage -> format; empty where it was not inferred."""
    disagreements: tuple[str, ...]
    """Where the declared arithmetic and the inferred one differ, in words."""
    survivors: tuple[str, ...]
    """Exhibits of the museum that would pass under the declared arithmetic."""
    areas: tuple[AreaResult, ...]
    requirements: tuple[RequirementResult, ...]
    choices: tuple[ChoiceFound, ...] = ()
    """The choices inside formats that probes found; empty where none was looked for."""
    known: tuple[KnownResult, ...] = ()
    broken: tuple[str, ...] = ()
    """Checks that ended in an error of the suite itself."""
    requirement_texts: Mapping[str, str] = field(default_factory=dict)
    """The sentence of every requirement that failed."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        data = asdict(self)
        for row, result in zip(data["requirements"], self.requirements, strict=True):
            row["status"] = result.status
        plain: dict[str, Any] = json.loads(json.dumps(data, default=_plain))
        return plain

    def to_json(self) -> str:
        """Return the report as JSON text; equal reports give equal bytes."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"

    @property
    def failures(self) -> list[RequirementResult]:
        """The requirements that failed, in the order of the areas and the spec."""
        return [result for result in self.requirements if result.status == "fail"]


def load_report(path: Path) -> Report:
    """Read a report written by `Report.to_json`.

    Raises: ArgumentError if the file is too large, not JSON, or not a report of this schema.
    """
    text = read_text(path, MAX_BYTES)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{path.name} is not JSON: {error}") from None
    return report_from_dict(data)


def report_from_dict(data: Any) -> Report:
    """Read a report from JSON values.

    Raises: ArgumentError if the schema is another one, or a field is missing, unknown or of another kind.
    """
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise ArgumentError(f"report schema = {found!r:.80}, expected {SCHEMA!r}")
    try:
        return _report(data)
    except ArgumentError:
        raise
    except (TypeError, AttributeError, ValueError) as error:  # a number where a list or an object belongs
        raise ArgumentError(f"report: {error}, expected the fields of {SCHEMA}") from None


def _report(data: Mapping[str, Any]) -> Report:
    values = dict(data)
    values["areas"] = tuple(
        _record(AreaResult, {**row, "operations": tuple(row.get("operations", ()))})
        for row in values.get("areas", ())
    )
    values["deviations"] = tuple(_record(Deviation, row) for row in values.get("deviations", ()))
    values["choices"] = tuple(
        _record(ChoiceFound, {**row, "found": tuple(row.get("found", ()))})
        for row in values.get("choices", ())
    )
    values["known"] = tuple(_record(KnownResult, row) for row in values.get("known", ()))
    values["requirements"] = tuple(_requirement(row) for row in values.get("requirements", ()))
    for name in ("disagreements", "survivors", "broken"):
        values[name] = tuple(values.get(name, ()))
    report: Report = _record(Report, values)
    return report


def _requirement(row: Mapping[str, Any]) -> RequirementResult:
    values = {name: value for name, value in row.items() if name != "status"}
    if values.get("failure") is not None:
        failure = dict(values["failure"])
        for name in ("as_if", "program"):
            failure[name] = tuple(failure.get(name, ()))
        if failure.get("picture") is not None:
            picture = dict(failure["picture"])
            picture["owners"] = tuple(tuple(owner) for owner in picture.get("owners", ()))
            picture["should"] = tuple(picture.get("should", ()))
            picture["read"] = tuple(picture.get("read", ()))
            failure["picture"] = _record(Picture, picture)
        values["failure"] = _record(Failure, failure)
    result: RequirementResult = _record(RequirementResult, values)
    return result


def _record(kind: Any, values: Mapping[str, Any]) -> Any:
    known = {f.name for f in fields(kind)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ArgumentError(f"{kind.__name__} has {unknown[0]!r}, expected {', '.join(sorted(known))}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ArgumentError(f"{kind.__name__}: {error}") from None


def _plain(value: Any) -> Any:
    """Turn NumPy scalars into JSON numbers, mappings into objects."""
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")

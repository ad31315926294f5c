"""Verdicts: conformant, not conformant or not claimed, for each area; and the exit code that follows.

An area is one verb or one manager. It is conformant if every MUST in force passed at every claimed case, and
all that is claimed was asked: a claim that nothing was run for is not conformant, because silence is no
evidence.

Realises: KV-CONF-003 claims-are-checked, KV-CONF-006 honest-verdicts, KV-CONF-005 minimum-domain.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvref_conformance.choices import CHOICES
from kvref_conformance.claims import (
    ALL_BLOCK_SIZES,
    ALL_CONV_WIDTHS,
    ALL_DTYPES,
    ALL_FORMATS,
    ALL_HEAD_DIMS,
    ALL_STATE_DIMS,
    MANAGER_BLOCK_SIZES,
    Claims,
    full_claims,
)
from kvref_conformance.contracts import RECURRENT
from kvref_conformance.managers import MANAGERS, offering, operations_of
from kvref_conformance.report.model import AreaResult, Deviation, Report, RequirementResult
from kvref_conformance.runner.evaluate import plan

CONFORMANT, NOT_CONFORMANT, USAGE, BROKEN, UNEXPECTED_PASS = 0, 1, 2, 3, 4
#: What each exit code means, as `--help` prints it.
EXIT_CODES = {
    CONFORMANT: "every asked area is conformant, or fails only as the known-failures file says",
    NOT_CONFORMANT: "an asked area is not conformant or not claimed, or a fuzz run found something",
    USAGE: "the command line, or a file it names, is wrong",
    BROKEN: "the subject cannot be started or spoken to, or the suite itself failed",
    UNEXPECTED_PASS: "an entry of the known-failures file passes: delete it",
}
_WHOLE_DOMAIN = {
    "dtypes": ALL_DTYPES,
    "head_dims": ALL_HEAD_DIMS,
    "block_sizes": ALL_BLOCK_SIZES,
    "formats": ALL_FORMATS,
}
_WHOLE_OF_SCANS = {
    "dtypes": ALL_DTYPES,
    "head_dims": ALL_HEAD_DIMS,
    "state_dims": ALL_STATE_DIMS,
    "conv_widths": ALL_CONV_WIDTHS,
}
_WHOLE_OF_MANAGERS = {"block_sizes": MANAGER_BLOCK_SIZES}


def judge(
    area: str,
    claimed: bool,
    results: Sequence[RequirementResult],
    share: float,
    unasked: Sequence[str] = (),
    operations: tuple[str, ...] = (),
) -> AreaResult:
    """Return the verdict on one area from its requirements' results, and what it claims and was not asked.

    `operations` are those that a manager offers.
    """
    if not claimed:
        return AreaResult(area=area, verdict="not claimed", reason="")
    reason = "; ".join([*_failing(results), *unasked])
    if not results:
        reason = ": ".join(["no check ran for it", *([reason] if reason else [])])
    return AreaResult(
        area=area,
        verdict="not conformant" if reason else "conformant",
        reason=reason,
        cases=sum(r.cases for r in results),
        failed=sum(r.failed for r in results),
        requirements=len(results),
        claimed_share=share,
        margin=max((r.margin for r in results), default=0.0),
        unbounded=sum(r.unbounded for r in results),
        operations=operations,
    )


def _failing(results: Sequence[RequirementResult]) -> list[str]:
    """Say which mandatory requirements fail, if any do."""
    broken = [r for r in results if r.status == "fail" and r.level == "MUST"]
    if not broken:
        return []
    names = ", ".join(r.requirement for r in broken[:4]) + (" and more" if len(broken) > 4 else "")
    return [f"{len(broken)} of {len(results)} requirements fail: {names}"]


def claimed_share(area: str, claims: Claims, offered: Sequence[str] = ()) -> float:
    """Return the part of the whole domain's cases that the claims cover, counted at level exhaustive.

    Of a manager the whole domain has all operations, features and block sizes; `offered` says what it has.
    """
    domain = _domain(area)
    inside: dict[str, Any] = {}
    for name, whole in domain.items():
        inside[name] = tuple(value for value in getattr(claims, name) if value in whole)
        if not inside[name]:
            return 0.0
    mine: tuple[str, ...] = (area,)
    every, full = mine, full_claims(claims)
    if area in MANAGERS:
        mine, every = offering(area, operations_of(area, offered)), offering(area)
        full = replace(full, block_sizes=MANAGER_BLOCK_SIZES)
    claimed = len(plan(mine, replace(claims, **inside), "exhaustive"))
    possible = len(plan(every, full, "exhaustive"))
    return claimed / possible if possible else 0.0


def _domain(area: str) -> Mapping[str, Sequence[Any]]:
    """Return the fields of the claims that an area's domain has, with all that may be claimed."""
    if area in MANAGERS:
        return _WHOLE_OF_MANAGERS
    return _WHOLE_OF_SCANS if area in RECURRENT else _WHOLE_DOMAIN


def deviations(claims: Claims) -> tuple[Deviation, ...]:
    """Return the declared choices that differ from the canonical answers, each with its hazard."""
    return tuple(
        Deviation(
            choice=name,
            declared=answer,
            canonical=CHOICES[name].canonical,
            hazard=CHOICES[name].alternatives[answer],
        )
        for name, answer in sorted(claims.choices.items())
        if answer != CHOICES[name].canonical
    )


def exit_code(report: Report, asked: Iterable[str]) -> int:
    """Return the exit code of a run: unexplained failures first, then entries that pass."""
    if report.broken:
        return BROKEN
    known = {entry.requirement for entry in report.known}
    verdicts = {area.area: area for area in report.areas}
    for name in asked:
        area = verdicts[name]
        failing = _failing([r for r in report.requirements if r.area == name])
        if area.verdict == "not claimed" or area.reason != "".join(failing):
            return NOT_CONFORMANT  # for more than its failures: something claimed was not asked
    unexplained = [
        r for r in report.failures if r.level == "MUST" and r.requirement not in known and r.area in verdicts
    ]
    if unexplained:
        return NOT_CONFORMANT
    return UNEXPECTED_PASS if any(entry.outcome == "passes" for entry in report.known) else CONFORMANT

"""One check at one case against one subject: the smallest unit of a run, and its evidence."""

import contextlib
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from kvref_conformance.cases import Case, Level
from kvref_conformance.checks import all_checks
from kvref_conformance.checks.check import Check
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Answer, Call, Failed
from kvref_conformance.host import Host
from kvref_conformance.journal import Entry
from kvref_conformance.oracle import Oracle
from kvref_conformance.trial import Trial, Violation

Status = Literal["pass", "fail"]


@dataclass(frozen=True)
class Evidence:
    """What one check found at one case."""

    requirement: str
    check: str
    """The check that ran, or where its program broke another requirement, one of that."""
    case: Case
    status: Status
    message: str = ""
    failure: str = ""
    """The kind of failure where the call gave no answer: crash, timeout, error, …"""
    margin: float = 0.0
    """Largest error over bound."""
    unbounded: bool = False
    """Whether it passed with some component that the declared arithmetic leaves without a bound."""
    detail: dict[str, Any] = field(default_factory=dict)
    call: Call | None = field(default=None, repr=False, compare=False)
    answer: Answer | None = field(default=None, repr=False, compare=False)
    made_for: str = field(default="", compare=False)
    """The check that ran, where its program broke another requirement."""
    journal: tuple[Entry, ...] = field(default=(), repr=False, compare=False)
    """What was done to a manager and what it gave."""

    def to_dict(self) -> dict[str, Any]:
        """Return the evidence as JSON values, without tensors."""
        return {
            "requirement": self.requirement,
            "check": self.check,
            "case": self.case.to_dict(),
            "status": self.status,
            "message": self.message,
            "failure": self.failure,
            "margin": self.margin,
            "unbounded": self.unbounded,
            "detail": self.detail,
            "made_for": self.made_for,
        }


def evaluate(check: Check, case: Case, host: Host, oracle: Oracle) -> Evidence:
    """Run one check at one case; whatever the subject does ends in evidence."""
    trial = Trial(host, case, oracle)
    trial.is_in_force = lambda requirement: _check_of(requirement, trial) is not None
    try:
        found = _found(check, case, trial)
    finally:
        for session in trial.sessions:
            with contextlib.suppress(Failed):  # what a subject does at the end of a case is nobody's case
                session.close()
    return replace(found, journal=tuple(trial.journal)) if trial.journal else found


def _found(check: Check, case: Case, trial: Trial) -> Evidence:
    try:
        with np.errstate(all="ignore"):  # a subject may answer NaN, and that is judged, not warned about
            check.run(trial)
    except Violation as violation:
        result = violation.result
        broken = _check_of(violation.requirement, trial) or check
        return Evidence(
            broken.requirement,
            broken.name,
            case,
            "fail",
            violation.message,
            margin=trial.margin,
            detail=violation.detail,
            call=None if result is None else result.call,
            answer=None if result is None else result.answer,
            made_for="" if broken is check else check.name,
        )
    except Failed as failed:
        last, journal = trial.attempted, trial.journal
        during = {"operation": str(journal[-1])} if journal and journal[-1].failure == failed.kind else {}
        return Evidence(
            check.requirement,
            check.name,
            case,
            "fail",
            failed.detail,
            failed.kind,
            trial.margin,
            detail=during,
            call=last,
        )
    return Evidence(
        check.requirement, check.name, case, "pass", margin=trial.margin, unbounded=trial.unbounded
    )


def _check_of(requirement: str, trial: Trial) -> Check | None:
    """Return the check by which a requirement is asked of a subject that is asked this case, or None."""
    verb, offered = trial.case.verb, trial.host.hello().verbs
    asked = (c for c in all_checks() if c.requirement == requirement and c.applies(verb, trial.claims))
    return next((check for check in asked if check.drives(verb, offered)), None)


def plan(
    verbs: tuple[str, ...], claims: Claims, level: Level, *, rings: tuple[str, ...] = ("core", "numeric")
) -> list[tuple[Check, Case]]:
    """Return every (check, case) that a subject with these verbs and claims must pass.

    `verbs` names managers and their operations too, as a subject's hello does.
    """
    return [
        (check, case)
        for check in all_checks()
        if check.ring in rings
        for verb in verbs
        if check.applies(verb, claims) and check.drives(verb, verbs)
        for case in check.cases(claims, verb, level)
    ]

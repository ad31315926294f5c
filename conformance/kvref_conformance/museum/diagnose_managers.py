"""Which known fault a manager's failure looks like.

The exhibits of the manager are put through the failing check at the failing case. One matches if it fails
there in the same way. Either it leaves the same journal, with every block, slot, step and key replaced by the
order in which it first appeared. Or, since a subject may hand out blocks in an order of its own, it breaches
the same requirements at the same steps, leaves the same trace, and gives as much at each operation.

An exhibit of another choice than the declared one would fail for that, so it is left out. Where the built-in
managers make another choice themselves, only exhibits of the failing requirement are tried.
"""

from typing import Any

from kvref.errors import ArgumentError
from kvref_conformance.cases import PROGRAM
from kvref_conformance.checks.check import Check
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Failed
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.journal import Recorded, logical, outline
from kvref_conformance.museum import all_exhibits
from kvref_conformance.museum.diagnose import MOST, Match
from kvref_conformance.museum.exhibit import Exhibit
from kvref_conformance.oracle import Oracle
from kvref_conformance.programs.running import run
from kvref_conformance.runner.evaluate import Evidence, evaluate
from kvref_conformance.subjects.lists import Lists


def diagnose_manager(check: Check, found: Evidence, claims: Claims) -> tuple[Match, ...]:
    """Return the exhibits that fail a case in the same way, at most `MOST`, the likeliest first."""
    observed = _signs(found, claims)
    candidates = [e for e in all_exhibits() if found.case.verb in e.verbs and _chooses_alike(e, claims)]
    if _outcome(Lists, check, found, claims) is not None:
        candidates = [e for e in candidates if check.requirement in e.breaks]
    candidates.sort(key=lambda e: (check.requirement not in e.breaks, e.is_plant))
    matches: list[Match] = []
    for exhibit in candidates:
        if len(matches) < MOST and _same(exhibit, check, found, claims, observed):
            matches.append(Match(exhibit))
    return tuple(matches)


def _same(exhibit: Exhibit, check: Check, found: Evidence, claims: Claims, observed: list[Any]) -> bool:
    """Say whether an exhibit fails the case, and shows one of the signs that were observed."""
    again = _outcome(exhibit.subject, check, found, claims)
    if again is None or (again.requirement, again.failure) != (found.requirement, found.failure):
        return False
    return any(sign == other for sign, other in zip(observed, _signs(again, claims), strict=True) if sign)


def _outcome(subject: Any, check: Check, found: Evidence, claims: Claims) -> Evidence | None:
    """Return how a subject fails the case, None if it passes or cannot be asked."""
    host = InProcessHost(subject)
    if not check.drives(found.case.verb, host.hello().verbs):
        return None
    try:
        again = evaluate(check, found.case, host, Oracle(claims))
    except Exception:  # a fault may raise on what it was not made for
        return None
    return again if again.status == "fail" else None


def _chooses_alike(exhibit: Exhibit, claims: Claims) -> bool:
    """Say whether an exhibit declares no choice that a subject does not."""
    declared: Claims = exhibit.subject.claims
    return all(claims.choice(name) == answer for name, answer in declared.choices.items())


def _signs(found: Evidence, claims: Claims) -> list[Any]:
    """Return what tells one fault from another: the journal; and breaches, trace and outline, or None."""
    return [logical(found.journal, found.case), _run_again(found, claims)]


def _run_again(found: Evidence, claims: Claims) -> Any:
    """Return what a recorded run shows, None where the check did more than run its program."""
    case = found.case
    try:
        ran = run(str(case.option(PROGRAM)), Recorded(case.verb, found.journal), case, claims)
    except (Failed, ArgumentError, KeyError):
        return None
    breaches = [(breach.requirement, breach.step) for breach in ran.breaches]
    return breaches, ran.trace, outline(found.journal)

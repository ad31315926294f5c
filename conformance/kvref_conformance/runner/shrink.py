"""From a failing case to the smallest one that still breaks the same requirement.

Greedy: take the first simpler case that still fails, begin again from it, stop when none does or the budget
is spent. A simpler case counts only if it lies in the check's own domain: the check must run there without an
error of its own, and an honest implementation must pass it.

A program of a manager loses steps instead (`programs.shrinking`).
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvref_conformance.cases import PROGRAM, Case, smaller
from kvref_conformance.checks.check import Check
from kvref_conformance.host import Host
from kvref_conformance.oracle import Oracle
from kvref_conformance.programs.shrinking import shrink_program, steps_of, with_steps
from kvref_conformance.runner.evaluate import Evidence, evaluate
from kvref_conformance.runner.stepwise import by_step

#: Calls of a check that one shrink may cost.
BUDGET = 60
#: Programs that one shrink may run: each is a few quick operations.
PROGRAMS = 400
#: The same after an answer that never came: a crash costs a restart, a hang the whole timeout.
BUDGETS = {"crash": 24, "protocol": 24, "timeout": 0}

Honest = Callable[[Check, Case], bool]
"""Says whether an honest implementation passes a check at a case."""


@dataclass
class _Budget:
    left: int

    def spend(self) -> bool:
        self.left -= 1
        return self.left >= 0


def shrink(
    check: Check,
    case: Case,
    host: Host,
    oracle: Oracle,
    *,
    honest: Honest = lambda check, case: True,
    budget: int = BUDGET,
) -> Evidence:
    """Return the evidence at the smallest failing case found, with its call and answer.

    Where the case no longer fails (a flaky subject), the evidence says pass.
    """
    best = evaluate(check, case, host, oracle)
    if best.status == "pass":
        return best
    if PROGRAM in case.options:
        return _shorter(check, best, host, oracle, honest)
    left = _Budget(min(budget, BUDGETS.get(best.failure, budget)))
    while (found := _simpler(check, best, host, oracle, honest, left)) is not None:
        best = found
    return best


def _shorter(check: Check, first: Evidence, host: Host, oracle: Oracle, honest: Honest) -> Evidence:
    """Return the evidence at the shortest failing program found."""

    def fails(case: Case) -> bool:
        try:
            found = evaluate(check, case, host, oracle)
        except Exception:  # as below
            return False
        return _is_alike(found, first) and honest(check, case)

    case = _cut(first, fails, oracle) if first.failure else first.case
    small = shrink_program(case, fails, BUDGETS.get(first.failure, PROGRAMS))
    return first if small == first.case else evaluate(check, small, host, oracle)


def _is_alike(found: Evidence, first: Evidence) -> bool:
    """Say whether a case fails as another did: what it breaks, and how."""
    return (found.status, found.requirement, found.failure) == ("fail", first.requirement, first.failure)


def _cut(first: Evidence, fails: Callable[[Case], bool], oracle: Oracle) -> Case:
    """Return the case without the steps behind the one whose operation gave no answer, if it fails so."""
    entries = by_step(first.case, first.journal, oracle.claims) or [[]]
    last = max(at for at, own in enumerate(entries) if own or at == 0)
    cut = with_steps(first.case, steps_of(first.case)[:last])
    return cut if last and fails(cut) else first.case


def _simpler(
    check: Check, best: Evidence, host: Host, oracle: Oracle, honest: Honest, left: _Budget
) -> Evidence | None:
    for case in smaller(best.case):
        if not left.spend():
            return None
        try:
            found = evaluate(check, case, host, oracle)
        except Exception:  # the check was not made for this case; that says nothing about the subject
            continue
        if _is_alike(found, best) and honest(check, case):
            return found
    return None

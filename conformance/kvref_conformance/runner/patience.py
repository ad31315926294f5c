"""How long a subject is waited for: an area in which call after call runs out of time is given up.

A hang costs its case the whole time limit, and an implementation that hangs in one case may hang in all of
them. What is not asked any more has not passed.

Realises: KV-CONF-009 skip-is-not-pass.
"""

from collections import Counter

from kvref_conformance.cases import Case
from kvref_conformance.checks.check import Check
from kvref_conformance.host import Host
from kvref_conformance.oracle import Oracle
from kvref_conformance.runner.evaluate import Evidence, evaluate

#: The kind of failure of a case that was planned and gave no evidence.
NOT_RUN = "not run"
#: Cases of one area that may run out of time.
TIMEOUTS = 5


class Patience:
    """Evaluates the cases of a run, and counts those that ran out of time."""

    def __init__(self) -> None:
        self._timeouts: Counter[str] = Counter()

    def evaluate(self, check: Check, case: Case, host: Host, oracle: Oracle) -> Evidence:
        """Run one check at one case, or say that the area was given up."""
        if self._timeouts[case.verb] >= TIMEOUTS:
            return not_run(check, case, f"not asked: {TIMEOUTS} cases of {case.verb} ran out of time before")
        found = evaluate(check, case, host, oracle)
        self._timeouts[case.verb] += found.failure == "timeout"
        return found


def not_run(check: Check, case: Case, why: str = "the case did not run") -> Evidence:
    """Return the evidence of a case that gave none."""
    return Evidence(check.requirement, check.name, case, "fail", why, NOT_RUN)

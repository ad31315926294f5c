"""The drawn check of recurrent layers: lengths, heads, optional arguments and placement drawn together.

It belongs to the ring `fuzz`, which searches and never decides a verdict.
"""

from kvref_conformance.cases import Case, Level
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.scans_drawn import drawn_pool, drawn_scan, drawn_scans
from kvref_conformance.scan_judge import hold_as
from kvref_conformance.trial import Trial
from kvref_conformance.verbs_of_scans import UPDATES

#: Seeds of each level.
COUNTS: dict[Level, int] = {"quick": 8, "full": 64, "exhaustive": 512}


def _drawn(claims: Claims, verb: str, level: Level) -> list[Case]:
    return drawn_scans(claims, verb, range(COUNTS[level]))


@check("KV-RNN-022", ring="fuzz", verbs=(*UPDATES, *UPDATES.values()), cases=_drawn)
def any_claimed_scan_is_the_recurrence(trial: Trial) -> None:
    """All that may be drawn at once: outputs and states are those of the recurrence."""
    problem = drawn_scan(trial.case, trial.claims)
    answer = trial.oracle.scan if trial.case.option("exact") else trial.oracle.scan_within
    hold_as(trial, problem, answer(problem), pool=drawn_pool(trial.case, trial.claims))

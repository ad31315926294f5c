"""Drawn checks: no one rule, all of them at once, over problems that no fixed list would hold.

They belong to the ring `fuzz`, which searches and never decides a verdict.
"""

from kvref_conformance.cases import Case, Level
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.drawn import drawn_placement, drawn_problem, fuzz_cases
from kvref_conformance.trial import Trial

#: Seeds of each level.
COUNTS: dict[Level, int] = {"quick": 8, "full": 64, "exhaustive": 512}


def _drawn(claims: Claims, verb: str, level: Level) -> list[Case]:
    return fuzz_cases(claims, verb, range(COUNTS[level]))


@check("KV-ATTN-001", ring="fuzz", cases=_drawn)
def any_claimed_combination_is_the_formula(trial: Trial) -> None:
    """Lengths, heads, variants and placement drawn together: the answer is that of the formula."""
    case, claims = trial.case, trial.claims
    problem = drawn_problem(case)
    result = trial.attend(problem, drawn_placement(case, claims), lse="lse" in claims.features)
    trial.expect_attention(problem, result)

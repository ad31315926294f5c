"""What must hold of the program of a case: that it breaks nothing, or that odd steps change nothing.

Whatever a program was made for, each requirement in force that it breaks counts.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from kvref_conformance.cases import PROGRAM, Case, opening
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Failed
from kvref_conformance.managers import operations_of
from kvref_conformance.programs.breach import Breach
from kvref_conformance.programs.offered import Offered
from kvref_conformance.programs.running import Run, run_beside
from kvref_conformance.programs.step import parse, written
from kvref_conformance.trial import Trial, Violation

#: Option of a case: how many managers are open at once, each of which is given every step, one after another.
SESSIONS = "sessions"
#: Blocks that no pool need have: whoever refuses to open more is not asked.
MANY = 4096


def expect_unbroken(trial: Trial, requirement: str) -> None:
    """Run the program of the case on a manager of its own, and hold it to the requirement of a check.

    What else it breaches counts as well, as a failure of what is breached.
    Raises: Violation with the first breach; Failed if the subject is gone.
    """
    _raise_first(trial, requirement, _runs(trial, str(trial.case.option(PROGRAM))))


def expect_harmless(trial: Trial, requirement: str, odd: Collection[str]) -> None:
    """Run the program of the case, and hold its odd steps to their requirement: they change nothing.

    What is breached later, and is not if the odd steps are left out, was their doing. Raises: as above.
    """
    text = str(trial.case.option(PROGRAM))
    runs = _runs(trial, text)
    breaches = [breach for ran in runs for breach in ran.breaches]
    if breaches and not any(breach.requirement == requirement for breach in breaches):
        without = written(step for step in parse(text) if step.name not in odd)
        if not any(ran.breaches for ran in _runs(trial, without)):
            raise _violation(trial.case, replace(breaches[0], requirement=requirement))
    _raise_first(trial, requirement, runs)


def _raise_first(trial: Trial, requirement: str, runs: list[Run]) -> None:
    """Raise the first breach of a requirement, or of another that the subject is held to.

    Raises: Violation.
    """
    breaches = [(breach, number) for number, ran in enumerate(runs, 1) for breach in ran.breaches]
    own = (found for found in breaches if found[0].requirement == requirement)
    others = (found for found in breaches if trial.is_in_force(found[0].requirement))
    first = next(own, None) or next(others, None)
    if first is not None:
        which = f"manager {first[1]} of {len(runs)} that are open at once, " if len(runs) > 1 else ""
        raise _violation(trial.case, first[0], which)


def _runs(trial: Trial, text: str) -> list[Run]:
    """Run a program on managers of its own; of a pool that is too large for the subject nothing is told."""
    case, count = trial.case, int(trial.case.options.get(SESSIONS, 1))
    try:
        sessions = [trial.open(case.verb, **opening(case)) for _ in range(count)]
        if count > 1:
            trial.open(case.verb, **_otherwise(opening(case), trial.claims))
    except Failed as failed:
        if failed.kind in ("refused", "error") and int(case.options.get("num_blocks", 0)) > MANY:
            return []  # so many blocks are more than the subject has, and it says so
        raise
    offered = operations_of(case.verb, trial.host.hello().verbs)
    runs = run_beside(text, [Offered(session, offered) for session in sessions], case, trial.claims)
    for session in sessions:
        session.close()
    return runs


def _otherwise(opens: Mapping[str, Any], claims: Claims) -> dict[str, Any]:
    """Return what opens another manager: more blocks, of other sizes that are claimed, and wider windows."""
    sizes = dict(zip(claims.block_sizes, [*claims.block_sizes[1:], claims.block_sizes[0]], strict=True))
    others: dict[str, Callable[[Any], Any]] = {
        "num_blocks": lambda count: count + 2,
        "block_size": lambda size: sizes.get(size, size),
        "block_sizes": lambda each: [sizes.get(size, size) for size in each],
        "windows": lambda each: [window + 2 for window in each],
    }
    return {name: others[name](value) if name in others else value for name, value in opens.items()}


def _violation(case: Case, found: Breach, which: str = "") -> Violation:
    """Return what a breach is to the check that found it."""
    steps = parse(str(case.option(PROGRAM)))
    at = f"step {found.step}, `{steps[found.step]}`: " if found.step < len(steps) else ""
    message = f"{which}{at}{found.message}"
    return Violation(message, requirement=found.requirement, detail={"step": found.step})

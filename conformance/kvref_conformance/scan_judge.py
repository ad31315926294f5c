"""What checks of recurrent layers ask, and how an answer is held to the oracle.

A failure names the request, the token of it and the head, for that is where a recurrence goes wrong.
"""

from typing import Any

from kvref.arrays import Array
from kvref.attention.bounds import exceeds
from kvref.attention.bounds.compare import worst
from kvref_conformance.scan_cases import is_update
from kvref_conformance.scan_oracle import ExpectedScan, exactly, within
from kvref_conformance.scan_problems import (
    Pool,
    ScanProblem,
    Update,
    final_of,
    present_scan,
    present_update,
    read_states,
)
from kvref_conformance.trial import Result, Trial, Violation


def ask(trial: Trial, problem: ScanProblem, **presented: Any) -> Result:
    """Ask a scan.

    Raises: Failed if it gives no answer.
    """
    return trial.call(present_scan(problem, trial.claims, **presented))


def ask_update(trial: Trial, problem: ScanProblem, pool: Pool | None = None) -> tuple[Update, Result]:
    """Ask an update of one token for each request.

    Raises: Failed if it gives no answer.
    """
    where = Pool(seed=trial.case.seed + 1) if pool is None else pool
    update = present_update(problem, trial.claims, where)
    return update, trial.call(update.call)


def hold(
    trial: Trial,
    problem: ScanProblem,
    expected: ExpectedScan | None = None,
    *,
    out: bool = True,
    state: bool = True,
) -> None:
    """Ask the case's verb a problem in which nothing rounds, and hold outputs and states to the exact ones.

    `expected` are these, where they are known. Raises: Violation, Failed.
    """
    _hold(trial, problem, expected or exactly(problem, trial.claims), out, state)


def hold_within(trial: Trial, problem: ScanProblem) -> None:
    """Ask the case's verb any problem, and hold outputs and states to the bound.

    Raises: Violation, Failed.
    """
    _hold(trial, problem, within(problem, trial.claims), True, True)


def _hold(trial: Trial, problem: ScanProblem, expected: ExpectedScan, out: bool, state: bool) -> None:
    if is_update(trial.case.verb):
        update, result = ask_update(trial, problem)
        found, left = result.out[update.rows], states_left(trial, problem, update, result)
    else:
        result = ask(trial, problem)
        found, left = result.out, final_of(result.answer, problem, trial.claims)
    if out:
        expect_out(trial, problem, result, found, expected)
    if state:
        expect_state(trial, result, left, expected)


def states_left(trial: Trial, problem: ScanProblem, update: Update, result: Result) -> Array:
    """Return what an update has left in the slots of its requests, in the canonical layout."""
    return read_states(result.answer.outputs["state"][update.slots], problem, trial.claims)


def expect_out(
    trial: Trial, problem: ScanProblem, result: Result, found: Array, expected: ExpectedScan, what: str = ""
) -> None:
    """Hold the outputs of a problem's tokens.

    Raises: Violation.
    """
    trial.note_margin(found, expected.out, expected.out_bound)
    wrong = exceeds(found, expected.out, expected.out_bound)
    if not wrong.any():
        return
    where = worst(found, expected.out, expected.out_bound, wrong)
    request = problem.request_of(where[0])
    token = where[0] - int(problem.starts[request])
    place = f"{what}request {request}, token {token} of {problem.lens[request]}{_head(where)}"
    raise Violation(
        f"{place}: out[{where[-1]}] = {found[where]:.6g}, expected {expected.out[where]:.6g}"
        f"{_about(expected.out_bound[where])}",
        result=result,
        detail=_detail(where, wrong),
    )


def expect_state(trial: Trial, result: Result, found: Array, expected: ExpectedScan, what: str = "") -> None:
    """Hold the states that requests end in, in the canonical layout.

    Raises: Violation.
    """
    trial.note_margin(found, expected.state, expected.state_bound)
    wrong = exceeds(found, expected.state, expected.state_bound)
    if not wrong.any():
        return
    where = worst(found, expected.state, expected.state_bound, wrong)
    raise Violation(
        f"{what}request {where[0]}: state{list(where[1:])} = {found[where]:.6g}, expected "
        f"{expected.state[where]:.6g}{_about(expected.state_bound[where])} "
        f"({int(wrong.sum())} of {wrong.size} entries of all states differ)",
        result=result,
        detail=_detail(where, wrong),
    )


def _detail(where: tuple[int, ...], wrong: Array) -> dict[str, Any]:
    return {"where": list(where), "outside": int(wrong.sum()), "of": int(wrong.size)}


def _head(where: tuple[int, ...]) -> str:
    return f", head {where[1]}" if len(where) == 3 else ""


def _about(bound: float) -> str:
    return f" ± {bound:.2g}" if bound else ""

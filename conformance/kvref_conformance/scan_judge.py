"""What checks of recurrent layers ask, and how an answer is held to the oracle.

A failure names the request, the token of it and the head, for that is where a recurrence goes wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.attention.bounds import exceeds
from kvref.attention.bounds.compare import worst
from kvref_conformance.scan_cases import is_update
from kvref_conformance.scan_oracle import ExpectedScan
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
    hold_as(trial, problem, expected or trial.oracle.scan(problem, bounded=out), out=out, state=state)


def hold_within(trial: Trial, problem: ScanProblem) -> None:
    """Ask the case's verb any problem, and hold outputs and states to the bound.

    Raises: Violation, Failed.
    """
    hold_as(trial, problem, trial.oracle.scan_within(problem))


def answers_within(trial: Trial, problem: ScanProblem) -> bool:
    """Say whether a scan answers a problem within the bound.

    Raises: Failed if it gives no answer.
    """
    result, right = ask(trial, problem), trial.oracle.scan_within(problem)
    return _is_within(result.out, final_of(result.answer, problem, trial.claims), right)


def hold_as(
    trial: Trial,
    problem: ScanProblem,
    expected: ExpectedScan,
    *,
    out: bool = True,
    state: bool = True,
    pool: Pool | None = None,
) -> None:
    """Ask the case's verb a problem, and hold outputs and states to the expected ones.

    An update has its states in `pool`. Raises: Violation, Failed.
    """
    if is_update(trial.case.verb):
        update, result = ask_update(trial, problem, pool)
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


@dataclass(frozen=True)
class Before:
    """A scan's answer to an exact problem, right or wrong, that it must give again."""

    problem: ScanProblem
    result: Result
    answer: ExpectedScan
    """Its bound is 0, or where the scale of a delta rule rounds twice what that may cost."""
    right: ExpectedScan

    @staticmethod
    def of(trial: Trial, problem: ScanProblem) -> "Before":
        """Ask for the answer.

        Raises: Failed if there is none.
        """
        result, right = ask(trial, problem), trial.oracle.scan(problem)
        state = final_of(result.answer, problem, trial.claims)
        answer = ExpectedScan(result.out, state, 2 * right.out_bound, 2 * right.state_bound)
        return Before(problem, result, answer, right)

    def only(self, requests: Sequence[int]) -> "Before":
        """Return what some of the requests were answered."""
        answer, right = (kept.only(self.problem, requests) for kept in (self.answer, self.right))
        return Before(self.problem.only(requests), self.result, answer, right)


def expect_again(
    trial: Trial, before: Before, result: Result, out: Array, state: Array, what: str = ""
) -> None:
    """Hold outputs and states to those of the answer before: NaN equals NaN.

    Raises: Violation, with the call of the answer before if this one is the right one.
    """
    outs, states = _paired(out, before.answer.out), _paired(state, before.answer.state)
    due = replace(before.answer, out=outs[1], state=states[1])
    try:
        expect_out(trial, before.problem, result, outs[0], due, what, "otherwise")
        expect_state(trial, result, states[0], due, what, "otherwise")
    except Violation as violation:
        if _is_within(out, state, before.right):
            violation.result = before.result
        raise


def _paired(found: Array, other: Array) -> tuple[Array, Array]:
    """Return two arrays with 0 where both are NaN."""
    both = np.isnan(found) & np.isnan(other)
    return np.where(both, 0, found), np.where(both, 0, other)


def _is_within(out: Array, state: Array, right: ExpectedScan) -> bool:
    outside = exceeds(out, right.out, right.out_bound).any()
    return not (outside or exceeds(state, right.state, right.state_bound).any())


def expect_out(
    trial: Trial,
    problem: ScanProblem,
    result: Result,
    found: Array,
    expected: ExpectedScan,
    what: str = "",
    due: str = "expected",
) -> None:
    """Hold the outputs of a problem's tokens; `due` is what a message calls the others.

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
        f"{place}: out[{where[-1]}] = {found[where]:.6g}, {due} {expected.out[where]:.6g}"
        f"{_about(expected.out_bound[where])}",
        result=result,
        detail=_detail(where, wrong),
    )


def expect_state(
    trial: Trial,
    result: Result,
    found: Array,
    expected: ExpectedScan,
    what: str = "",
    due: str = "expected",
) -> None:
    """Hold the states that requests end in, in the canonical layout; `due` as of `expect_out`.

    Raises: Violation.
    """
    trial.note_margin(found, expected.state, expected.state_bound)
    wrong = exceeds(found, expected.state, expected.state_bound)
    if not wrong.any():
        return
    where = worst(found, expected.state, expected.state_bound, wrong)
    raise Violation(
        f"{what}request {where[0]}: state{list(where[1:])} = {found[where]:.6g}, {due} "
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

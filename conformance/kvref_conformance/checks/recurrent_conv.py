"""Checks of short convolutions: which inputs an output sees, and which the state keeps."""

from collections.abc import Iterator

import numpy as np

from kvref_conformance.cases import Case, Level
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.scans import coded
from kvref_conformance.problems import cast
from kvref_conformance.scan_cases import relen, scan_cases
from kvref_conformance.scan_judge import ask_update, expect_out, expect_state, hold, states_left
from kvref_conformance.scan_problems import Pool, ScanProblem
from kvref_conformance.trial import Trial

SCAN, UPDATE = ("causal_conv",), ("causal_conv_update",)
#: A sum that SiLU leaves as it is, and one that it turns into 0, in any format.
LOUD = 128.0


def _short(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Requests with fewer tokens than the window has inputs before them, and one with as many."""
    return [
        relen(case, [(n, 4 - i) for i, n in enumerate((1, 0, max(int(case.option("conv_width")) - 2, 1), 2))])
        for case in scan_cases(claims, verb, level)
    ]


@check("KV-RNN-001", verbs=(*SCAN, *UPDATE), cases=scan_cases)
def outputs_see_their_own_past(trial: Trial) -> None:
    """Every weight another integer; then a delay line for each column, which returns one input unchanged."""
    width = int(trial.case.option("conv_width"))
    hold(trial, coded(trial.case, trial.claims), state=False)
    for column in range(width):
        hold(trial, coded(trial.case, trial.claims, taps=np.eye(width)[column]), state=False)


@check("KV-RNN-002", verbs=SCAN, cases=scan_cases)
def state_holds_inputs(trial: Trial) -> None:
    """The last inputs come back as they were, oldest first, beside a bias and an activation where claimed."""
    problem = coded(trial.case, trial.claims, bias=True)
    hold(trial, _activated(problem, trial), out=False)


@check("KV-RNN-003", verbs=SCAN, cases=_short)
def short_steps_shift_the_state(trial: Trial) -> None:
    """One token, none, and one fewer than the state has columns: older inputs stay in it."""
    hold(trial, coded(trial.case, trial.claims))


@check("KV-RNN-004", verbs=(*SCAN, *UPDATE), features=("conv_bias",), cases=scan_cases)
def bias_is_added_before_the_activation(trial: Trial) -> None:
    """Sums and biases of ±128 and ±256: SiLU leaves a large one as it is, and a small one is 0."""
    problem = coded(trial.case, trial.claims, taps=np.eye(int(trial.case.option("conv_width")))[-1])
    shape = problem.inputs["x"].shape
    rng = np.random.default_rng(trial.case.seed + 5)
    x, bias = (LOUD * rng.choice(steps, n) for steps, n in (((-1, 1), shape), ((-2, 2), shape[1])))
    inputs = {"x": cast(x, problem.dtype), "bias": cast(bias, problem.dtype)}
    initial = LOUD * np.sign(problem.initial)
    hold(trial, _activated(problem.with_inputs(**inputs).but(initial=initial), trial), state=False)


@check("KV-RNN-031", verbs=UPDATE, cases=scan_cases)
def updates_shift_the_window_by_one(trial: Trial) -> None:
    """As many tokens as the window has inputs, one call each: its columns move on, and outputs follow."""
    for token, problem in enumerate(_one_by_one(trial)):
        update, result = ask_update(trial, problem, Pool(seed=token))
        expected, what = trial.oracle.scan(problem), f"after {token + 1} updates, "
        left = states_left(trial, problem, update, result)
        expect_state(trial, result, left, expected, what)
        expect_out(trial, problem, result, result.out[update.rows], expected, what)


def _one_by_one(trial: Trial) -> Iterator[ScanProblem]:
    """Yield problems of one token a request, each going on from the right state before it."""
    case = trial.case
    width, requests = int(case.option("conv_width")), len(case.seq_lens)
    whole = coded(relen(case, [(width, before) for before in range(requests)]), trial.claims)
    for _ in range(width):
        problem, whole = whole.cut([1] * requests)
        yield problem
        whole = whole.but(initial=trial.oracle.scan(problem).state)


def _activated(problem: ScanProblem, trial: Trial) -> ScanProblem:
    """Return the problem with an activation, where one is claimed."""
    silu = "silu" in trial.claims.features
    return problem.but(params={**problem.params, "activation": "silu"}) if silu else problem

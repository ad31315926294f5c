"""Checks of both Mambas: the recurrence, its groups, its step sizes, what is added behind it."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.cases import Case, Level
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.scans import coded, one_hot, single
from kvref_conformance.probes.scans_random import random_scan
from kvref_conformance.problems import cast
from kvref_conformance.scan_cases import grouped, is_update, relen, scan_cases
from kvref_conformance.scan_judge import hold, hold_within
from kvref_conformance.scan_problems import ScanProblem
from kvref_conformance.trial import Trial

SSD = ("ssd_scan", "ssd_update")
VERBS = ("selective_scan", "selective_state_update", *SSD)
#: A step size that softplus leaves as it is, in any format, and the negative of which it turns into 0.
LARGE = 64.0
#: Projections where softplus is small, and where it is a little more than they are.
ENDS = (-30.0, -20.0, -16.5, -14.0, -12.0, -10.0, -8.0, 6.5, 7.5, 8.5, 9.0, 10.0625, 10.5, 11.0, 18.0, 24.0)


def _with_step_sizes(claims: Claims, verb: str, level: Level) -> list[Case]:
    """All cases where some change to dt is claimed."""
    return scan_cases(claims, verb, level) if _steps_of(claims, verb) else []


def _beginning(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Requests of one token that begin from zeros, and of scans one of two tokens."""
    lens = [(1, 0)] * 5 if is_update(verb) else [(1, 0)] * 4 + [(2, 0)]
    return [relen(case, lens) for case in scan_cases(claims, verb, level)]


def _finished(claims: Claims, verb: str, level: Level) -> list[Case]:
    """All cases where a skip or a gate is claimed."""
    return scan_cases(claims, verb, level) if {"skip", "output_gate"} & set(claims.features) else []


@check("KV-RNN-017", verbs=VERBS, cases=scan_cases)
def states_count_what_is_written(trial: Trial) -> None:
    """Entries that keep everything are counters, those that keep nothing hold the last input."""
    hold(trial, coded(trial.case, trial.claims))


@check("KV-RNN-017", verbs=VERBS, cases=scan_cases)
def decay_comes_before_the_write(trial: Trial) -> None:
    """Nothing older survives any token, every token's own input does: a state that decays last is empty."""
    problem = coded(trial.case, trial.claims)
    forgetting = single(np.full_like(problem.inputs["A"], -1000.0))
    dt = np.maximum(problem.inputs["dt"].astype(np.float64), 0.5)
    hold(trial, problem.with_inputs(A=forgetting, dt=cast(dt, problem.dtype), C=problem.inputs["B"]))


@check("KV-RNN-018", ring="numeric", verbs=VERBS, cases=_finished)
def skip_is_added_before_the_gate(trial: Trial) -> None:
    """D and z, together and each alone, over random inputs: the bound tells the orders apart."""
    claimed = [name for name in ("skip", "output_gate") if name in trial.claims.features]
    for features in [claimed] if trial.case.seed % 2 else [[name] for name in claimed]:
        hold_within(trial, random_scan(trial.case, trial.claims, features))


@check("KV-RNN-019", verbs=SSD, cases=grouped)
def heads_read_their_own_group(trial: Trial) -> None:
    """Every group writes and reads at places of its own, and no head may find another's."""
    problem = coded(trial.case, trial.claims)
    tokens, groups, entries = problem.inputs["B"].shape
    place = (np.arange(tokens)[:, None] + 5 * np.arange(groups)) % entries
    side = cast(one_hot(place, entries), problem.dtype)
    keeping = single(np.zeros_like(problem.inputs["A"]))
    hold(trial, problem.with_inputs(A=keeping, B=side, C=side))


@check("KV-RNN-020", verbs=VERBS, cases=_with_step_sizes)
def step_sizes_are_made_in_order(trial: Trial) -> None:
    """Bias, softplus and limit, each alone and all together, at sizes where softplus is exact."""
    steps = _steps_of(trial.claims, trial.case.verb)
    for used in dict.fromkeys([*((step,) for step in steps), steps]):
        hold(trial, _stepped(coded(trial.case, trial.claims), used))


@check("KV-RNN-020", ring="numeric", verbs=VERBS, cases=_with_step_sizes)
def step_sizes_are_made_everywhere(trial: Trial) -> None:
    """Bias, softplus and limit where softplus bends, some step sizes outside the limits."""
    steps = _steps_of(trial.claims, trial.case.verb)
    if trial.case.seed % 4 == 3 and len(steps) > 1:
        steps = tuple(step for step in steps if step != "dt_softplus")
    hold_within(trial, random_scan(trial.case, trial.claims, steps))


@check("KV-RNN-020", ring="numeric", verbs=VERBS, features=("dt_softplus",), cases=_beginning)
def step_sizes_keep_both_ends_of_softplus(trial: Trial) -> None:
    """Where softplus is nearly its argument or nearly 0, each written once where nothing was."""
    problem = random_scan(trial.case, trial.claims, ("dt_softplus",))
    rng = np.random.default_rng(trial.case.seed + 23)
    dt = rng.choice(ENDS, problem.inputs["dt"].shape)
    slow = single(np.full_like(problem.inputs["A"], -(2.0**-9)))
    hold_within(trial, problem.with_inputs(dt=cast(dt, problem.dtype), A=slow))


def _steps_of(claims: Claims, verb: str) -> tuple[str, ...]:
    """Return the claimed features that change a step size of a verb."""
    names = ("dt_bias", "dt_softplus", *(("dt_limit",) if verb in SSD else ()))
    return tuple(name for name in names if name in claims.features)


def _stepped(problem: ScanProblem, used: tuple[str, ...]) -> ScanProblem:
    """Return the problem with step sizes that are exact however they are made: integers, 0, ½ and 1.

    Without softplus dt is a small number, which the bias takes to another; with it ±64, or to that.
    """
    dt, inputs, params = problem.inputs["dt"].astype(np.float64), {}, dict(problem.params)
    if "dt_softplus" in used:
        dt, params["dt_softplus"] = np.where(dt > 0, LARGE, -2 * LARGE), True
    if "dt_bias" in used:
        shift = _alternating(dt.shape[1]) * (2 * LARGE if "dt_softplus" in used else 1.0)
        dt, inputs["dt_bias"] = dt - shift, single(shift)
        if "dt_softplus" not in used and "dt_limit" not in used:
            dt = np.maximum(dt + shift, 0) - shift
    if "dt_limit" in used:
        inputs["dt_limit"] = single(np.array([0.5, 1.0]))
        dt = dt + np.where(np.arange(dt.shape[1]) % 3 == 1, 2.0, 0.0)
    coarse = "dt_softplus" in used and "dt_limit" not in used  # then states count in steps of 2 · LARGE
    initial = problem.initial * (2 * LARGE if coarse else 1)
    return problem.with_inputs(dt=cast(dt, problem.dtype), **inputs).but(params=params, initial=initial)


def _alternating(count: int) -> Array:
    return np.where(np.arange(count) % 2, 2.0, -1.0)

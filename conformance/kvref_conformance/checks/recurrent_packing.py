"""Checks of batches of recurrent layers: neighbours, the chunk grid, decays at both ends, large states."""

import numpy as np

from kvref_conformance.cases import Case, Level
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.scans import GONE, coded, one_hot, single
from kvref_conformance.probes.scans_random import random_scan
from kvref_conformance.problems import cast
from kvref_conformance.scan_cases import chunk_of, every_second, is_update, relen, scan_cases
from kvref_conformance.scan_judge import Before, ask, expect_again, hold, hold_within
from kvref_conformance.scan_problems import ScanProblem, final_of, state_dtype
from kvref_conformance.trial import Trial
from kvref_conformance.verbs_of_scans import UPDATES

SCANS, STEPS = tuple(UPDATES), tuple(UPDATES.values())
#: How large states begin: beyond what is clipped at 100, and beyond what float16 holds.
HUNDREDS, THOUSANDS = 101.0, 7e4
DECAYING = tuple(name for name in (*SCANS, *STEPS) if not name.startswith("causal_conv"))


def _neighbours(claims: Claims, verb: str, level: Level) -> list[Case]:
    """A request of some chunks behind neighbours that end everywhere on the grid."""
    c = chunk_of(claims)
    cases = scan_cases(claims, verb, level)
    ends = (1, c // 2, c - 1, c + 1)
    return [relen(case, [(ends[i % 4], 3), (2 * c + 3, 1), (c, 0)]) for i, case in enumerate(cases)]


def _long(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Requests of several chunks."""
    cases = scan_cases(claims, verb, level)
    c = chunk_of(claims)
    return cases if is_update(verb) else [relen(case, [(3 * c + 2, 1), (c + 1, 0)]) for case in cases]


def _some_long(claims: Claims, verb: str, level: Level) -> list[Case]:
    return _long(claims, verb, level)[1::2]


def _invariant(claims: Claims, verb: str, level: Level) -> list[Case]:
    """All cases where the subject promises the same bits in any batch."""
    return scan_cases(claims, verb, level) if claims.batch_invariant else []


@check("KV-RNN-006", verbs=SCANS, cases=scan_cases)
def neighbours_share_nothing(trial: Trial) -> None:
    """Together, in reverse, each alone, and beside a loud neighbour: the same answer each time."""
    problem = coded(trial.case, trial.claims)
    every = list(range(len(problem.lens)))
    before = Before.of(trial, problem)
    for some in [every[::-1], *([request] for request in every)]:
        _expect_of(trial, before, some, f"requests {_listed(some)} by themselves, ")
    loud, last = _loud_last(problem)
    result, others = ask(trial, loud), [request for request in every if request != last]
    left = final_of(result.answer, problem, trial.claims, others)
    out = result.out[problem.rows_of(others)]
    expect_again(trial, before.only(others), result, out, left, "beside a loud neighbour, ")


@check("KV-RNN-008", verbs=SCANS, cases=_neighbours)
def the_grid_is_a_requests_own(trial: Trial) -> None:
    """The same requests behind neighbours that end inside a chunk, before its end and behind it."""
    problem = coded(trial.case, trial.claims)
    before = Before.of(trial, problem)
    for some in ([1, 0, 2], [1], [2]):
        _expect_of(trial, before, some, f"requests {_listed(some)} in this order, ")


def _expect_of(trial: Trial, before: Before, some: list[int], what: str) -> None:
    """Ask for some requests of a problem, and hold them to what all of them together were answered."""
    kept = before.only(some)
    result = ask(trial, kept.problem)
    left = final_of(result.answer, kept.problem, trial.claims)
    expect_again(trial, kept, result, result.out, left, what)


@check("KV-ATTN-104", verbs=SCANS, cases=_invariant)
def packing_does_not_move_a_bit(trial: Trial) -> None:
    """Each request alone, and all in reverse: the bits of its outputs and of its state are the same."""
    problem = random_scan(trial.case, trial.claims)
    every = list(range(len(problem.lens)))
    whole = ask(trial, problem)
    for some in [every[::-1], *([request] for request in every)]:
        result = ask(trial, problem.only(some))
        for name, index in (("out", problem.rows_of(some)), ("final_state", some)):
            found, before = (np.asarray(answer.answer.outputs[name]) for answer in (result, whole))
            trial.expect_bits(f"{name} of requests {some} ", result, found, before[index])


@check("KV-RNN-022", ring="numeric", verbs=(*SCANS, *STEPS), cases=scan_cases)
def scans_are_within_the_bound(trial: Trial) -> None:
    """Random inputs, decays from nearly none to e^−20, with and without what is optional."""
    hold_within(trial, random_scan(trial.case, trial.claims))


@check("KV-RNN-022", ring="numeric", verbs=SCANS, cases=_some_long)
def long_scans_are_within_the_bound(trial: Trial) -> None:
    """The same over several chunks."""
    hold_within(trial, random_scan(trial.case, trial.claims))


@check("KV-RNN-022", ring="numeric", verbs=(*SCANS, *STEPS), cases=every_second)
def large_states_are_within_the_bound(trial: Trial) -> None:
    """Requests that begin with states of hundreds, and where every declared format has them of 70,000."""
    problem = random_scan(trial.case, trial.claims)
    kind = state_dtype(problem, trial.claims)
    for size in (HUNDREDS, *([] if "float16" in _formats(trial) else [THOUSANDS])):
        initial = cast(size * problem.initial, kind).astype(np.float64)
        hold_within(trial, problem.but(initial=initial))


@check("KV-RNN-026", verbs=DECAYING, cases=_long)
def strong_decays_stay_finite(trial: Trial) -> None:
    """Log decays of −1000 at nearly every token, over several chunks: what is left is exact, and finite."""
    problem = coded(trial.case, trial.claims)
    rng = np.random.default_rng(trial.case.seed + 17)
    if "g" in problem.inputs:
        g = np.where(rng.random(problem.inputs["g"].shape) < 0.9, GONE, 0.0)
        hold(trial, problem.with_inputs(g=single(g)))
        return
    dt = np.maximum(problem.inputs["dt"].astype(np.float64), 0.5)
    A = np.where(rng.random(problem.inputs["A"].shape) < 0.7, GONE, 0.0)
    hold(trial, problem.with_inputs(A=single(A), dt=cast(dt, problem.dtype)))


@check("KV-RNN-027", verbs=DECAYING, cases=_long)
def no_decay_keeps_everything(trial: Trial) -> None:
    """Log decays of 0 and −0 over several chunks: what was written first is read last."""
    problem = coded(trial.case, trial.claims)
    zeros = np.where(np.arange(problem.lens.sum()) % 2, 0.0, -0.0)
    if "g" in problem.inputs:
        g = problem.inputs["g"]
        still = zeros.reshape(-1, *[1] * (g.ndim - 1)) * np.ones(g.shape)
        hold(trial, _read_at_the_end(problem.with_inputs(g=single(still))))
        return
    hold(trial, problem.with_inputs(A=single(-np.zeros(problem.inputs["A"].shape))))


def _loud_last(problem: ScanProblem) -> tuple[ScanProblem, int]:
    """Return the problem with the last request that has tokens made 64 times as loud, and which one it is."""
    name = problem.out_name
    last = int(np.flatnonzero(problem.lens)[-1])
    x = problem.inputs[name].copy()
    x[problem.starts[last] : problem.starts[last + 1]] *= np.asarray(64, x.dtype)
    return problem.with_inputs(**{name: x}), last


def _formats(trial: Trial) -> set[str]:
    """Return the formats that a case's numbers pass through."""
    facts = trial.claims.scan_arithmetic.resolve(trial.case.dtype)
    return {trial.case.dtype, facts.working, facts.products, facts.stored, facts.state, facts.output}


def _listed(requests: list[int]) -> str:
    return ", ".join(map(str, requests))


def _read_at_the_end(problem: ScanProblem) -> ScanProblem:
    """Return the problem of a delta rule in which each request writes with its first tokens, then reads."""
    tokens, heads, width = problem.inputs["k"].shape
    inside = np.arange(tokens) - problem.starts[:-1].repeat(problem.lens)
    key = cast(one_hot((inside[:, None] + 3 * np.arange(heads)) % width, width), problem.dtype)
    beta = np.where(inside < 5, 1.0, 0.0)[:, None] * np.ones(problem.inputs["beta"].shape)
    first = cast(one_hot((inside[:, None] % 5 + 3 * np.arange(heads)) % width, width), problem.dtype)
    return problem.with_inputs(k=key, q=first, beta=cast(beta, problem.dtype))

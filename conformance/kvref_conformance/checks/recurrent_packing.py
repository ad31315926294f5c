"""Checks of batches of recurrent layers: neighbours, the chunk grid, decays at both ends, many requests."""

from dataclasses import replace

import numpy as np

from kvref_conformance.cases import Case, Level
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.scans import GONE, coded, one_hot, single
from kvref_conformance.probes.scans_random import random_scan
from kvref_conformance.problems import cast
from kvref_conformance.scan_cases import chunk_of, is_update, relen, scan_cases
from kvref_conformance.scan_judge import ask, ask_update, expect_out, expect_state, hold, hold_within
from kvref_conformance.scan_oracle import exactly
from kvref_conformance.scan_problems import Pool, ScanProblem, final_of
from kvref_conformance.trial import Trial
from kvref_conformance.verbs_of_scans import UPDATES

SCANS, STEPS = tuple(UPDATES), tuple(UPDATES.values())
DECAYING = tuple(name for name in (*SCANS, *STEPS) if not name.startswith("causal_conv"))
#: One more than a launch has along two of its three axes.
MANY = 65_536 + 4


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


def _narrow(claims: Claims, verb: str, level: Level) -> list[Case]:
    """One case with the smallest widths: it will have many requests."""
    case = replace(scan_cases(claims, verb, level)[0], num_kv_heads=1, group=1, dtype=claims.dtypes[0])
    widths = {"v_dim": min(claims.head_dims), "state_dim": min(claims.state_dims)}
    widths["conv_width"] = min(claims.conv_widths)
    own = {name: widths[name] for name in case.options if name in widths}
    return [replace(relen(case, [(1, 1), (1, 0), (1, 2)]), head_dim=min(claims.head_dims), options=own)]


@check("KV-RNN-006", verbs=SCANS, cases=scan_cases)
def neighbours_share_nothing(trial: Trial) -> None:
    """Together, in reverse, each alone, and beside a loud neighbour: exact each time."""
    problem = coded(trial.case, trial.claims)
    every = list(range(len(problem.lens)))
    expected = exactly(problem, trial.claims)
    for some in [every, every[::-1], *([request] for request in every)]:
        hold(trial, problem.only(some), expected.only(problem, some))
    loud, last = _loud_last(problem)
    result, others = ask(trial, loud), [request for request in every if request != last]
    rest, rows = expected.only(problem, others), problem.rows_of(others)
    expect_out(trial, problem.only(others), result, result.out[rows], rest, "beside a loud neighbour, ")
    left = final_of(result.answer, problem, trial.claims)[others]
    expect_state(trial, result, left, rest, "beside a loud neighbour, ")


@check("KV-RNN-008", verbs=SCANS, cases=_neighbours)
def the_grid_is_a_requests_own(trial: Trial) -> None:
    """The same requests behind neighbours that end inside a chunk, before its end and behind it."""
    problem = coded(trial.case, trial.claims)
    expected = exactly(problem, trial.claims)
    for some in ([0, 1, 2], [1, 0, 2], [1]):
        hold(trial, problem.only(some), expected.only(problem, some))


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


@check("KV-RNN-028", verbs=("causal_conv",), cases=_narrow)
def every_request_of_a_large_batch_is_scanned(trial: Trial) -> None:
    """More than 65,536 requests, of which the first, the last and some between bring a token."""
    busy = {*range(4), *range(2**15 - 2, 2**15 + 2), *range(2**16 - 4, MANY)}
    problem = coded(relen(trial.case, [(int(i in busy), i % 3) for i in range(MANY)]), trial.claims)
    expected = exactly(problem, trial.claims)
    result = ask(trial, problem)
    expect_out(trial, problem, result, result.out, expected)
    expect_state(trial, result, final_of(result.answer, problem, trial.claims), expected)


@check("KV-RNN-028", verbs=STEPS, features=("padding_rows",), cases=_narrow)
def rows_behind_many_others_are_updated(trial: Trial) -> None:
    """A few requests behind more than 65,536 rows of padding: each of them is advanced."""
    problem = coded(trial.case, trial.claims)
    update, result = ask_update(trial, problem, Pool(seed=1, padding=(0,) * MANY))
    expected = exactly(problem, trial.claims)
    expect_out(trial, problem, result, result.out[update.rows], expected)


def _loud_last(problem: ScanProblem) -> tuple[ScanProblem, int]:
    """Return the problem with the last request that has tokens made 64 times as loud, and which one it is."""
    name = problem.out_name
    last = int(np.flatnonzero(problem.lens)[-1])
    x = problem.inputs[name].copy()
    x[problem.starts[last] : problem.starts[last + 1]] *= np.asarray(64, x.dtype)
    return problem.with_inputs(**{name: x}), last


def _read_at_the_end(problem: ScanProblem) -> ScanProblem:
    """Return the problem of a delta rule in which each request writes with its first tokens, then reads."""
    tokens, heads, width = problem.inputs["k"].shape
    inside = np.arange(tokens) - problem.starts[:-1].repeat(problem.lens)
    key = cast(one_hot((inside[:, None] + 3 * np.arange(heads)) % width, width), problem.dtype)
    beta = np.where(inside < 5, 1.0, 0.0)[:, None] * np.ones(problem.inputs["beta"].shape)
    first = cast(one_hot((inside[:, None] % 5 + 3 * np.arange(heads)) % width, width), problem.dtype)
    return problem.with_inputs(k=key, q=first, beta=cast(beta, problem.dtype))

"""Checks of how large a call may be: what a narrow index cannot count, of tokens, requests, heads and slots.

Each is about one extent and keeps the others small. The case is the smallest there is, and the check makes of
it what it is about: a failure is not made smaller, for then it would be gone.
"""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref_conformance.cases import Case, Level
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.scans import coded
from kvref_conformance.probes.scans_long import without_drift
from kvref_conformance.scan_cases import (
    OF_CHANNELS,
    UNGROUPED,
    chunk_of,
    is_update,
    relen,
    scan_of,
    smallest_case,
    state_size,
)
from kvref_conformance.scan_judge import (
    ask,
    ask_update,
    expect_out,
    expect_state,
    hold,
    states_left,
)
from kvref_conformance.scan_oracle import scale_rounds
from kvref_conformance.scan_problems import Pool, ScanProblem, final_of
from kvref_conformance.trial import Trial
from kvref_conformance.verbs_of_scans import UPDATES

SCANS, STEPS = tuple(UPDATES), tuple(UPDATES.values())
#: One more than a launch has along two of its three axes.
MANY = 65_536
#: Rows of padding in front of an update's requests.
MANY_ROWS = MANY + 4
#: Tokens that 16 bits with a sign cannot count, and some more.
LONG = 2**15 + 50
#: Requests, and heads, that eight bits cannot count.
SEVERAL = 300
#: Heads of a group of B and C, or of a key head, where there are many heads.
SHARED = 3
#: Channels that 16 bits with a sign cannot count.
CHANNELS = 2**15 + 64
#: Numbers of all states of a call that are passed at level quick: a quarter of a GiB in float32.
QUICK_NUMBERS = 2**26
#: Numbers of all slots of a pool: enough for 32,770 states of 32 times 32.
QUICK_SLOTS = 2**25 + 2**17
#: The same at the other levels: what a case file may describe.
NUMBERS = 2**28
#: Slots of a pool that an index of 7, 8, 15 or 16 bits takes for others, and the ones it takes them for.
SLOTS = (0, 1, 127, 128, 129, 255, 256, 257, 2**15 - 1, 2**15, 2**15 + 1, 2**16 - 1, 2**16, 2**16 + 1)


def _one(claims: Claims, verb: str, level: Level) -> list[Case]:
    """One request of one token in the smallest widths."""
    return [smallest_case(claims, verb)]


def _one_that_fits(claims: Claims, verb: str, level: Level) -> list[Case]:
    """The same, where the states of so many requests are not more than the level allows."""
    most = QUICK_NUMBERS if level == "quick" else NUMBERS
    return [case for case in _one(claims, verb, level) if MANY * state_size(case) <= most]


def _pools(claims: Claims, verb: str, level: Level) -> list[Case]:
    """The same, and how many slots a pool may have."""
    most = QUICK_SLOTS if level == "quick" else NUMBERS
    return [case.with_options(slots=most // state_size(case)) for case in _one(claims, verb, level)]


@check("KV-RNN-028", verbs=SCANS, cases=_one_that_fits)
def every_request_of_a_large_batch_is_scanned(trial: Trial) -> None:
    """More than 65,535 requests, of which the first, the last and some between bring a token."""
    busy = np.array([*range(4), *range(2**15 - 2, 2**15 + 2), *range(MANY - 3, MANY)])
    problem = coded(relen(trial.case, [(1, i % 3) for i in range(len(busy))]), trial.claims)
    expected = trial.oracle.scan(problem)
    lens = np.zeros(MANY, np.int64)
    lens[busy] = 1
    initial = np.zeros((MANY, *problem.initial.shape[1:]), np.float32)
    initial[busy] = problem.initial
    result = ask(trial, problem.but(lens=lens, initial=initial))
    expect_out(trial, problem, result, result.out, expected, "of those with a token, ")
    left = final_of(result.answer, problem, trial.claims, busy)
    expect_state(trial, result, left, expected, "of those with a token, ")
    idle = _filled(result.answer.outputs["final_state"], busy)
    trial.expect(not idle, f"the states of requests {idle[:6]} without tokens are no longer zero", result)


@check("KV-RNN-028", verbs=STEPS, features=("padding_rows",), cases=_one)
def rows_behind_many_others_are_updated(trial: Trial) -> None:
    """A few requests behind more than 65,536 rows of padding: each of them is advanced."""
    problem = coded(relen(trial.case, [(1, 1), (1, 0), (1, 2)]), trial.claims)
    update, result = ask_update(trial, problem, Pool(seed=1, padding=(0,) * MANY_ROWS))
    expected = trial.oracle.scan(problem)
    expect_out(trial, problem, result, result.out[update.rows], expected)
    expect_state(trial, result, states_left(trial, problem, update, result), expected)


@check("KV-RNN-032", verbs=SCANS, cases=_one)
def a_long_request_is_scanned_to_its_end(trial: Trial) -> None:
    """A request of more tokens than 16 bits count, between two short ones; of several hundred chunks."""
    case = relen(trial.case, [(3, 1), (LONG, 1), (0, 2), (chunk_of(trial.claims) + 2, 0)])
    _hold_exactly(trial, without_drift(coded(case, trial.claims)))


@check("KV-RNN-032", verbs=(*SCANS, *STEPS), cases=_one)
def several_hundred_requests_are_kept_apart(trial: Trial) -> None:
    """Requests of no, one, two and three tokens, empty ones in a row; of updates one token each."""
    lens = [(1, i % 3) for i in range(SEVERAL)]
    if not is_update(trial.case.verb):
        lens = [((0, 0, 1, 3, 0, 2, 0, 0, 1, 0)[i % 10], (i + i // 10) % 3) for i in range(SEVERAL)]
    _hold_exactly(trial, coded(relen(trial.case, lens), trial.claims))


@check("KV-RNN-032", verbs=(*SCANS, *STEPS), cases=_one)
def several_hundred_heads_are_kept_apart(trial: Trial) -> None:
    """Three heads a group where heads share anything; of channels more than 16 bits count."""
    case, scan = trial.case, scan_of(trial.case.verb)
    heads, shared = (SEVERAL, 1) if scan in UNGROUPED else (SEVERAL // SHARED, SHARED)
    if scan in OF_CHANNELS:
        heads, shared = -(-CHANNELS // case.head_dim), 1
    lens = [(1, 1), (1, 0)] if is_update(case.verb) else [(5, 1), (1, 0)]
    _hold_exactly(trial, coded(replace(relen(case, lens), num_kv_heads=heads, group=shared), trial.claims))


@check("KV-RNN-032", verbs=STEPS, cases=_pools)
def slots_with_high_numbers_are_updated(trial: Trial) -> None:
    """Slots from 0 to beyond 65,536, as far as a pool may be large: each request finds its own."""
    slots = [slot for slot in SLOTS if slot < trial.case.option("slots")]
    problem = coded(relen(trial.case, [(1, 1 + i % 3) for i in range(len(slots))]), trial.claims)
    turned = np.roll(np.array(slots), 3)
    update, result = ask_update(trial, problem, Pool(slots=tuple(turned.tolist()), poison=0.0))
    expected = trial.oracle.scan(problem)
    what = f"slots {', '.join(map(str, turned.tolist()))}: "
    expect_state(trial, result, states_left(trial, problem, update, result), expected, what)
    expect_out(trial, problem, result, result.out[update.rows], expected, what)
    others = _filled(result.answer.outputs["state"], turned)
    trial.expect(not others, f"{what}the update changed slots {others[:6]} of no request", result)


def _filled(states: Array, named: Array) -> list[int]:
    """Return the states that are not zero, but for those that are named."""
    filled = np.array(states.reshape(len(states), -1).any(axis=1))
    filled[named] = False
    return [int(i) for i in np.flatnonzero(filled)]


def _hold_exactly(trial: Trial, problem: ScanProblem) -> None:
    """Hold outputs and states to the exact ones; states alone where the scale of a delta rule rounds."""
    hold(trial, problem, out=not scale_rounds(problem))

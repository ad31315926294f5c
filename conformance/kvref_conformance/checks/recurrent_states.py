"""Checks of states: what a request starts from, what it leaves, in which slot, and how it goes on."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref_conformance.cases import Case, Level
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.scans import coded, one_hot, single
from kvref_conformance.probes.scans_random import random_scan
from kvref_conformance.problems import cast
from kvref_conformance.scan_cases import DELTA, chunk_of, every_second, relen, scan_cases
from kvref_conformance.scan_judge import (
    Before,
    answers_within,
    ask,
    ask_update,
    expect_again,
    expect_out,
    expect_state,
    hold,
    hold_within,
    states_left,
)
from kvref_conformance.scan_oracle import solved
from kvref_conformance.scan_problems import Pool, ScanProblem, Update, final_of, read_states
from kvref_conformance.trial import Result, Trial, bits
from kvref_conformance.verbs_of_scans import UPDATES

SCANS, STEPS = tuple(UPDATES), tuple(UPDATES.values())
OF_DELTA = (*DELTA, *(UPDATES[scan] for scan in DELTA))
#: Elements between two slots of a pool that is a view of something larger.
GAP = 7
#: Around what numbers memory of nobody's is: loud ones, and ones that no narrow format has.
LOUD, TENTH = 96.0, 0.1
#: Tokens of each request that go through an update, one call each.
STEPS_IN_A_ROW = 4


def _around_the_grid(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Requests that end just before, at and behind the end of a chunk, and one of a single token."""
    c = chunk_of(claims)
    return [
        relen(case, [(c - 1, 0), (c, 2), (1, 3), (c + 1, 0), (2 * c, 1)])
        for case in scan_cases(claims, verb, level)
    ]


def _with_empty(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Requests without tokens: first, last, between others, alone and several in a row."""
    patterns = (
        [(0, 3), (5, 0), (0, 1), (2, 2), (0, 4)],
        [(0, 2), (0, 1), (3, 1), (0, 5), (0, 0), (0, 4), (1, 1), (0, 1), (0, 3)],
    )
    cases = scan_cases(claims, verb, level)
    return [relen(case, patterns[i % 2]) for i, case in enumerate(cases)]


def _two_parts(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Requests long enough to be cut around a chunk's end, beside a short one."""
    c = chunk_of(claims)
    return [relen(case, [(2 * c + 5, 0), (3, 2), (c + 2, 1)]) for case in scan_cases(claims, verb, level)]


def _some_parts(claims: Claims, verb: str, level: Level) -> list[Case]:
    return _two_parts(claims, verb, level)[::2]


def _in_turn(claims: Claims, verb: str, level: Level) -> list[Case]:
    return [
        relen(case, [(STEPS_IN_A_ROW, before) for before in range(len(case.seq_lens))])
        for case in scan_cases(claims, verb, level)
    ]


@check("KV-RNN-005", verbs=SCANS, features=("has_initial_state",), cases=scan_cases)
def fresh_requests_start_from_zeros(trial: Trial) -> None:
    """Requests without an initial state are passed NaN in its place, then another's loud numbers."""
    problem = coded(trial.case, trial.claims)
    expected = trial.oracle.scan(problem)
    for poison in (np.nan, LOUD):
        result = ask(trial, problem, flags=True, poison=poison)
        expect_out(trial, problem, result, result.out, expected)
        expect_state(trial, result, final_of(result.answer, problem, trial.claims), expected)


@check("KV-RNN-007", verbs=SCANS, cases=_two_parts)
def parts_are_the_whole(trial: Trial) -> None:
    """Cut before and behind chunk ends, after one token, before the last: the same answer as uncut."""
    problem = coded(trial.case, trial.claims)
    before = Before.of(trial, problem)
    for at in _cuts(trial, problem):
        out, result = _in_parts(trial, problem, at)
        left = final_of(result.answer, problem, trial.claims)
        expect_again(trial, before, result, out, left, f"cut after {_listed(at)} tokens, ")


@check("KV-RNN-007", ring="numeric", verbs=SCANS, cases=_some_parts)
def parts_go_on_from_the_state_they_are_given(trial: Trial) -> None:
    """Random inputs, right at once: a second part is held to its bound, from the state the first one left."""
    problem = random_scan(trial.case, trial.claims)
    if not answers_within(trial, problem):
        return  # what is wrong in one piece is no fault of parts, and other checks are about it
    for at in _cuts(trial, problem)[1::3]:
        first, rest = problem.cut(at)
        left = final_of(ask(trial, first).answer, problem, trial.claims)
        finite = bool(np.isfinite(left).all())
        trial.expect(
            finite, f"cut after {_listed(at)} tokens, the first part leaves a state that is not finite"
        )
        hold_within(trial, rest.but(initial=left))


@check("KV-RNN-009", verbs=STEPS, features=("padding_rows",), cases=scan_cases)
def padding_rows_change_nothing(trial: Trial) -> None:
    """Rows of negative indices before, between and behind the others; every slot is somebody's."""
    problem = coded(trial.case, trial.claims)
    expected, count = trial.oracle.scan(problem), len(problem.lens)
    where = Pool(seed=trial.case.seed, spare=0, padding=(0, count // 2, count, count))
    any_negative = trial.claims.choice("state-padding") == "any_negative"
    for pool in (
        where,
        replace(where, padded_with=np.nan),
        *([replace(where, negatives=(-(count + 1), -2, -(2**31), -count))] if any_negative else []),
    ):
        update, result = ask_update(trial, problem, pool)
        what = f"beside rows of index {', '.join(map(str, pool.negatives))}, "
        expect_state(trial, result, states_left(trial, problem, update, result), expected, what)
        expect_out(trial, problem, result, result.out[update.rows], expected, what)
        _expect_inert(trial, problem, update, result)


@check("KV-RNN-009", verbs=STEPS, features=("padding_rows",), cases=every_second)
def batches_of_padding_alone_change_nothing(trial: Trial) -> None:
    """No row stands for a request: the pool keeps its bits, and all outputs are zeros."""
    problem = coded(trial.case, trial.claims).only([])
    for poison in (np.nan, LOUD):
        pool = Pool(spare=3, poison=poison, padding=(0,) * 5, padded_with=2.0)
        update, result = ask_update(trial, problem, pool)
        _expect_untouched(trial, update.slots, result)
        _expect_inert(trial, problem, update, result)


@check("KV-RNN-021", verbs=OF_DELTA, cases=scan_cases)
def states_lie_in_the_declared_layout(trial: Trial) -> None:
    """Nothing is written or forgotten: each token reads one row of a state, which comes back unchanged."""
    problem = _read_only(coded(_all_continue(trial.case), trial.claims))
    hold(trial, problem)


@check("KV-RNN-023", verbs=SCANS, cases=_around_the_grid)
def states_are_those_after_the_last_token(trial: Trial) -> None:
    """Requests that end around the end of a chunk, and one of a single token: no token is left out."""
    hold(trial, coded(trial.case, trial.claims), out=False)


@check("KV-RNN-024", verbs=SCANS, cases=_with_empty)
def empty_requests_keep_their_state(trial: Trial) -> None:
    """Requests without tokens first, last, between others, several in a row: states come back bit for bit."""
    problem = random_scan(trial.case, trial.claims)
    result = ask(trial, problem)
    given, left = result.call.tensors["initial_state"], np.asarray(result.answer.outputs["final_state"])
    for request in np.flatnonzero(problem.lens == 0):
        trial.expect_bits(f"state of request {request}, ", result, left[request], given[request])


@check("KV-RNN-025", verbs=STEPS, cases=scan_cases)
def only_named_slots_are_written(trial: Trial) -> None:
    """States scattered over a pool, NaN in every other slot, then numbers: all of these keep their bits."""
    problem = coded(trial.case, trial.claims)
    expected = trial.oracle.scan(problem)
    layer = int(np.prod(problem.initial.shape[1:]))  # the pool is one of two layers
    gaps = (0, layer if trial.case.seed % 2 else GAP) if "strided" in trial.claims.features else (0,)
    for poison, gap in ((poison, gap) for gap in gaps for poison in (np.nan, LOUD, TENTH)):
        update, result = ask_update(trial, problem, Pool(seed=trial.case.seed + gap, poison=poison, gap=gap))
        _expect_untouched(trial, update.slots, result)
        expect_state(trial, result, states_left(trial, problem, update, result), expected)
        expect_out(trial, problem, result, result.out[update.rows], expected)


@check("KV-RNN-030", verbs=STEPS, cases=_in_turn)
def updates_are_a_scan(trial: Trial) -> None:
    """Several tokens of each request, one call each: outputs and states are those of a scan."""
    problem = coded(trial.case, trial.claims)
    for token, one in enumerate(_tokens(problem)):
        expected, what = trial.oracle.scan(one), f"update {token}, "
        update, result = ask_update(trial, one, Pool(seed=token))
        expect_out(trial, one, result, result.out[update.rows], expected, what)
        expect_state(trial, result, states_left(trial, one, update, result), expected, what)


@check("KV-RNN-030", ring="numeric", verbs=STEPS, cases=_in_turn)
def updates_go_on_from_the_state_they_left(trial: Trial) -> None:
    """Random inputs, of some cases the optional ones too: each update is held to its bound."""
    rest = random_scan(trial.case, trial.claims)
    for _ in range(STEPS_IN_A_ROW // 2):
        one, rest = rest.cut([1] * len(rest.lens))
        update, result = ask_update(trial, one)
        expected = trial.oracle.scan_within(one)
        expect_out(trial, one, result, result.out[update.rows], expected)
        left = read_states(result.answer.outputs["state"][update.slots], one, trial.claims)
        expect_state(trial, result, left, expected)
        rest = rest.but(initial=left)


def _tokens(problem: ScanProblem) -> Iterator[ScanProblem]:
    """Yield problems of one token a request, each from the right state before it."""
    for _ in range(STEPS_IN_A_ROW):
        one, problem = problem.cut([1] * len(problem.lens))
        yield one
        problem = problem.but(initial=solved(one).state)


def _all_continue(case: Case) -> Case:
    """Return the case with requests that have all been scanned before, none of them without tokens."""
    return relen(case, [(max(n, 1), 1 + i) for i, n in enumerate(case.query_lens)])


def _read_only(problem: ScanProblem) -> ScanProblem:
    """Return the problem of a delta rule without decay or writes, in which each token reads another row."""
    tokens, heads, width = problem.inputs["q"].shape
    place = (3 * np.arange(tokens)[:, None] + 5 * np.arange(heads)) % width
    return problem.with_inputs(
        q=cast(one_hot(place, width), problem.dtype),
        g=single(np.zeros_like(problem.inputs["g"])),
        beta=np.zeros_like(problem.inputs["beta"]),
    )


def _cuts(trial: Trial, problem: ScanProblem) -> list[list[int]]:
    """Return where to cut each request: at its ends and around the ends of chunks, each a little later."""
    c, longest = chunk_of(trial.claims), int(problem.lens.max())
    wanted = sorted({0, 1, c - 1, c, c + 1, longest - 1})
    return [[min(cut + request, int(n)) for request, n in enumerate(problem.lens)] for cut in wanted]


def _in_parts(trial: Trial, problem: ScanProblem, at: list[int]) -> tuple[Array, Result]:
    """Scan a problem in two parts; return the outputs in the order of the whole, and the last answer."""
    first, rest = problem.cut(at)
    before = ask(trial, first)
    result = ask(trial, rest.but(initial=final_of(before.answer, problem, trial.claims)))
    out = np.empty((int(problem.lens.sum()), *before.out.shape[1:]))
    for part, found, skipped in ((first, before, np.zeros_like(first.lens)), (rest, result, first.lens)):
        for request, n in enumerate(part.lens):
            start = int(problem.starts[request] + skipped[request])
            out[start : start + int(n)] = found.out[part.starts[request] : part.starts[request + 1]]
    return out, result


def _expect_inert(trial: Trial, problem: ScanProblem, update: Update, result: Result) -> None:
    """Hold the outputs of padding rows to zeros."""
    padded = np.delete(result.out, update.rows, axis=0)
    trial.expect_equal("out of padding rows", result, padded, np.zeros_like(padded))


def _expect_untouched(trial: Trial, slots: Array, result: Result) -> None:
    """Hold every slot of a pool that is nobody's, and what lies between slots, to the bits it had."""
    before, after = result.call.tensors["state"], np.asarray(result.answer.outputs["state"])
    others = np.setdiff1d(np.arange(len(before)), slots)
    changed = [int(slot) for slot in others if (bits(before[slot]) != bits(after[slot])).any()]
    trial.expect(
        not changed, f"the update changed slots {_listed(changed)} of no request", result, slots=changed
    )
    beyond = "state" in result.answer.overrun
    trial.expect(not beyond, "the update wrote between the slots of the pool, or past its end", result)


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:6])) + (" …" if len(numbers) > 6 else "")

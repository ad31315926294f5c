"""Checks of merging: the empty state, order and grouping, and attention read in two parts.

One merge is held to `merge_bound`, which takes its inputs as exact. Where parts carry errors of their own, a
part i with share p_i, output error B_i and lse error ε_i moves the whole by at most

    Σ_i p_i e^{ε_i} (B_i + (1 − e^{−ε_i}) |out_i − out|) / Σ_i p_i e^{−ε_i}

because errors of the lse tilt the shares and errors of the outputs are averaged by the tilted shares.
"""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref.attention.arithmetic import Format
from kvref.attention.bounds import Bound
from kvref.attention.dense import attention
from kvref.attention.merge import State, merge
from kvref_conformance.cases import Case, Level, lattice
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.random import random_problem
from kvref_conformance.probes.states import (
    LN_2,
    expected_merge,
    merged,
    present_merge,
    random_states,
    read_state,
    spelled,
    state_cases,
    three_states,
)
from kvref_conformance.problems import Problem
from kvref_conformance.trial import Trial

VERB = ("merge_attention_states",)
EMPTY = -np.inf
#: Every meeting of an empty state: on the left, on the right, on both sides; and of none.
MEETINGS = ((EMPTY, 2.0), (-3.0, EMPTY), (EMPTY, EMPTY), (1.0, 2.0), (EMPTY, 300.0), (-300.0, EMPTY))


def _uneven(claims: Claims, verb: str, level: Level) -> list[Case]:
    """One query token over tens or hundreds of tokens, the last or all but the first cut off."""
    cases = lattice(claims, verb, level, prefill=False, min_len=3)
    longest = [(n if i % 4 else n + 288,) for i, n in enumerate(case.seq_lens[0] for case in cases)]
    return [
        replace(case, seq_lens=(*longest[i], *case.seq_lens[1:])).with_options(tail=(i % 2 == 0))
        for i, case in enumerate(cases)
    ]


@check("KV-ATTN-031", verbs=VERB, cases=state_cases)
def empty_states_change_nothing(trial: Trial) -> None:
    """Empty on the left, on the right, on both sides: the other state comes back as it was."""
    case = trial.case
    a, b = (spelled(state, case, trial.claims) for state in random_states(case, MEETINGS))
    result = trial.call(present_merge(a, b))
    left, right = (np.isneginf(read_state(*state, trial.claims).lse) for state in (a, b))
    for empty, other, side in ((left, b, "left"), (right, a, "right")):
        for name, seen, kept in zip(("out", "lse"), merged(result.answer), other, strict=True):
            trial.expect_equal(f"{name} with nothing on the {side}", result, seen[empty], kept[empty])


@check("KV-ATTN-032", ring="numeric", verbs=VERB, cases=state_cases)
def states_merge_in_any_order(trial: Trial) -> None:
    """a with b, b with a, and three states in both groupings; sides hundreds of nats apart, either way."""
    case, claims = trial.case, trial.claims
    a, b, c = (spelled(state, case, claims) for state in three_states(case))
    for one, other in ((a, b), (b, a)):
        _merge(trial, one, other)
    _merge(trial, _merge(trial, a, b), c)
    _merge(trial, a, _merge(trial, b, c))


@check("KV-ATTN-033", ring="numeric", verbs=VERB, cases=_uneven)
def parts_of_a_context_merge_into_the_whole(trial: Trial) -> None:
    """Exact parts of uneven size, rounded as they are given: their merge is attention over the whole."""
    case, claims = trial.case, trial.claims
    problem = random_problem(case)
    whole = _attend(problem)
    given = [spelled(_attend(part), case, claims) for part in _parts(problem, case)]
    result = trial.call(present_merge(*given))
    parts = [read_state(*state, claims) for state in given]
    rounded = Format.of(case.dtype), Format.of("float32")
    errors = [
        Bound(rounded[0].rounded(np.abs(part.out)), rounded[1].rounded(np.abs(part.lse))) for part in parts
    ]
    carried = _carried(parts, errors)
    own = expected_merge(result.call, claims)[1]
    found = read_state(*merged(result.answer), claims)
    trial.expect_within("out", result, found.out, whole.out, own.out + carried.out)
    trial.expect_within("lse in nats", result, found.lse, whole.lse, own.lse + carried.lse)


@check("KV-ATTN-033", ring="numeric", features=("lse",), cases=_uneven)
def attention_is_the_merge_of_its_parts(trial: Trial) -> None:
    """The subject reads a context whole, then in two uneven parts, which are merged exactly."""
    case, claims = trial.case, trial.claims
    top_left = claims.choice("causal-corner") == "top_left"
    if top_left and "non_causal" not in claims.features:
        return  # its one query token would see the first token of each part and nothing else
    problem = random_problem(case, causal=False) if top_left else random_problem(case)
    nats = LN_2 if claims.choice("lse-base") == "2" else 1.0
    whole = trial.attend(problem, lse=True)
    parts, errors = [], []
    for part in _parts(problem, case):
        result = trial.attend(part, lse=True)
        expected = trial.oracle.attention(part)
        parts.append(read_state(result.out, result.lse, claims))
        errors.append(Bound(expected.out_bound, expected.lse_bound * nats))
    with np.errstate(all="ignore"):  # a subject's parts may hold anything
        carried, together = _carried(parts, errors), merge(*parts)
    expected = trial.oracle.attention(problem)
    found = read_state(whole.out, whole.lse, claims)
    trial.expect_within("out of the whole", whole, found.out, together.out, carried.out + expected.out_bound)
    slack = carried.lse + expected.lse_bound * nats
    trial.expect_within("lse of the whole in nats", whole, found.lse, together.lse, slack)


def _merge(trial: Trial, a: State, b: State) -> State:
    """Merge two states as they are spelled, hold the result to the bound, and return it."""
    result = trial.call(present_merge(a, b))
    exact, bound = expected_merge(result.call, trial.claims)
    found = read_state(*merged(result.answer), trial.claims)
    trial.expect_within("out", result, found.out, exact.out, bound.out)
    trial.expect_within("lse in nats", result, found.lse, exact.lse, bound.lse)
    return merged(result.answer)


def _attend(problem: Problem) -> State:
    return attention(
        problem.q,
        problem.k,
        problem.v,
        query_start_loc=problem.query_start_loc,
        seq_lens=problem.seq_lens,
        scale=problem.variant["scale"],
    )


def _parts(problem: Problem, case: Case) -> tuple[Problem, Problem]:
    """Cut every context in two: after its first token, or before its last one."""
    cuts = [max(int(n) - 1, 0) if case.option("tail") else min(int(n), 1) for n in problem.seq_lens]
    starts = problem.context_start_loc[:-1]
    early = [np.arange(start, start + cut) for start, cut in zip(starts, cuts, strict=True)]
    late = [
        np.arange(start + cut, start + n)
        for start, cut, n in zip(starts, cuts, problem.seq_lens, strict=True)
    ]
    first, second = (_only(problem, rows) for rows in (early, late))
    return first, second


def _only(problem: Problem, rows: list[Array]) -> Problem:
    every = np.concatenate(rows)
    return problem.but(k=problem.k[every], v=problem.v[every], seq_lens=np.array([len(own) for own in rows]))


def _carried(parts: list[State], errors: list[Bound]) -> Bound:
    """Bound what errors of two parts do to their exact merge: the formula at the head of this module."""
    whole = merge(*parts)
    there = [~np.isneginf(part.lse) for part in parts]
    tilt = [np.where(here, error.lse, 0.0) for here, error in zip(there, errors, strict=True)]
    with np.errstate(invalid="ignore"):
        share = [
            np.where(here, np.exp(part.lse - whole.lse), 0.0) for here, part in zip(there, parts, strict=True)
        ]
    least = sum(p * np.exp(-e) for p, e in zip(share, tilt, strict=True))
    least = np.where(least == 0, 1.0, least)
    out = np.zeros_like(whole.out)
    for part, error, p, e in zip(parts, errors, share, tilt, strict=True):
        moved = error.out - np.expm1(-e)[..., None] * np.abs(part.out - whole.out)
        out += (p * np.exp(e) / least)[..., None] * moved
    growth = sum(p * np.exp(e) for p, e in zip(share, tilt, strict=True))
    return Bound(out, np.log(np.where(growth == 0, 1.0, growth)))

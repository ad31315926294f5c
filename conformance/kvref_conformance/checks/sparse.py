"""Checks of sparse attention: choosing positions, and attending to the chosen slots.

A selection is judged as a set. It is right if some scores within the error of the declared arithmetic would
have chosen it; ties may fall either way. Attention over a selection is judged as attention under a mask.
"""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref.attention.sparse import valid_topk_rows
from kvref_conformance.cases import Case, Level, lattice
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.needles import needles
from kvref_conformance.probes.random import dyadic
from kvref_conformance.probes.selections import (
    Indexer,
    choose,
    choosing_cases,
    indexer,
    over_selection,
    present_sparse,
    query_positions,
)
from kvref_conformance.problems import Placement, Problem
from kvref_conformance.trial import Result, Trial

CHOOSING, ATTENDING = ("select_topk",), ("sparse_attention",)
#: Positions of one selection; contexts are long enough that more are left out.
FEW = 6
#: Positions of a selection that is read in several tiles.
MANY = 150


def _selecting(claims: Claims, verb: str, level: Level) -> list[Case]:
    """A few query tokens a request, all with more positions than a selection takes."""
    cases = lattice(claims, verb, level, min_len=2 * FEW)
    return [
        replace(
            case,
            query_lens=tuple(
                min(n_q, n - FEW, FEW) for n, n_q in zip(case.seq_lens, case.query_lens, strict=True)
            ),
        )
        for case in cases
    ]


def _few_and_many(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Selections of a few slots, and of more than a kernel takes in one tile."""
    few = [case.with_options(top_k=FEW) for case in _selecting(claims, verb, level)]
    some = few[1:2] if level == "quick" else few[::4]
    lens, queries = (MANY + 40, MANY + 7), (2, 1)
    many = [
        replace(case.with_options(top_k=MANY), seq_lens=lens, query_lens=queries, seed=700) for case in some
    ]
    return [*few, *many]


@check("KV-ATTN-070", verbs=CHOOSING, cases=choosing_cases)
def selection_leaves_out_nothing_better(trial: Trial) -> None:
    """Random scores, then a plateau of ties that only a few positions rise above or fall below."""
    case = trial.case
    rng = np.random.default_rng(case.seed + 5)
    heads, tokens = case.num_q_heads, sum(case.seq_lens)
    noise = Indexer(
        q=dyadic(rng, (case.num_tokens, heads, case.head_dim), case.dtype),
        k=dyadic(rng, (tokens, case.head_dim), case.dtype),
        weights=rng.integers(-3, 9, (case.num_tokens, heads)).astype(np.float32) / 8,
        case=case,
    )
    steps = rng.choice([-3.0, 0.0, 2.0, 5.0], (tokens, heads), p=[0.45, 0.35, 0.1, 0.1])
    for probe in (noise, indexer(case, steps, np.ones(heads))):
        _hold(trial, probe, trial.call(probe.present(case.option("top_k"))))


@check("KV-ATTN-071", verbs=CHOOSING, cases=choosing_cases)
def negative_products_count_as_zero(trial: Trial) -> None:
    """One position is best after ReLU; all others beat it where ReLU is missing or comes after the weight."""
    case = trial.case
    products = np.zeros((sum(case.seq_lens), case.num_q_heads))
    products[:, :2] = 4, -100  # relu: 4; without: 104; relu after the weight: 104
    for request, start in enumerate(np.cumsum((0, *case.seq_lens[:-1]))):
        if case.seq_lens[request]:
            first = case.seq_lens[request] - max(case.query_lens[request], 1)
            products[start + first // 2, :2] = 6, 1  # relu: 5
    weights = np.where(np.arange(case.num_q_heads) == 1, -1.0, 1.0)
    probe = indexer(case, products, weights)
    _hold(trial, probe, trial.call(probe.present(1)))


@check("KV-ATTN-072", verbs=ATTENDING, cases=_few_and_many)
def exactly_the_named_slots_are_read(trial: Trial) -> None:
    """Heads hunt, in turn, every position of a selection and positions left out of it."""
    case = trial.case
    positions = choose(case, case.option("top_k"))
    _attend(trial, _hunted(case, positions), positions)


@check("KV-ATTN-073", verbs=CHOOSING, cases=choosing_cases)
def later_positions_are_never_chosen(trial: Trial) -> None:
    """Scores rise with the position, so the best ones are those a query may not have."""
    case = trial.case
    position = np.concatenate([np.arange(n) for n in case.seq_lens] + [np.zeros(0)])
    products = np.repeat(1.0 + np.minimum(position, 200)[:, None], case.num_q_heads, axis=1)
    probe = indexer(case, products, np.ones(case.num_q_heads))
    result = trial.call(probe.present(case.option("top_k")))
    own = np.array(query_positions(case))
    chosen = np.asarray(result.answer.outputs["positions"])
    late = chosen > own[:, None]
    if late.any():
        token, entry = (int(i) for i in np.argwhere(late)[0])
        trial.expect(
            False,
            f"token {token} stands at position {own[token]} and was given position {chosen[token, entry]}",
            result,
            token=token,
        )


@check("KV-ATTN-074", verbs=ATTENDING, cases=_selecting)
def entries_that_name_nothing_are_skipped(trial: Trial) -> None:
    """−1 and −2 in front, in the middle and at the end, then a row of nothing but −1: no slot stands in."""
    case = trial.case
    positions = choose(case, FEW)
    for token in range(case.num_tokens):
        positions[token, [(0, 2), (3, 5), (0, 5)][token % 3]] = -1, -2
    positions[-1] = -1
    _attend(trial, _hunted(case, positions), positions)


def _hunted(case: Case, positions: Array) -> Problem:
    """Let head h of a token hunt entry h of its selection, and every third head a position outside it."""
    hunts = np.full((case.num_tokens, case.num_q_heads), -1)
    rng = np.random.default_rng(case.seed + 43)
    for token, t in enumerate(query_positions(case)):
        named = positions[token][positions[token] >= 0]
        others = np.setdiff1d(np.arange(max(t + 1, 0)), named)
        for head in range(case.num_q_heads):
            pool = others if (head + token) % 3 == 2 or not len(named) else named
            if len(pool):
                hunts[token, head] = pool[rng.integers(len(pool))]
    return needles(case, hunts)


def _attend(trial: Trial, problem: Problem, positions: Array) -> None:
    """Ask for attention over a selection, the first and the last block of the cache dead."""
    case = trial.case
    masked = over_selection(problem, positions)
    lse = "lse" in trial.claims.features
    call = present_sparse(problem, positions, case, _between_dead_blocks(case), lse=lse)
    trial.expect_attention(masked, trial.call(call, masked))


def _between_dead_blocks(case: Case) -> Placement:
    """Scatter contexts over all blocks but the first and the last, where a clamped or wrapped −1 lands."""
    needed = [-(-n // case.block_size) for n in case.seq_lens]
    ids = 1 + np.random.default_rng(case.seed + 47).permutation(sum(needed))
    tables = np.zeros((len(needed), max([*needed, 1])), np.int32)
    for request, count in enumerate(needed):
        start = sum(needed[:request])
        tables[request, :count] = ids[start : start + count]
    return Placement(seed=case.seed, tables=tables, num_blocks=sum(needed) + 2)


def _hold(trial: Trial, probe: Indexer, result: Result) -> None:
    """Hold every row of a selection to the scores and their error."""
    chosen = np.asarray(result.answer.outputs["positions"])
    scores = probe.scores
    error = probe.score_error(trial.claims.arithmetic)
    right = valid_topk_rows(scores, chosen, score_error=error)
    if not right.all():
        token = int(np.argmax(~right))
        trial.expect(
            False,
            f"token {token} was given positions {chosen[token].tolist()}, "
            f"{_why_wrong(scores[token], chosen[token])} ({int((~right).sum())} of {len(right)} tokens)",
            result,
            token=token,
        )


def _why_wrong(scores: Array, chosen: Array) -> str:
    """Say what is wrong with one selection."""
    open_to_it = np.flatnonzero(~np.isneginf(scores))
    named = chosen[chosen != -1]
    wanted = min(len(chosen), len(open_to_it))
    if len(np.unique(named)) != len(named):
        return "one of them twice"
    if not np.isin(named, open_to_it).all():
        return f"expected positions from 0 to {len(open_to_it) - 1}"
    if len(named) != wanted:
        return f"expected {wanted} of them"
    left_out = np.setdiff1d(open_to_it, named)
    best = int(left_out[np.argmax(scores[left_out])])
    worst = int(named[np.argmin(scores[named])])
    return f"but left out position {best} with score {scores[best]:.6g} for {worst} with {scores[worst]:.6g}"

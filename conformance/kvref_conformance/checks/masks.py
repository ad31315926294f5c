"""Checks of the attended set: causal corner, windows, chunks, no causality.

All hunt needles on both sides of an edge: a needle inside is found exactly, one outside not at all. Only that
is judged, so that a fault on the other side of a row is another rule's. What a window or a chunk admits in
all is judged where there is no other side: the last token of a request has no future.
"""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.cases import LONG, Case, Level, lattice, prompt_cases, tile_cases
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.needles import hunt_in_turn, hunt_near, needles
from kvref_conformance.problems import Problem
from kvref_conformance.trial import Trial

#: Queries that a kernel may take together.
TILE = 64


def _long(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Contexts of several blocks."""
    return lattice(claims, verb, level, min_len=2 * max(claims.block_sizes) if level == "exhaustive" else 24)


def _windows(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Windows of one token, below, at and above a block of 16, and around a tile of 64."""
    near = [
        case.with_options(window=(5, 1, 16, 17, 3)[i % 5])
        for i, case in enumerate(_long(claims, verb, level))
    ]
    wide = [
        case.with_options(window=(65, 64, 63, 128)[i % 4])
        for i, case in enumerate(tile_cases(claims, verb, level))
        if max(case.seq_lens) < LONG
    ]
    return [*near, *wide]


def _prompts(claims: Claims, verb: str, level: Level) -> list[Case]:
    """The lattice, and a prompt of several tiles of queries, alone in its context and after another part."""
    return [*lattice(claims, verb, level), *prompt_cases(claims, verb, level)]


def _chunks(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Chunks that do and do not divide a block."""
    return [
        case.with_options(chunk_size=(5, 8, 16, 7)[i % 4])
        for i, case in enumerate(_long(claims, verb, level))
    ]


@check("KV-ATTN-020", features=("prefill",), cases=_prompts)
def causal_corner_is_bottom_right(trial: Trial) -> None:
    """Each query of a chunk finds its own position and none of the later ones."""
    case = trial.case
    hunts = hunt_near(case, 0, 1, 0, 2)
    hunts[:, 4::5] = hunt_in_turn(case, [[n - 1] for n in case.seq_lens])[:, 4::5]
    hunts[_between_tiles(case)] = -1
    problem = needles(case, hunts)
    trial.expect_hunts(problem, trial.attend(problem))


@check("KV-ATTN-021", features=("window",), cases=_windows)
def window_holds_exactly_w_tokens(trial: Trial) -> None:
    """Needles at t − W + 1 and t − W, one beyond and the oldest: only the first may be found."""
    case, window = trial.case, trial.case.option("window")
    reach = window + (trial.claims.choice("window-spelling") == "left")
    hunts = hunt_near(case, 1 - reach, -reach, 1 - reach, -reach - 1)
    hunts[:, 4::5] = 0
    problem = needles(case, hunts, window=window)
    result = trial.attend(problem)
    trial.expect_hunts(problem, result)
    trial.expect_attention(problem, result, _last_tokens_of(problem))


@check("KV-ATTN-022", features=("window", "prefill"), cases=_windows)
def window_never_looks_ahead(trial: Trial) -> None:
    """Needles ahead of each query, next to it and at the end: none may be found, as wide as the window is."""
    case, window = trial.case, trial.case.option("window")
    hunts = hunt_near(case, 1, 2, 1, max(window - 1, 1))
    hunts[:, 4::5] = hunt_in_turn(case, [[n - 1] for n in case.seq_lens])[:, 4::5]
    problem = needles(case, hunts, window=window)
    ahead = np.where(hunts > hunt_near(case, 0), np.asarray(problem.hunts), -1)
    trial.expect_hunts(problem.but(hunts=ahead), trial.attend(problem))


@check("KV-ATTN-023", features=("chunk_size",), cases=_chunks)
def chunk_starts_at_its_own_multiple(trial: Trial) -> None:
    """Needles on both sides of the start of each query's chunk: only the inner one may be found."""
    case, size = trial.case, trial.case.option("chunk_size")
    start = hunt_near(case, 0) // size * size
    side = np.arange(case.num_q_heads)[None, :] % 3
    hunts = np.where(side == 0, start, np.where(side == 1, start - 1, start - size))
    problem = needles(case, hunts, chunk_size=size)
    result = trial.attend(problem)
    trial.expect_hunts(problem, result)
    trial.expect_attention(problem, result, _last_tokens_of(problem))


@check("KV-ATTN-026", features=("non_causal", "prefill"), cases=_prompts)
def non_causal_sees_the_whole_context(trial: Trial) -> None:
    """With causal=False every query finds the next position and the last one."""
    case = trial.case
    hunts = hunt_near(case, 1)
    last = hunt_in_turn(case, [[n - 1] for n in case.seq_lens])
    hunts[:, ::2] = last[:, ::2]
    hunts[_between_tiles(case)] = -1
    problem = needles(case, hunts, causal=False)
    trial.expect_attention(problem, trial.attend(problem))


@check("KV-ATTN-027", ring="numeric", features=("softcap",))
def mask_comes_after_softcap(trial: Trial) -> None:
    """Every live logit saturates at −softcap: a masked one that was capped weighs as much as a live one."""
    case = trial.case
    problem = needles(case, hunt_near(case, 0))
    loud = problem.but(
        q=np.full_like(problem.q, 8),
        k=np.full_like(problem.k, -8),
        variant={"scale": 1.0, "softcap": 15.0},
        hunts=None,
    )
    if "window" in trial.claims.features:
        loud = loud.but(variant={**loud.variant, "window": 2})
    trial.expect_attention(loud, trial.attend(loud))


@check("KV-ATTN-028", features=("prefill",))
def chunked_equals_whole(trial: Trial) -> None:
    """A prompt attended in two chunks gives the same bits as in one, wherever the answer is exact."""
    whole = _whole_prompts(trial.case)
    problem = needles(whole, hunt_near(whole, 0, -1, -7))
    result = trial.attend(problem)
    for cut in (1, 2):
        kept = [n - (n * cut) // 3 for n in whole.seq_lens]
        part = _last_tokens(problem, kept)
        rows = np.concatenate([np.arange(n - k, n) + start for n, k, start in _rows(problem, kept)])
        chunk = trial.attend(part)
        before, after = trial.oracle.attention(problem), trial.oracle.attention(part)
        exact = before.exact[rows] & after.exact & (before.out[rows] == after.out).all(axis=-1)
        trial.expect_equal("out of the last chunk", chunk, chunk.out[exact], result.out[rows][exact])


def _between_tiles(case: Case) -> Array:
    """Say which query tokens of a long prompt hunt nothing: needles are few, and belong to edges of tiles."""
    rows = np.concatenate([np.arange(n_q) for n_q in case.query_lens] + [np.zeros(0, np.int64)])
    long = np.repeat(np.array(case.query_lens) > 2 * TILE, case.query_lens)
    last = np.concatenate([np.arange(n_q) == n_q - 1 for n_q in case.query_lens] + [np.zeros(0, np.bool_)])
    return np.asarray(long & ~last & (rows % TILE > 1) & (rows % TILE < TILE - 2))


def _last_tokens_of(problem: Problem) -> Array:
    """Say which query tokens are the last of their request."""
    return np.isin(np.arange(len(problem.q)), problem.query_start_loc[1:] - 1)


def _whole_prompts(case: Case) -> Case:
    return Case(**{**case.__dict__, "query_lens": case.seq_lens})


def _last_tokens(problem: Problem, kept: list[int]) -> Problem:
    rows = np.concatenate([np.arange(n - k, n) + start for n, k, start in _rows(problem, kept)])
    return problem.but(q=problem.q[rows], query_lens=np.array(kept), hunts=np.asarray(problem.hunts)[rows])


def _rows(problem: Problem, kept: list[int]) -> list[tuple[int, int, int]]:
    starts = problem.query_start_loc
    return [
        (int(n), k, int(starts[r])) for r, (n, k) in enumerate(zip(problem.query_lens, kept, strict=True))
    ]

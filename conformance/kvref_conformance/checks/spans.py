"""Checks of what a caller says pair by pair: bidirectional spans and boolean masks.

They hunt needles as the checks of the other rules of visibility do, and judge what is found.
"""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.cases import Case, Level, lattice
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.needles import edges, hunt_in_turn, hunt_near, needles
from kvref_conformance.trial import Trial

#: Tokens of a span in the context before the queried part: more than the window across which it reaches.
BEFORE = 5


def _long(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Contexts of several blocks."""
    return lattice(claims, verb, level, min_len=2 * max(claims.block_sizes) if level == "exhaustive" else 24)


@check("KV-ATTN-024", features=("spans", "prefill"), cases=_long)
def span_sees_itself_in_both_directions(trial: Trial) -> None:
    """A query in a span finds both of its ends, across window and chunk, and not the next span's first."""
    case = trial.case
    spans = [_spans(n, n_q) for n, n_q in zip(case.seq_lens, case.query_lens, strict=True)]
    hunts = hunt_near(case, 0)
    token = 0
    for request, (n, n_q) in enumerate(zip(case.seq_lens, case.query_lens, strict=True)):
        for t in range(n - n_q, n):
            own = np.flatnonzero(spans[request] == spans[request][t])
            first, last = (int(own[0]), int(own[-1])) if spans[request][t] >= 0 else (t, t)
            hunts[token, 1::2] = last
            hunts[token, 2::3] = last + 1
            hunts[token, 3::4] = first
            if spans[request][t] == 0:  # its last position may lie in its second part
                hunts[token, 2::3] = int(np.flatnonzero(spans[request] != 0)[-1]) if n > 1 else t
            token += 1
    span_ids = np.concatenate(spans).astype(np.int32)
    across: list[dict[str, int]] = [{"window": 2}, {"chunk_size": 3}]
    for rule in ({}, *(rule for rule in across if set(rule) <= set(trial.claims.features))):
        problem = needles(case, hunts, span_ids=span_ids, **rule)
        trial.expect_hunts(problem, trial.attend(problem))


@check("KV-ATTN-025", features=("mask",), cases=_long)
def mask_decides_pair_by_pair(trial: Trial) -> None:
    """Each query's own row of the mask decides which needles it finds; what is True ahead stays unseen."""
    case = trial.case
    rng = np.random.default_rng(case.seed + 31)
    rows = [_holes(rng, n, n_q) for n, n_q in zip(case.seq_lens, case.query_lens, strict=True)]
    hunts = hunt_in_turn(case, [positions[:: max(len(positions) // 7, 1)] for positions in edges(case)])
    if "prefill" in trial.claims.features:
        hunts[:, 2::5] = hunt_near(case, 1)[:, 2::5]
    mask = np.concatenate([row.ravel() for row in rows])
    problem = needles(case, hunts, mask=mask)
    trial.expect_hunts(problem, trial.attend(problem))


def _spans(n: int, n_q: int) -> Array:
    """Span 0 begins before the queried part and comes back at its end; between are span 1 and text."""
    ids = np.full(n, -1, np.int64)
    first = n - n_q
    quarter = max(n_q // 4, 1)
    ids[max(first - BEFORE, 0) : first + quarter] = 0
    ids[first + quarter : first + 2 * quarter] = 1
    ids[first + 3 * quarter :] = 0
    return ids


def _holes(rng: np.random.Generator, n: int, n_q: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """A mask with holes: every query may see itself and about half of everything, what is ahead included."""
    t = np.arange(n - n_q, n)[:, None]
    j = np.arange(n)[None, :]
    return np.asarray((j == t) | (rng.integers(0, 2, (n_q, n)) == 1))

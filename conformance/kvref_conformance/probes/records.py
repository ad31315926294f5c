"""Records: latent attention as a problem with one kv head, whose values are the front part of its keys.

Needles are hunted through either half of the record. A query that scores through the rotated part must come
back with the latent, one that scores through the latent must find it there, and a kernel that takes the
halves in another order, or another width for either, answers with other numbers.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref.attention.mla import absorb_queries
from kvref_conformance.cases import Case, Level, lattice
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Call, OutputSpec, Scalar
from kvref_conformance.probes.needles import coded_values, needle_size
from kvref_conformance.probes.random import dyadic
from kvref_conformance.problems import Placement, Problem, cast, place

#: Width of the rotated part of every record, as all models with such records have it.
ROPE_DIM = 64
#: Width of a query head before absorption, without its rotated part.
NOPE_DIM = 128
SCALE = 0.3125
#: Query tokens of one request: records are wide, and a few say what many would.
MOST_QUERIES = 4


def record_cases(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Return the lattice with one kv head and few queries, over records of the claimed latents."""
    widths = [latent + ROPE_DIM for latent in claims.latent_dims]
    return [
        replace(
            case,
            num_kv_heads=1,
            head_dim=widths[i % len(widths)],
            query_lens=tuple(min(n_q, MOST_QUERIES) for n_q in case.query_lens),
        )
        for i, case in enumerate(lattice(claims, verb, level))
    ]


def present_mla(problem: Problem, case: Case, placement: Placement, *, lse: bool = False) -> Call:
    """Return the call of `mla_attention` that asks a problem over records."""
    placed = place(problem, case.block_size, placement)
    tensors = {
        "q": problem.q,
        "kv_cache": placed.k_cache[:, :, 0],
        "block_tables": placed.block_tables,
        "query_start_loc": problem.query_start_loc,
        "seq_lens": problem.seq_lens.astype(np.int32),
    }
    latent_dim = problem.v.shape[2]
    params: dict[str, Scalar] = {"latent_dim": latent_dim, "scale": problem.variant["scale"]}
    outputs = {"out": OutputSpec(problem.dtype, (*problem.q.shape[:2], latent_dim))}
    if lse:
        params["return_lse"] = True
        outputs["lse"] = OutputSpec("float32", problem.q.shape[:2])
    return Call("mla_attention", tensors, params, outputs)


def record_needles(case: Case, back: tuple[int, ...] = (0, 1)) -> Problem:
    """Return a problem in which head h of a query at t hunts position t − back[h mod their number].

    Even tokens hunt through the rotated part, odd ones through the latent. Latents are the codes of
    `coded_values`, zero in the channels that are used to hunt.
    """
    size = needle_size(SCALE)
    latent_dim = case.head_dim - ROPE_DIM
    latent = coded_values(case, latent_dim)[:, 0].astype(np.float64)
    width = min(ROPE_DIM, latent_dim // 2)
    channels = latent_dim - width + np.arange(width)
    latent[:, channels] = 0
    rope = np.zeros((len(latent), ROPE_DIM))
    hunts = np.full((case.num_tokens, case.num_q_heads), -1)
    queries = np.zeros((case.num_tokens, case.num_q_heads, case.head_dim))
    for start, token, t in _tokens(case):
        for head in range(case.num_q_heads):
            hunted = t - back[head % len(back)]
            if hunted < 0:
                continue
            hunts[token, head] = hunted
            own = hunted % width
            rope[start + hunted, own] = latent[start + hunted, channels[own]] = size
            queries[token, head, (latent_dim if token % 2 == 0 else channels[0]) + own] = size
    problem = _problem(case, queries, np.concatenate([latent, rope], axis=1), SCALE)
    return problem.but(hunts=_unique(hunts, case, width))


def absorbed_problem(case: Case) -> tuple[Problem, dict[str, Array]]:
    """Return a problem with absorbed queries, and the naive form it came from.

    W_UK and W_UV pick one channel with a sign, so absorbing and expanding are exact in any dtype and what is
    compared is the attention between them.
    """
    rng = np.random.default_rng(case.seed + 61)
    latent_dim, heads = case.head_dim - ROPE_DIM, case.num_q_heads
    naive = {
        "q_nope": dyadic(rng, (case.num_tokens, heads, NOPE_DIM), case.dtype),
        "q_rope": dyadic(rng, (case.num_tokens, heads, ROPE_DIM), case.dtype),
        "w_uk": _picks(rng, heads, NOPE_DIM, latent_dim),
        "w_uv": _picks(rng, heads, latent_dim, NOPE_DIM).transpose(0, 2, 1),
    }
    records = dyadic(rng, (sum(case.seq_lens), case.head_dim), case.dtype)
    q = absorb_queries(naive["q_nope"], naive["q_rope"], naive["w_uk"])
    return _problem(case, q, records, 0.03125), naive


def random_records(case: Case, scale: float) -> Problem:
    """Return a problem over bell-shaped records, the logits a few nats apart at the given scale."""
    rng = np.random.default_rng(case.seed + 67)
    q = dyadic(rng, (case.num_tokens, case.num_q_heads, case.head_dim), case.dtype)
    return _problem(case, q, dyadic(rng, (sum(case.seq_lens), case.head_dim), case.dtype), scale)


def _picks(rng: np.random.Generator, heads: int, rows: int, columns: int) -> Array:
    """Return matrices with one ±1 in each column, `[heads, rows, columns]`."""
    picks = np.zeros((heads, rows, columns))
    for head in range(heads):
        picks[head, rng.integers(0, rows, columns), np.arange(columns)] = rng.choice([-1.0, 1.0], columns)
    return picks


def _problem(case: Case, q: Array, records: Array, scale: float) -> Problem:
    keys = cast(records, case.dtype)[:, None, :]
    return Problem(
        q=cast(q, case.dtype),
        k=keys,
        v=keys[..., : case.head_dim - ROPE_DIM],
        seq_lens=np.array(case.seq_lens, np.int64),
        query_lens=np.array(case.query_lens, np.int64),
        variant={"scale": scale},
        dtype=case.dtype,
    )


def _unique(hunts: Array, case: Case, width: int) -> Array:
    """Drop needles that share their channel with another needle of the same request."""
    for request in range(len(case.seq_lens)):
        rows = hunts[sum(case.query_lens[:request]) : sum(case.query_lens[: request + 1])]
        hunted = np.unique(rows[rows >= 0])
        channel, counts = np.unique(hunted % width, return_counts=True)
        rows[np.isin(rows % width, channel[counts > 1])] = -1
    return hunts


def _tokens(case: Case) -> Iterator[tuple[int, int, int]]:
    """Yield (start of the context in k, query token, its position)."""
    start = token = 0
    for n, n_q in zip(case.seq_lens, case.query_lens, strict=True):
        for t in range(n - n_q, n):
            yield start, token, t
            token += 1
        start += n

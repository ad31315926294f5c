"""Replays: one pool of contexts, and several runs over it that differ in everything a capture may keep.

A run takes other contexts at other lengths than the run before, longer and shorter, through other blocks, and
the last run has fewer requests than were prepared for, so its trailing rows and table entries are padding.
Needles stand at the end of each length and just past it: what was read at capture time is found or missed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvref.arrays import Array
from kvref_conformance.cases import Case
from kvref_conformance.contracts import Call, OutputSpec
from kvref_conformance.probes.needles import coded_values, needle_size
from kvref_conformance.problems import POISON_KEY, POISON_VALUE, Placement, Problem, cast, place

SCALE = 0.3125
#: Tokens of the longest context of the pool: one needle channel for each.
LONGEST = 48


@dataclass(frozen=True)
class Replay:
    """One call of `replay`, and what each run asks."""

    call: Call
    problems: Sequence[Problem]
    """One for each run, over its live requests only; they have one query token each."""


def replayed(
    case: Case,
    *,
    padded: bool = True,
    poison: tuple[float, float] = (POISON_KEY, POISON_VALUE),
    table_padding: int | None = None,
) -> Replay:
    """Return four runs over three requests; `padded` leaves some requests of the last two runs empty.

    Dead slots hold `poison`; tables are padded with `table_padding`, None: the id of some dead block.
    """
    pool = _pool(case)
    where = Placement(seed=case.seed + 83, poison=poison, table_padding=table_padding)
    placed = place(pool, case.block_size, where)
    full = [int(n) for n in pool.seq_lens]
    runs = [
        [(0, full[0] // 2), (1, 3), (2, full[2] - 1)],
        [(1, full[1]), (2, 1), (0, full[0])],
        [(2, full[2] // 2), (0, 2)],
        [(1, full[1] // 2 + 1)],
    ]
    if not padded:
        runs = [*runs[:2], *(run[::-1] for run in runs[:2])]
    requests, width = 3, placed.block_tables.shape[1]
    metadata = {
        "block_tables": np.full((len(runs), requests, width), placed.block_tables[0, -1], np.int32),
        "query_start_loc": np.zeros((len(runs), requests + 1), np.int32),
        "seq_lens": np.zeros((len(runs), requests), np.int32),
    }
    q = np.zeros((len(runs), requests, case.num_q_heads, case.head_dim))
    problems = []
    for i, run in enumerate(runs):
        q[i] = _queries(case, [n for _, n in run] + [1] * (requests - len(run)))
        metadata["query_start_loc"][i] = np.minimum(np.arange(requests + 1), len(run))
        for request, (context, n) in enumerate(run):
            metadata["block_tables"][i, request] = placed.block_tables[context]
            metadata["seq_lens"][i, request] = n
        problems.append(_run(pool, cast(q[i, : len(run)], case.dtype), run))
    tensors = {"q": cast(q, case.dtype), "k_cache": placed.k_cache, "v_cache": placed.v_cache, **metadata}
    outputs = {"out": OutputSpec(case.dtype, q.shape)}
    return Replay(Call("replay", tensors, {"scale": SCALE}, outputs), problems)


def _pool(case: Case) -> Problem:
    """Return three contexts in which position j is a needle in channel j."""
    longest = min(LONGEST, case.head_dim - 1)
    lens = (longest, longest - 11, longest // 2 + 1)
    wide = replace(case, seq_lens=lens, query_lens=(0, 0, 0))
    keys = np.zeros((sum(lens), case.num_kv_heads, case.head_dim))
    position = np.concatenate([np.arange(n) for n in lens])
    keys[np.arange(sum(lens)), :, position] = needle_size(SCALE)
    return Problem(
        q=np.zeros((0, case.num_q_heads, case.head_dim)),
        k=cast(keys, case.dtype),
        v=coded_values(wide),
        seq_lens=np.array(lens, np.int64),
        query_lens=np.zeros(3, np.int64),
        variant={"scale": SCALE},
        dtype=case.dtype,
    )


def _queries(case: Case, lengths: Sequence[int]) -> Array:
    """Let head h of a query over n tokens hunt position n − 1, then n, which is not there, then 0."""
    q = np.zeros((len(lengths), case.num_q_heads, case.head_dim))
    for request, n in enumerate(lengths):
        for head in range(case.num_q_heads):
            q[request, head, (n - 1, n, 0)[head % 3]] = needle_size(SCALE)
    return q


def _run(pool: Problem, q: Array, run: Sequence[tuple[int, int]]) -> Problem:
    """Return what one run asks: the first n tokens of each of its contexts."""
    starts = pool.context_start_loc
    rows = np.concatenate([np.arange(starts[context], starts[context] + n) for context, n in run])
    lens = np.array([n for _, n in run])
    heads = np.arange(q.shape[1])
    hunted = np.stack([np.choose(heads % 3, [n - 1, -1, 0]) for n in lens])
    return pool.but(
        q=q,
        k=pool.k[rows],
        v=pool.v[rows],
        seq_lens=lens,
        query_lens=np.ones(len(run), np.int64),
        hunts=hunted,
    )

"""Needles: each query hunts one position, and its output is a copy of that position's value.

A query that scores 1000 nats on one key and 0 on all others has weight exactly 1 there in any arithmetic, so
the output row equals the value row bit for bit, and the value row is a code that says which position, request
and kv head it belongs to. A needle that must not be found leaves the plain mean of the attended values.

Makes huge: dropped, doubled and misplaced slots; wrong block, wrong request, wrong head; window, causal and
length edges; a missing rescale between pieces.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.cases import Case
from kvref_conformance.problems import Problem, cast

#: Score gap in nats: exp(−1000) is 0 even in float64.
GAP = 1000.0


def coded_values(case: Case, head_dim: int | None = None) -> Array:
    """Return values `[sum(seq_lens), num_kv_heads, head_dim]` whose rows are all different small integers.

    Channel 0 and 1 spell the position, channel 2 the kv head, channel 3 the request; the rest is a fixed
    pseudo-random pattern. All are exact in every dtype of the suite.
    """
    width = case.head_dim if head_dim is None else head_dim
    rng = np.random.default_rng(case.seed + 101)
    total = sum(case.seq_lens)
    values = rng.integers(-60, 61, (total, case.num_kv_heads, width)).astype(np.float64)
    position = np.concatenate([np.arange(n) for n in case.seq_lens] + [np.zeros(0)])
    request = np.repeat(np.arange(len(case.seq_lens)), case.seq_lens)
    values[:, :, 0] = (position % 128)[:, None] + 1
    values[:, :, 1] = (position // 128)[:, None] + 1
    values[:, :, 2] = np.arange(case.num_kv_heads)[None, :] + 1
    values[:, :, 3] = request[:, None] + 1
    return cast(values, case.dtype)


def needle_size(scale: float) -> float:
    """Return the power of two a with a · a · scale >= GAP."""
    return float(2.0 ** np.ceil(np.log2(GAP / abs(scale)) / 2))


def needles(case: Case, hunts: Array, **variant: Any) -> Problem:
    """Build a problem in which each query token and head hunts one position of its context.

    `hunts [num_tokens, num_q_heads]` holds positions, −1 for none. A request has one channel for each
    position hunted in it, so at most head_dim positions; hunts beyond that are dropped.
    """
    scale = float(variant.pop("scale", 0.3125))
    size = needle_size(scale)
    keys = np.zeros((sum(case.seq_lens), case.num_kv_heads, case.head_dim))
    queries = np.zeros((case.num_tokens, case.num_q_heads, case.head_dim))
    placed = np.full((case.num_tokens, case.num_q_heads), -1)
    starts = np.concatenate([[0], np.cumsum(case.seq_lens)])
    for request, (token, _) in _tokens(case):
        row = [int(p) if 0 <= p < case.seq_lens[request] else -1 for p in hunts[token]]
        channels = _channels(case, hunts, request)
        for head, position in enumerate(row):
            if position in channels:
                keys[starts[request] + position, :, channels[position]] = size
                queries[token, head, channels[position]] = size
                placed[token, head] = position
    return Problem(
        q=cast(queries, case.dtype),
        k=cast(keys, case.dtype),
        v=coded_values(case, variant.pop("v_head_dim", None)),
        seq_lens=np.array(case.seq_lens, np.int64),
        query_lens=np.array(case.query_lens, np.int64),
        variant={"scale": scale, **variant},
        dtype=case.dtype,
        hunts=placed,
    )


def hunt_in_turn(case: Case, targets: Sequence[Sequence[int]]) -> Array:
    """Let the tokens and heads of each request hunt that request's targets, one after the other."""
    hunts = np.full((case.num_tokens, case.num_q_heads), -1)
    for request, (token, t) in _tokens(case):
        index = t - case.seq_lens[request] + case.query_lens[request]
        mine = targets[request]
        for head in range(case.num_q_heads):
            if mine:
                hunts[token, head] = mine[(index * case.num_q_heads + head) % len(mine)]
    return hunts


def hunt_near(case: Case, *offsets: int) -> Array:
    """Let head h of a query at position t hunt position t + offsets[h mod their number]."""
    hunts = np.full((case.num_tokens, case.num_q_heads), -1)
    for _, (token, t) in _tokens(case):
        hunts[token] = [t + offsets[head % len(offsets)] for head in range(case.num_q_heads)]
    return hunts


def edges(case: Case) -> list[list[int]]:
    """Return for each context the positions at edges: both ends, and around each block boundary."""
    b = case.block_size
    result = []
    for n in case.seq_lens:
        around = [p for start in range(b, n, b) for p in (start - 1, start)]
        wanted = [n - 1, 0, *around, n // 2, n - 2]
        result.append([p for p in dict.fromkeys(wanted) if 0 <= p < n][: case.head_dim])
    return result


def tile_edges(case: Case) -> list[list[int]]:
    """Return for each context the positions on both sides of every 64th, where kernels begin a tile.

    Of a long context those of every power of two; beside them those around its thirds, where a context that
    is split in three falls apart, and both ends.
    """
    result = []
    for n in case.seq_lens:
        starts = range(64, n + 1, 64) if n < 1024 else [2**i for i in range(6, n.bit_length())]
        around = [p for start in starts for p in (start - 1, start)]
        thirds = [p for share in (1, 2) for p in (n * share // 3 - 1, n * share // 3)]
        wanted = [n - 1, *around, 0, *thirds]
        result.append([p for p in dict.fromkeys(wanted) if 0 <= p < n][: case.head_dim])
    return result


def _tokens(case: Case) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield (request, (token, position)) for every query token."""
    token = 0
    for request, (n, n_q) in enumerate(zip(case.seq_lens, case.query_lens, strict=True)):
        for t in range(n - n_q, n):
            yield request, (token, t)
            token += 1


def _channels(case: Case, hunts: Array, request: int) -> dict[int, int]:
    """Give each position hunted in a request its own channel, as far as there are channels."""
    start = sum(case.query_lens[:request])
    rows = hunts[start : start + case.query_lens[request]]
    inside = [int(p) for p in rows.ravel() if 0 <= p < case.seq_lens[request]]
    return {position: i for i, position in enumerate(list(dict.fromkeys(inside))[: case.head_dim])}

"""Needles: each query hunts one position, and its output is a copy of that position's value.

A query that scores 1000 nats on one key and 0 on all others has weight exactly 1 there in any arithmetic, so
the output row equals the value row bit for bit, and the value row is a code that says which position, request
and kv head it belongs to. A needle that must not be found leaves the plain mean of the attended values.

Makes huge: dropped, doubled and misplaced slots; wrong block, wrong request, wrong head; window, causal and
length edges; a missing rescale between pieces.
"""

from collections.abc import Sequence
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


def needles(
    case: Case, targets: Sequence[Sequence[int]], *, found: Array | None = None, **variant: Any
) -> Problem:
    """Build a problem in which the queries of each request hunt that request's targets in turn.

    `targets[request]` are positions; query token i and head h of a request hunt target (i · H + h) mod their
    number. `found [num_tokens, num_q_heads]` says where the needle is in the attended set, so that the answer
    is exact there; None means everywhere.
    """
    scale = float(variant.pop("scale", 0.3125))
    size = needle_size(scale)
    keys = np.zeros((sum(case.seq_lens), case.num_kv_heads, case.head_dim))
    queries = np.zeros((case.num_tokens, case.num_q_heads, case.head_dim))
    starts = np.concatenate([[0], np.cumsum(case.seq_lens)])
    token = 0
    for request, hunted in enumerate(targets):
        channel = {position: i % case.head_dim for i, position in enumerate(dict.fromkeys(hunted))}
        for position, c in channel.items():
            keys[starts[request] + position, :, c] = size
        for i in range(case.query_lens[request]):
            for head in range(case.num_q_heads):
                if hunted:
                    queries[token, head, channel[hunted_by(hunted, i, head, case)]] = size
            token += 1
    every = np.ones((case.num_tokens, case.num_q_heads), np.bool_)
    return Problem(
        q=cast(queries, case.dtype),
        k=cast(keys, case.dtype),
        v=coded_values(case, variant.pop("v_head_dim", None)),
        seq_lens=np.array(case.seq_lens, np.int64),
        query_lens=np.array(case.query_lens, np.int64),
        variant={"scale": scale, **variant},
        dtype=case.dtype,
        exact=every if found is None else found,
    )


def hunted_by(hunted: Sequence[int], index: int, head: int, case: Case) -> int:
    """Return the position that query token `index` of a request hunts with head `head`."""
    return hunted[(index * case.num_q_heads + head) % len(hunted)]


def found_where(case: Case, targets: Sequence[Sequence[int]], sees: Any) -> Array:
    """Return where needles are found, given `sees(request, t, position)` for a query at position t."""
    found = np.zeros((case.num_tokens, case.num_q_heads), np.bool_)
    token = 0
    for request, hunted in enumerate(targets):
        n, n_q = case.seq_lens[request], case.query_lens[request]
        for i in range(n_q):
            for head in range(case.num_q_heads):
                if hunted:
                    found[token, head] = sees(request, n - n_q + i, hunted_by(hunted, i, head, case))
            token += 1
    return found


def edges(n: int, block_size: int, limit: int) -> list[int]:
    """Return up to `limit` positions of a context of n tokens that sit at edges: both ends, around each block."""
    wanted = [
        n - 1,
        0,
        *(p for start in range(block_size, n, block_size) for p in (start - 1, start)),
        n // 2,
        n - 2,
    ]
    inside = [p for p in dict.fromkeys(wanted) if 0 <= p < n]
    return inside[:limit]

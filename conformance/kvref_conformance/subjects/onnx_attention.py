"""ai.onnx Attention-24 over an external cache, for whichever runtime runs it.

The operator takes queries `[1, H, Q, D]`, a buffer of keys and values `[1, KVH, buffer, D]` that is at least
as long as the context, and `nonpad_kv_seqlen`, the number of live rows. These functions pack a request into
such a buffer and call a runtime once a request; they are layout only.

Source: ONNX operator Attention-24 (external cache: the causal frontier is nonpad_kv_seqlen − q_len + i).
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

#: Runs Attention-24 on named inputs, with attributes (dtype, scale, causal, softcap).
Run = Callable[[dict[str, Any], str, float, bool, float | None], Any]


def attend_packed(
    run: Run,
    q: Any,
    k: Any,
    v: Any,
    *,
    query_start_loc: Any,
    seq_lens: Any,
    scale: float,
    causal: bool = True,
    softcap: float | None = None,
    mask: Any = None,
) -> Any:
    """Attend over packed keys and values: each context is copied to the front of a buffer for the longest."""
    longest = max(1, int(seq_lens.max(initial=0)))
    starts = np.concatenate([[0], np.cumsum(seq_lens)])
    parts = []
    for request, (first, last, given) in enumerate(_requests(query_start_loc, seq_lens, mask)):
        live = slice(int(starts[request]), int(starts[request + 1]))
        buffers = [_buffer(x[live], longest) for x in (k, v)]
        parts.append(
            _call(run, q[first:last], buffers, int(seq_lens[request]), scale, causal, softcap, given)
        )
    return np.concatenate(parts)


def attend_gathered(
    run: Run,
    q: Any,
    k_cache: Any,
    v_cache: Any,
    *,
    block_tables: Any,
    query_start_loc: Any,
    seq_lens: Any,
    scale: float,
    causal: bool = True,
    softcap: float | None = None,
    mask: Any = None,
) -> Any:
    """Attend over blocks: whole blocks are gathered, so what follows the context in the last one is dead."""
    block_size = k_cache.shape[1]
    parts = []
    for request, (first, last, given) in enumerate(_requests(query_start_loc, seq_lens, mask)):
        n = int(seq_lens[request])
        blocks = block_tables[request, : -(-n // block_size)]
        gathered = [cache[blocks].reshape(-1, *cache.shape[2:]) for cache in (k_cache, v_cache)]
        buffers = [_buffer(x, max(1, len(x))) for x in gathered]
        parts.append(_call(run, q[first:last], buffers, n, scale, causal, softcap, given))
    return np.concatenate(parts)


def _call(
    run: Run,
    q: Any,
    buffers: list[Any],
    n: int,
    scale: float,
    causal: bool,
    softcap: float | None,
    mask: Any,
) -> Any:
    if len(q) == 0:
        return np.empty((0, q.shape[1], buffers[1].shape[3]), q.dtype)  # nothing is asked for this request
    inputs = {
        "Q": np.ascontiguousarray(q.transpose(1, 0, 2))[None],
        "K": buffers[0],
        "V": buffers[1],
        "nonpad_kv_seqlen": np.array([n], np.int64),
    }
    if mask is not None:
        inputs["attn_mask"] = np.ones((len(q), buffers[0].shape[2]), np.bool_)  # hides none of the dead part
        inputs["attn_mask"][:, :n] = mask.reshape(len(q), n)
    return run(inputs, q.dtype.name, scale, causal, softcap)[0].transpose(1, 0, 2)


def _requests(query_start_loc: Any, seq_lens: Any, mask: Any) -> Iterator[tuple[int, int, Any]]:
    """Yield (first query, last query, the request's part of the flat mask)."""
    start = 0
    for n, (first, last) in zip(seq_lens.tolist(), pairwise(query_start_loc.tolist()), strict=True):
        size = (last - first) * n
        yield first, last, None if mask is None else mask[start : start + size]
        start += size


def _buffer(rows: Any, length: int) -> Any:
    """Return rows `[n, KVH, D]` at the front of a fresh buffer `[1, KVH, length, D]`."""
    buffer = np.zeros((1, rows.shape[1], length, rows.shape[2]), rows.dtype)
    buffer[0, :, : len(rows)] = rows.transpose(1, 0, 2)
    return buffer

"""The kernel: paged decode, at most one query token a request, float32 throughout."""

import numpy as np


def paged_decode(q, k_cache, v_cache, block_tables, seq_lens, query_start_loc, scale, window=None):
    """Attend to the last `window` positions of each context, or to all of them.

    q [num_tokens, num_q_heads, head_dim]; returns the same with the width of the values.
    """
    out = np.zeros((q.shape[0], q.shape[1], v_cache.shape[3]), np.float32)
    block_size, num_kv_heads = k_cache.shape[1:3]
    for request, length in enumerate(seq_lens):
        for token in range(query_start_loc[request], query_start_loc[request + 1]):
            first = 0 if window is None else max(0, length - window)
            positions = np.arange(first, length)
            if len(positions) == 0:
                continue
            blocks = block_tables[request, positions // block_size]
            k = k_cache[blocks, positions % block_size]  # [n, num_kv_heads, head_dim]
            v = v_cache[blocks, positions % block_size]
            grouped = q[token].reshape(num_kv_heads, -1, q.shape[2])  # neighbours share
            logits = np.einsum("hgd,nhd->hgn", grouped, k) * np.float32(scale)
            weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
            total = np.einsum("hgn,nhd->hgd", weights, v)
            out[token] = (total / weights.sum(axis=-1, keepdims=True)).reshape(q.shape[1], -1)
    return out

"""One line of kvref in a test of one's own: no tolerance to guess."""

import numpy as np
from my_kernel import paged_decode

import kvref.testing


def test_paged_decode():
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 6, 64), np.float32)
    k_cache, v_cache = rng.standard_normal((2, 12, 16, 2, 64), np.float32)
    batch = {
        "block_tables": np.array([[9, 4, 11], [7, 2, 0]], np.int32),
        "seq_lens": np.array([41, 23], np.int32),
        "query_start_loc": np.array([0, 1, 2], np.int32),
    }

    out = paged_decode(q, k_cache, v_cache, **batch, scale=0.125, window=16)

    kvref.testing.assert_paged_attention(out, q, k_cache, v_cache, **batch, scale=0.125, window=16)

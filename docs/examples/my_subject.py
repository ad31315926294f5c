"""A subject: the kernel under the names of the contract, and what it says about itself."""

from my_kernel import paged_decode

from kvref.attention.arithmetic import Arithmetic
from kvref_conformance.claims import Claims


class Subject:
    claims = Claims(
        name="my_kernel",
        arithmetic=Arithmetic(probabilities="float32", output="float32", merges=0, block=None),
        dtypes=("float32",),
        head_dims=(64, 128),
        block_sizes=(16, 32),
        features=("window",),
    )

    def paged_attention(
        self, q, k_cache, v_cache, *, block_tables, seq_lens, query_start_loc, scale, window=None
    ):
        batch = (block_tables, seq_lens, query_start_loc)
        return paged_decode(q, k_cache, v_cache, *batch, scale, window)

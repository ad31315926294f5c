"""PyTorch's scaled_dot_product_attention over a static cache: a buffer longer than the context, and a mask.

A static cache hands the kernel its whole buffer; only the boolean mask says what is live. The adapter gathers
a request's blocks into that buffer, so the tail of the last block is the dead part, and writes the mask that
every user of such a cache writes: live, not in the future, and allowed by the request's own mask.

Choices: a weight of exactly 0 still multiplies its value, so NaN in the dead part reaches the output.
Source: PyTorch 2.13; the way transformers' StaticCache calls it.
"""

from itertools import pairwise
from typing import Any

from kvref.attention.arithmetic import Arithmetic
from kvref_conformance.claims import Claims

try:
    import torch
    from torch.nn import functional
except ImportError as error:
    raise ImportError("the subject torch_static_cache needs PyTorch: pip install 'kvref[torch]'") from error


class TorchStaticCache:
    """`paged_attention` by F.scaled_dot_product_attention(attn_mask=…) over gathered blocks."""

    framework = "torch"
    claims = Claims(
        name="torch scaled_dot_product_attention, static cache",
        version=str(torch.__version__),
        arithmetic=Arithmetic(query="float32", key="float32", block=512, merges=0),
        dtypes=("float32", "float16", "bfloat16"),
        head_dims=(64, 80, 96, 128, 192, 256),
        block_sizes=(8, 16, 32, 64, 128, 256),
        features=("prefill", "non_causal", "mask", "value_width"),
        choices={"dead-slots": "any_finite"},
    )

    def paged_attention(
        self,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        *,
        block_tables: Any,
        seq_lens: Any,
        query_start_loc: Any,
        scale: float,
        causal: bool = True,
        mask: Any = None,
    ) -> Any:
        """Attend over each request's gathered blocks, one call a request."""
        parts, mask_start = [], 0
        requests = zip(block_tables, seq_lens.tolist(), pairwise(query_start_loc.tolist()), strict=True)
        for table, n, (first, last) in requests:
            blocks = table[: -(-n // k_cache.shape[1])].long()
            k, v = k_cache[blocks].flatten(0, 1), v_cache[blocks].flatten(0, 1)  # [buffer, KVH, D]
            given = None if mask is None else mask[mask_start : mask_start + (last - first) * n]
            mask_start += (last - first) * n
            out = functional.scaled_dot_product_attention(
                q[first:last].transpose(0, 1)[None],
                k.transpose(0, 1)[None],
                v.transpose(0, 1)[None],
                attn_mask=_allowed(last - first, n, len(k), causal, given),
                scale=scale,
                enable_gqa=True,
            )
            parts.append(out[0].transpose(0, 1))
        return torch.cat(parts)


def _allowed(num_queries: int, kv_len: int, buffer: int, causal: bool, given: Any) -> Any:
    """Return the mask `[num_queries, buffer]` over the whole buffer."""
    live = torch.arange(buffer)[None, :] < kv_len
    allowed = live.expand(num_queries, buffer).clone()
    if causal:
        allowed &= torch.arange(buffer)[None, :] <= torch.arange(kv_len - num_queries, kv_len)[:, None]
    if given is not None:
        allowed[:, :kv_len] &= given.reshape(num_queries, kv_len)
    return allowed

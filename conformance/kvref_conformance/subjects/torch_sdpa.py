"""PyTorch's scaled_dot_product_attention as a model without a cache calls it: with `is_causal`, or a mask.

The raw entry point is `torch.nn.functional.scaled_dot_product_attention` on CPU, which takes its fused flash
kernel where the widths of keys and values agree and its plain math kernel elsewhere. The adapter cuts a
ragged batch into one call a request and moves the head axis.

The entry point takes `is_causal` or `attn_mask`, not both; with a mask the adapter passes what its
documentation says `is_causal` stands for, a lower triangle from the top left, within that mask.

Choices: `is_causal` aligns key 0 with query 0, so fewer queries than keys are anchored at the wrong end. A
weight of exactly 0 still multiplies its value, so NaN behind a mask reaches the output.
Source: PyTorch 2.13, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp (pieces of 512 keys, P in the input
dtype, sums in float32); the math kernel multiplies queries and keys by sqrt(scale) in float32.
"""

from itertools import pairwise
from typing import Any

from kvref.attention.arithmetic import Arithmetic
from kvref_conformance.claims import Claims

try:
    import torch
    from torch.nn import functional
except ImportError as error:
    raise ImportError("the subject torch needs PyTorch: pip install 'kvref[torch]'") from error


class TorchSDPA:
    """`attention` by F.scaled_dot_product_attention(is_causal=… or attn_mask=…, enable_gqa=True)."""

    framework = "torch"
    claims = Claims(
        name="torch scaled_dot_product_attention",
        version=str(torch.__version__),
        arithmetic=Arithmetic(query="float32", key="float32", block=512, merges=0),
        dtypes=("float32", "float16", "bfloat16"),
        head_dims=(64, 80, 96, 128, 192, 256),
        features=("prefill", "non_causal", "mask", "value_width"),
        choices={"causal-corner": "top_left", "dead-slots": "any_finite"},
    )

    def attention(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        query_start_loc: Any,
        seq_lens: Any,
        scale: float,
        causal: bool = True,
        mask: Any = None,
    ) -> Any:
        """Attend over packed keys and values, one call a request."""
        parts, start, mask_start = [], 0, 0
        for n, (first, last) in zip(seq_lens.tolist(), pairwise(query_start_loc.tolist()), strict=True):
            allowed = None
            if mask is not None:
                allowed = mask[mask_start : mask_start + (last - first) * n].reshape(last - first, n)
                allowed = allowed.tril() if causal else allowed
                mask_start += (last - first) * n
            out = functional.scaled_dot_product_attention(
                q[first:last].transpose(0, 1)[None],  # [1, H, Q, D]
                k[start : start + n].transpose(0, 1)[None],  # [1, KVH, N, D]
                v[start : start + n].transpose(0, 1)[None],
                attn_mask=allowed,
                is_causal=causal and mask is None,
                scale=scale,
                enable_gqa=True,
            )
            parts.append(out[0].transpose(0, 1))
            start += n
        return torch.cat(parts)

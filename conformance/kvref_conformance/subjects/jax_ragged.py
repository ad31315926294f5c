"""JAX's reference for ragged paged attention, the function its TPU kernel is tested against.

The raw entry point is `ref_ragged_paged_attention` of jax.experimental.pallas.ops.tpu.ragged_paged_attention,
which is plain jax.numpy and runs anywhere. It keeps keys and values in one array with heads interleaved,
k0 v0 k1 v1 …; the adapter interleaves them and hands the block tables over as they are.

Choices: inside a context, what a window leaves out has weight 0 and still multiplies, so NaN there reaches
the output; nothing past the context is read.
Source: JAX 0.10.2 (logits and softmax in float32, P in the dtype of the values; masked logits get a large
finite number added, −0.7 · max of float32).
"""

from typing import Any

from kvref.attention.arithmetic import Arithmetic
from kvref_conformance.claims import Claims

try:
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ref_ragged_paged_attention
except ImportError as error:
    raise ImportError("the subject jax needs JAX: pip install 'kvref[jax]'") from error


class JaxRagged:
    """`paged_attention` by ref_ragged_paged_attention."""

    framework = "jax"
    claims = Claims(
        name="jax ref_ragged_paged_attention",
        version=str(jax.__version__),
        arithmetic=Arithmetic(normalized=True, merges=0, block=None),
        dtypes=("float32", "float16", "bfloat16"),
        head_dims=(64, 80, 96, 128, 192, 256),
        block_sizes=(1, 8, 16, 32, 64, 128, 256),
        features=("prefill", "window", "softcap"),
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
        window: int | None = None,
        softcap: float | None = None,
    ) -> Any:
        """Attend over the blocks of a ragged batch, in one call."""
        num_blocks, block_size, num_kv_heads, head_dim = k_cache.shape
        interleaved = jnp.stack([k_cache, v_cache], axis=3)  # [num_blocks, block_size, KVH, 2, D]
        return ref_ragged_paged_attention(
            q,
            interleaved.reshape(num_blocks, block_size, 2 * num_kv_heads, head_dim),
            seq_lens,
            block_tables,
            query_start_loc,
            jnp.array([len(seq_lens)], jnp.int32),
            sm_scale=scale,
            sliding_window=window,
            soft_cap=softcap,
        )

"""The reference as a subject: every verb is kvref's own function, its float64 result rounded once.

It shows what the contract asks for in the fewest lines, and that the checks and the reference agree. The
suite's independent implementation is `subjects.tiled`.
"""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.attention.dense import attention
from kvref.attention.merge import State, merge
from kvref.attention.mla import mla_attention
from kvref.attention.paged import append_and_attend, paged_attention, write_kv
from kvref.attention.quantized import quantized_paged_attention
from kvref.attention.rope import Yarn, apply_rope
from kvref.attention.sparse import select_topk, sparse_attention
from kvref.formats.format import Quantized
from kvref.formats.scaled import decoded, quantize
from kvref.storage.layouts import LAYOUTS, convert_layout
from kvref_conformance.claims import ALL_FORMATS, FEATURES, Claims


class Reference:
    """kvref itself, under the claims of a float32 kernel: the lse is returned as float32."""

    claims = Claims(
        name="kvref",
        dtypes=("float32", "bfloat16", "float16"),
        head_dims=(64, 80, 128),
        block_sizes=(16, 8, 32),
        features=tuple(name for name in FEATURES if name != "out"),
        rope_styles=("half", "interleaved"),
        layouts=tuple(LAYOUTS),
        latent_dims=(512, 128),
        formats=ALL_FORMATS,
    )

    def attention(self, q: Array, k: Array, v: Array, *, return_lse: bool = False, **rest: Any) -> Any:
        """Attend over packed keys and values."""
        return _rounded(attention(q, k, v, **rest), q, return_lse)

    def paged_attention(
        self, q: Array, k_cache: Array, v_cache: Array, *, return_lse: bool = False, **rest: Any
    ) -> Any:
        """Attend over a cache of blocks."""
        return _rounded(paged_attention(q, k_cache, v_cache, **rest), q, return_lse)

    def append_and_attend(
        self,
        q: Array,
        k: Array,
        v: Array,
        k_cache: Array,
        v_cache: Array,
        *,
        return_lse: bool = False,
        **rest: Any,
    ) -> Any:
        """Write this step's tokens, then attend."""
        return _rounded(append_and_attend(q, k, v, k_cache, v_cache, **rest), q, return_lse)

    def replay(
        self,
        q: Array,
        k_cache: Array,
        v_cache: Array,
        *,
        block_tables: Array,
        query_start_loc: Array,
        seq_lens: Array,
        scale: float,
    ) -> Array:
        """Attend once for each run; padded rows stay zero."""
        out = np.zeros((*q.shape[:3], v_cache.shape[3]), q.dtype)
        for run, starts in enumerate(query_start_loc):
            live = slice(0, int(starts[-1]))
            state = paged_attention(
                q[run, live],
                k_cache,
                v_cache,
                block_tables=block_tables[run],
                query_start_loc=starts,
                seq_lens=seq_lens[run],
                scale=scale,
            )
            out[run, live] = state.out.astype(q.dtype)
        return out

    def write_kv(self, k: Array, v: Array, k_cache: Array, v_cache: Array, *, slot_mapping: Array) -> None:
        """Write keys and values into their slots."""
        write_kv(k, v, k_cache, v_cache, slot_mapping=slot_mapping)

    def merge_attention_states(
        self, out_a: Array, lse_a: Array, out_b: Array, lse_b: Array
    ) -> tuple[Array, Array]:
        """Combine two partial states."""
        a, b = (
            State(out_a.astype(float), lse_a.astype(float)),
            State(out_b.astype(float), lse_b.astype(float)),
        )
        out, lse = merge(a, b)
        return out.astype(out_a.dtype), lse.astype(np.float32)

    def mla_attention(self, q: Array, kv_cache: Array, *, return_lse: bool = False, **rest: Any) -> Any:
        """Attend with absorbed queries over records."""
        return _rounded(mla_attention(q, kv_cache, **rest), q, return_lse)

    def sparse_attention(
        self, q: Array, k_cache: Array, v_cache: Array, *, return_lse: bool = False, **rest: Any
    ) -> Any:
        """Attend over chosen slots."""
        return _rounded(sparse_attention(q, k_cache, v_cache, **rest), q, return_lse)

    def select_topk(self, q: Array, k: Array, weights: Array, **rest: Any) -> Array:
        """Choose the positions with the largest indexer scores."""
        return select_topk(q, k, weights, **rest)

    def apply_rope(
        self, x: Array, *, factor: float | None = None, magnitude: float = 1.0, **rest: Any
    ) -> Array:
        """Rotate vectors by their positions."""
        ramp = {n: rest.pop(n) for n in ("original_context", "beta_fast", "beta_slow") if n in rest}
        yarn = None if factor is None else Yarn(factor=factor, mscale=magnitude, **ramp)
        return apply_rope(x, yarn=yarn, **rest).astype(x.dtype)

    def convert_layout(self, cache: Array, *, source: str, target: str, x: int | None = None) -> Array:
        """Rearrange a cache."""
        return convert_layout(cache, source=source, target=target, x=x)

    def quantize_kv(self, x: Array, *, format: str, **given: Array) -> tuple[Array, ...]:
        """Turn numbers into codes and scales by the declared path."""
        stored = quantize(x, format, path=self.claims.path(), **given)
        made = [name for name in ("scales", "zeros", "global_scale") if name not in given]
        parts = (stored.codes, *(getattr(stored, name) for name in made))
        return tuple(part for part in parts if part is not None)

    def dequantize_kv(self, codes: Array, *, format: str, dtype: str, **scales: Array) -> Array:
        """Turn codes back into numbers by the declared path."""
        return decoded(Quantized(codes, **scales), format, dtype=dtype, path=self.claims.path())

    def quantized_paged_attention(
        self, q: Array, k_cache: Array, v_cache: Array, *, return_lse: bool = False, **rest: Any
    ) -> Any:
        """Attend over a cache of codes by the declared path."""
        state = quantized_paged_attention(q, k_cache, v_cache, path=self.claims.path(), **rest)
        return _rounded(state, q, return_lse)


def _rounded(state: State, q: Array, return_lse: bool) -> Any:
    out = state.out.astype(q.dtype)
    return (out, state.lse.astype(np.float32)) if return_lse else out

"""How partial states combine: the end of every split context, and a verb of its own."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.subjects.tiled.rules import working_format


class Merge:
    """Any number of partial states at once. Parts are `[num_parts, ...]` along the first axis."""

    def reference_lse(self, lses: Array) -> Array:
        """Return the largest lse of all parts, and 0 where every part is empty."""
        peak = lses.max(axis=0)
        return np.asarray(np.where(np.isneginf(peak), 0, peak), peak.dtype)

    def part_weights(self, lses: Array, peak: Array) -> Array:
        """Return the weight of each part relative to `peak`; an empty part has none."""
        return np.asarray(np.exp(lses - peak))

    def blend_parts(self, outs: Array, weights: Array, total: Array) -> Array:
        """Return the weighted mean of the parts; zeros where no part has weight."""
        weighted = np.where(weights[..., None] == 0, 0, weights[..., None] * outs).sum(axis=0)
        return np.where(total[..., None] == 0, 0, weighted / total[..., None])

    def combine(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        """Combine states over disjoint sets of slots: outs [P, ..., D], lses [P, ...]."""
        peak = self.reference_lse(lses)
        weights = self.part_weights(lses, peak)
        total = weights.sum(axis=0)
        lse = np.asarray(peak + np.log(total))
        return self.blend_parts(outs, weights, total).astype(outs.dtype), lse

    def merge_attention_states(
        self, out_a: Array, lse_a: Array, out_b: Array, lse_b: Array, *, out: Array | None = None
    ) -> tuple[Array, Array]:
        """Combine attention over two disjoint sets of slots.

        Shapes: out [num_tokens, num_q_heads, head_dim], lse [num_tokens, num_q_heads].
        """
        work: Any = working_format(out_a.dtype)
        with np.errstate(all="ignore"):
            outs = np.stack([out_a, out_b]).astype(work)
            lses = np.stack([self.lse_part(lse_a, out_a), self.lse_part(lse_b, out_b)]).astype(work)
            merged, lse = self.combine(outs, lses)
        result = np.empty(out_a.shape, out_a.dtype) if out is None else out
        result[...] = merged.astype(out_a.dtype)
        return result, lse.astype(lse_a.dtype)

    def lse_part(self, lse: Array, out: Array) -> Array:
        """Return the lse of a part as `[num_tokens, num_q_heads]`, whatever its strides."""
        return lse.reshape(out.shape[:2])

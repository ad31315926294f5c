"""Latent attention: one kv head, whose keys are records and whose values are the front part of them."""

from typing import Any

from kvref.arrays import Array
from kvref_conformance.subjects.tiled.paged import Paged
from kvref_conformance.subjects.tiled.rules import Batch, Rules


class Latent(Paged):
    """Attention with absorbed queries."""

    def mla_attention(
        self,
        q: Array,
        kv_cache: Array,
        *,
        latent_dim: int,
        block_tables: Array,
        seq_lens: Array,
        query_start_loc: Array,
        scale: float,
        return_lse: bool = False,
        out: Array | None = None,
    ) -> Any:
        """Attend over records latent | rope: q [num_tokens, num_q_heads, latent + rope]."""
        rules = Rules(scale=self.latent_scale(scale, latent_dim, kv_cache.shape[2]))
        batch = Batch(q=q, query_start_loc=query_start_loc, seq_lens=seq_lens, rules=rules)
        keys = self.record_keys(kv_cache, latent_dim)[:, :, None, :]
        values = self.record_values(kv_cache, latent_dim)[:, :, None, :]
        return self.read_and_attend(batch, keys, values, block_tables, return_lse, out)

    def record_keys(self, kv_cache: Array, latent_dim: int) -> Array:
        """Return the part of each record that is scored: all of it."""
        return kv_cache

    def record_values(self, kv_cache: Array, latent_dim: int) -> Array:
        """Return the part of each record that is averaged: the latent."""
        return kv_cache[..., :latent_dim]

    def latent_scale(self, scale: float, latent_dim: int, width: int) -> float:
        """Return the scale of the logits: the one that was passed."""
        return scale

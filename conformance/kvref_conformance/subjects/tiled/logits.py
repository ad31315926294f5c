"""How a product of query and key becomes a logit, and what a sink takes."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.subjects.tiled.masks import Masks
from kvref_conformance.subjects.tiled.rules import Work


class Logits(Masks):
    """Scale, cap, bias, mask, sink. Logits are `[num_q_heads, num_rows, N]` in the working format."""

    def kv_heads(self, num_q_heads: int, num_kv_heads: int) -> Array:
        """Return the kv head that each query head reads, `[num_q_heads]`."""
        return np.arange(num_q_heads) // (num_q_heads // num_kv_heads)

    def scaled(self, products: Array, work: Work) -> Array:
        """Multiply q·k by the scale."""
        return np.asarray(products * products.dtype.type(work.rules.scale))

    def capped(self, logits: Array, softcap: float) -> Array:
        """Bend logits so that they stay within ± softcap."""
        cap = logits.dtype.type(softcap)
        return np.asarray(cap * np.tanh(logits / cap))

    def bias(self, work: Work, at: Array) -> Array:
        """Return slope · (j − t), `[num_q_heads, num_rows, N]`."""
        slopes = np.asarray(work.rules.alibi_slopes).astype(work.q.dtype)
        return np.asarray(slopes[:, None, None] * self.distance(at, work.t).astype(work.q.dtype))

    def distance(self, at: Array, t: Array) -> Array:
        """Return j − t, `[num_rows, N]`."""
        return np.asarray(at[None, :] - t[:, None])

    def exclude(self, logits: Array, seen: Array) -> Array:
        """Give −∞ to every pair outside the attended set."""
        return np.where(seen, logits, logits.dtype.type(-np.inf))

    def shaped(self, logits: Array, work: Work, at: Array, seen: Array) -> Array:
        """Cap, then bias, then mask."""
        if work.rules.softcap is not None:
            logits = self.capped(logits, work.rules.softcap)
        if work.rules.alibi_slopes is not None:
            logits = logits + self.bias(work, at)
        return self.exclude(logits, seen)

    def logits(self, work: Work, k: Array, at: Array) -> Array:
        """Return the logits of a tile of keys `[N, num_kv_heads, head_dim]`."""
        keys = k[:, self.kv_heads(len(work.q), k.shape[1])]  # [N, H, D]
        products = work.q @ keys.transpose(1, 2, 0)  # [H, Q, D] @ [H, D, N]
        return self.shaped(self.scaled(products, work), work, at, self.visible(work, at))

    def sink_logits(self, work: Work) -> Array:
        """Return the sink of every query head, `[num_q_heads, 1]`."""
        return np.asarray(work.rules.sinks).astype(work.q.dtype)[:, None]

    def after_sink(self, out: Array, lse: Array, work: Work) -> tuple[Array, Array]:
        """Give the sink its share of the weight; the lse leaves it out.

        Shapes: out [num_q_heads, num_rows, v_head_dim], lse [num_q_heads, num_rows].
        """
        if work.rules.sinks is None:
            return out, lse
        sink = self.sink_logits(work)
        peak = np.maximum(lse, sink)
        own = np.exp(lse - peak)
        share = own / (own + np.exp(sink - peak))
        return np.asarray(out * share[..., None]), lse

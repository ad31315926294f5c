"""Attention over a chosen few slots, and the choosing."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.subjects.tiled.mla import Latent
from kvref_conformance.subjects.tiled.rules import Batch, Fetch, Rules, working_format


class Sparse(Latent):
    """Every query token has a selection of its own, so each is a request of one row."""

    def sparse_attention(
        self,
        q: Array,
        k_cache: Array,
        v_cache: Array,
        *,
        slots: Array,
        scale: float,
        return_lse: bool = False,
        out: Array | None = None,
    ) -> Any:
        """Attend from every query token to the slots named for it: slots [num_tokens, top_k]."""
        chosen = [self.selection(row) for row in np.asarray(slots).astype(np.int64)]
        batch = Batch(
            q=q,
            query_start_loc=np.arange(len(q) + 1),
            seq_lens=np.array([len(row) for row in chosen], np.int64),
            rules=Rules(scale=scale, causal=False),
        )

        def reader(token: int) -> Fetch:
            def fetch(at: Array) -> tuple[Array, Array]:
                where = self.selected_slots(chosen[token], at)
                return self.read(k_cache, where), self.read(v_cache, where)

            return fetch

        return self.answer(batch, reader, self.value_width(k_cache, v_cache), return_lse, out)

    def selection(self, row: Array) -> Array:
        """Return the slots of one token's selection; negative entries name none."""
        return row[row >= 0]

    def selected_slots(self, chosen: Array, at: Array) -> Array:
        """Return the slots at some places of a selection."""
        return chosen[at]

    def select_topk(
        self, q: Array, k: Array, weights: Array, *, top_k: int, query_start_loc: Array, seq_lens: Array
    ) -> Array:
        """Choose the positions with the largest indexer scores, `[num_tokens, top_k]`, −1 for none."""
        batch = Batch(q=q, query_start_loc=query_start_loc, seq_lens=seq_lens, rules=Rules(scale=1.0))
        positions = np.full((len(q), top_k), -1, np.int32)
        work: Any = working_format(q.dtype)
        with np.errstate(all="ignore"):
            for request in range(len(seq_lens)):
                rows = self.rows_of(batch, request)
                start, kv_len = self.context_start(batch, request), self.context_len(batch, request)
                products = q[rows].astype(work) @ k[start : start + kv_len].astype(work).T  # [Q, H, N]
                scores = self.indexer_score(products, weights[rows].astype(work))
                t = self.query_positions(kv_len, rows.stop - rows.start)
                for row, (score, own) in enumerate(zip(scores, t, strict=True)):
                    best = self.ranked(score, self.candidates(kv_len, int(own)), top_k)
                    positions[rows.start + row, : len(best)] = best
        return positions

    def indexer_score(self, products: Array, weights: Array) -> Array:
        """Return Σ_h w_h · max(0, q_h · k), `[num_rows, N]`."""
        return np.asarray((weights[..., None] * np.maximum(products, 0)).sum(axis=1))

    def candidates(self, kv_len: int, t: int) -> Array:
        """Return the positions a query at t may choose from."""
        return np.arange(max(0, t + 1))

    def ranked(self, scores: Array, candidates: Array, top_k: int) -> Array:
        """Return the best `top_k` candidates, best first."""
        order = np.argsort(-scores[candidates], kind="stable")
        return np.asarray(candidates[order[:top_k]])

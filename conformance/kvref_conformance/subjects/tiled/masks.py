"""Which positions a row may see, one rule a method."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.subjects.tiled.rules import Batch, Rules, Work


class Masks:
    """The rules of visibility: `j [1, N]` are positions of the context, `t [num_rows, 1]` of the queries."""

    def query_positions(self, kv_len: int, num_rows: int) -> Array:
        """Return where the query tokens of a request stand: its last tokens."""
        return kv_len - num_rows + np.arange(num_rows)

    def is_causal_pair(self, j: Array, t: Array) -> Array:
        """Say whether position j is at or before the query."""
        return np.asarray(j <= t)

    def in_window(self, j: Array, t: Array, window: int) -> Array:
        """Say whether position j is among the last `window` ones, the query's own included."""
        return np.asarray(t - window < j)

    def in_chunk(self, j: Array, t: Array, chunk_size: int) -> Array:
        """Say whether position j lies in the query's own chunk."""
        return np.asarray(j // chunk_size == t // chunk_size)

    def in_span(self, spans: Array, j: Array, t: Array) -> Array:
        """Say whether position j carries the same span id >= 0 as the query."""
        own = np.where(t >= 0, spans[np.maximum(t, 0)], -1)
        return np.asarray((own >= 0) & (spans[j] == own))

    def by_position(self, rules: Rules, j: Array, t: Array) -> Array:
        """Return what causality, window and chunk all admit, `[num_rows, N]`."""
        seen = np.ones(np.broadcast_shapes(j.shape, t.shape), np.bool_)
        if rules.causal:
            seen &= self.is_causal_pair(j, t)
        if rules.window is not None:
            seen &= self.in_window(j, t, rules.window)
        if rules.chunk_size is not None:
            seen &= self.in_chunk(j, t, rules.chunk_size)
        return seen

    def visible(self, work: Work, at: Array) -> Array:
        """Return the attended set of every row among positions `at`, `[num_rows, N]`."""
        j, t = at[None, :], work.t[:, None]
        seen = self.by_position(work.rules, j, t)
        if work.spans is not None:
            seen = seen | self.in_span(work.spans, j, t)
        if work.mask is not None:
            seen = seen & work.mask[:, at]
        return seen

    def spans_of(self, batch: Batch, request: int) -> Array | None:
        """Return the span ids of one request's context."""
        if batch.rules.span_ids is None:
            return None
        start = int(batch.seq_lens[:request].sum())
        return np.asarray(batch.rules.span_ids[start : start + int(batch.seq_lens[request])])

    def mask_of(self, batch: Batch, request: int) -> Array | None:
        """Return the boolean mask of one request, one row per query token."""
        if batch.rules.mask is None:
            return None
        query_lens = np.diff(batch.query_start_loc).astype(np.int64)
        sizes = query_lens * batch.seq_lens
        start = int(sizes[:request].sum())
        part = batch.rules.mask[start : start + int(sizes[request])]
        return np.asarray(part).reshape(int(query_lens[request]), int(batch.seq_lens[request]))

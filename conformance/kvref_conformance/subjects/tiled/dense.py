"""The online softmax: a context read tile by tile, in several splits that are merged at the end."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.subjects.tiled.logits import Logits
from kvref_conformance.subjects.tiled.merge import Merge
from kvref_conformance.subjects.tiled.rules import Batch, Fetch, Rules, Work, working_format


class Dense(Logits, Merge):
    """One request at a time; all heads and rows of it at once.

    States are out [num_q_heads, num_rows, v_head_dim] and lse [num_q_heads, num_rows].
    """

    tile = 8
    """Tokens read at a time."""
    splits = 3
    """Most pieces a context is split into; each has two tiles at least, so that short ones rescale too."""

    def attention(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        query_start_loc: Array,
        seq_lens: Array,
        return_lse: bool = False,
        out: Array | None = None,
        **rules: Any,
    ) -> Any:
        """Attend over keys and values packed request after request."""
        batch = Batch(q=q, query_start_loc=query_start_loc, seq_lens=seq_lens, rules=Rules(**rules))

        def reader(request: int) -> Fetch:
            start = self.context_start(batch, request)
            return lambda at: (k[start + at], v[start + at])

        return self.answer(batch, reader, self.value_width(k, v), return_lse, out)

    def answer(
        self,
        batch: Batch,
        reader: Callable[[int], Fetch],
        width: int,
        return_lse: bool,
        out: Array | None,
    ) -> Any:
        """Attend for every request of a batch and put the results in its rows."""
        work_format: Any = working_format(batch.q.dtype)
        shape = batch.q.shape[:2]
        result = self.blank_output((*shape, width), batch.q.dtype) if out is None else out
        lse = self.blank_output(shape, np.dtype(work_format))
        with np.errstate(all="ignore"):
            for request in range(len(batch.seq_lens)):
                rows = self.rows_of(batch, request)
                if rows.stop > rows.start:
                    state = self.attend(self.work(batch, request, rows, reader), width)
                    self.put(result, lse, rows, *state)
        return (result, self.spell_lse(lse)) if return_lse else result

    def blank_output(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return memory for a result; every element is written later."""
        return np.empty(shape, dtype)

    def put(self, result: Array, lse: Array, rows: slice, part: Array, part_lse: Array) -> None:
        """Round the state of one request to the output format and store it."""
        result[rows] = part.transpose(1, 0, 2).astype(result.dtype)
        lse[rows] = part_lse.T

    def spell_lse(self, lse: Array) -> Array:
        """Return the lse `[num_tokens, num_q_heads]` as it is handed out: nats, −∞ where a row is empty."""
        return lse

    def rows_of(self, batch: Batch, request: int) -> slice:
        """Return the rows of the batch that belong to a request."""
        return slice(int(batch.query_start_loc[request]), int(batch.query_start_loc[request + 1]))

    def context_start(self, batch: Batch, request: int) -> int:
        """Return where a request's context begins in packed keys and values."""
        return int(batch.seq_lens[:request].sum())

    def context_len(self, batch: Batch, request: int) -> int:
        """Return the length of a request's context."""
        return int(batch.seq_lens[request])

    def value_width(self, k: Array, v: Array) -> int:
        """Return the width of the values."""
        return int(v.shape[-1])

    def work(self, batch: Batch, request: int, rows: slice, reader: Callable[[int], Fetch]) -> Work:
        """Take one request out of the batch."""
        work_format = working_format(batch.q.dtype)
        kv_len = self.context_len(batch, request)
        return Work(
            request=request,
            rows=rows,
            q=np.ascontiguousarray(batch.q[rows].astype(work_format).transpose(1, 0, 2)),
            t=self.query_positions(int(batch.seq_lens[request]), rows.stop - rows.start),
            kv_len=kv_len,
            fetch=reader(request),
            rules=batch.rules,
            spans=self.spans_of(batch, request),
            mask=self.mask_of(batch, request),
            dtype=batch.q.dtype,
        )

    def attend(self, work: Work, width: int) -> tuple[Array, Array]:
        """Attend over each split, merge the splits, then let the sink take its share."""
        parts = [self.part(work, tiles, width) for tiles in self.split_tiles(work.kv_len)]
        out, lse = self.combine(np.stack([out for out, _ in parts]), np.stack([lse for _, lse in parts]))
        return self.after_sink(out, lse, work)

    def split_tiles(self, kv_len: int) -> list[list[Array]]:
        """Divide the tiles of a context into splits: one at least, even if it holds nothing."""
        tiles = self.tiles(kv_len)
        count = max(1, min(self.splits, len(tiles) // 2))
        edges = [len(tiles) * i // count for i in range(count + 1)]
        return [tiles[start:stop] for start, stop in pairwise(edges)]

    def tiles(self, kv_len: int) -> list[Array]:
        """Return the positions of each tile of a context; the last one may be short."""
        return [np.arange(start, min(start + self.tile, kv_len)) for start in range(0, kv_len, self.tile)]

    def part(self, work: Work, tiles: list[Array], width: int) -> tuple[Array, Array]:
        """Attend over some tiles with a running maximum."""
        peak = self.first_peak(work)
        total = np.zeros_like(peak)
        acc = np.zeros((*peak.shape, width), peak.dtype)
        for at in tiles:
            k, v = (x.astype(peak.dtype, copy=False) for x in work.fetch(at))
            logits = self.logits(work, k, at)
            higher = self.raised(peak, logits)
            kept = self.kept(peak, higher)
            weights = self.weights(logits, higher)
            total = self.added_total(total, kept, weights)
            acc = self.rescaled(acc, kept) + self.blended(self.rounded(weights, work.dtype), v)
            peak = higher
        return self.finished(acc, total, peak)

    def first_peak(self, work: Work) -> Array:
        """Return the running maximum before anything was read, `[num_q_heads, num_rows]`."""
        return np.full(work.q.shape[:2], -np.inf, work.q.dtype)

    def raised(self, peak: Array, logits: Array) -> Array:
        """Return the running maximum after a tile."""
        return np.asarray(np.maximum(peak, logits.max(axis=-1)))

    def kept(self, peak: Array, higher: Array) -> Array:
        """Return what is left of weights gathered under `peak` once the maximum is `higher`."""
        return np.asarray(np.exp(peak - finite(higher)))

    def weights(self, logits: Array, peak: Array) -> Array:
        """Return exp(logit − maximum), and 0 where a row has seen nothing."""
        return np.asarray(np.exp(logits - finite(peak)[..., None]))

    def added_total(self, total: Array, kept: Array, weights: Array) -> Array:
        """Return the running denominator after a tile."""
        return np.asarray(total * kept + weights.sum(axis=-1))

    def rescaled(self, acc: Array, kept: Array) -> Array:
        """Shrink the running numerator when the maximum has grown."""
        return np.asarray(acc * kept[..., None])

    def rounded(self, weights: Array, dtype: np.dtype[Any]) -> Array:
        """Round P to the dtype of q, as a tensor core wants it."""
        return np.asarray(weights.astype(dtype).astype(weights.dtype))

    def blended(self, weights: Array, v: Array) -> Array:
        """Return P·V of a tile; a value of weight 0 adds nothing, whatever bits it holds."""
        values = v[:, self.kv_heads(len(weights), v.shape[1])].transpose(1, 0, 2)  # [H, N, Dv]
        if np.isfinite(values).all():
            return np.asarray(weights @ values)
        terms = weights[..., None] * values[:, None]  # [H, Q, N, Dv]
        return np.asarray(np.where(weights[..., None] == 0, 0, terms).sum(axis=2), weights.dtype)

    def finished(self, acc: Array, total: Array, peak: Array) -> tuple[Array, Array]:
        """Divide by the total weight; a row without weight is (0, −∞)."""
        out = np.asarray(np.where(total[..., None] == 0, 0, acc / total[..., None]), acc.dtype)
        return out, np.asarray(peak + np.log(total))


def finite(peak: Array) -> Array:
    """Return the maximum to subtract: 0 where nothing was seen, so that −∞ − 0 stays −∞."""
    return np.asarray(np.where(np.isneginf(peak), 0, peak), peak.dtype)

"""A ragged batch: which query tokens belong to which request, where they stand, and what they may attend to.

Requests of different lengths share one array of query tokens. `query_start_loc` says where each request's
tokens begin, `seq_lens` how long each context is, this step's tokens included.

Realises: KV-ATTN-011 length-exact, KV-ATTN-016 request-isolation, KV-ATTN-020 causal-corner.
For porters: positions are bottom-right: the last query token stands at the last position of the context.
Source: vLLM and FlashInfer name the same two arrays (cu_seqlens_q or qo_indptr, and seq_lens).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, as_indices
from kvref.attention.masks import Variant, VariantArgs, alibi_bias, attended
from kvref.attention.merge import State, empty_state, with_sinks
from kvref.errors import LengthError


@dataclass(frozen=True)
class Batch:
    """The lengths and the variant of one call, checked against each other."""

    query_start_loc: Array
    seq_lens: Array
    variant: Variant

    @staticmethod
    def of(q: Array, query_start_loc: ArrayLike, seq_lens: ArrayLike, variant: VariantArgs) -> "Batch":
        """Check lengths and variant against `q [num_tokens, num_q_heads, head_dim]`.

        Raises: ShapeError, DTypeError, LengthError, ArgumentError.
        """
        lens = as_indices("seq_lens", seq_lens, ["num_requests"])
        loc = as_indices("query_start_loc", query_start_loc, [len(lens) + 1])
        if (lens < 0).any():
            where = int(np.argmax(lens < 0))
            raise LengthError(f"seq_lens[{where}] = {lens[where]}, expected >= 0 (KV-ATTN-011 length-exact)")
        query_lens = np.diff(loc)
        if loc[0] != 0 or (query_lens < 0).any() or loc[-1] != q.shape[0]:
            raise LengthError(
                f"query_start_loc = {loc.tolist()}, expected to rise from 0 to {q.shape[0]}, the rows of q"
            )
        return Batch(loc, lens, Variant.of(variant).for_batch(q.shape[1], query_lens, lens))

    @property
    def query_lens(self) -> Array:
        """Query tokens of each request, `[num_requests]`."""
        return np.diff(self.query_start_loc)

    @property
    def context_start_loc(self) -> Array:
        """Where each request's context begins when contexts are packed, `[num_requests + 1]`."""
        return np.concatenate([[0], np.cumsum(self.seq_lens)])

    def positions(self, request: int, queries: Array) -> Array:
        """Return the positions of query tokens (indices into q) in their request's context."""
        last = self.query_start_loc[request + 1]
        return np.asarray(self.seq_lens[request] - (last - queries))

    def allowed(self, request: int, queries: Array) -> Array:
        """Return the attended set of query tokens as booleans `[num_rows, kv_len]`."""
        kv_len = int(self.seq_lens[request])
        start = int(self.context_start_loc[request])
        spans: Any = self.variant.span_ids
        own = None if spans is None else spans[start : start + kv_len]
        allowed = attended(self.variant, self.positions(request, queries), kv_len, own)
        if self.variant.mask is not None:
            allowed &= self._mask(request)[queries - self.query_start_loc[request]]
        return allowed

    def bias(self, request: int, queries: Array, piece: slice) -> Array | None:
        """Return the ALiBi bias over a piece of the context, `[num_q_heads, num_rows, piece]`."""
        slopes: Any = self.variant.alibi_slopes
        return None if slopes is None else alibi_bias(slopes, self.positions(request, queries), piece)

    def by_request(self, rows: ArrayLike | None) -> Iterator[tuple[int, Array, Array]]:
        """Yield (request, places in the result, query tokens) for every request that has rows.

        Raises: LengthError if a row is not a query token.
        """
        wanted = self.wanted(rows)
        owner = np.searchsorted(self.query_start_loc, wanted, side="right") - 1
        for request in range(len(self.seq_lens)):
            places = np.flatnonzero(owner == request)
            if len(places):
                yield request, places, wanted[places]

    def wanted(self, rows: ArrayLike | None) -> Array:
        """Return the query tokens to compute: all, or the given rows.

        Raises: LengthError if a row is not a query token.
        """
        num_tokens = int(self.query_start_loc[-1])
        if rows is None:
            return np.arange(num_tokens)
        wanted = as_indices("rows", rows, ["num_rows"])
        if ((wanted < 0) | (wanted >= num_tokens)).any():
            raise LengthError(f"rows = {wanted.tolist()}, expected indices below {num_tokens}, the rows of q")
        return wanted

    def empty(self, rows: ArrayLike | None, q: Array, head_dim: int) -> State:
        """Return the state of every wanted row before it has attended to anything."""
        return empty_state(len(self.wanted(rows)), q.shape[1], head_dim, q.dtype)

    def finish(self, state: State) -> State:
        """Apply what belongs to the whole context, once: the sinks."""
        return state if self.variant.sinks is None else with_sinks(state, self.variant.sinks)

    def _mask(self, request: int) -> Array:
        flat: Any = self.variant.mask
        sizes = self.query_lens * self.seq_lens
        start = int(sizes[:request].sum())
        shape = int(self.query_lens[request]), int(self.seq_lens[request])
        part: Array = flat[start : start + int(sizes[request])].reshape(shape)
        return part

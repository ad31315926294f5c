"""Keys and values found through block tables."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.subjects.tiled.dense import Dense
from kvref_conformance.subjects.tiled.rules import Batch, Fetch, Rules
from kvref_conformance.subjects.tiled.writes import Writes


class Paged(Dense, Writes):
    """The same attention; only where a position lies is new."""

    def paged_attention(
        self,
        q: Array,
        k_cache: Array,
        v_cache: Array,
        *,
        block_tables: Array,
        seq_lens: Array,
        query_start_loc: Array,
        return_lse: bool = False,
        out: Array | None = None,
        **rules: Any,
    ) -> Any:
        """Attend over a cache of blocks."""
        return self.read_and_attend(
            Batch(q=q, query_start_loc=query_start_loc, seq_lens=seq_lens, rules=Rules(**rules)),
            k_cache,
            v_cache,
            block_tables,
            return_lse,
            out,
        )

    def append_and_attend(
        self,
        q: Array,
        k: Array,
        v: Array,
        k_cache: Array,
        v_cache: Array,
        *,
        slot_mapping: Array,
        block_tables: Array,
        seq_lens: Array,
        query_start_loc: Array,
        return_lse: bool = False,
        out: Array | None = None,
        **rules: Any,
    ) -> Any:
        """Write this step's keys and values into the cache, then attend."""
        self.append(k, v, k_cache, v_cache, slot_mapping)
        return self.read_and_attend(
            Batch(q=q, query_start_loc=query_start_loc, seq_lens=seq_lens, rules=Rules(**rules)),
            k_cache,
            v_cache,
            block_tables,
            return_lse,
            out,
        )

    def append(self, k: Array, v: Array, k_cache: Array, v_cache: Array, slot_mapping: Array) -> None:
        """Store the new tokens before anything is read."""
        self.store(k, v, k_cache, v_cache, slot_mapping)

    def read_and_attend(
        self,
        batch: Batch,
        k_cache: Array,
        v_cache: Array,
        block_tables: Array,
        return_lse: bool,
        out: Array | None,
        /,
    ) -> Any:
        """Attend for a batch whose contexts lie in blocks."""

        def reader(request: int) -> Fetch:
            def fetch(at: Array) -> tuple[Array, Array]:
                table = self.table_of(batch, block_tables, request, k_cache.shape[1])
                slots = self.slots_of(table, at, k_cache.shape[1])
                return self.read(k_cache, slots), self.read(v_cache, slots)

            return fetch

        return self.answer(batch, reader, self.value_width(k_cache, v_cache), return_lse, out)

    def table_of(self, batch: Batch, block_tables: Array, request: int, block_size: int) -> Array:
        """Return the block table of one request."""
        return np.asarray(block_tables[request])

    def slots_of(self, table: Array, at: Array, block_size: int) -> Array:
        """Return the slots of some positions of one request."""
        return np.asarray(table[at // block_size].astype(np.int64) * block_size + at % block_size)

    def read(self, cache: Array, slots: Array) -> Array:
        """Return what some slots hold, `[N, num_kv_heads, head_dim]`, at the strides of the cache."""
        return np.asarray(cache[slots // cache.shape[1], slots % cache.shape[1]])

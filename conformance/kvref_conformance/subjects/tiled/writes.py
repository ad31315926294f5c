"""Keys and values into their slots."""

import numpy as np

from kvref.arrays import Array


class Writes:
    """Writing, one decision a method."""

    def write_kv(self, k: Array, v: Array, k_cache: Array, v_cache: Array, *, slot_mapping: Array) -> None:
        """Write keys and values into their slots, in place; a negative slot is skipped."""
        self.store(k, v, k_cache, v_cache, slot_mapping)

    def store(self, k: Array, v: Array, k_cache: Array, v_cache: Array, slot_mapping: Array) -> None:
        """Write both caches."""
        slots = np.asarray(slot_mapping).astype(np.int64)
        live = self.written(slots)
        self.put_rows(k_cache, slots[live], k[live])
        self.put_rows(v_cache, slots[live], v[live])

    def written(self, slots: Array) -> Array:
        """Say which tokens are written at all."""
        return np.asarray(slots >= 0)

    def put_rows(self, cache: Array, slots: Array, rows: Array) -> None:
        """Write rows `[N, num_kv_heads, head_dim]` of one cache at its strides."""
        block, offset = self.place_of(slots, cache.shape[1])
        cache[block, offset] = rows.astype(cache.dtype)

    def place_of(self, slots: Array, block_size: int) -> tuple[Array, Array]:
        """Return the block and the offset in it of each slot."""
        return slots // block_size, slots % block_size

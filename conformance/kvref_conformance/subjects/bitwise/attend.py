"""Attention over codes: every slot is read with its own scales, and what is read is attended to."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.subjects.bitwise.codec import Codec
from kvref_conformance.subjects.tiled import Tiled


class Attend(Codec):
    """Paged attention whose caches hold codes."""

    tile = Tiled.tile
    """Tokens read at a time."""

    def quantized_paged_attention(
        self,
        q: Array,
        k_cache: Array,
        v_cache: Array,
        *,
        format: str,
        k_scales: Array | None = None,
        v_scales: Array | None = None,
        k_global_scale: Array | None = None,
        v_global_scale: Array | None = None,
        **options: Any,
    ) -> Any:
        """Attend over a cache of blocks of codes."""
        keys = self.numbers(k_cache, format, k_scales, k_global_scale, q.dtype)
        values = self.numbers(v_cache, format, self.in_order_of_slots(v_scales), v_global_scale, q.dtype)
        return self.kernel().paged_attention(q, keys, values, **options)

    def kernel(self) -> Tiled:
        """Return what attends over numbers."""
        made = Tiled()
        made.tile = self.tile
        return made

    def numbers(
        self,
        cache: Array,
        format: str,
        scales: Array | None,
        global_scale: Array | None,
        dtype: np.dtype[Any],
    ) -> Array:
        """Return what a cache `[num_blocks, block_size, num_kv_heads, bytes]` stands for."""
        slots = cache.reshape(-1, *cache.shape[2:])
        parts = (self.by_slot(part) for part in (scales, None, global_scale))
        works = dtype if self.says("attend-values") == "input" else np.dtype(np.float32)
        found = self.read(slots, format, works, *parts)
        return found.reshape(*cache.shape[:2], *found.shape[1:])

    def by_slot(self, part: Array | None) -> Array | None:
        """Return scales of slots `[num_slots, ...]`; scales that are no slot's stay as they are."""
        return part if part is None or part.ndim == 1 else part.reshape(-1, *part.shape[2:])

    def in_order_of_slots(self, scales: Array | None) -> Array | None:
        """Return the scales of values in the order of slots, four of which may have taken turns."""
        if scales is None or scales.ndim < 4 or self.says("v-scale-layout") == "linear":
            return scales
        blocks, slots, heads, groups = scales.shape
        lying = scales.transpose(0, 2, 1, 3).reshape(blocks, heads, -1)
        places = self.scale_places(slots, groups, "interleaved")
        return lying[..., places].transpose(0, 2, 1, 3)

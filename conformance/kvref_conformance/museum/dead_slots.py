"""Faults of reading what is nobody's: dead slots, and the padding of tables."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.tiled import Tiled
from kvref_conformance.subjects.tiled.rules import Batch, Work


class _WholeTiles(Tiled):
    """Tiles are read whole, and every value of a tile is multiplied by its weight."""

    def tiles(self, kv_len: int) -> list[Array]:
        """Return tiles that are all full."""
        return [np.arange(start, start + self.tile) for start in range(0, kv_len, self.tile)]

    def blended(self, weights: Array, v: Array) -> Array:
        """Multiply every value of the tile."""
        values = v[:, self.kv_heads(len(weights), v.shape[1])].transpose(1, 0, 2)
        return np.asarray(weights @ values)


@exhibit(
    as_if="values past the length were multiplied by a weight of zero",
    fault="F10 NaN spread",
    seen_in=("vllm-project/vllm#43961", "vllm-project/vllm#53856", "vllm-project/vllm#936"),
    breaks=("KV-ATTN-012",),
)
class ZeroTimesNaN(_WholeTiles):
    """Tiles are read whole; logits past the length are masked, values are not.

    Zero times NaN is NaN. Blocks recycled from a recurrent state hold such bytes, and so does memory that was
    never written. It breaks at 4090 tokens and works at 4096.
    """


@exhibit(
    as_if="values behind a mask were multiplied by a weight of zero",
    fault="F10 NaN spread",
    seen_in=("Dao-AILab/flash-attention#1745", "Dao-AILab/flash-attention#2374"),
    breaks=("KV-ATTN-012",),
    verbs=("attention", "paged_attention"),
    features=("mask", "prefill"),
)
class MaskedValuesMultiplied(Tiled):
    """Logits outside the attended set are masked, their values take part in P·V.

    The positions are inside the context, so no length shows them: a window, a tree mask or padding on the
    left leaves them out, and whatever lies there reaches every row of the tile.
    """

    def blended(self, weights: Array, v: Array) -> Array:
        """Return P·V, zero times whatever is there included."""
        values = v[:, self.kv_heads(len(weights), v.shape[1])].transpose(1, 0, 2)  # [H, N, Dv]
        with np.errstate(invalid="ignore"):
            return np.asarray(weights @ values)


@exhibit(
    as_if="records past the length were multiplied by a weight of zero",
    fault="F10 NaN spread",
    breaks=("KV-ATTN-012",),
    verbs=("mla_attention",),
)
class ZeroTimesNaNRecord(_WholeTiles):
    """The same over records.

    A plant: the latent kernel was written after the repair of the other one, from a copy made before it.
    """


@exhibit(
    as_if="values past the length of a replayed run were multiplied by a weight of zero",
    fault="F10 NaN spread",
    breaks=("KV-ATTN-012",),
    verbs=("replay",),
    features=("prepare",),
)
class ZeroTimesNaNInReplay(_WholeTiles):
    """The same in a prepared run.

    A plant: a captured launch covers whole tiles, whatever the lengths are.
    """


@exhibit(
    as_if="entries that name nothing were fetched from slot 0 and weighed zero",
    fault="F10 NaN spread",
    breaks=("KV-ATTN-012",),
    verbs=("sparse_attention",),
    features=("prefill",),
)
class MissingEntryFetchesSlotZero(_WholeTiles):
    """An entry of -1 is clamped to slot 0, its logit masked and its value multiplied by zero.

    A plant: slot 0 belongs to somebody else, or to nobody.
    """

    def selection(self, row: Array) -> Array:
        """Keep every entry, and remember which are missing."""
        self._missing: list[Array] = [*getattr(self, "_missing", []), row < 0]
        return np.maximum(row, 0)

    def sparse_attention(self, q: Array, k_cache: Array, v_cache: Array, **options: Any) -> Any:
        """Begin each call afresh."""
        self._missing = []
        return super().sparse_attention(q, k_cache, v_cache, **options)

    def tiles(self, kv_len: int) -> list[Array]:
        """Return tiles that end with the selection."""
        return Tiled.tiles(self, kv_len)

    def visible(self, work: Work, at: Array) -> Array:
        """Hide what is missing."""
        return super().visible(work, at) & ~self._missing[work.request][at]


@exhibit(
    as_if="the whole block table was followed, its padding included",
    fault="F09 padding as data",
    breaks=("KV-ATTN-015",),
)
class PaddingOfTableFollowed(Tiled):
    """Blocks are fetched before it is known which are needed.

    A plant of a prefetch: -1 and stale ids in the tail of a table become addresses. What was fetched is
    masked later, if the fetch comes back.
    """

    def read_and_attend(self, batch: Batch, k_cache: Array, v_cache: Array, /, *rest: Any) -> Any:
        """Fetch every block that any entry names."""
        block_tables = rest[0]
        if ((block_tables < 0) | (block_tables >= len(k_cache))).any():
            raise IndexError("a block table names memory outside the cache")
        return super().read_and_attend(batch, k_cache, v_cache, *rest)


@exhibit(
    as_if="the whole block table was followed, its padding included",
    fault="F09 padding as data",
    breaks=("KV-ATTN-015",),
    verbs=("mla_attention", "replay"),
    features=("prepare",),
)
class PaddingOfOtherTablesFollowed(Tiled):
    """Blocks of records, and of prepared runs, are fetched before it is known which are needed.

    A plant: the one path that everybody tests looks at the length first.
    """

    def table_of(self, batch: Batch, block_tables: Array, request: int, block_size: int) -> Array:
        """Look at every entry of the table."""
        if ((block_tables < 0) | (block_tables > 2**20)).any():
            raise IndexError("a block table names memory outside the cache")
        return super().table_of(batch, block_tables, request, block_size)

"""Faults of addresses: offsets too large for their type, and views taken for contiguous caches."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.tiled import Tiled
from kvref_conformance.subjects.tiled.rules import Batch


class _FlatReads(Tiled):
    """Reads by element offset from the start of the cache."""

    def element(self, cache: Array, block: Array) -> Array:
        """Return the element at which a block begins."""
        return block * (cache.strides[0] // cache.itemsize)

    def read(self, cache: Array, slots: Array) -> Array:
        """Return the rows at their offsets; zeros where no block begins there."""
        step = max(cache.strides[0] // cache.itemsize, 1)
        start = self.element(cache, slots // cache.shape[1])
        inside = (start >= 0) & (start % step == 0) & (start // step < cache.shape[0])
        found = super().read(
            cache, np.where(inside, start // step, 0) * cache.shape[1] + slots % cache.shape[1]
        )
        return np.where(inside[:, None, None], found, found.dtype.type(0))


@exhibit(
    as_if="block times stride did not fit in 32 bits",
    fault="F11 overflow",
    seen_in=("flashinfer-ai/flashinfer#3136", "ROCm/aiter#2517"),
    breaks=("KV-ATTN-018",),
    features=("strided",),
    dtypes=("bfloat16",),
)
class OffsetsIn32Bits(_FlatReads):
    """Element offsets are computed in 32 bits.

    Block id and stride are both 32 bits wide, and their product is widened after it has wrapped. The bounds
    check of a buffer load then returns zeros for addresses that are valid. Small pools never get there.
    """

    def element(self, cache: Array, block: Array) -> Array:
        """Multiply in 32 bits."""
        return super().element(cache, block).astype(np.int32).astype(np.int64)


@exhibit(
    as_if="block times stride wrapped at 2^32",
    fault="F11 overflow",
    breaks=("KV-ATTN-018",),
    features=("strided",),
    dtypes=("bfloat16",),
)
class OffsetsInUnsigned32Bits(_FlatReads):
    """Element offsets are unsigned and 32 bits wide.

    A plant of the repair that doubles the reach of a signed offset and is taken for a cure: no address is
    negative any more, and beyond element 2^32 memory begins again.
    """

    def element(self, cache: Array, block: Array) -> Array:
        """Multiply in unsigned 32 bits."""
        return super().element(cache, block).astype(np.uint32).astype(np.int64)


@exhibit(
    as_if="the high bits of the block id were lost",
    fault="F11 overflow",
    seen_in=("ROCm/ATOM#702",),
    breaks=("KV-ATTN-018",),
    features=("strided",),
)
class BlockIdTruncated(Tiled):
    """A block id is kept in 16 bits.

    Everything is right until a pool has more than 65536 blocks, and garbage from the first request that
    crosses that number.
    """

    def slots_of(self, table: Array, at: Array, block_size: int) -> Array:
        """Keep 16 bits of the id."""
        return super().slots_of(table & 0xFFFF, at, block_size)


@exhibit(
    as_if="the cache was read as if it were contiguous",
    fault="F12 layout",
    seen_in=("ovg-project/kvcached#399",),
    breaks=("KV-ATTN-019",),
    may_also_break=("KV-ATTN-018",),
    features=("strided",),
)
class ReadsAssumeContiguous(Tiled):
    """Offsets follow from the shape, not from the strides.

    Blocks are padded so that groups of layers share a size, or keys and values lie side by side; the view
    says so and nobody asks it. The first block is right.
    """

    def read(self, cache: Array, slots: Array) -> Array:
        """Read at the strides a contiguous cache would have, round the end of what memory there is."""
        per_slot = int(np.prod(cache.shape[2:]))
        there = sum((n - 1) * step for n, step in zip(cache.shape, cache.strides, strict=True))
        rows = max((there // cache.itemsize + 1) // per_slot, 1)
        shape, strides = (rows, 1, *cache.shape[2:]), (per_slot * cache.itemsize,) * 2
        inner = (cache.shape[3] * cache.itemsize, cache.itemsize)
        return super().read(np.lib.stride_tricks.as_strided(cache, shape, strides + inner), slots % rows)


@exhibit(
    as_if="values were read at the strides of the keys",
    fault="F12 layout",
    breaks=("KV-ATTN-019",),
    features=("strided",),
)
class ValuesAtStridesOfKeys(Tiled):
    """One set of strides serves both caches.

    A plant: where both are views of one array, or both contiguous, the strides are equal.
    """

    def read_and_attend(self, batch: Batch, k_cache: Array, v_cache: Array, /, *rest: Any) -> Any:
        """See the value cache at the strides of the key cache, where it is no wider."""
        if v_cache.shape == k_cache.shape and k_cache.strides <= v_cache.strides:
            v_cache = np.lib.stride_tricks.as_strided(v_cache, v_cache.shape, k_cache.strides)
        return super().read_and_attend(batch, k_cache, v_cache, *rest)


@exhibit(
    as_if="blocks were taken to be contiguous inside",
    fault="F12 layout",
    breaks=("KV-ATTN-019",),
    features=("strided",),
)
class BlocksAssumedDense(Tiled):
    """Only the stride between blocks is asked of the view.

    A plant: gaps between blocks are honoured, and a cache whose heads come before its offsets is not.
    """

    def read(self, cache: Array, slots: Array) -> Array:
        """Read blocks in the order offset, head, channel."""
        inner = np.empty_like(cache[:1], order="C").strides[1:]
        dense = np.lib.stride_tricks.as_strided(cache, cache.shape, (cache.strides[0], *inner))
        return super().read(dense, slots)


@exhibit(
    as_if="tokens were written at the strides of a contiguous cache",
    fault="F12 layout",
    seen_in=("flashinfer-ai/flashinfer#527",),
    breaks=("KV-ATTN-019",),
    may_also_break=("KV-ATTN-018",),
    verbs=("append_and_attend", "write_kv"),
    features=("strided",),
)
class WritesAssumeContiguous(Tiled):
    """An append computes offsets from the shape of the cache.

    A view of a larger array is written in the wrong places: the new tokens are not found and their
    neighbours' are overwritten.
    """

    def put_rows(self, cache: Array, slots: Array, rows: Array) -> None:
        """Write at the strides a contiguous cache would have."""
        strides = np.empty_like(cache, order="C").strides
        super().put_rows(np.lib.stride_tricks.as_strided(cache, cache.shape, strides), slots, rows)

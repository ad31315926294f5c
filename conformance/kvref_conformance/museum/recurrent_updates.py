"""Faults of updates: which slot of a pool a row reads and writes, and what rows of padding do."""

from collections.abc import Iterator

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import EVERY_SCAN, exhibit
from kvref_conformance.subjects.scanned import Scanned
from kvref_conformance.subjects.scanned.ragged import Advance

_GDN = ("gated_delta_rule_update",)
_SSD = ("ssd_update",)
_CONV = ("causal_conv_update",)


@exhibit(
    as_if="a padding index of -1 was the last state slot",
    fault="F09 padding as data",
    seen_in=("sgl-project/sglang#16714",),
    breaks=("KV-RNN-009",),
    verbs=_CONV,
    features=("padding_rows",),
)
class PaddingHitsTheLastSlot(Scanned):
    """A negative index counts from the end.

    The convolution's update was given one more index argument, and padding was checked on another one.
    """

    def live(self, indices: Array) -> Iterator[tuple[int, int]]:
        """Take every row."""
        yield from ((row, int(slot)) for row, slot in enumerate(indices))


@exhibit(
    as_if="a padding index of -1 was clamped to state slot 0",
    fault="F09 padding as data",
    seen_in=("lightseekorg/tokenspeed#700",),
    breaks=("KV-RNN-009",),
    may_also_break=("KV-RNN-028",),
    verbs=_GDN,
    features=("padding_rows",),
)
class PaddingClampedToZero(Scanned):
    """A negative index becomes 0.

    Slot 0 belonged to somebody. Where an engine keeps it free for padding, nothing shows.
    """

    def live(self, indices: Array) -> Iterator[tuple[int, int]]:
        """Clamp indices."""
        yield from ((row, max(int(slot), 0)) for row, slot in enumerate(indices))


@exhibit(
    as_if="rows of padding came back as memory held them",
    fault="F10 NaN spread",
    seen_in=("sgl-project/sglang#30974",),
    breaks=("KV-RNN-009",),
    verbs=_SSD,
    features=("padding_rows",),
)
class PaddingLeftUnwritten(Scanned):
    """Rows without a request are skipped, and their outputs are not written.

    The next kernel reads them: a norm, a quantiser whose scale is shared with live rows.
    """

    def updated(self, out: Array, pool: Array, indices: Array, advance: Advance) -> Array:
        """Put something else where nothing is written."""
        out = super().updated(out, pool, indices, advance)
        out[np.asarray(indices) < 0] = np.nan
        return out


@exhibit(
    as_if="states were found by row of the batch",
    fault="F18 row mapping",
    seen_in=("wtdcode/vllm-backport#63",),
    breaks=("KV-RNN-025",),
    may_also_break=("KV-RNN-009", *EVERY_SCAN),
    verbs=_GDN,
)
class SlotsByRow(Scanned):
    """Row i advances state slot i.

    The mapping was another step's. With the first requests of a fresh engine the two are the same.
    """

    def live(self, indices: Array) -> Iterator[tuple[int, int]]:
        """Count rows."""
        yield from ((row, row) for row, _ in super().live(indices))


@exhibit(
    as_if="the state slot behind a request's own was written too",
    fault="F12 layout",
    breaks=("KV-RNN-025",),
    may_also_break=("KV-RNN-009", *EVERY_SCAN),
    verbs=_SSD,
)
class NeighbourWritten(Scanned):
    """A store is rounded up and ends in the next slot.

    A plant: the next slot is free more often than not.
    """

    def save(self, pool: Array, slot: int, state: Array) -> None:
        """Write two slots."""
        super().save(pool, slot, state)
        if slot + 1 < len(pool):
            pool[slot + 1, :1] = state[:1]


@exhibit(
    as_if="the advanced state was not written back",
    fault="F15 state",
    breaks=("KV-RNN-030",),
    may_also_break=("KV-RNN-025", *EVERY_SCAN),
    verbs=_GDN,
)
class StateNotWrittenBack(Scanned):
    """The answer is right and the slot keeps what it held.

    A plant: states were gathered into a copy.
    """

    def save(self, pool: Array, slot: int, state: Array) -> None:
        """Leave the pool alone."""


@exhibit(
    as_if="a strided pool was written as if its slots lay next to each other",
    fault="F12 layout",
    breaks=("KV-RNN-025",),
    may_also_break=("KV-RNN-009", *EVERY_SCAN),
    verbs=_SSD,
    features=("strided",),
)
class PoolTakenForContiguous(Scanned):
    """The distance between slots is computed from the state's shape.

    A plant: the pool is one layer of many, or part of a block that holds keys as well.
    """

    def updated(self, out: Array, pool: Array, indices: Array, advance: Advance) -> Array:
        """Address the memory behind the view without its gaps."""
        size = int(np.prod(pool.shape[1:]))
        packed = np.lib.stride_tricks.as_strided(pool, pool.shape, (size * pool.itemsize, *pool.strides[1:]))
        return super().updated(out, packed, indices, advance)


@exhibit(
    as_if="only a state index of -1 was padding",
    fault="F09 padding as data",
    breaks=("KV-RNN-009",),
    verbs=_SSD,
    features=("padding_rows",),
)
class PaddingIsMinusOne(Scanned):
    """Another negative index counts from the end of the pool.

    A plant: of two backends one fills a batch up with -1, the other with the most negative number.
    """

    def live(self, indices: Array) -> Iterator[tuple[int, int]]:
        """Skip rows of one number."""
        yield from ((row, max(int(slot), -1)) for row, slot in enumerate(indices) if slot != -1)


@exhibit(
    as_if="rows of padding were computed and multiplied by 0",
    fault="F10 NaN spread",
    breaks=("KV-RNN-009",),
    verbs=_CONV,
    features=("padding_rows",),
)
class PaddingTimesZero(Scanned):
    """What a row of padding holds is convolved and masked afterwards.

    A plant: a captured graph leaves in such rows what an earlier step had there, NaN for one.
    """

    def updated(self, out: Array, pool: Array, indices: Array, advance: Advance) -> Array:
        """Compute rows of padding from an empty window, and mask them."""
        out = super().updated(out, pool, indices, advance)
        with np.errstate(all="ignore"):
            for row in np.flatnonzero(np.asarray(indices) < 0):
                y, _ = advance(slice(row, row + 1), self.loaded(np.zeros_like(pool[0])))
                self.put(out, slice(row, row + 1), 0 * y)
        return out


@exhibit(
    as_if="every slot of the pool was rounded to float16",
    fault="F13 scale or encoding",
    breaks=("KV-RNN-025",),
    may_also_break=("KV-RNN-009",),
    verbs=_GDN,
)
class PoolThroughFloat16(Scanned):
    """The whole pool passes through a narrow copy, and only named slots are replaced.

    A plant: what a test fills free slots with, zeros or whole numbers, is the same in any format.
    """

    def updated(self, out: Array, pool: Array, indices: Array, advance: Advance) -> Array:
        """Round the slots of nobody."""
        out = super().updated(out, pool, indices, advance)
        others = np.setdiff1d(np.arange(len(pool)), indices)
        pool[others] = pool[others].astype(np.float16).astype(pool.dtype)
        return out


@exhibit(
    as_if="slots of no request changed places",
    fault="F18 row mapping",
    breaks=("KV-RNN-025",),
    may_also_break=("KV-RNN-009",),
    verbs=_SSD,
)
class FreeSlotsMoved(Scanned):
    """States are gathered and scattered by a permutation of all slots.

    A plant: free slots that all hold the same do not show it.
    """

    def updated(self, out: Array, pool: Array, indices: Array, advance: Advance) -> Array:
        """Turn the slots of nobody round."""
        out = super().updated(out, pool, indices, advance)
        others = np.setdiff1d(np.arange(len(pool)), indices)
        pool[others] = pool[others[::-1]]
        return out


@exhibit(
    as_if="a strided pool was read as if its slots lay next to each other",
    fault="F12 layout",
    breaks=("KV-RNN-025",),
    verbs=_CONV,
    features=("strided",),
)
class PoolReadAsContiguous(Scanned):
    """States are written where they belong, and read from where they would lie without gaps.

    A plant: the write goes through the view, the read through a pointer to its first element.
    """

    def updated(self, out: Array, pool: Array, indices: Array, advance: Advance) -> Array:
        """Take a copy of the memory without its gaps."""
        size = int(np.prod(pool.shape[1:]))
        packed = np.lib.stride_tricks.as_strided(pool, pool.shape, (size * pool.itemsize, *pool.strides[1:]))
        self._read = packed.copy()
        self._slots = iter([slot for _, slot in self.live(indices)])
        return super().updated(out, pool, indices, advance)

    def loaded(self, state: Array) -> Array:
        """Read the next slot from the copy."""
        return super().loaded(self._read[next(self._slots)])

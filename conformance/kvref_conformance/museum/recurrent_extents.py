"""Faults of calls that are larger than a counter: of requests, tokens, heads, channels or slots."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.scanned import Scanned
from kvref_conformance.subjects.scanned.ragged import Advance

_CONV = ("causal_conv",)
_SELECTIVE = ("selective_scan",)
_SSD = ("ssd_scan",)
_GDN = ("gated_delta_rule",)
_CONV_STEP = ("causal_conv_update",)
_GDN_STEP = ("gated_delta_rule_update",)


@exhibit(
    as_if="requests past number 65535 were not scanned",
    fault="F11 overflow",
    seen_in=("fla-org/flash-linear-attention#1077", "fla-org/flash-linear-attention#172"),
    breaks=("KV-RNN-028",),
    verbs=_CONV,
)
class GridOfSixteenBits(Scanned):
    """Requests are on an axis of the launch that ends at 65,535.

    The launch fails, or the rest of the output is what memory held.
    """

    def num_requests(self, starts: Array) -> int:
        """Stop at the end of the axis."""
        return min(super().num_requests(starts), 2**16 - 1)


@exhibit(
    as_if="states past that of request 65535 were not computed",
    fault="F11 overflow",
    breaks=("KV-RNN-028",),
    verbs=_GDN,
    head_dims=(32,),
)
class StatesOfSixteenBits(Scanned):
    """Of a layer's two kernels the second has requests on an axis that ends at 65,535.

    A plant: whoever tests the limit on a convolution, where states are small, does not meet it.
    """

    def num_requests(self, starts: Array) -> int:
        """Stop at the end of the axis."""
        return min(super().num_requests(starts), 2**16 - 1)


@exhibit(
    as_if="tokens were counted in 16 bits",
    fault="F11 overflow",
    breaks=("KV-RNN-032",),
    verbs=_SSD,
)
class TokensInSixteenBits(Scanned):
    """Outputs of rows past 32,767 go to a row of a negative number, and nobody reads them there.

    A plant: the states are right, so the next step goes on as if nothing had happened.
    """

    def put(self, out: Array, rows: slice, y: Array) -> None:
        """Wrap the number of the first row."""
        first = int(np.array(rows.start).astype(np.int16))
        if first >= 0:
            super().put(out, rows, y)
        else:
            out[rows] = 0


@exhibit(
    as_if="the length of a request was counted in eight bits",
    fault="F11 overflow",
    breaks=("KV-RNN-032",),
    verbs=_GDN,
)
class LengthInEightBits(Scanned):
    """Of 300 tokens 44 are scanned.

    A plant: prompts of tests are short.
    """

    def chunks(self, starts: Array, request: int) -> Iterator[slice]:
        """Wrap the length."""
        rows = self.rows_of(starts, request)
        stop = rows.start + (rows.stop - rows.start) % 256
        for first in range(rows.start, stop, self.chunk):
            yield slice(first, min(first + self.chunk, stop))


@exhibit(
    as_if="the table of a request's chunks had 16 entries",
    fault="F11 overflow",
    breaks=("KV-RNN-032",),
    verbs=_SELECTIVE,
)
class SixteenChunks(Scanned):
    """The states between chunks lie in a table, and chunks behind its end begin from zeros.

    A plant: the second pass of a scan in parallel takes its states from there.
    """

    def chunks(self, starts: Array, request: int) -> Iterator[slice]:
        """Count the chunks."""
        for number, rows in enumerate(super().chunks(starts, request)):
            self._lost = number >= 16
            yield rows

    def accumulated(self, keep: Array, add: Array, state: Array) -> Array:
        """Begin from zeros behind the end of the table."""
        return super().accumulated(keep, add, np.zeros_like(state) if self._lost else state)


@exhibit(
    as_if="requests were counted in eight bits",
    fault="F11 overflow",
    breaks=("KV-RNN-032",),
    verbs=_GDN,
)
class RequestsInEightBits(Scanned):
    """Request 256 begins from the state of request 0.

    A plant: an engine's tests have a handful of requests.
    """

    def first_state(self, initial: Array, flags: Array | None, request: int) -> Array:
        """Wrap the number of the request."""
        return super().first_state(initial, flags, request % 256)


@exhibit(
    as_if="heads were counted in eight bits",
    fault="F11 overflow",
    breaks=("KV-RNN-032",),
    verbs=_SSD,
)
class HeadsInEightBits(Scanned):
    """Head 256 decays at the rate of head 0.

    A plant: models with so many heads come late.
    """

    def log_decay(self, size: Array, A: Array) -> Array:
        """Wrap the number of the head."""
        own = np.arange(len(A)) % 256
        return super().log_decay(size[:, own], A[own])


@exhibit(
    as_if="channels were counted in 16 bits",
    fault="F11 overflow",
    breaks=("KV-RNN-032",),
    verbs=_CONV,
)
class ChannelsInSixteenBits(Scanned):
    """Channel 32,768 has a negative number, and is left as memory held it.

    A plant: the channels of a convolution are those of all heads, of queries, keys and values together.
    """

    def taps(self, window: Array, weight: Array, count: int) -> Array:
        """Leave out channels behind the last."""
        y = super().taps(window, weight, count)
        y[:, 2**15 :] = 0
        return y


@exhibit(
    as_if="state slots were counted in eight bits",
    fault="F11 overflow",
    breaks=("KV-RNN-032",),
    verbs=_GDN_STEP,
)
class SlotsInEightBits(Scanned):
    """Slot 256 is slot 0.

    A plant: a pool fills from its beginning, and hundreds of requests come later.
    """

    def live(self, indices: Array) -> Iterator[tuple[int, int]]:
        """Wrap the number of the slot."""
        yield from ((row, slot % 256) for row, slot in super().live(indices))


@exhibit(
    as_if="state slots were counted in 16 bits",
    fault="F11 overflow",
    breaks=("KV-RNN-032",),
    verbs=_CONV_STEP,
)
class SlotsInSixteenBits(Scanned):
    """Slot 32,768 has a negative number, which counts from the end of the pool.

    A plant: the table of slots was packed.
    """

    def updated(self, out: Array, pool: Array, indices: Array, advance: Advance) -> Array:
        """Narrow the table."""
        self._slots = len(pool)
        return super().updated(out, pool, indices, advance)

    def live(self, indices: Array) -> Iterator[tuple[int, int]]:
        """Wrap the number of the slot."""
        for row, slot in super().live(indices):
            narrow: Any = np.array(slot).astype(np.int16)
            yield row, int(narrow) % self._slots

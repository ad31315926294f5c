"""Faults of what a request leaves: chunks that join requests, states of another token, states rounded."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvref.arrays import Array, dtype_of
from kvref_conformance.museum.exhibit import EVERY_SCAN, exhibit
from kvref_conformance.subjects.scanned import Scanned
from kvref_conformance.subjects.scanned.ragged import Advance

_SELECTIVE = ("selective_scan",)
_SSD = ("ssd_scan",)
_GDN = ("gated_delta_rule",)


@exhibit(
    as_if="a chunk took in the tokens before its request",
    fault="F16 recurrence",
    breaks=("KV-RNN-008",),
    may_also_break=EVERY_SCAN,
    verbs=_GDN,
)
class ChunkJoinsRequests(Scanned):
    """The grid of chunks is laid over the whole packed array.

    A plant: a request that begins inside a chunk is scanned from the chunk's first token, which is another's.
    """

    def chunks(self, starts: Array, request: int) -> Iterator[slice]:
        """Begin at a multiple of the chunk size."""
        rows = self.rows_of(starts, request)
        first = rows.start // self.chunk * self.chunk if rows.stop > rows.start else rows.start
        for start in range(first, rows.stop, self.chunk):
            yield slice(start, min(start + self.chunk, rows.stop))


@exhibit(
    as_if="the state was taken from the row of another grid of chunks",
    fault="F16 recurrence",
    seen_in=("sgl-project/sglang#37836",),
    breaks=("KV-RNN-008",),
    may_also_break=EVERY_SCAN,
    verbs=_GDN,
)
class StateOfAnotherGrid(Scanned):
    """A request's chunks are counted from its own first token, and the scan had counted over the whole batch.

    The state that is kept is one chunk too old whenever the request began off the grid. It is cached under
    the right position, and every later hit starts from it.
    """

    def chunks(self, starts: Array, request: int) -> Iterator[slice]:
        """Stop before the last chunk's state is taken, off the grid."""
        self._off_grid = int(starts[request]) % self.chunk != 0
        self._states: list[Array] = []
        yield from super().chunks(starts, request)

    def delta_chunk(self, *tensors: Array) -> tuple[Array, Array]:
        """Remember the state before each chunk."""
        self._states.append(tensors[-1])
        return super().delta_chunk(*tensors)

    def stored(self, state: Array, dtype: np.dtype[Any]) -> Array:
        """Keep the state before the last chunk, off the grid."""
        late = self._off_grid and len(self._states) > 1
        return super().stored(self._states[-1] if late else state, dtype)


@exhibit(
    as_if="a chunk that is not full was left out of the state",
    fault="F01 boundary",
    breaks=("KV-RNN-023",),
    may_also_break=EVERY_SCAN,
    verbs=_GDN,
)
class TailNotInState(Scanned):
    """The state returned is the one after the last whole chunk.

    A plant: outputs are right to the last token, and whoever goes on from the state has lost the tail.
    """

    def delta_chunk(self, *tensors: Array) -> tuple[Array, Array]:
        """Leave the state alone where a chunk is short."""
        y, state = super().delta_chunk(*tensors)
        whole = tensors[1].shape[1] == self.chunk
        return y, state if whole else tensors[-1]


@exhibit(
    as_if="the state was the one before the last token",
    fault="F01 boundary",
    breaks=("KV-RNN-023",),
    may_also_break=EVERY_SCAN,
    verbs=_SELECTIVE,
)
class StateOneTokenEarly(Scanned):
    """The last token's write is not in the state.

    A plant: read, answer, write, and the loop ends before the write.
    """

    def last_state(self, states: Array) -> Array:
        """Return the last but one, if there are two."""
        return np.asarray(states[-2] if len(states) > 1 else states[-1])


@exhibit(
    as_if="padding at the end of a chunk decayed the state",
    fault="F09 padding as data",
    seen_in=("vllm-project/vllm#55178",),
    breaks=("KV-RNN-023",),
    may_also_break=EVERY_SCAN,
    verbs=_SSD,
)
class PaddingDecays(Scanned):
    """A short chunk is filled up with tokens whose step size is not 0.

    They write nothing, for their inputs are zeros, and the state decays with each of them. Placeholders
    behind a prompt do the same and write as well.
    """

    def cumulative(self, decay: Array) -> Array:
        """Remember the last token's decay and how many tokens are missing."""
        self._more = (self.chunk - decay.shape[1]) * decay[:, -1]
        return super().cumulative(decay)

    def ssd_state(self, state: Array, inputs: Array, B: Array, total: Array, apart: Array) -> Array:
        """Decay once more for each token that was filled in."""
        after = super().ssd_state(state, inputs, B, total, apart)
        return np.asarray(np.exp(self._more)[:, None, None] * after)


@exhibit(
    as_if="a request without tokens lost its state",
    fault="F14 empty state",
    breaks=("KV-RNN-024",),
    may_also_break=EVERY_SCAN,
    verbs=_GDN,
)
class EmptyRequestIsCleared(Scanned):
    """Where nothing is scanned the state comes back as zeros.

    A plant: the buffer of final states is cleared first, and only requests with tokens write it.
    """

    def scanned(
        self, out: Array, starts: Array, initial: Array, flags: Array | None, advance: Advance
    ) -> tuple[Array, Array]:
        """Clear the states of requests without tokens."""
        out, final = super().scanned(out, starts, initial, flags, advance)
        final[np.diff(starts) == 0] = 0
        return out, final


@exhibit(
    as_if="the state was kept in bfloat16",
    fault="F13 scale or encoding",
    seen_in=("vllm-project/vllm#13466", "sgl-project/sglang#34820"),
    breaks=("KV-RNN-022",),
    may_also_break=("KV-RNN-006", "KV-RNN-007", "KV-RNN-021", "KV-RNN-023", "KV-RNN-024"),
    verbs=_GDN,
)
class StateInBfloat16(Scanned):
    """The state has the dtype of the model's inputs.

    A snapshot made on one path was rounded and the running state was not, so a request that hits differs from
    one that does not.
    """

    def stored(self, state: Array, dtype: np.dtype[Any]) -> Array:
        """Round the state."""
        return super().stored(state.astype(dtype_of("bfloat16")), dtype)


@exhibit(
    as_if="of several requests without tokens in a row only the first kept its state",
    fault="F14 empty state",
    breaks=("KV-RNN-024",),
    may_also_break=EVERY_SCAN,
    verbs=_GDN,
)
class EmptyBehindEmpty(Scanned):
    """Requests are found by where they begin, and two that begin at one place are taken for one.

    A plant: a single request without tokens is found.
    """

    def scanned(
        self, out: Array, starts: Array, initial: Array, flags: Array | None, advance: Advance
    ) -> tuple[Array, Array]:
        """Give an empty request the state of the empty one before it."""
        out, final = super().scanned(out, starts, initial, flags, advance)
        empty = np.diff(starts) == 0
        for request in np.flatnonzero(empty[1:] & empty[:-1]) + 1:
            final[request] = final[request - 1]
        return out, final


@exhibit(
    as_if="states were clipped at 100",
    fault="F13 scale or encoding",
    breaks=("KV-RNN-022",),
    may_also_break=("KV-RNN-007",),
    verbs=_GDN,
)
class StateClipped(Scanned):
    """A guard against states that grow without end stands inside the range of those that do not.

    A plant: the states of a test's random model are small.
    """

    def loaded(self, state: Array) -> Array:
        """Clip what is read."""
        return np.clip(super().loaded(state), -100, 100)


@exhibit(
    as_if="states went up to the largest number of float16",
    fault="F13 scale or encoding",
    breaks=("KV-RNN-022",),
    may_also_break=("KV-RNN-007",),
    verbs=_SSD,
)
class StateOverflows(Scanned):
    """States are float32 with the range of float16: 65,504 and no more.

    A plant: they pass through a tile of that format, of which only the range shows.
    """

    def loaded(self, state: Array) -> Array:
        """Saturate what is read."""
        return np.clip(super().loaded(state), -65504, 65504)

"""Faults of what a request starts from: memory, its neighbour, zeros instead of its own state."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import EVERY_SCAN, exhibit
from kvref_conformance.subjects.scanned import Scanned
from kvref_conformance.subjects.scanned.ragged import WORK, Advance

_SELECTIVE = ("selective_scan",)
_SSD = ("ssd_scan",)
_GDN = ("gated_delta_rule",)


@exhibit(
    as_if="a request started from what its state's memory held",
    fault="F04 stale or cleared",
    seen_in=("vllm-project/vllm#32118", "vllm-project/vllm#51562", "vllm-project/tpu-inference#2431"),
    breaks=("KV-RNN-005",),
    verbs=_SSD,
    features=("has_initial_state",),
)
class FlagIgnored(Scanned):
    """The flag that says whether a request has a state is not looked at.

    A first step of one token was taken for a decode, and decode reads its slot as it is. In one family of
    kernels a single one had no such flag.
    """

    def first_state(self, initial: Array, flags: Array | None, request: int) -> Array:
        """Read whatever is there."""
        return super().first_state(initial, None, request)


@exhibit(
    as_if="a request went on from the state of the one packed before it",
    fault="F15 state",
    seen_in=("fla-org/flash-linear-attention#1184", "THUDM/slime#1686"),
    breaks=("KV-RNN-006",),
    may_also_break=("KV-RNN-024", *EVERY_SCAN),
    verbs=_GDN,
)
class PackedRequestsShareState(Scanned):
    """Where requests begin is passed to the convolution and not to the recurrence.

    The packed tokens are one request to it. With one request in a batch all is well.
    """

    def first_state(self, initial: Array, flags: Array | None, request: int) -> Array:
        """Go on from the last state, if there was one."""
        return self._last if request else super().first_state(initial, flags, request)

    def stored(self, state: Array, dtype: np.dtype[Any]) -> Array:
        """Remember the state."""
        self._last = np.array(state, WORK)
        return super().stored(state, dtype)


@exhibit(
    as_if="several tokens were scanned from zeros instead of the request's state",
    fault="F16 recurrence",
    seen_in=("huggingface/transformers#46032",),
    breaks=("KV-RNN-007",),
    may_also_break=EVERY_SCAN,
    verbs=_SELECTIVE,
)
class PartStartsFromZeros(Scanned):
    """A state is used by single tokens only.

    A prompt in parts, a turn after a turn, a verified draft: each begins anew. The convolution carries on, so
    answers look almost right.
    """

    def scanned(
        self, out: Array, starts: Array, initial: Array, flags: Array | None, advance: Advance
    ) -> tuple[Array, Array]:
        """Clear the states of requests with several tokens."""
        several = np.diff(starts) > 1
        cleared = np.where(several.reshape(-1, *[1] * (initial.ndim - 1)), 0, initial).astype(initial.dtype)
        return super().scanned(out, starts, cleared, flags, advance)


@exhibit(
    as_if="only the first token of a part was scanned",
    fault="F16 recurrence",
    seen_in=("huggingface/transformers#46032",),
    breaks=("KV-RNN-007",),
    may_also_break=EVERY_SCAN,
    verbs=_SELECTIVE,
)
class PartIsOneToken(Scanned):
    """A request that has a state is taken for one that decodes.

    The first of its tokens is scanned, the others get the same output, and the state is theirs no more.
    """

    def scanned(
        self, out: Array, starts: Array, initial: Array, flags: Array | None, advance: Advance
    ) -> tuple[Array, Array]:
        """Remember who has a state."""
        self._continued = [bool(state.any()) for state in initial]
        return super().scanned(out, starts, initial, flags, advance)

    def chunks(self, starts: Array, request: int) -> Iterator[slice]:
        """Take one token of a request that has a state."""
        rows = self.rows_of(starts, request)
        if self._continued[request] and rows.stop > rows.start:
            yield slice(rows.start, rows.start + 1)
        else:
            yield from super().chunks(starts, request)

    def put(self, out: Array, rows: slice, y: Array) -> None:
        """Give the output to all tokens that follow, until they get their own."""
        super().put(out, rows, y)
        out[rows.stop :] = out[rows.stop - 1]

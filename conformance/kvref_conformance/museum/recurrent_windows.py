"""Faults of what the window of a short convolution begins with: memory, or its neighbour."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import EVERY_SCAN, exhibit
from kvref_conformance.subjects.scanned import Scanned
from kvref_conformance.subjects.scanned.ragged import WORK, Advance

_CONV = ("causal_conv",)


@exhibit(
    as_if="a convolution started from what its window's memory held",
    fault="F04 stale or cleared",
    seen_in=("ggml-org/llama.cpp#29092",),
    breaks=("KV-RNN-005",),
    verbs=_CONV,
    features=("has_initial_state",),
)
class WindowFlagIgnored(Scanned):
    """A new request convolves with the last tokens of the slot's previous owner.

    One of the two parts of a state was cleared and the other was not.
    """

    def first_state(self, initial: Array, flags: Array | None, request: int) -> Array:
        """Read whatever is there."""
        return super().first_state(initial, None, request)


@exhibit(
    as_if="a convolution looked back into the request packed before",
    fault="F09 padding as data",
    breaks=("KV-RNN-006",),
    may_also_break=("KV-RNN-001", "KV-RNN-002", "KV-RNN-003", "KV-RNN-024", *EVERY_SCAN),
    verbs=_CONV,
)
class WindowOfTheNeighbour(Scanned):
    """The window before a request's first token is what stands before it in the packed array.

    A plant: one convolution over all tokens, with no border between requests.
    """

    def scanned(
        self, out: Array, starts: Array, initial: Array, flags: Array | None, advance: Advance
    ) -> tuple[Array, Array]:
        """Let each request start from the window that the one before it left."""
        self._left: Array | None = None
        return super().scanned(out, starts, initial, flags, advance)

    def first_state(self, initial: Array, flags: Array | None, request: int) -> Array:
        """Take the neighbour's inputs."""
        own = super().first_state(initial, flags, request)
        return own if self._left is None else self._left

    def stored(self, state: Array, dtype: np.dtype[Any]) -> Array:
        """Remember the window."""
        self._left = np.array(state, WORK)
        return super().stored(state, dtype)

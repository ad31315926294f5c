"""Requests of different lengths in one array, and what every scan over them returns.

The tokens of all requests lie one after another, and `query_start_loc` says where each request begins. A scan
takes a state for each request, reads that request's tokens in order, and returns an output for each token and
the state after the last one.

Realises: KV-RNN-005 zero-start, KV-RNN-006 packed-apart, KV-RNN-021 state-layout, KV-RNN-023 final-state,
KV-RNN-024 empty-request-keeps-state, KV-RNN-028 many-requests, KV-RNN-032 counts-of-any-size.
For porters: `by_token` is for speed alone, a batch is a loop over its requests; `chunks` is one such loop.
Source: vLLM names the same array of starts; the layout of states is that of transformers and ONNX.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, as_indices, check_shape, widen
from kvref.errors import ArgumentError, LengthError, ShapeError, StateError


@dataclass(frozen=True)
class Scan:
    """What a scan returns: an output for each token, and for each request the state after its last token."""

    out: Array
    state: Array


@dataclass(frozen=True)
class Requests:
    """Where each request's tokens lie."""

    query_start_loc: Array

    @staticmethod
    def of(query_start_loc: ArrayLike, num_tokens: int) -> "Requests":
        """Check the starts of requests against the number of tokens.

        Raises: ShapeError, DTypeError, LengthError.
        """
        loc = as_indices("query_start_loc", query_start_loc, ["num_requests + 1"])
        if len(loc) == 0:
            raise ShapeError("query_start_loc has shape [0], expected [num_requests + 1]")
        if (np.diff(loc) < 0).any():
            where = int(np.argmax(np.diff(loc) < 0))
            raise LengthError(
                f"query_start_loc[{where + 1}] = {loc[where + 1]} lies before query_start_loc[{where}] = "
                f"{loc[where]}: request {where} would have a negative length, expected starts that rise"
            )
        if loc[0] != 0 or loc[-1] != num_tokens:
            raise LengthError(
                f"query_start_loc goes from {loc[0]} to {loc[-1]}, expected from 0 to {num_tokens}, "
                "the number of tokens"
            )
        return Requests(loc)

    @property
    def lens(self) -> Array:
        """Tokens of each request, `[num_requests]`."""
        return np.diff(self.query_start_loc)

    def __len__(self) -> int:
        return len(self.query_start_loc) - 1

    def longest_first(self) -> Array:
        """Return the requests in the order in which `by_token` counts them."""
        return np.argsort(-self.lens, kind="stable")

    def by_token(self) -> Iterator[tuple[slice, Array]]:
        """Yield the first tokens of all requests, then the second ones, and so on.

        Each time: which requests are live, as a slice of those in the order of `longest_first`, and their
        tokens.
        """
        order = self.longest_first()
        starts, lens = self.query_start_loc[order], self.lens[order]
        for step in range(int(lens[0]) if len(lens) else 0):
            live = int(np.searchsorted(-lens, -step))  # the requests longer than `step`
            yield slice(0, live), starts[:live] + step

    def chunks(self, chunk_size: int) -> Iterator[tuple[int, slice]]:
        """Yield each request's chunks, counted from its own first token (KV-RNN-008 chunk-grid-own)."""
        for request in np.flatnonzero(self.lens):
            start, end = (int(place) for place in self.query_start_loc[request : request + 2])
            for first in range(start, end, chunk_size):
                yield int(request), slice(first, min(first + chunk_size, end))

    def state(self, initial_state: ArrayLike | None, shape: Sequence[int], axes: str, dtype: Any) -> Array:
        """Return a new array that holds the state each request begins from: what was given, or zeros.

        Shape of the result: [num_requests, *shape]; `axes` names them for the message.
        Raises: ShapeError (KV-RNN-021 state-layout), DTypeError, StateError if a number in it is not finite.
        """
        wanted = (len(self), *shape)
        if initial_state is None:
            return np.zeros(wanted, dtype)
        state = np.array(widen("initial_state", initial_state, dtype))
        check_state_shape("initial_state", state, wanted, f"[num_requests, {axes}]")
        check_finite_state("initial_state", state)
        return state


def check_state_shape(name: str, state: Array, wanted: Sequence[int], axes: str) -> None:
    """Check that a state lies in its canonical layout.

    Raises: ShapeError (KV-RNN-021 state-layout), which says so if the last two axes are the other way round.
    """
    if state.shape == tuple(wanted):
        return
    turned = state.shape == (*wanted[:-2], wanted[-1], wanted[-2])
    hint = "; its last two axes are the other way round, see kvref.recurrent.layouts" if turned else ""
    raise ShapeError(
        f"{name} has shape {list(state.shape)}, expected {axes} = {list(wanted)}{hint} "
        "(KV-RNN-021 state-layout)"
    )


def check_finite_state(name: str, state: Array) -> None:
    """Check that a state holds numbers: what is not finite in it would never leave it.

    Raises: StateError.
    """
    finite = np.isfinite(state)
    if not finite.all():
        at = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise StateError(
            f"{name}[{', '.join(map(str, at))}] = {state[at]}, expected finite numbers "
            "(KV-RNN-005 zero-start)"
        )


def take(name: str, x: ArrayLike, shape: Sequence[int | str], dtype: Any) -> Array:
    """Return an input widened, its shape checked, and every number of it finite.

    Raises: ShapeError, DTypeError, ArgumentError.
    """
    array = widen(name, x, dtype)
    check_shape(name, array, shape)
    finite = np.isfinite(array)
    if not finite.all():
        at = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ArgumentError(
            f"{name}[{', '.join(map(str, at))}] = {array[at]}, expected finite numbers: a state would keep it"
        )
    return array


def take_optional(name: str, x: ArrayLike | None, shape: Sequence[int | str], dtype: Any) -> Array | None:
    """Return an input as `take`, or None where it is not given."""
    return None if x is None else take(name, x, shape, dtype)


def check_range(name: str, x: Array, low: float, high: float, rule: str) -> None:
    """Check that every number lies from `low` to `high`.

    Raises: ArgumentError naming the first that does not, and the rule.
    """
    wrong = (x < low) | (x > high)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        wanted = f"at most {high:g}" if low == -np.inf else f"at least {low:g}"
        if np.isfinite([low, high]).all():
            wanted = f"numbers from {low:g} to {high:g}"
        raise ArgumentError(f"{name}[{', '.join(map(str, at))}] = {x[at]}, expected {wanted} ({rule})")

"""Requests packed in one call, and states in a pool: who starts from what, and where it is kept."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from kvref.arrays import Array

#: Takes rows of the batch and the state before them, returns their outputs and the state after them.
Advance = Callable[[slice, Array], tuple[Array, Array]]
WORK: Any = np.float32


class Ragged:
    """One request at a time, chunk by chunk."""

    chunk = 16
    """Tokens taken at once; the grid begins at each request's first token."""
    stepwise = False
    """Whether scans go token by token, through the same step as an update."""

    def scanned(
        self, out: Array, starts: Array, initial: Array, flags: Array | None, advance: Advance
    ) -> tuple[Array, Array]:
        """Scan every request and return the outputs, and the state each request ends in."""
        final = np.empty(initial.shape, initial.dtype)
        with np.errstate(all="ignore"):
            for request in range(self.num_requests(starts)):
                state = self.first_state(initial, flags, request)
                for rows in self.chunks(starts, request):
                    y, state = advance(rows, state)
                    self.put(out, rows, y)
                final[request] = self.stored(state, final.dtype)
        return out, final

    def updated(self, out: Array, pool: Array, indices: Array, advance: Advance) -> Array:
        """Advance the states of a pool by one token each, in place, and return the outputs."""
        out[...] = 0
        with np.errstate(all="ignore"):
            for row, slot in self.live(indices):
                y, state = advance(slice(row, row + 1), self.loaded(pool[slot]))
                self.put(out, slice(row, row + 1), y)
                self.save(pool, slot, self.stored(state, pool.dtype))
        return out

    def num_requests(self, starts: Array) -> int:
        """Return how many requests a batch has."""
        return len(starts) - 1

    def chunks(self, starts: Array, request: int) -> Iterator[slice]:
        """Yield the rows of each chunk of a request; the last one may be short."""
        rows = self.rows_of(starts, request)
        size = 1 if self.stepwise else self.chunk
        for first in range(rows.start, rows.stop, size):
            yield slice(first, min(first + size, rows.stop))

    def rows_of(self, starts: Array, request: int) -> slice:
        """Return the rows of the batch that belong to a request."""
        return slice(int(starts[request]), int(starts[request + 1]))

    def first_state(self, initial: Array, flags: Array | None, request: int) -> Array:
        """Return the state a request starts from: zeros where it has none, whatever memory holds."""
        if flags is not None and not flags[request]:
            return np.zeros_like(self.loaded(initial[request]))
        return self.loaded(initial[request])

    def loaded(self, state: Array) -> Array:
        """Return a state in the working format, as the recurrence takes it."""
        return np.array(state, WORK)

    def stored(self, state: Array, dtype: np.dtype[Any]) -> Array:
        """Return a state as it is kept."""
        return state.astype(dtype)

    def live(self, indices: Array) -> Iterator[tuple[int, int]]:
        """Yield (row, state slot) of each row that stands for a request."""
        for row, slot in enumerate(indices):
            if slot >= 0:
                yield row, int(slot)

    def save(self, pool: Array, slot: int, state: Array) -> None:
        """Write one state of a pool."""
        pool[slot] = state

    def put(self, out: Array, rows: slice, y: Array) -> None:
        """Round some rows to the output format and store them."""
        out[rows] = y.astype(out.dtype)


def below(count: int, *, diagonal: bool) -> Array:
    """Return where a token sees another of its chunk, `[count, count]`: earlier ones, and perhaps itself."""
    return np.tri(count, count, 0 if diagonal else -1, dtype=np.bool_)


def between(decay: Array) -> Array:
    """Return the decay from one token to another of a chunk, `[num_heads, n, n, C]` of `[num_heads, n, C]`.

    Each segment of log decays is summed by itself: the difference of two running sums would lose a small
    decay behind a large one.
    """
    count = decay.shape[1]
    own = np.where(below(count, diagonal=False)[:, :, None], decay[:, :, None], 0)
    sums = np.cumsum(own, axis=1, dtype=decay.dtype)
    seen = below(count, diagonal=True)[:, :, None]
    return np.asarray(np.where(seen, np.exp(sums), 0), decay.dtype)


def softplus(x: Array) -> Array:
    """Return log(1 + exp(x)), in the format of x."""
    return np.asarray(np.logaddexp(x, np.zeros_like(x)), x.dtype)


def silu(x: Array) -> Array:
    """Return x times its sigmoid."""
    return np.asarray(x / (1 + np.exp(-x)), x.dtype)

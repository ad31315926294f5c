"""Problems of recurrent layers, and how the verbs present them.

A problem is logical: for each request a state and the tokens that follow it. A presentation turns it into one
call: a scan over packed requests, or an update, where the states lie scattered over a pool with poison in
every slot that is nobody's. One problem, many presentations, one answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvref.arrays import Array, dtype_of
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import VERBS, Answer, Call, OutputSpec, Scalar
from kvref_conformance.scan_cases import DELTA
from kvref_conformance.verbs_of_scans import UPDATES

#: Payloads of NaN that are told apart: as many as bfloat16 has beside the bit that makes it quiet.
PAYLOADS = 63
#: Inputs that have a row for each token.
PER_TOKEN = ("x", "dt", "B", "C", "z", "q", "k", "v", "g", "beta")


@dataclass(frozen=True)
class ScanProblem:
    """States, and the tokens that follow them; all values exact in their dtype."""

    verb: str
    """The scan, also where it is asked of an update."""
    inputs: Mapping[str, Array]
    """Every tensor but the state, by argument name."""
    lens: Array
    """Tokens of each request, `[num_requests]`."""
    initial: Array
    """The state each request starts from, in the canonical layout: zeros where it is fresh."""
    params: Mapping[str, Any]
    dtype: str

    @property
    def starts(self) -> Array:
        """Where each request's tokens begin, `[num_requests + 1]`."""
        return np.concatenate([[0], np.cumsum(self.lens)]).astype(np.int32)

    @property
    def fresh(self) -> Array:
        """Which requests start from zeros."""
        return np.asarray(~self.initial.reshape(len(self.lens), -1).any(axis=1))

    @property
    def out_name(self) -> str:
        """The input that the output is shaped like."""
        return "v" if self.verb in DELTA else "x"

    def but(self, **changes: Any) -> "ScanProblem":
        """Return the problem with some fields changed."""
        return replace(self, **changes)

    def with_inputs(self, **inputs: Array) -> "ScanProblem":
        """Return the problem with some tensors changed."""
        return self.but(inputs={**self.inputs, **inputs})

    def rows_of(self, requests: Sequence[int]) -> Array:
        """Return the rows of some requests, in their order."""
        starts = self.starts
        return np.concatenate([np.zeros(0, int), *(np.arange(starts[i], starts[i + 1]) for i in requests)])

    def only(self, requests: Sequence[int]) -> "ScanProblem":
        """Return the problem of some requests, in their order."""
        chosen = self._rows(self.rows_of(requests))
        return chosen.but(lens=self.lens[list(requests)], initial=self.initial[list(requests)])

    def cut(self, at: Sequence[int]) -> tuple["ScanProblem", "ScanProblem"]:
        """Return the first `at[r]` tokens of each request, and the rest, whose states are to be filled in."""
        firsts = [np.arange(start, start + n) for start, n in zip(self.starts, at, strict=False)]
        rests = [
            np.arange(start + n, end) for start, end, n in zip(self.starts, self.starts[1:], at, strict=False)
        ]
        parts = (self._rows(np.concatenate(rows).astype(int)) for rows in (firsts, rests))
        lens = np.asarray(at, np.int64)
        first, rest = (part.but(lens=own) for part, own in zip(parts, (lens, self.lens - lens), strict=True))
        return first, rest

    def request_of(self, token: int) -> int:
        """Return the request a token belongs to."""
        return int(np.searchsorted(self.starts, token, side="right") - 1)

    def _rows(self, rows: Array) -> "ScanProblem":
        return self.with_inputs(**{name: x[rows] for name, x in self.inputs.items() if name in PER_TOKEN})


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Where the states of an update lie, and what the rest of the pool holds."""

    seed: int = 0
    poison: float = np.nan
    """What nobody's slots hold: NaN with a payload, or numbers around this one; at every place another."""
    spare: int = 4
    """Slots that are nobody's."""
    gap: int = 0
    """Elements between one slot and the next, if the pool is a strided view."""
    padding: tuple[int, ...] = ()
    """Rows of the batch that stand for no request: before which of the requests one is put in."""
    negatives: tuple[int, ...] = (-1,)
    """State indices of those rows, in turns."""
    padded_with: float | None = None
    """What those rows hold; None: what some other row does."""
    slots: tuple[int, ...] = ()
    """The slot of each request, where it is not drawn; the pool ends two slots behind the last."""


@dataclass(frozen=True)
class Update:
    """A problem of one token a request as a call of an update."""

    call: Call
    slots: Array
    """The slot of each request."""
    rows: Array
    """The row of each request; the others are padding."""


def state_dtype(problem: ScanProblem, claims: Claims) -> str:
    """Return the dtype of a state: that of the inputs for a window, else what the subject keeps."""
    if problem.verb == "causal_conv":
        return problem.dtype
    return claims.scan_arithmetic.resolve(problem.dtype).state


def present_scan(
    problem: ScanProblem, claims: Claims, *, flags: bool = False, poison: float = np.nan
) -> Call:
    """Return the call of the scan that asks this problem.

    With `flags` fresh requests are said to be so, and their states hold poison.
    """
    initial = problem.initial
    extra: dict[str, Array] = {}
    if flags:
        fresh = problem.fresh
        initial = np.where(fresh.reshape(-1, *[1] * (initial.ndim - 1)), poison, initial)
        extra["has_initial_state"] = (~fresh).astype(np.int32)
    kept = laid(initial, problem, claims)
    tensors = {**problem.inputs, "query_start_loc": problem.starts, "initial_state": kept, **extra}
    outputs = {**_out(problem), "final_state": OutputSpec(state_dtype(problem, claims), kept.shape)}
    return _call(problem.verb, tensors, problem.params, outputs)


def present_update(problem: ScanProblem, claims: Claims, pool: Pool) -> Update:
    """Return the call of the update that asks this problem: one token for each request."""
    count, order = len(problem.lens), np.random.default_rng(pool.seed).permutation
    num_slots = max(pool.slots) + 3 if pool.slots else count + pool.spare
    slots = np.array(pool.slots or order(num_slots)[:count]).astype(np.int32)
    kept = laid(problem.initial, problem, claims)
    state = _strided(num_slots, kept, pool)
    state[slots] = kept
    rows = np.arange(count) + np.searchsorted(np.sort(pool.padding), np.arange(count), side="right")
    indices = np.resize(np.array(pool.negatives, np.int32), count + len(pool.padding))
    indices[rows] = slots
    inputs = {
        name: _spread(x, rows, len(indices), pool) if name in PER_TOKEN else x
        for name, x in problem.inputs.items()
    }
    tensors = {**inputs, "state": state, "state_indices": indices}
    verb = UPDATES[problem.verb]
    call = _call(verb, tensors, problem.params, _out(problem.with_inputs(**inputs)), in_place=("state",))
    return Update(call, slots, rows)


def laid(state: Array, problem: ScanProblem, claims: Claims) -> Array:
    """Return states as the subject is given them: its dtype and layout."""
    if problem.verb in DELTA and value_first(claims):
        state = state.swapaxes(-1, -2)
    return np.ascontiguousarray(state).astype(dtype_of(state_dtype(problem, claims)))


def read_states(kept: Array, problem: ScanProblem, claims: Claims) -> Array:
    """Return states of a subject in the canonical layout, float64."""
    state = np.asarray(kept).astype(np.float64)
    return state.swapaxes(-1, -2) if problem.verb in DELTA and value_first(claims) else state


def final_of(
    answer: Answer, problem: ScanProblem, claims: Claims, requests: Sequence[int] | Array | None = None
) -> Array:
    """Return the final states of a scan, of some requests or of all, in the canonical layout, float64."""
    final = np.asarray(answer.outputs["final_state"])
    return read_states(final if requests is None else final[np.asarray(requests)], problem, claims)


def value_first(claims: Claims) -> bool:
    """Say whether a subject keeps the states of a delta rule values first."""
    return claims.choice("state-layout") == "value_key"


def _call(
    verb: str,
    tensors: Mapping[str, Array],
    params: Mapping[str, Scalar],
    outputs: Mapping[str, OutputSpec],
    in_place: tuple[str, ...] = (),
) -> Call:
    """Return a call whose tensors are in the order of the contract."""
    names = [argument.name for argument in VERBS[verb].arguments]
    return Call(verb, {name: tensors[name] for name in names if name in tensors}, params, outputs, in_place)


def _out(problem: ScanProblem) -> dict[str, OutputSpec]:
    return {"out": OutputSpec(problem.dtype, problem.inputs[problem.out_name].shape)}


def _spread(x: Array, rows: Array, count: int, pool: Pool) -> Array:
    """Return the rows of a batch with padding between them, which must not matter."""
    like = x[:1] if len(x) else np.ones((1, *x.shape[1:]), x.dtype)
    if pool.padded_with is not None:
        like = np.full_like(like, pool.padded_with)
    spread = np.resize(like, (count, *x.shape[1:]))
    spread[rows] = x
    return spread


def _strided(num_slots: int, like: Array, pool: Pool) -> Array:
    """Return a pool of states, its slots `gap` elements apart."""
    size = int(np.prod(like.shape[1:]))
    memory = poisoned((num_slots, size + pool.gap), like.dtype, pool.poison)
    step = memory.strides[0]
    inner = np.empty(like.shape[1:], like.dtype).strides
    return np.lib.stride_tricks.as_strided(memory, (num_slots, *like.shape[1:]), (step, *inner))


def poisoned(shape: tuple[int, ...], dtype: np.dtype[Any], poison: float) -> Array:
    """Return memory of nobody's: at neighbouring places other payloads of NaN, or other numbers near one."""
    if poison == 0:
        return np.zeros(shape, dtype)
    place = np.arange(int(np.prod(shape))).reshape(shape)
    if not np.isnan(poison):
        return np.asarray((poison * (1 + place % 61 / 64)).astype(dtype))
    codes = np.full(shape, np.nan, dtype).view(f"u{dtype.itemsize}")
    return np.asarray((codes | (1 + place % PAYLOADS).astype(codes.dtype)).view(dtype))

"""The decode forms: one token for each request, and states that live in a pool and are written in place.

`state` is a pool of state slots. `state_indices` says in which slot each request's state lies; a negative
index marks a row that pads the batch. An update reads the live slots, takes one step of the scan for each,
and writes the states back, rounded once to the dtype of the pool. No other slot is read or written.

Realises: KV-RNN-009 padding-inert, KV-RNN-025 update-touches-own-slots, KV-RNN-030 update-equals-scan,
KV-RNN-031 conv-state-in-update.
For porters: an update is the scan over requests of one token each; here it is written as that.
Source: mamba `selective_state_update` with `state_batch_indices`; vLLM and SGLang, whose padding is negative.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, as_array, as_indices, check_array, check_real, narrow, widen
from kvref.errors import DTypeError, ShapeError, StateError
from kvref.recurrent.conv import causal_conv
from kvref.recurrent.delta import STATE_AXES
from kvref.recurrent.gated_delta import gated_delta_rule
from kvref.recurrent.kda import kimi_delta_attention
from kvref.recurrent.mamba import selective_scan
from kvref.recurrent.scan import Scan, check_finite_state, check_state_shape
from kvref.recurrent.ssd import ssd_scan


def causal_conv_update(
    x: ArrayLike,
    weight: ArrayLike,
    *,
    state: Array,
    state_indices: ArrayLike,
    bias: ArrayLike | None = None,
    activation: str | None = None,
    dtype: Any = np.float64,
) -> Array:
    """Convolve one token of each request, and move its window along by one (KV-RNN-031 conv-state-in-update).

    Shapes: x [num_requests, num_channels]; state [num_state_slots, num_channels, conv_width − 1], any
    strides, written in place; state_indices [num_requests]; the rest as `conv.causal_conv`.
    Returns out like x, zeros where the index is negative.
    Raises: as `conv.causal_conv`, and StateError for an index out of range or given twice; nothing has
    changed.
    """
    width = as_array("weight", weight).shape
    shape = (*width[:1], *(columns - 1 for columns in width[1:2]))
    options = {"bias": bias, "activation": activation, "dtype": dtype}
    pool = (state, shape, "num_channels, conv_width - 1")
    return _update(causal_conv, {"x": x}, {"weight": weight}, options, pool, state_indices)


def selective_state_update(
    x: ArrayLike,
    dt: ArrayLike,
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    *,
    state: Array,
    state_indices: ArrayLike,
    D: ArrayLike | None = None,
    z: ArrayLike | None = None,
    dt_bias: ArrayLike | None = None,
    dt_softplus: bool = False,
    dtype: Any = np.float64,
) -> Array:
    """Take one step of Mamba-1 for each request.

    Shapes: as `mamba.selective_scan` with one token a request; state [num_state_slots, num_channels,
    state_dim].
    Returns and raises: as `causal_conv_update`.
    """
    options = {"D": D, "dt_bias": dt_bias, "dt_softplus": dt_softplus, "dtype": dtype}
    pool = (state, as_array("A", A).shape, "num_channels, state_dim")
    rows = {"x": x, "dt": dt, "B": B, "C": C, "z": z}
    return _update(selective_scan, rows, {"A": A}, options, pool, state_indices)


def ssd_update(
    x: ArrayLike,
    dt: ArrayLike,
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    *,
    state: Array,
    state_indices: ArrayLike,
    D: ArrayLike | None = None,
    z: ArrayLike | None = None,
    dt_bias: ArrayLike | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, np.inf),
    dtype: Any = np.float64,
) -> Array:
    """Take one step of Mamba-2 for each request; dt is clipped here as it is in the scan.

    Shapes: as `ssd.ssd_scan` with one token a request; state [num_state_slots, num_heads, head_dim,
    state_dim].
    Returns and raises: as `causal_conv_update`.
    """
    options = {"D": D, "dt_bias": dt_bias, "dt_softplus": dt_softplus, "dt_limit": dt_limit, "dtype": dtype}
    shape = (*as_array("x", x).shape[1:], *as_array("B", B).shape[2:])
    pool = (state, shape, "num_heads, head_dim, state_dim")
    rows = {"x": x, "dt": dt, "B": B, "C": C, "z": z}
    return _update(ssd_scan, rows, {"A": A}, options, pool, state_indices)


def gated_delta_rule_update(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    g: ArrayLike,
    beta: ArrayLike,
    *,
    state: Array,
    state_indices: ArrayLike,
    scale: float | None = None,
    qk_l2norm: bool = False,
    negative_eigenvalues: bool = False,
    dtype: Any = np.float64,
) -> Array:
    """Take one step of the gated delta rule for each request.

    Shapes: as `gated_delta.gated_delta_rule` with one token a request; state [num_state_slots, num_v_heads,
    head_k_dim, head_v_dim]. Returns and raises: as `causal_conv_update`.
    """
    options = {"scale": scale, "qk_l2norm": qk_l2norm, "negative_eigenvalues": negative_eigenvalues}
    rows = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
    return _delta_update(gated_delta_rule, rows, {**options, "dtype": dtype}, state, state_indices)


def kimi_delta_attention_update(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    g: ArrayLike,
    beta: ArrayLike,
    *,
    state: Array,
    state_indices: ArrayLike,
    scale: float | None = None,
    qk_l2norm: bool = False,
    negative_eigenvalues: bool = False,
    dtype: Any = np.float64,
) -> Array:
    """Take one step of the delta rule with a decay for each channel.

    Shapes: g [num_requests, num_v_heads, head_k_dim]; the rest as `gated_delta_rule_update`.
    """
    options = {"scale": scale, "qk_l2norm": qk_l2norm, "negative_eigenvalues": negative_eigenvalues}
    rows = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
    return _delta_update(kimi_delta_attention, rows, {**options, "dtype": dtype}, state, state_indices)


def _delta_update(
    scan: Callable[..., Scan],
    rows: Mapping[str, ArrayLike],
    options: Mapping[str, Any],
    state: Array,
    state_indices: ArrayLike,
) -> Array:
    """Take one step of a delta rule: a slot has value heads, the width of keys, the width of values."""
    keys, values = as_array("k", rows["k"]).shape, as_array("v", rows["v"]).shape
    shape = (*values[1:2], *keys[2:3], *values[2:3])
    return _update(scan, rows, {}, options, (state, shape, STATE_AXES), state_indices)


def _update(
    scan: Callable[..., Scan],
    rows: Mapping[str, ArrayLike | None],
    weights: Mapping[str, ArrayLike],
    options: Mapping[str, Any],
    pool: tuple[Array, tuple[int, ...], str],
    state_indices: ArrayLike,
) -> Array:
    """Scan one token of each live request from its slot, then write the new states.

    `rows` have one row a request, `weights` and `options` are passed on; `pool` is the state, the shape of a
    slot and the names of its axes.
    """
    state, shape, axes = pool
    given = {name: as_array(name, x) for name, x in rows.items() if x is not None}
    num_requests = _rows_of(given)
    slots = check_slots(state, shape, axes, state_indices, num_requests)
    live = slots >= 0
    before = np.array(widen("state", state[slots[live]], options["dtype"]))
    check_finite_state("state[state_indices]", before)
    result = scan(
        **{name: x[live] for name, x in given.items()},
        **weights,
        **options,
        query_start_loc=np.arange(len(before) + 1),
        initial_state=before,
    )
    after = narrow(result.state, state.dtype)
    out = np.zeros((num_requests, *result.out.shape[1:]), result.out.dtype)
    out[live] = result.out
    state[slots[live]] = after
    return out


def check_slots(
    state: Array, shape: tuple[int, ...], axes: str, state_indices: ArrayLike, num_requests: int
) -> Array:
    """Check a pool of states and the slots that a batch names in it; return the slots as int64.

    Raises: ShapeError, DTypeError, StateError (KV-RNN-025 update-touches-own-slots).
    """
    check_array("state", state)
    check_real("state", state)
    num_slots = state.shape[0] if state.ndim else 0
    check_state_shape("state", state, (num_slots, *shape), f"[num_state_slots, {axes}]")
    if not state.flags.writeable:
        raise DTypeError("state is read-only, expected an array that can be written in place")
    slots = as_indices("state_indices", state_indices, [num_requests])
    if (slots >= num_slots).any():
        row = int(np.argmax(slots >= num_slots))
        raise StateError(
            f"state_indices[{row}] = {slots[row]}, but state has {num_slots} slots "
            "(KV-RNN-025 update-touches-own-slots)"
        )
    named, counts = np.unique(slots[slots >= 0], return_counts=True)
    if (counts > 1).any():
        raise StateError(
            f"state_indices names slot {named[counts > 1][0]} {counts.max()} times, expected each slot once "
            "(KV-RNN-025 update-touches-own-slots)"
        )
    return slots


def _rows_of(given: Mapping[str, Array]) -> int:
    """Return how many rows all inputs have.

    Raises: ShapeError.
    """
    first, x = next(iter(given.items()))
    for name, other in given.items():
        if other.ndim == 0 or other.shape[0] != x.shape[0]:
            raise ShapeError(f"{name} has shape {list(other.shape)}, expected {len(x)} rows, as {first} has")
    return int(x.shape[0])

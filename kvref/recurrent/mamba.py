"""The selective scan of Mamba: a state of N numbers for each channel, decayed and fed by every token.

    h_t = exp(dt_t · A) · h_{t−1} + dt_t · x_t · B_t          y_t = h_t · C_t + D · x_t,  times silu(z_t)

The step size dt decides for each token and channel how much is forgotten and how much is written.

Realises: KV-RNN-005 zero-start, KV-RNN-007 scan-resumes, KV-RNN-008 chunk-grid-own, KV-RNN-012
output-after-write, KV-RNN-017 mamba-recurrence, KV-RNN-018 mamba-skip-and-gate, KV-RNN-020 dt-transform,
KV-RNN-022 scan-within-bound.
For porters: build `_token` first; a chunk of one token is that function.
Source: Mamba (Gu and Dao 2023), algorithm 2.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, check_count, check_flag
from kvref.recurrent.chunks import running_steps
from kvref.recurrent.gates import silu, step_sizes
from kvref.recurrent.scan import Requests, Scan, check_range, take, take_optional

RULE = "KV-RNN-017 mamba-recurrence"


def selective_scan(
    x: ArrayLike,
    dt: ArrayLike,
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    *,
    query_start_loc: ArrayLike,
    initial_state: ArrayLike | None = None,
    D: ArrayLike | None = None,
    z: ArrayLike | None = None,
    dt_bias: ArrayLike | None = None,
    dt_softplus: bool = False,
    chunk_size: int | None = None,
    dtype: Any = np.float64,
) -> Scan:
    """Scan a ragged batch with the recurrence of Mamba-1.

    Shapes: x, dt, z [num_tokens, num_channels]; A [num_channels, state_dim], ≤ 0; B, C [num_tokens,
    state_dim]; D, dt_bias [num_channels]; initial_state [num_requests, num_channels, state_dim], zeros where
    not given; query_start_loc [num_requests + 1]. dt is transformed by `dt_bias` and `dt_softplus`
    (`gates.step_sizes`) and must then be ≥ 0. `chunk_size` None takes token after token, which is the
    definition; a number takes so many tokens at once, as running pairs of steps.
    Returns out [num_tokens, num_channels] and the state after each request's last token.
    Raises: ShapeError, DTypeError, LengthError, StateError, ArgumentError.
    """
    x = take("x", x, ["num_tokens", "num_channels"], dtype)
    dt = take("dt", dt, x.shape, dtype)
    A = take("A", A, [x.shape[1], "state_dim"], dtype)
    B = take("B", B, [x.shape[0], A.shape[1]], dtype)
    C = take("C", C, [x.shape[0], A.shape[1]], dtype)
    D, z = take_optional("D", D, [x.shape[1]], dtype), take_optional("z", z, x.shape, dtype)
    dt_bias = take_optional("dt_bias", dt_bias, [x.shape[1]], dtype)
    check_range("A", A, -np.inf, 0, RULE)
    requests = Requests.of(query_start_loc, x.shape[0])
    state = requests.state(initial_state, A.shape, "num_channels, state_dim", x.dtype)
    dt = step_sizes(dt, dt_bias, check_flag("dt_softplus", dt_softplus))
    tokens = _Tokens(x, dt, A, B, C)
    with np.errstate(over="ignore", invalid="ignore"):
        if chunk_size is None:
            scan = _by_token(tokens, requests, state)
        else:
            scan = _by_chunk(tokens, requests, state, check_count("chunk_size", chunk_size))
        return Scan(skip_and_gate(scan.out, x, D, z), scan.state)


def skip_and_gate(y: Array, x: Array, D: Array | None, z: Array | None) -> Array:
    """Return (y + D · x) · silu(z), each part only where it is given (KV-RNN-018 mamba-skip-and-gate).

    Shapes: y, x, z alike; D broadcasts against them.
    """
    if D is not None:
        y = y + D * x
    return y if z is None else y * silu(z)


@dataclass(frozen=True)
class _Tokens:
    """What a token brings: x, dt [T, D], B, C [T, N]; and A [D, N]."""

    x: Array
    dt: Array
    A: Array
    B: Array
    C: Array

    def decay(self, at: Any) -> Array:
        """Return exp(dt · A), `[..., D, N]`."""
        result: Array = np.exp(self.dt[at][..., None] * self.A)
        return result

    def written(self, at: Any) -> Array:
        """Return dt · x · B, `[..., D, N]`."""
        result: Array = (self.dt[at] * self.x[at])[..., None] * self.B[at][..., None, :]
        return result

    def read(self, state: Array, at: Any) -> Array:
        """Return state · C, `[..., D]`."""
        result: Array = (state @ self.C[at][..., None])[..., 0]
        return result


def _by_token(tokens: _Tokens, requests: Requests, state: Array) -> Scan:
    """Run the definition: each token of all requests, one after another."""
    out = np.zeros_like(tokens.x)
    order = requests.longest_first()
    state = state[order]
    for live, at in requests.by_token():
        state[live] = tokens.decay(at) * state[live] + tokens.written(at)
        out[at] = tokens.read(state[live], at)
    final = np.empty_like(state)
    final[order] = state
    return Scan(out, final)


def _by_chunk(tokens: _Tokens, requests: Requests, state: Array, chunk_size: int) -> Scan:
    """Run chunk after chunk; the state before a chunk joins what its first token writes."""
    out = np.zeros_like(tokens.x)
    for request, chunk in requests.chunks(chunk_size):
        decay, written = tokens.decay(chunk), tokens.written(chunk)  # [c, D, N]
        written[0] += decay[0] * state[request]
        states = running_steps(decay, written)
        out[chunk] = tokens.read(states, chunk)
        state[request] = states[-1]
    return Scan(out, state)

"""The short causal convolution in front of a recurrent layer, and its state.

Every channel is mixed with its own last `conv_width − 1` inputs:

    y_t = activation( Σ_j weight[:, j] · x_{t − conv_width + 1 + j} + bias )

The state is those inputs as they came: before weights, bias and activation, the oldest first. A step shorter
than the state moves it along and keeps what is still needed of it.

Realises: KV-RNN-001 conv-causal, KV-RNN-002 conv-state-inputs, KV-RNN-003 conv-short-step, KV-RNN-004
conv-bias-then-activation, KV-RNN-005 zero-start, KV-RNN-006 packed-apart, KV-RNN-007 scan-resumes.
For porters: put each request's state in front of its tokens; then every output is one dot product, and the
new state is the last columns of that.
Source: Mamba (Gu and Dao 2023), causal_conv1d; ONNX CausalConvWithState-27.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, check_word
from kvref.errors import ShapeError
from kvref.recurrent.gates import silu
from kvref.recurrent.scan import Requests, Scan, take, take_optional

ACTIVATIONS = ("none", "silu")


def causal_conv(
    x: ArrayLike,
    weight: ArrayLike,
    *,
    query_start_loc: ArrayLike,
    initial_state: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    activation: str | None = None,
    dtype: Any = np.float64,
) -> Scan:
    """Convolve each channel of a ragged batch with its own past.

    Shapes: x [num_tokens, num_channels]; weight [num_channels, conv_width], the newest token's last; bias
    [num_channels]; initial_state [num_requests, num_channels, conv_width − 1], the oldest input first, zeros
    where it is not given; query_start_loc [num_requests + 1]. `activation` is None or "silu".
    Returns out like x, and the state after each request's last token; nothing is written in place.
    Raises: ShapeError, DTypeError, LengthError, StateError, ArgumentError.

    >>> x, weight = np.array([[1.0], [10.0]]), np.array([[3.0, 2.0, 1.0]])
    >>> scan = causal_conv(x, weight, query_start_loc=[0, 2])
    >>> scan.out.ravel().tolist(), scan.state.ravel().tolist()
    ([1.0, 12.0], [1.0, 10.0])
    """
    x = take("x", x, ["num_tokens", "num_channels"], dtype)
    weight = take("weight", weight, [x.shape[1], "conv_width"], dtype)
    bias = take_optional("bias", bias, [x.shape[1]], dtype)
    check_word("activation", "none" if activation is None else activation, ACTIVATIONS)
    columns = _columns(weight)
    requests = Requests.of(query_start_loc, x.shape[0])
    state = requests.state(initial_state, (x.shape[1], columns), "num_channels, conv_width - 1", x.dtype)
    inputs, token_rows, state_rows = _state_before_tokens(x, state, requests)
    out = np.zeros_like(x)
    with np.errstate(over="ignore", invalid="ignore"):
        for j in range(columns + 1):  # the oldest input first
            out += weight[:, j] * inputs[token_rows - columns + j]
        if bias is not None:
            out += bias
        if activation == "silu":
            out = silu(out)
    last = state_rows + requests.lens[:, None]  # [R, W-1], as many rows later as there were tokens
    return Scan(out, np.ascontiguousarray(inputs[last].transpose(0, 2, 1)))


def _columns(weight: Array) -> int:
    if weight.shape[1] == 0:
        raise ShapeError("weight has conv_width 0, expected at least 1 (KV-RNN-001 conv-causal)")
    return int(weight.shape[1]) - 1


def _state_before_tokens(x: Array, state: Array, requests: Requests) -> tuple[Array, Array, Array]:
    """Lay each request's state in front of its tokens.

    Returns the inputs [num_tokens + num_requests · (conv_width − 1), num_channels], the rows of the tokens in
    them [num_tokens], and the rows of the states [num_requests, conv_width − 1].
    """
    count, columns = len(requests), state.shape[2]
    owner = np.repeat(np.arange(count), requests.lens)
    token_rows = np.arange(x.shape[0]) + (owner + 1) * columns
    first = requests.query_start_loc[:-1] + np.arange(count) * columns
    state_rows = first[:, None] + np.arange(columns)
    inputs = np.empty((x.shape[0] + count * columns, x.shape[1]), x.dtype)
    inputs[token_rows] = x
    inputs[state_rows] = state.transpose(0, 2, 1)
    return inputs, token_rows, state_rows

"""LinearAttention and CausalConvWithState of ONNX, for whichever runtime runs them.

Both take a batch of requests of one length and a state for each, so a ragged batch is one call a request,
and an update one call over gathered states, which are put back. LinearAttention packs heads into the last
axis and has one key head a value head: a model repeats key heads before it, and so do these functions. They
are layout only.

Source: ONNX operators LinearAttention-27 and CausalConvWithState-27.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from kvref_conformance.subjects.onnx_models import one_node
from kvref_conformance.subjects.ragged import requests

#: The opset that brought both operators.
OPSET = 27
#: Runs a model, given by a function of this module and its arguments, on inputs; returns its two outputs.
Run = Callable[..., tuple[Any, Any]]


def linear_attention_model(domain: str, dtype: str, num_heads: int, scale: float | None) -> Any:
    """Return LinearAttention under the gated delta rule."""
    attributes = {"q_num_heads": num_heads, "kv_num_heads": num_heads, "scale": scale}
    names = ("query", "key", "value", "past_state", "decay", "beta")
    return one_node(
        "LinearAttention",
        domain,
        tuple((name, "float32" if name == "past_state" else dtype) for name in names),
        (("output", dtype), ("present_state", "float32")),
        tuple({**attributes, "update_rule": "gated_delta"}.items()),
        OPSET,
    )


def causal_conv_model(domain: str, dtype: str, biased: bool, activation: str | None) -> Any:
    """Return CausalConvWithState."""
    return one_node(
        "CausalConvWithState",
        domain,
        (("input", dtype), ("weight", dtype), ("bias", dtype if biased else None), ("past_state", dtype)),
        (("output", dtype), ("present_state", dtype)),
        (("activation", activation or "none"),),
        OPSET,
    )


def delta(
    run: Run,
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    *,
    query_start_loc: Any,
    initial_state: Any,
    scale: float | None = None,
) -> Any:
    """Scan each request; `g` may have an axis of channels."""
    out, final = np.empty_like(v), initial_state.copy()
    for request, tokens in requests(query_start_loc):
        rows = [x[tokens][None] for x in (q, k, v, g, beta)]
        out[tokens], final[request] = _attend(run, rows, initial_state[request][None], scale)
    return out, final


def delta_update(
    run: Run,
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    state: Any,
    *,
    state_indices: Any,
    scale: float | None = None,
) -> Any:
    """Advance gathered states by one token."""
    rows = [x[:, None] for x in (q, k, v, g, beta)]
    out, state[state_indices] = _attend(run, rows, state[state_indices], scale)
    return out[:, 0]


def conv(
    run: Run,
    x: Any,
    weight: Any,
    *,
    query_start_loc: Any,
    initial_state: Any,
    bias: Any = None,
    activation: str | None = None,
) -> Any:
    """Convolve each request behind its window."""
    out, final = np.empty_like(x), initial_state.copy()
    for request, tokens in requests(query_start_loc):
        part, final[request] = _convolve(
            run, x[tokens].T[None], weight, initial_state[request][None], bias, activation
        )
        out[tokens] = part[0].T
    return out, final


def conv_update(
    run: Run,
    x: Any,
    weight: Any,
    state: Any,
    *,
    state_indices: Any,
    bias: Any = None,
    activation: str | None = None,
) -> Any:
    """Convolve one token of each request, and shift its window."""
    out, state[state_indices] = _convolve(run, x[:, :, None], weight, state[state_indices], bias, activation)
    return out[:, :, 0]


def _attend(run: Run, rows: list[Any], state: Any, scale: float | None) -> Any:
    """Call LinearAttention on q, k, v, g and beta, each [requests, tokens, heads, …]."""
    q, k, v, g, beta = rows
    batch, length, num_heads, _ = v.shape
    group = num_heads // q.shape[2]
    packed = {
        "query": np.repeat(q, group, axis=2),
        "key": np.repeat(k, group, axis=2),
        "value": v,
        "decay": g.astype(q.dtype),
        "beta": beta.astype(q.dtype),
    }
    inputs = {name: np.ascontiguousarray(x).reshape(batch, length, -1) for name, x in packed.items()}
    inputs["past_state"] = np.ascontiguousarray(state)
    out, present = run(linear_attention_model, (q.dtype.name, num_heads, scale), inputs)
    return out.reshape(v.shape), present


def _convolve(run: Run, x: Any, weight: Any, windows: Any, bias: Any, activation: str | None) -> Any:
    """Call CausalConvWithState on tensors [requests, channels, tokens]."""
    inputs = {"input": x, "weight": weight[:, None], "past_state": windows}
    inputs |= {} if bias is None else {"bias": bias}
    inputs = {name: np.ascontiguousarray(value) for name, value in inputs.items()}
    return run(causal_conv_model, (x.dtype.name, bias is not None, activation), inputs)

"""The bound on the short convolution, and on the gate of a delta rule: formulas without a recurrence.

For porters: `causal_conv` and `decay_gate` are the formulas; here every rounding in them is followed.
Source: derived in `spec/recurrent.md`, on bounds.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, narrow, widen
from kvref.arrays import dtype_of as dtype_named
from kvref.recurrent.arithmetic import ScanArithmetic, resolved_scan
from kvref.recurrent.bounds.elementwise import (
    finished,
    narrowed,
    product_error,
    roundoff,
    sigmoid_error,
    silu_error,
    softplus_error,
    tiny,
)
from kvref.recurrent.conv import causal_conv
from kvref.recurrent.gates import decay_gate, sigmoid, softplus
from kvref.recurrent.scan import Scan
from kvref.roundings import gamma


def conv_bound(
    x: ArrayLike,
    weight: ArrayLike,
    *,
    query_start_loc: ArrayLike,
    initial_state: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    activation: str | None = None,
    arithmetic: ScanArithmetic,
) -> tuple[Scan, Scan]:
    """Return the exact answer of `causal_conv` and the bound around it.

    Shapes and errors: as `causal_conv`; "input" in `arithmetic` is the dtype of `x`. The state is a copy of
    inputs, so its bound is 0 unless it is kept in a format that does not hold them.
    """
    facts = resolved_scan(arithmetic, "x", x)
    starts: dict[str, Any] = {"query_start_loc": query_start_loc, "initial_state": initial_state}
    linear = causal_conv(x, weight, bias=bias, **starts)
    exact = causal_conv(x, weight, bias=bias, activation=activation, **starts)
    sizes = dict(starts)
    if initial_state is not None:
        sizes["initial_state"] = np.abs(widen("initial_state", initial_state))
    size = causal_conv(np.abs(widen("x", x)), np.abs(widen("weight", weight)), **sizes).out
    width = np.shape(weight)[1]
    with np.errstate(all="ignore"):
        if bias is not None:
            size = size + np.abs(widen("bias", bias))
        error = gamma(width + 1, roundoff(facts)) * size + (width + 1) * tiny(facts)
        if facts.extra("products"):
            error = error + gamma(2, facts.extra("products")) * (size + error)
        error = narrowed(size, error, "stored", facts)
        if bias is not None:
            error = narrowed(np.abs(linear.out), error, "stored", facts)
        if activation is not None:
            error = silu_error(linear.out, error, facts)
        state = _kept(exact.state, facts)
        return exact, Scan(finished(exact.out, error, facts), state)


def gate_bound(
    a: ArrayLike,
    A_log: ArrayLike,
    dt_bias: ArrayLike,
    *,
    lower_bound: float | None = None,
    arithmetic: ScanArithmetic,
) -> tuple[Array, Array]:
    """Return the exact answer of `decay_gate` and the bound around it, both like a.

    Shapes and errors: as `decay_gate`; "input" in `arithmetic` is the dtype of `a`.
    """
    facts = resolved_scan(arithmetic, "a", a)
    exact = decay_gate(a, A_log, dt_bias, lower_bound=lower_bound)
    wide, log_rate = widen("a", a), widen("A_log", A_log)
    log_rate = log_rate.reshape(-1, *[1] * (wide.ndim - 2))
    x, u = wide + widen("dt_bias", dt_bias), roundoff(facts)
    rate = np.exp(log_rate)
    with np.errstate(all="ignore"):
        off_x = u * np.abs(x)
        off_rate = rate * np.expm1(u * (2 * np.abs(log_rate) + facts.exp_error)) + tiny(facts)
        if lower_bound is None:
            off, size = softplus_error(x, off_x, facts), softplus(x)
            error = product_error(rate, off_rate, size, off, facts)
        else:
            off = product_error(rate, off_rate, np.abs(x), off_x, facts)
            size = sigmoid(rate * x)
            off = sigmoid_error(rate * x, off, facts)
            error = abs(lower_bound) * off + gamma(2, u) * abs(lower_bound) * (size + off) + tiny(facts)
        error = narrowed(np.abs(exact), error, "gates", facts)
        return exact, finished(exact, error, facts)


def _kept(state: Array, facts: ScanArithmetic) -> Array:
    """Bound the rounding of inputs that are kept: none for those that the state's format holds."""
    name = facts.state
    held = narrow(state, dtype_named(name)).astype(np.float64) == state
    return np.where(held, 0.0, facts.format("state").rounded(np.abs(state)))

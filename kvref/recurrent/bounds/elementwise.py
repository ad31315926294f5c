"""How far single operations may be off: exponentials, gates, step sizes, and the last roundings of a result.

Each function takes an exact number and how far the computed one may be from it, and returns how far the
function's computed value may be from the exact value: what moves through the function, and what computing it
adds. Exponentials may change the base, which rounds their argument twice.

For porters: needed only with the bounds on scans.
Source: derived in `spec/recurrent.md`, on bounds; Higham 2002, chapter 3.
"""

import numpy as np

from kvref.arrays import Array
from kvref.recurrent.arithmetic import ScanArithmetic
from kvref.recurrent.gates import sigmoid, softplus
from kvref.roundings import gamma

#: What evaluating a bound in float64 may lose, as a share of it.
EVALUATION = 2.0**-20
#: Above this argument libraries return softplus(x) = x.
_SOFTPLUS_IS_LINEAR = 19.0


def roundoff(facts: ScanArithmetic) -> float:
    """Return u of the working format."""
    return facts.format("working").roundoff


def tiny(facts: ScanArithmetic) -> float:
    """Return η of the working format: what a number too small for it may lose."""
    return facts.format("working").underflow


def exponent_error(x: Array, dx: Array | float, facts: ScanArithmetic) -> Array:
    """Return θ so that the computed exp(x) is exp(x) · e^±θ, but for what is flushed to zero."""
    result: Array = dx + roundoff(facts) * (2 * np.abs(x) + facts.exp_error)
    return result


def sigmoid_error(x: Array, dx: Array | float, facts: ScanArithmetic) -> Array:
    """Bound the error of sigmoid(x ± dx): an exponential, an addition and a division."""
    s = sigmoid(x)
    moved = s * sigmoid(-x) * np.expm1(exponent_error(x, dx, facts))
    result: Array = moved + gamma(3, roundoff(facts)) * (s + moved) + tiny(facts)
    return result


def silu_error(x: Array, dx: Array | float, facts: ScanArithmetic) -> Array:
    """Bound the error of silu(x ± dx)."""
    return product_error(np.abs(x), dx, sigmoid(x), sigmoid_error(x, dx, facts), facts)


def softplus_error(x: Array, dx: Array | float, facts: ScanArithmetic) -> Array:
    """Bound the error of softplus(x ± dx): an exponential, a logarithm and an addition."""
    u, value = roundoff(facts), softplus(x)
    moved = sigmoid(x) * np.expm1(exponent_error(x, dx, facts))
    linear = np.where(x > _SOFTPLUS_IS_LINEAR, np.exp(-np.abs(x)), 0.0)
    lost = gamma(2, u) if facts.plain_softplus else 0.0  # of the 1 that exp(x) is added to
    result: Array = moved + gamma(facts.exp_error + 2, u) * (value + moved) + linear + lost + tiny(facts)
    return result


def product_error(
    a: Array, da: Array | float, b: Array | float, db: Array | float, facts: ScanArithmetic
) -> Array:
    """Bound the error of a product of two numbers of sizes a and b, a rounding included."""
    result: Array = a * db + da * (b + db) + roundoff(facts) * (a + da) * (b + db) + tiny(facts)
    return result


def narrowed(size: Array, error: Array, stage: str, facts: ScanArithmetic) -> Array:
    """Add the rounding to the format of a stage, where that is narrower than the working format."""
    if not facts.extra(stage):
        return error
    result: Array = error + facts.format(stage).rounded(size + error)
    return result


def step_size_error(
    dt: Array,
    dt_bias: Array | None,
    dt_softplus: bool,
    dt_limit: tuple[float, float],
    facts: ScanArithmetic,
) -> Array:
    """Bound the error of dt after its bias, softplus and limits, like dt."""
    u, error = roundoff(facts), np.zeros_like(dt)
    if dt_bias is not None:
        dt = dt + dt_bias
        error = narrowed(np.abs(dt), u * np.abs(dt), "gates", facts)
    if dt_softplus:
        error, dt = softplus_error(dt, error, facts), softplus(dt)
    low, high = (float(limit) for limit in dt_limit)
    if (low, high) != (0.0, np.inf):
        up, down = np.clip(dt + error, low, high), np.clip(dt - error, low, high)
        dt = np.clip(dt, low, high)
        error = np.maximum(up - dt, dt - down) + u * np.abs(dt)  # the limits are rounded as well
    return narrowed(np.abs(dt), error, "gates", facts)


def finished(
    out: Array,
    error: Array,
    facts: ScanArithmetic,
) -> Array:
    """Add the reference's own error and the output rounding; infinity where nothing is known."""
    error = with_reference(error, facts)
    error = error + facts.format("output").rounded(np.abs(out) + error)
    return np.where(np.isnan(error), np.inf, error)


def with_reference(error: Array, facts: ScanArithmetic) -> Array:
    """Add what the reference itself, token by token in float64, and the evaluation of the bound may be off.

    Every term of a bound is a power series in u without negative coefficients and without a constant, so with
    a smaller u it falls at least in proportion.
    """
    result: Array = error * (1 + 2.0**-53 / roundoff(facts) + EVALUATION)
    return result

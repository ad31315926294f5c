"""How an answer is held to a bound: NaN never passes, and equal infinities always do.

For porters: write the comparison as `not (error <= bound)`; the other way round lets NaN pass.
Source: `spec/bounds.md`, on comparing.
"""

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, check_shape, widen


def exceeds(observed: ArrayLike, expected: Array, bound: Array) -> Array:
    """Say where an answer is not within the bound; NaN never is, and equal infinities always are."""
    return ~(_error(observed, expected) <= bound)


def margin(observed: ArrayLike, expected: Array, bound: Array) -> float:
    """Return the largest error as a share of its bound: at most 1 exactly where `exceeds` says nothing.

    An exact answer has share 0, and so has any number where the bound is infinite. An error where the bound
    is 0, and NaN anywhere, give infinity.
    """
    error = _error(observed, expected)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where((error == 0) | (np.isinf(bound) & (error <= bound)), 0.0, error / bound)
    return float(np.max(np.where(np.isnan(share), np.inf, share), initial=0.0))


def worst(observed: Array, expected: Array, bound: Array, outside: Array) -> tuple[int, ...]:
    """Return the index that is furthest outside; NaN counts as furthest."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        excess = np.abs(observed - expected) / np.maximum(bound, np.finfo(np.float64).tiny)
    excess = np.where(outside, np.where(np.isnan(excess), np.inf, excess), -1.0)
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), excess.shape))


def _error(observed: ArrayLike, expected: Array) -> Array:
    seen = widen("observed", observed)
    check_shape("observed", seen, expected.shape)
    with np.errstate(invalid="ignore"):
        return np.where(seen == expected, 0.0, np.abs(seen - expected))

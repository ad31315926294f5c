"""Answers held to their bounds: nothing here is a tolerance, all of it follows from declared arithmetic."""

from dataclasses import replace
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.recurrent.arithmetic import ScanArithmetic
from kvref.recurrent.bounds import conv_bound, delta_bound, selective_bound, ssd_bound
from kvref.recurrent.scan import Scan

BOUNDS: dict[str, Any] = {
    "selective_scan": selective_bound,
    "ssd_scan": ssd_bound,
    "gated_delta_rule": delta_bound,
    "kimi_delta_attention": delta_bound,
    "causal_conv": conv_bound,
}
#: Float64 throughout, as the reference computes.
FLOAT64 = ScanArithmetic(
    working="float64", products="float64", gates="float64", stored="float64", state="float64", chunk_size=None
)


def float64_in_chunks(chunk_size: int | None) -> ScanArithmetic:
    """Return the arithmetic of the reference's own forms."""
    return replace(FLOAT64, chunk_size=chunk_size)


def assert_within(found: Array, exact: Array, bound: Array) -> None:
    """Each number is as near as its own bound says; NaN never is, and no bound is empty of meaning."""
    assert found.shape == exact.shape == bound.shape
    assert np.isfinite(bound).all()
    outside = ~(np.abs(np.asarray(found, np.float64) - exact) <= bound)
    assert not outside.any(), f"{outside.sum()} of {outside.size} outside, first {np.argwhere(outside)[0]}"


def assert_scan_within(found: Scan, exact: Scan, bound: Scan) -> None:
    """Do this for outputs and states."""
    assert_within(found.out, exact.out, bound.out)
    assert_within(found.state, exact.state, bound.state)


def same(a: Array, b: Array) -> bool:
    """Whether two arrays have the same bits."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()

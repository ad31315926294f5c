"""Exact problems of many thousand tokens, in which no number grows with their count.

A Mamba state that keeps everything is a sum, and a sum of many small integers is soon no small integer. So
inputs are chosen as differences: after each token a state entry is a number of a few bits, drawn anew.
"""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.problems import cast
from kvref_conformance.scan_cases import MAMBA
from kvref_conformance.scan_problems import ScanProblem

#: The largest number that a state entry is after a token, beside what the request began with.
LARGEST = 4


def without_drift(problem: ScanProblem) -> ScanProblem:
    """Return the problem with inputs of a Mamba scan that leave small numbers; of other scans, as it is.

    Every token brings a step size of ½ or 1, and one group of B.
    """
    if problem.verb not in MAMBA:
        return problem
    rng = np.random.default_rng(len(problem.inputs["x"]))
    x, dt = (problem.inputs[name].astype(np.float64) for name in ("x", "dt"))
    dt = np.maximum(dt, 0.5)
    after = 2.0 * rng.integers(-LARGEST, LARGEST + 1, x.shape)
    before = np.concatenate([np.zeros_like(after[:1]), after])[1 + _earlier(problem)]
    step = dt.reshape(*dt.shape, *[1] * (x.ndim - dt.ndim))
    changes = {"x": (after - before) / step, "dt": dt}
    return problem.with_inputs(**{name: cast(value, problem.dtype) for name, value in changes.items()})


def _earlier(problem: ScanProblem) -> Array:
    """Return for each token the last one before it that wrote the same entry for its request, or −1."""
    B = problem.inputs["B"].astype(np.float64)
    entry = B.reshape(len(B), -1).argmax(axis=1)
    request = np.repeat(np.arange(len(problem.lens)), problem.lens)
    order = np.lexsort((np.arange(len(B)), entry, request))
    same = (entry[order][1:] == entry[order][:-1]) & (request[order][1:] == request[order][:-1])
    found = np.full(len(B), -1)
    found[order[1:][same]] = order[:-1][same]
    return found

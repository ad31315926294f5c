"""The right answer to a recurrent problem, and how far from it an honest kernel may be.

The reference answers in float64, token by token; the bound follows from the arithmetic the subject declares.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvref.arrays import Array, dtype_of
from kvref.recurrent.bounds import conv_bound, delta_bound, selective_bound, ssd_bound
from kvref.recurrent.conv import causal_conv
from kvref.recurrent.gated_delta import gated_delta_rule
from kvref.recurrent.kda import kimi_delta_attention
from kvref.recurrent.mamba import selective_scan
from kvref.recurrent.scan import Scan
from kvref.recurrent.ssd import ssd_scan
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import VERBS
from kvref_conformance.scan_cases import DELTA, USUAL_CHUNK
from kvref_conformance.scan_problems import ScanProblem

#: Scans whose chunks are products of matrices.
CHUNKED = ("ssd_scan", *DELTA)
#: Tokens of a request from which on any scan is faster in chunks.
LONG = 1024
#: What exp(−1000) leaves in float64, and no other number of an exact problem is below.
NOTHING = 2.0**-100
REFERENCE: Mapping[str, Callable[..., Scan]] = {
    "causal_conv": causal_conv,
    "selective_scan": selective_scan,
    "ssd_scan": ssd_scan,
    "gated_delta_rule": gated_delta_rule,
    "kimi_delta_attention": kimi_delta_attention,
}
_BOUNDS: Mapping[str, Callable[..., tuple[Scan, Scan]]] = {
    "causal_conv": conv_bound,
    "selective_scan": selective_bound,
    "ssd_scan": ssd_bound,
    "gated_delta_rule": delta_bound,
    "kimi_delta_attention": delta_bound,
}


@dataclass(frozen=True)
class ExpectedScan:
    """What must come back, in float64, and the componentwise bound around it: 0 where nothing rounds."""

    out: Array
    state: Array
    out_bound: Array
    state_bound: Array

    def only(self, problem: ScanProblem, requests: Sequence[int]) -> "ExpectedScan":
        """Return what some requests of a problem must get: requests share nothing."""
        rows, own = problem.rows_of(requests), list(requests)
        return ExpectedScan(self.out[rows], self.state[own], self.out_bound[rows], self.state_bound[own])


def solved(problem: ScanProblem) -> Scan:
    """Return the reference's answer to a problem in which nothing rounds, so that its fast form serves."""
    positional, named = arguments_of(problem)
    long = problem.verb == "selective_scan" and problem.lens.max(initial=0) > LONG
    if problem.verb in CHUNKED or long:
        named["chunk_size"] = USUAL_CHUNK
    return REFERENCE[problem.verb](
        *positional, query_start_loc=problem.starts, initial_state=problem.initial, **named
    )


def arguments_of(problem: ScanProblem) -> tuple[list[Array], dict[str, Any]]:
    """Return what the functions of the reference take: inputs in order, and the rest by name."""
    first = [a.name for a in VERBS[problem.verb].arguments if a.positional]
    named: dict[str, Any] = {name: x for name, x in problem.inputs.items() if name not in first}
    if "dt_limit" in named:
        named["dt_limit"] = tuple(float(limit) for limit in named["dt_limit"])
    return [problem.inputs[name] for name in first], {**named, **problem.params}


def exactly(problem: ScanProblem, claims: Claims, *, bounded: bool = True) -> ExpectedScan:
    """Return the answer to a problem in which nothing rounds but the output.

    Where a delta rule has no scale of its own, head_dim ** -0.5 may be no power of two. Then whatever is
    multiplied by it is rounded, and outputs are held to the bound; states are exact all the same. Unless
    `bounded`, that bound is not computed, and the outputs are nobody's.
    """
    scan = solved(problem)
    out = scan.out.astype(dtype_of(problem.dtype)).astype(np.float64)
    state = np.where(np.abs(scan.state) < NOTHING, 0.0, scan.state)
    if bounded and scale_rounds(problem):
        rounded = within(problem, claims)
        return ExpectedScan(rounded.out, state, rounded.out_bound, np.zeros_like(state))
    return ExpectedScan(out, state, np.zeros_like(out), np.zeros_like(state))


def scale_rounds(problem: ScanProblem) -> bool:
    """Say whether a delta rule multiplies its queries by a number that is no power of two."""
    if problem.verb not in DELTA or "scale" in problem.params:
        return False
    return bool(np.log2(problem.inputs["q"].shape[-1]) % 2)


def within(problem: ScanProblem, claims: Claims) -> ExpectedScan:
    """Return the answer to any problem, and the bound of the declared arithmetic around it."""
    positional, named = arguments_of(problem)
    exact, bound = _BOUNDS[problem.verb](
        *positional,
        query_start_loc=problem.starts,
        initial_state=problem.initial,
        arithmetic=claims.scan_arithmetic,
        **named,
    )
    return ExpectedScan(exact.out, exact.state, bound.out, bound.state)

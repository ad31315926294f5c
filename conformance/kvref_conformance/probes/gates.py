"""Inputs of decay gates: projections where softplus bends and where it does not, a head or a channel each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.recurrent.arithmetic import INPUT, ScanArithmetic
from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Call, OutputSpec
from kvref_conformance.probes.random import dyadic
from kvref_conformance.probes.scans import single
from kvref_conformance.problems import cast

#: Projections beside the ordinary ones: where exp overflows, where log(1 + exp) loses what is small.
EDGES = (-100.0, -30.0, -16.0, -12.0, -10.0, 0.0, 7.5, 9.0, 10.0625, 10.5, 16.0, 100.0)


@dataclass(frozen=True)
class Gate:
    """One call of a gate."""

    inputs: Mapping[str, Array]
    lower_bound: float | None
    facts: ScanArithmetic
    """The arithmetic it is held to."""

    @property
    def call(self) -> Call:
        """The call; the log decay comes back in float32, whatever the dtype of `a`."""
        params: dict[str, Any] = {} if self.lower_bound is None else {"lower_bound": self.lower_bound}
        return Call("decay_gate", self.inputs, params, {"g": OutputSpec("float32", self.inputs["a"].shape)})


def gate(case: Case, claims: Claims, *, lower_bound: float | None = None) -> Gate:
    """Return the gate of a case: for heads, or where its option says so for channels."""
    rng = np.random.default_rng(case.seed + 61)
    heads = case.num_q_heads
    inner = (heads, case.head_dim) if case.option("channels") else (heads,)
    a = 2 * dyadic(rng, (case.num_tokens, *inner), "float32").astype(np.float64)
    edges = rng.random(a.shape) < 0.3
    a[edges] = rng.choice(EDGES, int(edges.sum()))
    inputs = {
        "a": cast(a, case.dtype),
        "A_log": single(rng.uniform(-4.0, 2.5, heads)),
        "dt_bias": single(rng.uniform(-3.0, 1.0, inner)),
    }
    facts = claims.scan_arithmetic
    return Gate(inputs, lower_bound, replace(facts, output="float32") if facts.output == INPUT else facts)

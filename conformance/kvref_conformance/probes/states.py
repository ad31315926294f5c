"""Partial states: outputs and lse of disjoint pieces, in the spelling a subject has declared.

Rows differ in which side is empty and in how far apart the two sides are: equal, a little, far beyond what an
exponential can hold, in both directions. An lse may be large itself, so a merge that does not subtract the
larger one first overflows.
"""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array, dtype_name
from kvref.attention.arithmetic import Format
from kvref.attention.bounds import Bound
from kvref.attention.bounds.merge import merge_bound
from kvref.attention.merge import State
from kvref_conformance.cases import Case, Level, lattice
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Answer, Call, OutputSpec
from kvref_conformance.probes.random import dyadic
from kvref_conformance.problems import cast

#: lse of a and of b, row after row; no two neighbours alike.
PAIRS = (
    *((3.0, 2.5), (-40.0, 60.0), (500.0, 499.0), (-700.0, -701.5), (90.0, -90.0), (0.0, 0.0), (1.25, 9.0)),
    *((30000.0, 30001.0), (-30001.0, -30000.0)),
)
LN_2 = float(np.log(2.0))


def state_cases(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Return a few tokens; heads, widths and dtypes in turn."""
    return [replace(case, seq_lens=(3, 2), query_lens=(3, 2)) for case in lattice(claims, verb, level)]


def random_states(case: Case, pairs: tuple[tuple[float, float], ...] = PAIRS) -> tuple[State, State]:
    """Return two states, their lse exact in float32 and their outputs in the case's dtype."""
    rng = np.random.default_rng(case.seed + 71)
    shape = (case.num_tokens, case.num_q_heads)
    turn = np.arange(shape[0] * shape[1]).reshape(shape) % len(pairs)
    lse = np.array(pairs)[turn]  # [T, H, 2]
    jitter = rng.integers(-8, 9, lse.shape) / 16.0
    lse = np.where(np.isinf(lse), lse, lse + jitter)
    outs = [dyadic(rng, (*shape, case.head_dim), case.dtype).astype(np.float64) for _ in range(2)]
    a, b = (np.where(np.isneginf(lse[..., i, None]), 0.0, outs[i]) for i in range(2))
    return State(a, lse[..., 0]), State(b, lse[..., 1])


def three_states(case: Case) -> list[State]:
    """Return three states, the third a few nats from both."""
    a, b = random_states(case)
    other, _ = random_states(Case(**{**case.__dict__, "seed": case.seed + 1}))
    return [a, b, State(other.out, np.maximum(a.lse, b.lse) - 1.5)]


def spelled(state: State, case: Case, claims: Claims) -> State:
    """Return a state as a subject is given it: dtype, float32, and its own spelling of the lse."""
    lse = state.lse / LN_2 if claims.choice("lse-base") == "2" else state.lse
    if claims.choice("empty-row-lse") == "+inf":
        lse = np.where(np.isneginf(lse), np.inf, lse)
    return State(cast(state.out, case.dtype), lse.astype(np.float32))


def read_state(out: Array, lse: Array, claims: Claims) -> State:
    """Return a subject's state in the canonical spelling, float64: nats, −∞ for an empty row."""
    nats = np.asarray(lse).astype(np.float64)
    if claims.choice("empty-row-lse") == "+inf":
        nats = np.where(np.isposinf(nats), -np.inf, nats)
    return State(
        np.asarray(out).astype(np.float64), nats * LN_2 if claims.choice("lse-base") == "2" else nats
    )


def present_merge(a: State, b: State) -> Call:
    """Return the call of `merge_attention_states` for two states as they are spelled."""
    tensors = {"out_a": a.out, "lse_a": a.lse, "out_b": b.out, "lse_b": b.lse}
    outputs = {"out": OutputSpec(dtype_name(a.out), a.out.shape), "lse": OutputSpec("float32", a.lse.shape)}
    return Call("merge_attention_states", tensors, {}, outputs)


def expected_merge(call: Call, claims: Claims) -> tuple[State, Bound]:
    """Return the exact merge of the states in a call, in nats, and the bound around it."""
    a, b = (
        read_state(call.tensors[f"out_{side}"], call.tensors[f"lse_{side}"], claims) for side in ("a", "b")
    )
    given = call.tensors["out_a"], a.lse, call.tensors["out_b"], b.lse
    exact, bound = merge_bound(*given, arithmetic=claims.arithmetic)
    if claims.choice("lse-base") == "2" or claims.arithmetic.accumulate == "float64":
        # the lse comes back as a float32 of another number, or of a finer one: it is rounded once more
        size = np.where(np.isneginf(exact.lse), 0.0, np.abs(exact.lse) + bound.lse)
        again = np.where(np.isneginf(exact.lse), 0.0, Format.of("float32").rounded(size))
        bound = Bound(bound.out, bound.lse + again)
    return exact, bound


def merged(answer: Answer) -> State:
    """Return what a merge gave back, as it was given."""
    return State(np.asarray(answer.outputs["out"]), np.asarray(answer.outputs["lse"]))

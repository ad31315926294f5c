"""Specimens of recurrent layers: one ordinary call of a scan, an update or a gate, and its judge.

Two specimens of one case are different everywhere: other numbers are written, and other places are read.
"""

from collections.abc import Callable, Mapping

import numpy as np

from kvref.arrays import Array
from kvref.attention.bounds import exceeds
from kvref.recurrent.bounds import gate_bound
from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Call
from kvref_conformance.probes.gates import gate
from kvref_conformance.probes.scans_random import random_scan
from kvref_conformance.scan_cases import is_update, widths_of
from kvref_conformance.scan_problems import Pool, ScanProblem, laid, present_scan, present_update, read_states
from kvref_conformance.trial import Result, Trial

Wrong = Callable[[Trial, Result], Mapping[str, Array]]


def smallest_scan(verb: str, claims: Claims) -> Call:
    """Return a call of one request of one token, with the fewest heads and nothing optional."""
    case = Case(
        verb=verb,
        seq_lens=(1,),
        query_lens=(1,),
        num_kv_heads=1,
        group=1,
        head_dim=claims.head_dims[0],
        dtype=claims.dtypes[0],
        options=widths_of(claims, verb, 0),
    )
    if verb == "decay_gate":
        return gate(case, claims).call
    problem = random_scan(case, claims, ()).but(params={})
    return present_update(problem, claims, Pool()).call if is_update(verb) else present_scan(problem, claims)


def scan_specimen(case: Case, claims: Claims) -> tuple[Call, Wrong]:
    """Return the specimen of a scan or an update, and which elements of an answer are wrong."""
    problem = random_scan(case, claims, ())
    if is_update(case.verb):
        return _updating(problem, claims)

    def wrong(trial: Trial, result: Result) -> Mapping[str, Array]:
        expected = trial.oracle.scan_within(problem)
        kept = result.answer.outputs["final_state"]
        off = exceeds(read_states(kept, problem, claims), expected.state, expected.state_bound)
        return {
            "out": exceeds(result.out, expected.out, expected.out_bound),
            "final_state": _as_kept(off, problem, claims),
        }

    return present_scan(problem, claims), wrong


def gate_specimen(case: Case, claims: Claims) -> tuple[Call, Wrong]:
    """Return the specimen of a gate."""
    asked = gate(case, claims)

    def wrong(trial: Trial, result: Result) -> Mapping[str, Array]:
        exact, bound = gate_bound(**asked.inputs, lower_bound=None, arithmetic=asked.facts)
        return {"g": exceeds(np.asarray(result.answer.outputs["g"]).astype(np.float64), exact, bound)}

    return asked.call, wrong


def _updating(problem: ScanProblem, claims: Claims) -> tuple[Call, Wrong]:
    update = present_update(problem, claims, Pool(seed=len(problem.lens)))

    def wrong(trial: Trial, result: Result) -> Mapping[str, Array]:
        expected = trial.oracle.scan_within(problem)
        kept = np.asarray(result.answer.outputs["state"])
        own = read_states(kept[update.slots], problem, claims)
        off = np.zeros(kept.shape, np.bool_)
        off[update.slots] = _as_kept(exceeds(own, expected.state, expected.state_bound), problem, claims)
        return {"out": exceeds(result.out, expected.out, expected.out_bound), "state": off}

    return update.call, wrong


def _as_kept(wrong: Array, problem: ScanProblem, claims: Claims) -> Array:
    """Return which entries of states are wrong, in the layout they are kept in."""
    return laid(wrong, problem, claims).astype(np.bool_)

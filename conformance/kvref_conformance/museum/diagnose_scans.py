"""Which known fault a wrong answer of a recurrent layer looks like.

An exhibit runs on the failing call as it is. It matches if its answer equals the observed one everywhere and
differs somewhere from the right one. Equal means no further apart than rounding may move any entry of the
right answer under the declared arithmetic, twice, for two kernels have rounded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.recurrent.arithmetic import INPUT
from kvref.recurrent.bounds import gate_bound
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Answer, Call
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.museum.exhibit import Exhibit
from kvref_conformance.museum.over_codes import offering
from kvref_conformance.scan_cases import DELTA, is_update, scan_of
from kvref_conformance.scan_oracle import within
from kvref_conformance.scan_problems import PER_TOKEN, ScanProblem, read_states, value_first
from kvref_conformance.trial import bits
from kvref_conformance.verbs_of_scans import RECURRENT

#: Verbs whose exhibits are tried on each other's calls: all but the gate share what they do with requests.
KIN = tuple(verb for verb in RECURRENT if verb != "decay_gate")
#: Topics of faults that are told in words of a convolution.
OF_WINDOWS = ("recurrent_conv", "recurrent_windows")
#: Elements of a call above which nothing is tried: an exhibit goes through them chunk by chunk.
LARGEST = 2_000_000


@dataclass(frozen=True)
class Right:
    """The right answer to a call by output name, and how far two honest kernels may be apart."""

    outputs: Mapping[str, Array]
    apart: Mapping[str, Array]
    own: Mapping[str, Array]
    """The same of each entry where it is the right one."""

    def same(self, one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
        """Say whether two answers are equal within rounding, with NaN and infinities at the same places."""
        return all(_close(one[name], other[name], self.apart[name]) for name in self.outputs)


def matching(call: Call, answer: Answer, candidates: list[Exhibit], claims: Claims) -> list[Exhibit]:
    """Return the exhibits that give this answer to this call."""
    if is_large(call):
        return []
    right = _right(call, claims)
    observed = _numbers(answer.outputs, call)
    if right.same(observed, right.outputs):  # unless it is right, every entry is told by its own bound
        right = replace(right, apart=right.own)
        if right.same(observed, right.outputs):
            return []
    return [e for e in candidates if _matches(e, call, claims, observed, right)]


def is_large(call: Call) -> bool:
    """Say whether a call is too large for all exhibits to be tried on it."""
    return sum(x.size for x in call.tensors.values()) > LARGEST


def candidates_of(call: Call, exhibits: list[Exhibit]) -> list[Exhibit]:
    """Return the exhibits that may be tried on a call: faults of a window are those of convolutions."""
    windows = scan_of(call.verb) == "causal_conv"
    return [e for e in exhibits if windows or e.topic not in OF_WINDOWS]


def _matches(
    exhibit: Exhibit, call: Call, claims: Claims, observed: Mapping[str, Array], right: Right
) -> bool:
    try:
        wrong = _numbers(_asked(exhibit, call, claims), call)
    except Exception:  # a fault may raise on an input it was not made for
        return False
    return right.same(wrong, observed) and not right.same(wrong, right.outputs)


def _asked(exhibit: Exhibit, call: Call, claims: Claims) -> Mapping[str, Array]:
    """Run an exhibit under the subject's claims, in memory laid out as every host lays it.

    Raises: Failed.
    """
    subject = exhibit.subject()
    for verb in KIN:  # a verb may go through another one that is not claimed
        subject = offering(subject, verb)
    subject.claims = claims
    return InProcessHost(subject).call(call).outputs


def _numbers(outputs: Mapping[str, Array], call: Call) -> dict[str, Array]:
    """Return outputs as they are compared: numbers, but of slots of no request the bits."""
    names = (*call.outputs, *call.in_place)
    with np.errstate(all="ignore"):
        found = {name: np.asarray(outputs[name]).astype(np.float64) for name in names}
    if is_update(call.verb):
        others = np.setdiff1d(np.arange(len(found["state"])), call.tensors["state_indices"])
        found["state"][others] = bits(np.asarray(outputs["state"])[others])
    return found


def _close(one: Array, other: Array, apart: Array) -> bool:
    with np.errstate(invalid="ignore"):
        equal = (one == other) | (np.isnan(one) & np.isnan(other)) | (np.abs(one - other) <= apart)
    return bool(equal.all())


def _right(call: Call, claims: Claims) -> Right:
    """Return the right answer to a call, and what rounding may do to any entry of it."""
    if call.verb == "decay_gate":
        facts = claims.scan_arithmetic
        facts = replace(facts, output="float32") if facts.output == INPUT else facts
        bound: Any = call.params.get("lower_bound")
        g, moved = gate_bound(**call.tensors, lower_bound=bound, arithmetic=facts)
        return Right({"g": g}, {"g": 2 * moved}, {"g": 2 * moved})
    problem = problem_of(call, claims)
    expected = within(problem, claims)
    widest = 2 * max(_largest(expected.out_bound), _largest(expected.state_bound))
    state, moved = (_as_kept(x, problem, claims) for x in (expected.state, 2 * expected.state_bound))
    if not is_update(call.verb):
        outputs = {"out": expected.out, "final_state": state}
        own = {"out": 2 * expected.out_bound, "final_state": moved}
        return Right(outputs, dict.fromkeys(outputs, np.asarray(widest)), own)
    indices = call.tensors["state_indices"]
    live = np.flatnonzero(indices >= 0)
    out = np.zeros(call.outputs["out"].shape)
    out[live] = expected.out
    pool = _numbers({"out": out, "state": call.tensors["state"]}, call)["state"]
    pool[indices[live]] = state
    outputs = {"out": out, "state": pool}
    own = {name: np.zeros(x.shape) for name, x in outputs.items()}
    own["out"][live], own["state"][indices[live]] = 2 * expected.out_bound, moved
    return Right(outputs, dict.fromkeys(outputs, np.asarray(widest)), own)


def _as_kept(state: Array, problem: ScanProblem, claims: Claims) -> Array:
    """Return states in the layout they are kept in, float64."""
    if problem.verb in DELTA and value_first(claims):
        state = state.swapaxes(-1, -2)
    return np.asarray(state, np.float64)


def _largest(bound: Array) -> float:
    return float(np.max(bound, initial=0.0, where=np.isfinite(bound)))


def problem_of(call: Call, claims: Claims) -> ScanProblem:
    """Return the problem that a call of a scan or an update asks."""
    given = dict(call.tensors)
    scan = scan_of(call.verb)
    empty = ScanProblem(scan, {}, np.zeros(0, np.int64), np.zeros(0), {}, "float32")
    if is_update(call.verb):
        pool, indices = given.pop("state"), given.pop("state_indices")
        live = np.flatnonzero(indices >= 0)
        kept, lens = pool[indices[live]], np.ones(len(live), np.int64)
        given = {name: x[live] if name in PER_TOKEN else x for name, x in given.items()}
    else:
        kept, lens = given.pop("initial_state"), np.diff(given.pop("query_start_loc")).astype(np.int64)
    initial = read_states(kept, empty, claims)
    if "has_initial_state" in given:
        flags = given.pop("has_initial_state").astype(np.bool_)
        initial = np.where(flags.reshape(-1, *[1] * (initial.ndim - 1)), initial, 0.0)
    dtype = next(iter(call.outputs.values())).dtype
    return ScanProblem(scan, given, lens, initial, dict(call.params), dtype)

"""Specimens: one ordinary call of any verb, and which elements of an answer are wrong.

For rules that hold whatever a verb computes. Attending calls hunt needles, so their answers are exact and two
specimens of one case are different everywhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from kvref.arrays import Array
from kvref.attention.bounds import exceeds, rope_bound
from kvref.attention.sparse import valid_topk_rows
from kvref_conformance.cases import Case, Level, lattice
from kvref_conformance.claims import Claims
from kvref_conformance.code_problems import present_codes
from kvref_conformance.contracts import ATTENDING, RECURRENT, Call
from kvref_conformance.probes.caches import CodedCache, layout_cases
from kvref_conformance.probes.code_caches import code_needles
from kvref_conformance.probes.code_cases import coded_cases
from kvref_conformance.probes.format_specimens import (
    read_cases,
    some_codes,
    some_numbers,
    written_cases,
    wrong_bytes,
    wrong_numbers,
)
from kvref_conformance.probes.imprints import imprint
from kvref_conformance.probes.needles import hunt_near, needles
from kvref_conformance.probes.records import present_mla, record_cases, record_needles
from kvref_conformance.probes.replays import replayed
from kvref_conformance.probes.rotations import present_rope, rotation_cases, vectors
from kvref_conformance.probes.scan_specimens import gate_specimen, scan_specimen
from kvref_conformance.probes.selections import (
    choose,
    choosing_cases,
    indexer,
    over_selection,
    present_sparse,
)
from kvref_conformance.probes.states import (
    expected_merge,
    merged,
    present_merge,
    random_states,
    read_state,
    spelled,
    state_cases,
)
from kvref_conformance.problems import Placement, Problem, present
from kvref_conformance.scan_cases import scan_cases
from kvref_conformance.trial import Result, Trial, bits

#: Says for each output which of its elements do not answer the call.
Wrong = Callable[[Trial, Result], Mapping[str, Array]]
Lattice = Callable[[Claims, str, Level], list[Case]]


@dataclass(frozen=True)
class Specimen:
    """A call and its judge."""

    call: Call
    wrong: Wrong


def specimen(case: Case, claims: Claims, turn: int = 0) -> Specimen:
    """Return the specimen of `case.verb`; another `turn` gives tensors of the same shapes other content."""
    other = replace(case, seed=case.seed + 1009 * turn)
    if case.verb in ATTENDING:
        return _attending(other, claims, turn)
    return _BUILDERS[case.verb](other, claims, turn)


def specimen_cases(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Return cases for the specimens of any verb: two at level quick."""
    cases = _CASES.get(verb, lattice)(claims, verb, level)
    if verb == "sparse_attention":  # each query token is a row of its own, whatever its request
        cases = [replace(case, query_lens=tuple(min(n_q, 4) for n_q in case.query_lens)) for case in cases]
    return cases[:2] if level == "quick" else cases[: 2 * len(claims.dtypes)]


def hollow(case: Case) -> Case:
    """Return the case with a request in its middle that has a query token and no context."""
    lens, queries = list(case.seq_lens), list(case.query_lens)
    lens.insert(1, 0)
    queries.insert(1, 1)
    return replace(case, seq_lens=tuple(lens), query_lens=tuple(queries))


def _attending(case: Case, claims: Claims, turn: int) -> Specimen:
    problem = needles(case, hunt_near(case, -(turn % 2), -1, -2))
    call = present(problem, case, Placement(seed=case.seed + 1), lse="lse" in claims.features)
    return Specimen(call, wrong_attention(problem))


def _mla(case: Case, claims: Claims, turn: int) -> Specimen:
    problem = record_needles(case, (turn % 2, 1, 2))
    call = present_mla(problem, case, Placement(seed=case.seed + 1), lse="lse" in claims.features)
    return Specimen(call, wrong_attention(problem))


def _sparse(case: Case, claims: Claims, turn: int) -> Specimen:
    positions = choose(case, 4)
    hunts = np.resize(positions.T, (case.num_q_heads, case.num_tokens)).T
    problem = needles(case, hunts)
    call = present_sparse(
        problem, positions, case, Placement(seed=case.seed + 1), lse="lse" in claims.features
    )
    masked = over_selection(problem, positions)
    return Specimen(call, wrong_attention(masked))


def _replay(case: Case, claims: Claims, turn: int) -> Specimen:
    replay = replayed(case, padded=False)

    def wrong(trial: Trial, result: Result) -> Mapping[str, Array]:
        expected = [trial.oracle.attention(problem) for problem in replay.problems]
        out, bound = (
            np.stack(parts) for parts in zip(*((e.out, e.out_bound) for e in expected), strict=True)
        )
        return {"out": exceeds(result.out, out, bound)}

    return Specimen(replay.call, wrong)


def _write(case: Case, claims: Claims, turn: int) -> Specimen:
    write = imprint(case)

    def wrong(trial: Trial, result: Result) -> Mapping[str, Array]:
        found = {name: np.asarray(result.answer.outputs[name]) for name in write.after}
        return {name: bits(x) != bits(write.after[name]) for name, x in found.items()}

    return Specimen(write.call, wrong)


def _merge(case: Case, claims: Claims, turn: int) -> Specimen:
    call = present_merge(*(spelled(state, case, claims) for state in random_states(case)))

    def wrong(trial: Trial, result: Result) -> Mapping[str, Array]:
        exact, bound = expected_merge(call, claims)
        found = read_state(*merged(result.answer), claims)
        return {
            "out": exceeds(found.out, exact.out, bound.out),
            "lse": exceeds(found.lse, exact.lse, bound.lse),
        }

    return Specimen(call, wrong)


def _choose(case: Case, claims: Claims, turn: int) -> Specimen:
    heads, tokens = case.num_q_heads, sum(case.seq_lens)
    products = np.random.default_rng(case.seed + 5).integers(-60, 61, (tokens, heads))
    probe = indexer(case, products, np.ones(heads))

    def wrong(trial: Trial, result: Result) -> Mapping[str, Array]:
        positions = np.asarray(result.answer.outputs["positions"])
        right = valid_topk_rows(
            probe.scores, positions, score_error=probe.score_error(trial.claims.arithmetic)
        )
        return {"positions": np.broadcast_to(~right[:, None], positions.shape)}

    return Specimen(probe.present(4), wrong)


def _rotate(case: Case, claims: Claims, turn: int) -> Specimen:
    x, positions = vectors(case), np.arange(case.num_tokens)[::-1] * 3 + turn

    def wrong(trial: Trial, result: Result) -> Mapping[str, Array]:
        exact, bound = rope_bound(
            x,
            positions=positions,
            base=case.option("base"),
            rotary_dim=case.head_dim,
            style=case.option("style"),
            arithmetic=trial.claims.arithmetic,
        )
        return {"out": exceeds(result.out, exact, bound)}

    return Specimen(present_rope(x, positions, case, case.head_dim), wrong)


def _convert(case: Case, claims: Claims, turn: int) -> Specimen:
    source, target = case.option("source"), case.option("target")
    cache = CodedCache.of(case)

    def wrong(trial: Trial, result: Result) -> Mapping[str, Array]:
        found = np.asarray(result.answer.outputs["out"])
        return {"out": bits(found) != bits(cache.seen_as(target))}

    return Specimen(cache.present(cache.seen_as(source), source, target), wrong)


def _quantize(case: Case, claims: Claims, turn: int) -> Specimen:
    path = claims.path()
    writing = some_numbers(case, path)
    return Specimen(writing.call(path), lambda trial, result: wrong_bytes(writing, path, result))


def _dequantize(case: Case, claims: Claims, turn: int) -> Specimen:
    path = claims.path()
    reading = some_codes(case, path)
    return Specimen(reading.call(path), lambda trial, result: wrong_numbers(reading, path, result))


def _attend_codes(case: Case, claims: Claims, turn: int) -> Specimen:
    problem = code_needles(case, hunt_near(case, -(turn % 2), -1, -2), claims.path())
    call = present_codes(problem, case, Placement(seed=case.seed + 1), lse="lse" in claims.features)
    return Specimen(call, wrong_attention(problem))


def _recurrent(case: Case, claims: Claims, turn: int) -> Specimen:
    made = gate_specimen if case.verb == "decay_gate" else scan_specimen
    return Specimen(*made(case, claims))


def wrong_attention(problem: Problem) -> Wrong:
    """Return the judge of answers to an attention problem."""

    def wrong(trial: Trial, result: Result) -> Mapping[str, Array]:
        expected = trial.oracle.attention(problem)
        found = {"out": exceeds(result.out, expected.out, expected.out_bound)}
        if "lse" in result.answer.outputs:
            found["lse"] = exceeds(result.lse, expected.lse, expected.lse_bound)
        return found

    return wrong


_BUILDERS: dict[str, Callable[[Case, Claims, int], Specimen]] = {
    "replay": _replay,
    "write_kv": _write,
    "merge_attention_states": _merge,
    "mla_attention": _mla,
    "sparse_attention": _sparse,
    "select_topk": _choose,
    "apply_rope": _rotate,
    "convert_layout": _convert,
    "quantize_kv": _quantize,
    "dequantize_kv": _dequantize,
    "quantized_paged_attention": _attend_codes,
    **dict.fromkeys(RECURRENT, _recurrent),
}

_CASES: dict[str, Lattice] = {
    "merge_attention_states": state_cases,
    "mla_attention": record_cases,
    "select_topk": choosing_cases,
    "apply_rope": rotation_cases,
    "convert_layout": layout_cases,
    "quantize_kv": written_cases,
    "dequantize_kv": read_cases,
    "quantized_paged_attention": coded_cases,
    **dict.fromkeys(RECURRENT, scan_cases),
}

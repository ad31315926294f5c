"""Tests of cases and problems of recurrent layers: what they visit, how they lie, that they are exact."""

from typing import Any

import numpy as np
import pytest

from kvref.arrays import dtype_of
from kvref.errors import KVError
from kvref.recurrent.arithmetic import ScanArithmetic
from kvref_conformance.cases import LEVELS
from kvref_conformance.claims import ALL_CONV_WIDTHS, ALL_DTYPES, ALL_STATE_DIMS, MINIMUM_GROUPS, Claims
from kvref_conformance.contracts import RECURRENT
from kvref_conformance.probes.scans import coded
from kvref_conformance.probes.scans_long import LARGEST, without_drift
from kvref_conformance.runner.evaluate import plan
from kvref_conformance.runner.target import Target
from kvref_conformance.scan_cases import (
    OF_CHANNELS,
    chunk_of,
    grouped,
    is_update,
    relen,
    scan_cases,
    scan_of,
    smallest_case,
)
from kvref_conformance.scan_oracle import REFERENCE, arguments_of, exactly, scale_rounds
from kvref_conformance.scan_problems import (
    Pool,
    final_of,
    poisoned,
    present_scan,
    present_update,
    read_states,
)
from kvref_conformance.subjects.scanned import Scanned
from kvref_conformance.verbs_of_scans import UPDATES

LEAST = Claims(head_dims=(64,))
MOST = Claims(
    dtypes=ALL_DTYPES,
    head_dims=(64, 80, 128),
    state_dims=ALL_STATE_DIMS,
    conv_widths=ALL_CONV_WIDTHS,
    features=("value_width", "delta_scale"),
)
SCANS = tuple(UPDATES)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("verb", RECURRENT)
def test_what_is_claimed_is_exercised(verb: str, level: Any) -> None:
    """A claimed dtype or width that no case visits would be believed (KV-CONF-003)."""
    cases = [case for _, case in plan((verb,), MOST, level)]
    assert {case.dtype for case in cases} == set(MOST.dtypes)
    assert {case.head_dim for case in cases} == set(MOST.head_dims)
    for option, claimed in (("state_dim", MOST.state_dims), ("conv_width", MOST.conv_widths)):
        visited = {case.options[option] for case in cases if option in case.options}
        assert visited in (set(), set(claimed))
    if scan_of(verb) in ("gated_delta_rule", "kimi_delta_attention"):
        assert any(case.option("v_dim") != case.head_dim for case in cases)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("verb", SCANS)
def test_minimum_domain_is_visited_whatever_is_claimed(verb: str, level: Any) -> None:
    """Nobody can declare away the lengths and head counts at which scans break (KV-CONF-005)."""
    cases = [case for _, case in plan((verb,), LEAST, level)]
    lengths = {n for case in cases for n in case.query_lens}
    chunk, width = chunk_of(LEAST), LEAST.conv_widths[0]
    assert {0, 1, width - 2, chunk - 1, chunk, chunk + 1} <= lengths
    shared = {case.group for case in cases}
    heads = {case.num_kv_heads for case in cases}
    if verb not in OF_CHANNELS:
        assert set(MINIMUM_GROUPS) <= (shared if verb != "kimi_delta_attention" else heads)
    several = [case for case in cases if len(case.query_lens) > 1]
    assert any(case.query_lens[0] % chunk for case in several)
    assert any(n == m > 0 for c in several for n, m in zip(c.seq_lens, c.query_lens, strict=True))


@pytest.mark.parametrize("verb", SCANS)
def test_exact_problems_are_exact_in_both_forms(verb: str) -> None:
    """A core check has no tolerance, so no order of evaluation may round, token by token or in chunks."""
    for case in scan_cases(MOST, verb, "full"):
        problem = coded(case, MOST)
        expected = exactly(problem, MOST)
        assert scale_rounds(problem) or not expected.out_bound.any()
        assert (expected.state == expected.state.astype(np.float32)).all()
        assert np.abs(expected.state * 4 % 1).max() == 0
        if verb == "causal_conv":
            continue
        inputs, named = arguments_of(problem)
        starts = {"query_start_loc": problem.starts, "initial_state": problem.initial}
        other = REFERENCE[verb](*inputs, **starts, chunk_size=16, **named)
        assert (np.where(np.abs(other.state) < 1e-30, 0, other.state) == expected.state).all()


@pytest.mark.parametrize("verb", SCANS)
def test_parts_of_a_problem_are_the_problem(verb: str) -> None:
    """What is cut is only where the tokens are: the rest goes on from the state of the first part."""
    problem = coded(scan_cases(MOST, verb, "quick")[0], MOST)
    first, rest = problem.cut([min(3, int(n)) for n in problem.lens])
    whole, before = exactly(problem, MOST), exactly(first, MOST)
    after = exactly(rest.but(initial=before.state), MOST)
    assert (after.state == whole.state).all()
    assert len(before.out) + len(after.out) == len(whole.out)
    alone = exactly(problem.only([0]), MOST)
    assert (alone.out == whole.out[: problem.lens[0]]).all()


def test_fresh_requests_are_passed_poison_only_where_they_are_said_to_be_fresh() -> None:
    """Where a subject has no flag, a fresh request is one whose state is zero."""
    problem = coded(scan_cases(MOST, "ssd_scan", "quick")[0], MOST)
    assert set(problem.fresh) == {False, True}
    plain, flagged = present_scan(problem, MOST), present_scan(problem, MOST, flags=True)
    assert "has_initial_state" not in plain.tensors
    assert not plain.tensors["initial_state"][problem.fresh].any()
    assert np.isnan(flagged.tensors["initial_state"][problem.fresh]).all()
    assert flagged.tensors["has_initial_state"].tolist() == (~problem.fresh).astype(int).tolist()


def test_states_of_an_update_lie_scattered_in_a_strided_pool() -> None:
    """Slots in another order than the rows, NaN in those of nobody, padding rows between the others."""
    problem = coded(scan_cases(MOST, "gated_delta_rule_update", "quick")[2], MOST)
    update = present_update(problem, MOST, Pool(seed=1, gap=5, padding=(0, 2)))
    state, indices = update.call.tensors["state"], update.call.tensors["state_indices"]
    assert not state.flags.c_contiguous
    assert sorted(update.slots.tolist()) != update.slots.tolist()
    assert (indices[update.rows] == update.slots).all()
    assert (np.delete(indices, update.rows) == -1).all()
    nobody = np.setdiff1d(np.arange(len(state)), update.slots)
    assert len(nobody) > 0
    assert np.isnan(state[nobody]).all()
    assert (state[update.slots] == problem.initial).all()


@pytest.mark.parametrize("verb", RECURRENT[:10])
def test_calls_cross_the_wire(verb: str) -> None:
    """Strided pools, NaN and tensors named by one capital letter come back from another process unharmed."""
    case = scan_cases(Scanned.claims, verb, "quick")[1]
    problem = coded(case, Scanned.claims)
    expected = exactly(problem, Scanned.claims)
    with Target(subject="scanned").open() as host:  # type: ignore[attr-defined]
        if is_update(verb):
            update = present_update(problem, Scanned.claims, Pool(seed=3, gap=7, padding=(1,)))
            answer = host.call(update.call)
            out, left = answer.outputs["out"][update.rows], answer.outputs["state"][update.slots]
            state = read_states(left, problem, Scanned.claims)
        else:
            answer = host.call(present_scan(problem, Scanned.claims, flags=True))
            out, state = answer.outputs["out"], final_of(answer, problem, Scanned.claims)
    assert (answer.mutated, answer.overrun, answer.unwritten) == ((), (), {})
    assert (out.astype(np.float64) == expected.out).all()
    assert (state == expected.state).all()


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"state_dims": []}, "claims.state_dims is empty"),
        ({"state_dims": [12]}, "claims.state_dims holds 12, expected a multiple of 8 from 16 on"),
        ({"conv_widths": [1]}, "claims.conv_widths holds 1, expected an integer >= 2"),
        ({"conv_widths": [4096]}, "claims.conv_widths holds 4096, expected at most 64"),
        ({"scan_arithmetic": {"chunks": 3}}, "claims.scan_arithmetic: arithmetic has 'chunks'"),
        ({"scan_arithmetic": 3}, "claims.scan_arithmetic = 3, expected an object of facts"),
        ({"choices": {"state-layout": "rows"}}, "claims.choices['state-layout'] holds 'rows'"),
    ],
)
def test_claims_that_say_nothing_are_refused(claims: dict[str, Any], message: str) -> None:
    """A declaration that cannot be checked is told by name, before anything runs."""
    with pytest.raises(KVError) as caught:
        Claims.from_dict(claims)
    assert message in str(caught.value)


def test_scan_arithmetic_survives_json() -> None:
    """A subject in another process says what its arithmetic is as JSON."""
    claims = Claims(scan_arithmetic=ScanArithmetic(chunk_size=None, state="bfloat16"), conv_widths=(3, 4))
    assert Claims.from_dict(claims.to_dict()) == claims


@pytest.mark.parametrize("poison", [np.nan, 0.1])
def test_memory_of_nobody_differs_by_place(poison: float) -> None:
    """A slot that is another one's copy, or that passed through a narrow format, is told by its bits."""
    for kind in ("float32", "float16", "bfloat16"):
        memory = poisoned((5, 16), dtype_of(kind), poison)
        codes = memory.view(f"u{memory.dtype.itemsize}")
        assert len({row.tobytes() for row in codes}) == 5
        assert np.isnan(memory.astype(np.float64)).all() == np.isnan(poison)
    single = poisoned((5, 16), dtype_of("float32"), poison)
    assert (single.astype(np.float16).astype(np.float32).view("u4") != single.view("u4")).any()


def test_rows_of_padding_hold_what_they_are_given() -> None:
    """Other negative indices in turns, and NaN in every input of such a row."""
    problem = coded(scan_cases(MOST, "ssd_update", "quick")[1], MOST)
    pool = Pool(seed=1, padding=(0, 2, 4), negatives=(-2, -7), padded_with=np.nan)
    update = present_update(problem, MOST, pool)
    indices = update.call.tensors["state_indices"]
    padded = np.delete(np.arange(len(indices)), update.rows)
    assert set(indices[padded].tolist()) <= {-2, -7}
    assert len(padded) == 3
    for name in ("x", "dt", "B", "C"):
        assert np.isnan(update.call.tensors[name][padded].astype(np.float64)).all()
        assert (update.call.tensors[name][update.rows] == problem.inputs[name]).all()


@pytest.mark.parametrize("verb", ["selective_scan", "ssd_scan"])
def test_long_problems_do_not_drift(verb: str) -> None:
    """After thousands of tokens a state that keeps everything is still a number of a few bits."""
    case = relen(smallest_case(Scanned.claims, verb), [(3, 1), (5000, 1), (0, 1)])
    problem = without_drift(coded(case, Scanned.claims))
    assert np.abs(exactly(problem, Scanned.claims).state).max() <= 31 + 2 * LARGEST
    assert np.abs(exactly(coded(case, Scanned.claims), Scanned.claims).state).max() > 100


def test_shared_keys_are_asked_in_several_ratios() -> None:
    """Two of three, three of two, four of three: no wrong map of heads is right in all of them."""
    for verb in ("gated_delta_rule", "ssd_scan", "gated_delta_rule_update", "ssd_update"):
        ratios = {(case.num_kv_heads, case.group) for case in grouped(LEAST, verb, "quick")}
        assert {(2, 3), (3, 2), (4, 3)} <= ratios
        for keys, shared in ratios:
            heads = np.arange(keys * shared)
            assert ((heads % keys) != heads // shared).any()

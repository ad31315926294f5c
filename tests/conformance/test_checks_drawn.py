"""Drawn checks: honest subjects pass, faults of combinations are found, and a find can be replayed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvref.arrays import Array
from kvref_conformance.cases import Case
from kvref_conformance.checks import all_checks
from kvref_conformance.checks.drawn import any_claimed_combination_is_the_formula
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import ATTENDING
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.oracle import Oracle
from kvref_conformance.probes.drawn import VARIANTS, drawn_placement, drawn_problem, fuzz_cases
from kvref_conformance.runner.evaluate import Evidence, evaluate, plan
from kvref_conformance.subjects.reference import Reference
from kvref_conformance.subjects.tiled import Tiled

Failing = Callable[..., list[Evidence]]


class SinkOnlyWithoutAWindow(Reference):
    """Two kernels, of which the one for windows was never given sinks."""

    def paged_attention(self, q: Array, k_cache: Array, v_cache: Array, **rest: Any) -> Any:
        if rest.get("window") is not None:
            rest.pop("sinks", None)
        return super().paged_attention(q, k_cache, v_cache, **rest)


@pytest.mark.parametrize("subject", [Reference, Tiled])
def test_honest_subjects_pass_whatever_is_drawn(failing: Failing, subject: Any) -> None:
    """A find must be a fault, or nobody will look at the next one."""
    assert failing("drawn", subject) == []


def test_a_fault_of_a_combination_is_found(failing: Failing) -> None:
    """Each variant alone is right; the checks of single rules cannot see this."""
    claims = SinkOnlyWithoutAWindow.claims
    both = [
        case
        for case in fuzz_cases(claims, "paged_attention", range(64))
        if {"window", "sinks"} <= set(case.options)
    ]
    host, oracle = InProcessHost(SinkOnlyWithoutAWindow), Oracle(claims)
    found = [evaluate(any_claimed_combination_is_the_formula, case, host, oracle) for case in both[:4]]
    assert any(evidence.status == "fail" for evidence in found)
    assert failing("logits", SinkOnlyWithoutAWindow, "KV-ATTN-041", verbs=("paged_attention",)) == []


def test_drawn_checks_search_and_never_decide() -> None:
    """They are not in the rings that a verdict is made of."""
    planned = plan(ATTENDING, Reference.claims, "quick")
    assert all(check.ring != "fuzz" for check, _ in planned)
    assert any_claimed_combination_is_the_formula in all_checks()


def test_a_case_follows_from_its_seed_and_survives_a_file() -> None:
    """What was found on one machine must come back on another, from a few numbers."""
    one, same = (fuzz_cases(Reference.claims, "attention", range(20)) for _ in range(2))
    assert one == same
    for case in one:
        back = Case.from_dict(case.to_dict())
        assert back == case
        np.testing.assert_array_equal(drawn_problem(back).q, drawn_problem(case).q)


def test_only_what_is_claimed_is_drawn() -> None:
    """A subject is never asked for a variant, a shape or a poison that it has not claimed."""
    narrow = Claims(
        dtypes=("float16",),
        head_dims=(96,),
        block_sizes=(8,),
        features=("window",),
        choices={"dead-slots": "any_finite", "table-padding": "valid_block"},
    )
    for case in fuzz_cases(narrow, "paged_attention", range(60)):
        assert set(case.options) <= {"scale", "probe", "window"}
        assert (case.dtype, case.head_dim, case.block_size) == ("float16", 96, 8)
        assert all(n_q == 1 for n_q in case.query_lens)
        placement = drawn_placement(case, narrow)
        assert np.isfinite(placement.poison).all()
        assert placement.table_padding is None


def test_everything_that_is_claimed_is_drawn_together() -> None:
    """Every variant, and every two of them in one case, within a few hundred seeds."""
    names = {name for name, _ in VARIANTS.values()}
    drawn = [set(case.options) & names for case in fuzz_cases(Reference.claims, "attention", range(300))]
    assert all(any({one, other} <= some for some in drawn) for one in names for other in names)


def test_needles_that_another_variant_shares_are_not_exact() -> None:
    """A sink takes part of a needle's weight, so the answer there is a rounded one."""
    cases = fuzz_cases(Reference.claims, "attention", range(200))
    hunting = [case for case in cases if case.option("probe") == "needles"]
    for case in hunting:
        shared = {"softcap", "sinks", "alibi"} & set(case.options) or case.option("scale") < 0
        assert (drawn_problem(case).hunts is None) == bool(shared)
    assert any(drawn_problem(case).hunts is not None for case in hunting)


def test_a_smaller_case_is_still_a_problem() -> None:
    """Shrinking changes lengths and heads; what was drawn with them has to follow."""
    case = fuzz_cases(Reference.claims, "attention", [3])[0]
    for lens in ((5,), (1, 0), (0,)):
        small = replace(
            case, seq_lens=lens, query_lens=tuple(min(1, n) for n in lens), num_kv_heads=1, group=1
        )
        problem = drawn_problem(small)
        assert len(problem.k) == sum(lens)

"""Shrinking: the smallest input that breaks the same requirement, and no input that breaks another."""

from typing import Any

import numpy as np
import pytest

from kvref_conformance.cases import Case
from kvref_conformance.checks import all_checks
from kvref_conformance.checks.check import Check
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Answer, Call, Failed
from kvref_conformance.host import Hello
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.oracle import Oracle
from kvref_conformance.runner.honest import honest_under
from kvref_conformance.runner.shrink import BUDGET, BUDGETS, shrink
from kvref_conformance.subjects.tiled import Tiled

LARGE = Case(
    verb="paged_attention",
    seq_lens=(64, 35, 17),
    query_lens=(1, 18, 17),
    num_kv_heads=2,
    group=3,
    options={"window": 16},
)


class WideWindow(Tiled):
    """Keeps t − W as well."""

    def in_window(self, j: Any, t: Any, window: int) -> Any:
        """Inclusive on both ends."""
        return (j >= t - window) & (j <= t)


def window_check() -> Check:
    """Return the check of the window's edge."""
    return next(c for c in all_checks() if c.name == "window_holds_exactly_w_tokens")


class Counting:
    """A host that counts calls and fails them as it is told."""

    def __init__(self, kind: Any = None) -> None:
        self._inner = InProcessHost(WideWindow)
        self._kind = kind
        self.calls = 0

    def hello(self) -> Hello:
        return self._inner.hello()

    def call(self, call: Call) -> Answer:
        self.calls += 1
        if self._kind is not None:
            raise Failed(self._kind, "as told")
        return self._inner.call(call)

    def close(self) -> None:
        self._inner.close()


def test_a_wide_window_ends_at_one_request_one_head_and_one_token_too_many() -> None:
    """Nothing smaller can show it: W + 1 tokens, one of them outside the window."""
    host = InProcessHost(WideWindow)
    oracle = Oracle(WideWindow.claims)
    found = shrink(window_check(), LARGE, host, oracle, honest=honest_under(oracle))
    assert found.status == "fail"
    assert found.requirement == "KV-ATTN-021"
    assert found.case.seq_lens == (17,)
    assert found.case.query_lens == (1,)
    assert found.case.num_kv_heads == 1
    assert found.case.options == {"window": 16}
    assert found.call is not None
    assert found.answer is not None


def test_the_budget_bounds_the_calls() -> None:
    """A slow subject must not make a failing run last for hours."""
    host = Counting()
    shrink(window_check(), LARGE, host, Oracle(WideWindow.claims), budget=5)
    assert host.calls <= 6 * 2  # a check may call more than once


@pytest.mark.parametrize("kind", ["crash", "timeout"])
def test_an_answer_that_never_came_is_tried_a_few_times_only(kind: str) -> None:
    """Each crash costs a restart, each hang the whole timeout."""
    host = Counting(kind)
    found = shrink(window_check(), LARGE, host, Oracle(WideWindow.claims))
    assert found.failure == kind
    assert host.calls <= 1 + BUDGETS[kind] < BUDGET


def test_what_fails_no_more_is_said_to_pass() -> None:
    """A failure that does not come back is not made smaller, and not invented."""
    found = shrink(window_check(), LARGE, InProcessHost(Tiled), Oracle(Tiled.claims))
    assert found.status == "pass"


def test_an_input_that_an_honest_implementation_fails_is_no_find() -> None:
    """Outside its domain a check is wrong, not the subject."""
    host = InProcessHost(WideWindow)
    found = shrink(window_check(), LARGE, host, Oracle(WideWindow.claims), honest=lambda check, case: False)
    assert found.case == LARGE


def test_an_error_of_a_check_at_a_smaller_case_ends_nothing() -> None:
    """A check may need two requests; a case with one is simply not tried."""
    check = window_check()

    def fussy(trial: Any) -> None:
        if len(trial.case.seq_lens) < 3:
            raise IndexError("needs three requests")
        check.run(trial)

    made = Check(check.requirement, "fussy", "", fussy, check.cases, check.ring, check.verbs, check.features)
    found = shrink(made, LARGE, InProcessHost(WideWindow), Oracle(WideWindow.claims))
    assert len(found.case.seq_lens) == 3
    assert sum(found.case.seq_lens) < sum(LARGE.seq_lens)


def test_the_failing_call_is_the_one_that_was_judged() -> None:
    """Diagnosis and picture look at the tensors of the smallest case."""
    found = shrink(
        window_check(),
        LARGE,
        InProcessHost(WideWindow),
        Oracle(Claims.from_dict(InProcessHost(WideWindow).hello().claims)),
    )
    assert found.call is not None
    assert np.asarray(found.call.tensors["seq_lens"]).tolist() == list(found.case.seq_lens)

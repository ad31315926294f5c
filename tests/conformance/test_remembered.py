"""Tests of what the oracle remembers: each answer is found once, and memory has an end."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import kvref_conformance.oracle as oracle
from kvref.arrays import Array
from kvref_conformance.oracle import Oracle
from kvref_conformance.probes.scans_random import random_scan
from kvref_conformance.remembered import Remembered
from kvref_conformance.scan_cases import smallest_case
from kvref_conformance.subjects.scanned import Scanned


@dataclass(frozen=True)
class Answer:
    """One array of eight bytes a number."""

    x: Array


def of(count: int) -> Answer:
    """Return an answer of so many numbers."""
    return Answer(np.zeros(count))


def test_an_answer_is_found_once() -> None:
    """And it is the same object when it is asked again."""
    known: Remembered[Answer] = Remembered()
    first = known.answer(b"a", lambda: of(1))
    assert known.answer(b"a", lambda: pytest.fail("found a second time")) is first


def test_what_was_asked_longest_ago_is_forgotten() -> None:
    """Room for two: the one that was asked again stays, whenever it was found."""
    known: Remembered[Answer] = Remembered(room=2 * 80)
    for key in (b"a", b"b", b"a", b"c"):
        known.answer(key, lambda: of(10))
    assert len(known) == 2
    assert known.answer(b"a", lambda: of(99)).x.size == 10
    assert known.answer(b"b", lambda: of(9)).x.size == 9


def test_an_answer_that_is_too_large_is_not_kept_and_drives_nothing_out() -> None:
    """It would cost all others their place."""
    known: Remembered[Answer] = Remembered(room=1000, largest=100)
    known.answer(b"a", lambda: of(2))
    known.answer(b"b", lambda: of(100))
    assert len(known) == 1
    assert known.answer(b"a", lambda: of(99)).x.size == 2


def test_a_scan_is_solved_once_under_one_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another problem, rule or arithmetic has another answer; a subject of the same claims has not."""
    solved: list[Any] = []
    for rule in ("exactly", "within"):
        found = getattr(oracle, rule)
        monkeypatch.setattr(oracle, rule, lambda *a, f=found, **k: solved.append(a) or f(*a, **k))
    claims = Scanned.claims
    case = smallest_case(claims, "gated_delta_rule")
    problem = random_scan(case, claims)
    known = Oracle(claims)
    for asked in (known, replace(known, claims=replace(claims, name="another"))):
        asked.scan(problem)
        asked.scan_within(problem)
    assert len(solved) == 2
    known.scan_within(problem.with_inputs(v=problem.inputs["v"] + np.float32(1)))
    coarse = replace(claims, scan_arithmetic=replace(claims.scan_arithmetic, state="bfloat16"))
    replace(known, claims=coarse).scan_within(problem)
    assert len(solved) == 4

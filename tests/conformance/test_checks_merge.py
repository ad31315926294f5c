"""Checks of merging: the reference and every spelling pass, and each way to merge wrongly is seen."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvref.arrays import Array
from kvref_conformance.checks.merge import MEETINGS
from kvref_conformance.choices import CHOICES
from kvref_conformance.probes.states import random_states, read_state, spelled, state_cases
from kvref_conformance.runner.evaluate import Evidence
from kvref_conformance.subjects.reference import Reference

Failing = Callable[..., list[Evidence]]
LN_2 = np.log(2.0)


class Spelled(Reference):
    """The reference under another spelling of the lse, in and out."""

    def _in(self, lse: Array) -> Array:
        lse = lse.astype(np.float64)
        if self.claims.choice("empty-row-lse") == "+inf":
            lse = np.where(np.isposinf(lse), -np.inf, lse)
        return lse * LN_2 if self.claims.choice("lse-base") == "2" else lse

    def _out(self, lse: Array) -> Array:
        lse = lse.astype(np.float64)
        lse = lse / LN_2 if self.claims.choice("lse-base") == "2" else lse
        if self.claims.choice("empty-row-lse") == "+inf":
            lse = np.where(np.isneginf(lse), np.inf, lse)
        return lse.astype(np.float32)

    def merge_attention_states(self, out_a: Array, lse_a: Array, out_b: Array, lse_b: Array) -> Any:
        out, lse = super().merge_attention_states(out_a, self._in(lse_a), out_b, self._in(lse_b))
        return out, self._out(lse)

    def attention(self, q: Array, k: Array, v: Array, *, return_lse: bool = False, **rest: Any) -> Any:
        out, lse = super().attention(q, k, v, return_lse=True, **rest)
        return (out, self._out(lse)) if return_lse else out

    def paged_attention(self, q: Array, k: Array, v: Array, *, return_lse: bool = False, **rest: Any) -> Any:
        out, lse = super().paged_attention(q, k, v, return_lse=True, **rest)
        return (out, self._out(lse)) if return_lse else out

    def append_and_attend(self, *tensors: Array, return_lse: bool = False, **rest: Any) -> Any:
        out, lse = super().append_and_attend(*tensors, return_lse=True, **rest)
        return (out, self._out(lse)) if return_lse else out


class Unguarded(Reference):
    """The formula without a thought for −∞ − (−∞)."""

    def merge_attention_states(self, out_a: Array, lse_a: Array, out_b: Array, lse_b: Array) -> Any:
        with np.errstate(all="ignore"):
            peak = np.maximum(lse_a, lse_b)
            a, b = np.exp(lse_a - peak), np.exp(lse_b - peak)
            out = (a[..., None] * out_a + b[..., None] * out_b) / (a + b)[..., None]
            return out.astype(out_a.dtype), (peak + np.log(a + b)).astype(np.float32)


class FirstIsTheReference(Reference):
    """Subtracts lse_a, whichever is larger."""

    def merge_attention_states(self, out_a: Array, lse_a: Array, out_b: Array, lse_b: Array) -> Any:
        with np.errstate(all="ignore"):
            b = np.exp(lse_b - lse_a)
            out = (out_a + b[..., None] * out_b) / (1 + b)[..., None]
            return out.astype(out_a.dtype), (lse_a + np.log(1 + b)).astype(np.float32)


class OutputsByHalves(Reference):
    """Averages the outputs."""

    def merge_attention_states(self, out_a: Array, lse_a: Array, out_b: Array, lse_b: Array) -> Any:
        out, lse = super().merge_attention_states(out_a, lse_a, out_b, lse_b)
        both = ~np.isneginf(lse_a) & ~np.isneginf(lse_b)
        mean = ((out_a.astype(np.float64) + out_b) / 2).astype(out.dtype)
        return np.where(both[..., None], mean, out), lse


class TakesNatsForBits(Reference):
    """Merges natural logs as if they were to base 2."""

    def merge_attention_states(self, out_a: Array, lse_a: Array, out_b: Array, lse_b: Array) -> Any:
        out, lse = super().merge_attention_states(out_a, lse_a * LN_2, out_b, lse_b * LN_2)
        return out, (lse / LN_2).astype(np.float32)


class ForgetsItsFirstSplit(Reference):
    """Long contexts are read in two splits; the lse is that of the last one."""

    def attention(self, q: Array, k: Array, v: Array, *, return_lse: bool = False, **rest: Any) -> Any:
        out, lse = super().attention(q, k, v, return_lse=True, **rest)
        long = np.repeat(rest["seq_lens"] > 64, np.diff(rest["query_start_loc"]))
        lse = np.where(long[:, None], lse - np.float32(LN_2), lse)
        return (out, lse) if return_lse else out


def test_the_reference_merges_as_the_spec_says(failing: Failing) -> None:
    """A check that the reference fails would be a false alarm."""
    assert failing("merge", Reference) == []


@pytest.mark.parametrize(
    "choices",
    [
        {"lse-base": "2"},
        {"empty-row-lse": "+inf"},
        {"lse-base": "2", "empty-row-lse": "+inf"},
    ],
)
def test_a_declared_spelling_passes(failing: Failing, choices: dict[str, str]) -> None:
    """Whoever declares base 2 or +∞ is spoken to in base 2 or +∞, and held to it."""
    subject = type("Other", (Spelled,), {"claims": replace(Reference.claims, choices=choices)})
    assert failing("merge", subject) == []


def test_an_undeclared_base_fails(failing: Failing) -> None:
    """Base 2 without saying so gives weights that are wrong by a power."""

    class Silent(Spelled):
        def _in(self, lse: Array) -> Array:
            return lse.astype(np.float64) * LN_2

        def _out(self, lse: Array) -> Array:
            return (lse.astype(np.float64) / LN_2).astype(np.float32)

    assert failing("merge", Silent, "KV-ATTN-032")
    assert {e.check for e in failing("merge", Silent, "KV-ATTN-033")} == {
        "parts_of_a_context_merge_into_the_whole",
        "attention_is_the_merge_of_its_parts",
    }


@pytest.mark.parametrize(
    ("faulty", "requirement"),
    [
        (Unguarded, "KV-ATTN-031"),
        (FirstIsTheReference, "KV-ATTN-032"),
        (OutputsByHalves, "KV-ATTN-033"),
        (TakesNatsForBits, "KV-ATTN-033"),
        (ForgetsItsFirstSplit, "KV-ATTN-033"),
    ],
)
def test_a_faulty_merge_is_caught(failing: Failing, faulty: type[Reference], requirement: str) -> None:
    """One small fault, and the check of the rule it breaks sees it."""
    assert failing("merge", faulty, requirement)


def test_a_missing_guard_is_a_matter_of_the_empty_state_alone(failing: Failing) -> None:
    """Where both sides hold something the formula needs no guard, and no other rule may complain."""
    assert failing("merge", Unguarded, "KV-ATTN-032") == []
    assert failing("merge", Unguarded, "KV-ATTN-033") == []


@pytest.mark.parametrize("base", ["e", *CHOICES["lse-base"].alternatives])
@pytest.mark.parametrize("empty", ["-inf", *CHOICES["empty-row-lse"].alternatives])
def test_what_is_spelled_is_read_back(base: str, empty: str) -> None:
    """Speaking and listening must use the same spelling, or the suite would be its own fault."""
    claims = replace(Reference.claims, choices={"lse-base": base, "empty-row-lse": empty})
    case = state_cases(claims, "merge_attention_states", "quick")[0]
    state, _ = random_states(case, MEETINGS)
    back = read_state(*spelled(state, case, claims), claims)
    np.testing.assert_array_equal(np.isneginf(back.lse), np.isneginf(state.lse))
    np.testing.assert_allclose(back.lse, state.lse, rtol=2.0**-23)
    np.testing.assert_array_equal(back.out, state.out)

"""Checks of layouts: the reference passes in every pair, and moved or altered elements are seen."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvref.arrays import Array
from kvref.storage.layouts import LAYOUTS
from kvref_conformance.probes.caches import CodedCache, layout_cases
from kvref_conformance.runner.evaluate import Evidence
from kvref_conformance.subjects.reference import Reference

Failing = Callable[..., list[Evidence]]


class ThroughFloat32(Reference):
    """Copies through a wider format: signalling NaN codes come back quiet."""

    def convert_layout(self, cache: Array, **rest: Any) -> Array:
        clean = np.where(np.isnan(cache.astype(np.float32)), np.array(np.nan, cache.dtype), cache)
        return super().convert_layout(clean.astype(cache.dtype), **rest)


class HeadsInReverse(Reference):
    """Two wrong halves that undo each other: heads reversed on the way there and on the way back."""

    claims = replace(Reference.claims, layouts=("nhd", "hnd"))

    def convert_layout(self, cache: Array, *, source: str, **rest: Any) -> Array:
        axis = 2 if source == "nhd" else 1
        return super().convert_layout(np.flip(cache, axis).copy(), source=source, **rest)


class OtherPieces(Reference):
    """Splits channels into pieces of eight, whatever x is."""

    claims = replace(Reference.claims, layouts=("nhd", "x_split"), dtypes=("float32",))

    def convert_layout(self, cache: Array, *, source: str, target: str, x: int | None = None) -> Array:
        if target != "x_split":
            return super().convert_layout(cache, source=source, target=target)
        assert x is not None
        wrong = super().convert_layout(cache, source=source, target=target, x=8)
        blocks, heads, pieces, size, _ = wrong.shape
        return wrong.reshape(blocks, heads, pieces * 8 // x, size, x)


class DoesNotMove(Reference):
    """Reshapes where it should transpose."""

    claims = replace(Reference.claims, layouts=("nhd", "hnd"))

    def convert_layout(self, cache: Array, **rest: Any) -> Array:
        return cache.reshape(super().convert_layout(cache, **rest).shape)


@pytest.mark.parametrize("level", ["quick", "full"])
def test_the_reference_converts_as_the_spec_says(failing: Failing, level: str) -> None:
    """A check that the reference fails would be a false alarm."""
    assert failing("layouts", Reference, level=level) == []


@pytest.mark.parametrize(
    ("faulty", "requirement"),
    [
        (ThroughFloat32, "KV-ATTN-090"),
        (HeadsInReverse, "KV-ATTN-091"),
        (OtherPieces, "KV-ATTN-091"),
        (DoesNotMove, "KV-ATTN-091"),
    ],
)
def test_a_faulty_converter_is_caught(failing: Failing, faulty: type[Reference], requirement: str) -> None:
    """One small fault, and the check of the rule it breaks sees it."""
    assert failing("layouts", faulty, requirement)


def test_wrong_halves_that_undo_each_other_pass_the_round_trip(failing: Failing) -> None:
    """This is why there are two rules."""
    assert failing("layouts", HeadsInReverse, "KV-ATTN-090") == []


def test_every_pair_of_layouts_is_tried_at_level_full() -> None:
    """Pairs that hold the same, in both directions; and none that only a claimed feature allows."""
    cases = layout_cases(Reference.claims, "convert_layout", "full")
    single = [name for name in LAYOUTS if not LAYOUTS[name].holds_both]
    double = [name for name in LAYOUTS if LAYOUTS[name].holds_both]
    wanted = {(a, b) for some in (single, double) for a in some for b in some if a != b}
    assert {(case.option("source"), case.option("target")) for case in cases} == wanted
    plain = replace(Reference.claims, features=())
    for case in layout_cases(plain, "convert_layout", "full"):
        assert "x_split" not in (case.option("source"), case.option("target"))


def test_codes_are_all_different_and_include_nan() -> None:
    """An element that carries another's code could be swapped with it unseen."""
    case = layout_cases(replace(Reference.claims, dtypes=("bfloat16",)), "convert_layout", "quick")[0]
    cache = CodedCache.of(case).seen_as(case.option("source"))
    codes = cache.view(np.uint16)
    assert len(np.unique(codes)) == codes.size
    assert np.isnan(cache.astype(np.float32)).any()

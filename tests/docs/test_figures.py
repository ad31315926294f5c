"""The figures about tolerances show what their captions say."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed; it comes with kvref[docs]")
FIGURES = Path(__file__).resolve().parents[2] / "docs" / "_figures"


@pytest.fixture(autouse=True)
def _figures_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(FIGURES), *sys.path])


def test_only_the_bound_on_made_inputs_makes_no_mistake() -> None:
    """The README and the front page say which rule accepts what; these are the counts."""
    import tolerances

    wrong = {
        (family, rule.replace("\n", " ")): tolerances.errors(family, rule)
        for family in ("random inputs", "the suite's inputs")
        for rule in tolerances.RULES
    }
    assert wrong["the suite's inputs", "derived bound"] == []
    assert len(wrong["random inputs", "allclose 1e-2"]) == 13
    assert len([fault for fault in tolerances.KERNELS if not fault.correct]) == 14
    assert all(name.startswith("correct") for name in wrong["the suite's inputs", "allclose 1e-3"])
    assert wrong["the suite's inputs", "allclose 1e-3"] != []


def test_bound_holds_at_every_length_and_random_inputs_hide_faults() -> None:
    """The correct kernel stays below 1; on needles each fault stays above it, on random inputs not."""
    import error_over_context

    found = error_over_context.shares()
    for (family, name), shares in found.items():
        if name.startswith("correct"):
            assert max(shares) <= 1
        elif family == "needles":
            assert min(shares) > 1
        else:
            assert shares[-1] < 1

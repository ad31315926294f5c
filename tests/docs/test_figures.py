"""The figures show what their captions say."""

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


def test_floats_keep_a_share_and_integers_a_step() -> None:
    """The pictures of elements: below the dashed line over the normal numbers, 1 below the smallest."""
    import element_error

    for element, powers in (("e4m3fn", 14.5), ("e5m2", 29.5), ("e2m1", 2.5)):
        shares, found = element_error.errors(element)
        normal = (shares <= 1) & (shares >= 2.0**-powers)
        assert found[normal].max() < element_error.unit(element)
        assert found[0] == 1
    shares, found = element_error.errors("int8")
    assert found[shares < 0.49 / 127].min() == 1
    assert element_error.unit("int8") is None


def test_scales_that_do_not_fit() -> None:
    """Too small a scale harms every format; too large a one integers at once, E4M3 after ten powers of 2."""
    import given_scales

    at = {power: place for place, power in enumerate(given_scales.POWERS)}
    for name in given_scales.SHOWN:
        found = given_scales.errors(name)
        assert found[at[-4]] > 10 * found[at[0]]
    assert given_scales.errors("fp8_e4m3")[at[10]] < 1.01 * given_scales.errors("fp8_e4m3")[at[0]]
    assert given_scales.errors("fp8_e5m2")[at[16]] < 1.01 * given_scales.errors("fp8_e5m2")[at[0]]
    assert given_scales.errors("int8")[at[1]] > 1.9 * given_scales.errors("int8")[at[0]]


def test_rules_of_shared_exponents_part_where_the_page_says() -> None:
    """Near the end of the octave `floor` cuts; in the first half `ceil` pays with a bit."""
    import shared_exponents

    found = {rule: shared_exponents.errors("mxfp4", rule) for rule in shared_exponents.RULES}
    assert found["floor"][-1] > 1.2 * found["rceil"][-1]
    assert found["ceil"][4] > 1.4 * found["floor"][4]
    wide = {rule: shared_exponents.errors("mxfp8_e4m3", rule) for rule in shared_exponents.RULES}
    assert wide["floor"][-1] > wide["rceil"][-1]
    assert abs(wide["floor"][0] - wide["rceil"][0]) < 1e-12


def test_global_scales_are_good_over_a_wide_range() -> None:
    """Both usual rules lie on the flat part; below it groups saturate."""
    import global_scales

    found = global_scales.errors(global_scales.CANONICAL)
    at = {power: place for place, power in enumerate(global_scales.POWERS)}
    assert found[at[12]] < 1.02 * found[at[0]]
    assert found[at[-3]] > 5 * found[at[0]]


def test_keys_with_outliers_want_groups_of_tokens() -> None:
    """A few large channels set the step of all others, unless each channel has its own."""
    import numpy as np
    import outlier_channels

    others = [c for c in range(outlier_channels.HEAD_DIM) if c not in outlier_channels.OUTLIERS]
    found = {name: np.mean(outlier_channels.errors(name)[others]) for name in outlier_channels.SHOWN}
    assert found["int4_token_head"] > 4 * found["kivi_k4"]
    assert found["kivi_v4"] > 2 * found["kivi_k4"]


def test_every_format_is_in_the_overview() -> None:
    """The picture at the top of the pages has a row for each."""
    import loss_over_bits

    from kvref.formats.format import FORMATS

    assert set(loss_over_bits.losses()) == set(FORMATS)


def test_the_hit_curve_says_what_its_page_says() -> None:
    """Between 37 and 40 percent at the end; engines on the curve of full blocks, or a little below."""
    import hit_curve

    ends = {}
    for name, (counting, by_token, _) in hit_curve.CURVES.items():
        capacities, shares = hit_curve.curve(counting, by_token)
        ends[name] = shares[-1]
        if name == "of full blocks":
            for engine in hit_curve.ENGINES:
                for capacity, share in zip(hit_curve.CAPACITIES, hit_curve.replayed(engine), strict=True):
                    best = shares[capacities.searchsorted(capacity, side="right") - 1]
                    assert best - 0.002 < share <= best
    assert 0.366 < min(ends.values()) < max(ends.values()) < 0.4


def test_states_cost_short_requests_and_save_long_ones() -> None:
    """The caption of the sizes: a hybrid starts above a model of many layers that attend, and ends below."""
    import bytes_over_context

    dense, hybrid = (bytes_over_context.sizes(name) for name in ("Llama-3.1-70B", "Kimi-K3"))
    assert hybrid[0] > dense[0]
    assert hybrid[-1] < dense[-1]
    assert all(list(s) == sorted(s) for s in map(bytes_over_context.sizes, bytes_over_context.MODELS))

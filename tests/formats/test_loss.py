"""What a format may lose: a bound that no writer of any path exceeds, and that some numbers reach."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvref.arrays import Array, narrow
from kvref.errors import ShapeError
from kvref.formats.elements import ELEMENTS, IntElement, largest, values
from kvref.formats.format import FORMATS, Format, Quantized
from kvref.formats.lines import line_of
from kvref.formats.loss import loss_bound, loss_of_codes
from kvref.formats.paths import CANONICAL, PATHS, Path
from kvref.formats.scaled import acceptable, dequantize, quantize
from kvref_conformance.families import FAMILIES, draw

HEADS, HEAD_DIM, TOKENS = 2, 128, 32
#: The decisions that a number of a family depends on.
DECISIONS = {
    "amax": (
        *("e4m3_overflow", "e5m2_overflow", "fnuz_overflow", "scale_division", "tensor_scale"),
        *("scale_floor", "scale_power", "int_ties", "int8_lowest"),
    ),
    "mx": (*("mx_scale", "mx_exponent", "mx_zero_group", "mx_smallest_divisor", "e2m1_ties", "scale_axis"),),
    "nvfp4": (
        *("nvfp4_operand", "nvfp4_global", "nvfp4_division", "nvfp4_scale_floor", "nvfp4_tiny_group"),
        *("nvfp4_largest", "e2m1_ties", "scale_axis", "scale_division"),
    ),
    "affine": ("scale_division", "int_ties", "int8_lowest", "multiply_add"),
    "ggml": ("q8_0_reciprocal", "multiply_add", "int_ties", "mx_exponent"),
}


def hard_numbers(dtype: str) -> Array:
    """Families after one another, then zeros, constants, one-sided rows, and every size there is."""
    rng = np.random.default_rng(7)
    parts = []
    for index, family in enumerate(FAMILIES):
        drawn = draw(family, n=TOKENS, head_dim=HEAD_DIM, dtype="float32", seed=1, heads=(HEADS, HEADS))
        parts.append(drawn.k if index % 2 else drawn.v)
    special = rng.normal(size=(TOKENS, HEADS, HEAD_DIM))
    special[3], special[5, :, :40], special[7] = 0.0, 0.0, special[7] + 10
    special[9], special[11], special[13] = (
        special[9] / 10 - 10,
        5.0,
        special[13] * 2.0 ** rng.integers(-20, 1, HEAD_DIM),
    )
    sizes = 10.0 ** rng.uniform(-45, 38, (3 * TOKENS, HEADS, 1))
    parts += [special, sizes * rng.uniform(-1, 1, (3 * TOKENS, HEADS, HEAD_DIM))]
    return finite(np.concatenate(parts), dtype)


def finite(x: Array, dtype: str) -> Array:
    """Numbers of a dtype, none of them infinite."""
    limit = 6e4 if dtype == "float16" else 3e38
    return narrow(np.clip(x.astype(np.float64), -limit, limit), np.dtype(dtype))


def fitting(x: Array, format: Format) -> Array:
    """Numbers that the format takes: integers refuse what has no scale, or a scale past its own dtype."""
    if not isinstance(ELEMENTS[format.element], IntElement):
        return x
    limit = 3e4 if format.family == "affine" else 3e38
    wide = np.clip(x.astype(np.float64), -limit, limit)
    return finite(np.where(np.abs(wide) < 1e-30, 0.0, wide), x.dtype.name)


def paths(format: Format) -> Iterator[Path]:
    """The canonical path and those that differ from it in one answer."""
    yield CANONICAL
    for name in DECISIONS[format.family]:
        for answer in PATHS[name][1:]:
            path = Path(**{name: answer})
            if not (path.scale_axis == "tokens" and format.global_scale == "token_head"):
                yield path


def givens(x: Array, format: Format, path: Path = CANONICAL) -> list[dict[str, Any]]:
    """Scales to be given: some that saturate, some that waste the range; none where none is asked for."""
    size = min(float(np.abs(x.astype(np.float64)).max()), 1e30)
    if format.group == "given":
        return [{"scales": np.array([size / 50, size / 3000], np.float32)}, {"scales": [0.37]}]
    if format.global_scale == "given":
        return [
            {"global_scale": np.array([1 / g if path.nvfp4_operand == "encode" else g], np.float32)}
            for g in (size / 2688, size / 20000 + 1e-30, 1.0)
        ]
    return [{}]


def within(error: Array, bound: Array) -> Array:
    """Where nothing can be said, NaN is within as well."""
    return (error <= bound) | np.isinf(bound)


def written(x: Array, format: Format, path: Path) -> Iterator[Quantized]:
    """Everything that a writer of the path may store."""
    for scales in givens(x, format, path):
        yield from acceptable(x, format, path=path, **scales)


class TestTrue:
    """No writer exceeds it, whatever its path."""

    @pytest.mark.parametrize("name", FORMATS)
    def test_no_number_loses_more_than_its_bound(self, name: str) -> None:
        """Every path of the format, on numbers of all sizes, some of them far past the end."""
        format = FORMATS[name]
        for path in paths(format):
            dtypes = ["float32"] if path.scale_division != "input" else ["float32", "bfloat16", "float16"]
            for x in (fitting(hard_numbers(dtype), format) for dtype in dtypes):
                for stored in written(x, format, path):
                    error = np.abs(dequantize(stored, format, path=path) - x.astype(np.float64))
                    of_codes = loss_of_codes(stored, format, path=path, dtype=x.dtype.name)
                    assert within(error, loss_bound(x, stored, format, path=path)).all(), path
                    assert within(error, of_codes).all(), path

    @settings(max_examples=200)
    @given(st.sampled_from(sorted(FORMATS)), st.data())
    def test_combined_decisions(self, name: str, data: st.DataObject) -> None:
        """Decisions meet in one path, and groups of any sizes in one tensor."""
        format = FORMATS[name]
        answers = {field: data.draw(st.sampled_from(PATHS[field])) for field in DECISIONS[format.family]}
        if format.global_scale == "token_head":
            answers["scale_axis"] = "channels"
        path, dtype = Path(**answers), data.draw(st.sampled_from(["float32", "bfloat16", "float16"]))
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
        sizes = 10.0 ** rng.uniform(-8, 4, (TOKENS, HEADS, 1)) * 2.0 ** rng.integers(-6, 1, HEAD_DIM)
        x = finite(sizes * rng.normal(size=(TOKENS, HEADS, HEAD_DIM)), dtype)
        for stored in written(x, format, path):
            error = np.abs(dequantize(stored, format, path=path) - x.astype(np.float64))
            assert within(error, loss_bound(x, stored, format, path=path)).all()
            assert within(error, loss_of_codes(stored, format, path=path, dtype=dtype)).all()

    @pytest.mark.parametrize("name", FORMATS)
    def test_a_wrong_code_exceeds_it(self, name: str) -> None:
        """The bound rests on scales and x alone: a code that is off by two steps is found out."""
        format = FORMATS[name]
        x = np.random.default_rng(3).normal(size=(TOKENS, HEADS, HEAD_DIM)).astype(np.float32)
        stored = quantize(x, format, **givens(x, format)[-1])
        numbers, line = dequantize(stored, format), line_of(stored, format)
        gap = np.diff(np.unique(values(format.element)[np.isfinite(values(format.element))]))
        wrong = numbers + 2 * np.abs(line.slope) * float(gap.max())
        assert (np.abs(wrong - x) > loss_bound(x, stored, format))[np.isfinite(wrong)].mean() > 0.9


class TestTight:
    """Some number loses it all."""

    @pytest.mark.parametrize("name", FORMATS)
    def test_numbers_reach_it(self, name: str) -> None:
        """Over many numbers the largest share of the bound is nearly 1, with x and without."""
        format = FORMATS[name]
        x = np.random.default_rng(5).normal(size=(512, HEADS, HEAD_DIM)).astype(np.float32)
        stored = quantize(x, format, **givens(x, format)[0])
        error = np.abs(dequantize(stored, format) - x)
        reached = error / loss_bound(x, stored, format)
        assert 0.98 < float(reached.max()) <= 1
        assert 0.9 < float((error / loss_of_codes(stored, format)).max()) <= 1

    def test_of_codes_is_never_below_what_x_tells(self) -> None:
        """Without x less is known: at a code's own number the gaps on both sides count."""
        for name, format in FORMATS.items():
            x = np.random.default_rng(6).normal(size=(TOKENS, HEADS, HEAD_DIM)).astype(np.float32)
            stored = quantize(x, format, **givens(x, format)[0])
            known = np.minimum(loss_bound(x, stored, format), np.abs(dequantize(stored, format) - x))
            assert (known <= loss_of_codes(stored, format)).all(), name


class TestMeaning:
    """What it says of single numbers, by hand."""

    @pytest.mark.parametrize(
        ("x", "lost"),
        [(1.0, 1 / 16), (1.9, 1 / 16), (2.0, 1 / 8), (0.0, 2.0**-10), (440.0, 16.0), (500.0, 52.0)],
    )
    def test_e4m3_under_the_scale_one(self, x: float, lost: float) -> None:
        """Half the gap, half the smallest number at zero, and past 448 what is cut off."""
        numbers = np.full((1, 1, 4), x, np.float32)
        stored = quantize(numbers, "fp8_e4m3", scales=[1.0])
        assert loss_bound(numbers, stored, "fp8_e4m3") == pytest.approx(lost, rel=1e-4)

    @pytest.mark.parametrize("name", ["fp8_e4m3", "int8", "fp8_e5m2"])
    def test_nothing_is_known_past_the_last_code_under_a_given_scale(self, name: str) -> None:
        """And something at every other code."""
        top = largest(FORMATS[name].element)
        numbers = np.array([2 * top, -2 * top, top / 2, 0.0], np.float32)[None, None]
        stored = quantize(numbers, name, scales=[1.0])
        assert np.isinf(loss_of_codes(stored, name)).tolist() == [[[True, True, False, False]]]

    def test_a_floor_scale_cuts_off_up_to_two_steps_of_mxfp4(self) -> None:
        """Under the OCP rule the largest of a group may lie at nearly 8 scales; the last code is 6."""
        numbers = np.zeros((1, 1, 32), np.float32)
        numbers[..., 0], numbers[..., 1] = np.nextafter(np.float32(8), np.float32(0)), 1.0
        stored = quantize(numbers, "mxfp4")
        lost = loss_of_codes(stored, "mxfp4")
        assert lost[0, 0, 0] == pytest.approx(2.0, rel=1e-4)
        assert lost[0, 0, 1] == pytest.approx(0.25, rel=1e-4)

    def test_overflow_to_nan_leaves_nothing_to_say(self) -> None:
        """A path that answers with NaN past 464 has an infinite bound there, and only there."""
        numbers = np.array([463.0, 465.0], np.float32)[None, None]
        path = Path(e4m3_overflow="nan")
        stored = quantize(numbers, "fp8_e4m3", scales=[1.0], path=path)
        assert np.isinf(loss_bound(numbers, stored, "fp8_e4m3", path=path)).tolist() == [[[False, True]]]

    def test_a_vanished_group_loses_its_numbers(self) -> None:
        """A scale that rounded to zero: what was there is lost, and it was at most this much."""
        numbers = np.full((1, 1, 32), 2.0**-11, np.float32)
        numbers[..., 16:] = 1.0
        stored = quantize(numbers, "nvfp4", global_scale=[1.0])
        assert loss_bound(numbers, stored, "nvfp4")[0, 0, 0] == 2.0**-11
        assert loss_of_codes(stored, "nvfp4")[0, 0, 0] == pytest.approx(6 * 2.0**-10, rel=0.02)

    def test_nan_and_infinity_have_no_bound(self) -> None:
        """Neither in x nor in a scale."""
        numbers = np.array([np.nan, np.inf, 1.0], np.float32)[None, None]
        stored = quantize(numbers, "fp8_e4m3", scales=[1.0])
        assert np.isinf(loss_bound(numbers, stored, "fp8_e4m3")).tolist() == [[[True, True, False]]]

    def test_x_of_another_shape_is_refused(self) -> None:
        """A bound for other numbers than those stored is no bound."""
        stored = quantize(np.ones((2, 1, 8), np.float32), "int8", scales=[1.0])
        with pytest.raises(ShapeError, match="x has shape"):
            loss_bound(np.ones((1, 1, 8), np.float32), stored, "int8")

    @pytest.mark.parametrize("name", FORMATS)
    def test_lines_read_every_code(self, name: str) -> None:
        """slope · element + offset is what `dequantize` says, whatever the family."""
        format = FORMATS[name]
        x = np.random.default_rng(8).normal(size=(TOKENS, HEADS, HEAD_DIM)).astype(np.float32)
        stored = quantize(x, format, **givens(x, format)[0])
        line = line_of(stored, format)
        c = (dequantize(stored, format) - line.offset) / line.slope
        table = np.unique(values(format.element)[np.isfinite(values(format.element))].astype(np.float64))
        if isinstance(ELEMENTS[format.element], IntElement):
            assert np.abs(c - np.rint(c)).max() < 1e-6
        nearest = table[np.abs(c[..., None] - table).argmin(-1)]
        assert np.abs(c - nearest).max() < 1e-6

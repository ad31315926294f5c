"""Steps of float32: each rounded to the nearest, a fused pair of them once."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.errors import DTypeError, FormatError
from kvref.formats.paths import Path
from kvref.formats.steps import float32_numbers, multiply_add, step, sum_to_float32

FUSED = Path(multiply_add="fused")

float32s = st.floats(-(2.0**60), 2.0**60, width=32)


def nearest_float32(exact: Fraction) -> np.float32:
    """Return the float32 nearest to a number, of two the even one, by looking at the candidates."""
    first = np.float32(float(exact))
    around = [np.nextafter(first, np.float32(-np.inf)), first, np.nextafter(first, np.float32(np.inf))]
    gaps = [abs(Fraction(float(candidate)) - exact) for candidate in around]
    best = [c for c, gap in zip(around, gaps, strict=True) if gap == min(gaps)]
    return min(best, key=lambda c: int(c.view(np.uint32)) & 1)


@given(float32s, float32s, float32s)
def test_a_fused_pair_is_rounded_once(a: float, b: float, c: float) -> None:
    """The exact product and sum, and one rounding to the nearest."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if abs(exact) < 2.0**-126:  # there, float32 is coarser than it is relative to the number
        return
    found = multiply_add(np.float32([a]), np.float32([b]), np.float32([c]), FUSED)[0]
    assert found == nearest_float32(exact)


@given(st.integers(2**23, 2**24 - 1), st.integers(-60, 60), st.sampled_from([-1, 0, 1]))
def test_a_sum_at_a_tie_is_not_rounded_twice(digits: int, low: int, side: int) -> None:
    """A number halfway between two float32 and a part too small for float64 to keep beside it."""
    middle = digits + 0.5
    small = side * 2.0 ** (low - 90)
    found = sum_to_float32(np.float64([middle]), np.float64([small]))[0]
    assert found == nearest_float32(Fraction(middle) + Fraction(small))


def test_separate_steps_are_each_rounded() -> None:
    """(1 + 2^-23) · (1 − 2^-23) − 1 is −2^-46, or 0 if the product was rounded first."""
    a, b = np.float32([1 + 2.0**-23]), np.float32([1 - 2.0**-23])
    assert multiply_add(a, b, np.float32(-1))[0] == 0
    assert multiply_add(a, b, np.float32(-1), FUSED)[0] == -(2.0**-46)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_step_in_a_short_dtype_is_rounded_to_it(dtype: str) -> None:
    """As torch computes: the operation in float32, then the dtype."""
    x = np.float32([1 / 3, 1e-3, 0.1])
    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    np.testing.assert_array_equal(step(x, dtype), x.astype(kind).astype(np.float32))
    np.testing.assert_array_equal(step(x, "float32"), x)
    with pytest.raises(DTypeError, match="dtype = 'float64'"):
        step(x, "float64")


def test_numbers_without_a_scale_are_refused() -> None:
    """One infinity makes the scale of its group infinite; the message says where it is."""
    with pytest.raises(FormatError, match=r"x\[1, 0\] is -inf"):
        float32_numbers(np.float32([[1, 2], [-np.inf, np.nan]]))
    with pytest.raises(DTypeError):
        float32_numbers(np.float64([1]))
    assert float32_numbers(np.float16([0.5])).dtype == np.float32

"""Elements: every code has the value its definition says, and nothing else is a code."""

import math

import ml_dtypes
import numpy as np
import pytest

from kvref.errors import DTypeError, FormatError
from kvref.formats.elements import ELEMENTS, FloatElement, decode, largest, value_of, values

#: Element -> the dtype of ml_dtypes that has the same codes.
ML_DTYPES = {
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e8m0": ml_dtypes.float8_e8m0fnu,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "int4": ml_dtypes.int4,
    "uint4": ml_dtypes.uint4,
    "uint2": ml_dtypes.uint2,
    "int8": np.int8,
    "uint8": np.uint8,
}


def all_codes(element: str) -> np.ndarray:
    """Every code of an element, in order."""
    return np.arange(2 ** ELEMENTS[element].bits, dtype=np.uint8)


@pytest.mark.parametrize("element", ELEMENTS)
def test_codes_have_the_values_of_another_library(element: str) -> None:
    """ml_dtypes and NumPy decode every code to the same number, NaN, infinity and sign of zero."""
    codes = all_codes(element)
    theirs = codes.view(ML_DTYPES[element]).astype(np.float32)
    ours = decode(codes, element)
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(np.signbit(ours[ours == 0]), np.signbit(theirs[theirs == 0]))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_codes_have_the_values_of_torch(name: str) -> None:
    """torch decodes every code to the same number."""
    torch = pytest.importorskip("torch")
    codes = np.arange(256, dtype=np.uint8)
    theirs = torch.from_numpy(codes).view(getattr(torch, name)).to(torch.float32).numpy()
    np.testing.assert_array_equal(decode(codes, name.removeprefix("float8_")), theirs)


@pytest.mark.parametrize("element", ELEMENTS)
def test_table_is_the_definition(element: str) -> None:
    """The array twin gives at every code what the scalar definition gives."""
    for code, value in enumerate(decode(all_codes(element), element)):
        expected = value_of(code, element)
        assert value == expected or (math.isnan(value) and math.isnan(expected))
        assert math.copysign(1, value) == math.copysign(1, expected)


@pytest.mark.parametrize(
    ("element", "top", "code", "smallest_normal", "smallest", "finite"),
    [
        ("e4m3fn", 448.0, 0x7E, 2.0**-6, 2.0**-9, 254),
        ("e5m2", 57344.0, 0x7B, 2.0**-14, 2.0**-16, 248),
        ("e4m3fnuz", 240.0, 0x7F, 2.0**-7, 2.0**-10, 255),
        ("e5m2fnuz", 57344.0, 0x7F, 2.0**-15, 2.0**-17, 255),
        ("e2m1", 6.0, 0x7, 1.0, 0.5, 16),
        ("e8m0", 2.0**127, 0xFE, 2.0**-127, 2.0**-127, 255),
    ],
)
def test_published_ranges(
    element: str, top: float, code: int, smallest_normal: float, smallest: float, finite: int
) -> None:
    """Largest and smallest numbers, and how many codes are numbers, are those of the OCP documents."""
    kind, table = ELEMENTS[element], values(element)
    assert isinstance(kind, FloatElement)
    assert largest(element) == top == table[code]
    assert smallest == table[table > 0].min()
    assert smallest_normal == value_of(0 if element == "e8m0" else 1 << kind.mantissa_bits, element)
    assert finite == np.isfinite(table).sum()


def test_fnuz_is_half_of_fn() -> None:
    """The same byte stands for half as much on the other flavour, for every finite number but −0."""
    fn, fnuz = values("e4m3fn"), values("e4m3fnuz")
    both = np.isfinite(fn) & (np.arange(256) != 0x80)
    np.testing.assert_array_equal(fn[both], 2 * fnuz[both])


def test_smallest_scale_is_subnormal_and_no_zero() -> None:
    """Byte 0 of E8M0 is 2^-127, which shifting the byte into an exponent field turns into zero."""
    assert decode(np.zeros(1, np.uint8), "e8m0").view(np.uint32) == 0x00400000


def test_any_shape_and_an_odd_count() -> None:
    """Codes are decoded two at a time; what is left over and how they lie makes no difference."""
    codes = np.arange(3 * 5 * 7, dtype=np.uint8).reshape(3, 5, 7)
    expected = np.array([value_of(int(c), "e4m3fn") for c in codes.ravel()], np.float32)
    np.testing.assert_array_equal(decode(codes, "e4m3fn").ravel(), expected)
    np.testing.assert_array_equal(decode(codes[:, ::2, ::3], "e4m3fn"), decode(codes, "e4m3fn")[:, ::2, ::3])
    assert decode(np.zeros((0, 4), np.uint8), "e5m2").shape == (0, 4)


def test_what_is_no_code_is_refused() -> None:
    """A byte a 4-bit element does not have, another dtype, no array, an unknown name."""
    with pytest.raises(FormatError, match="codes holds 0x10, expected codes of e2m1 up to 0x0f"):
        decode(np.array([3, 16], np.uint8), "e2m1")
    with pytest.raises(FormatError, match="codes has dtype int8, expected uint8"):
        decode(np.zeros(2, np.int8), "e4m3fn")
    with pytest.raises(DTypeError, match="codes is a list"):
        decode([1, 2], "e4m3fn")  # type: ignore[arg-type]  # what a caller may pass all the same
    with pytest.raises(FormatError, match="element = 'e4m3', expected one of e4m3fn"):
        decode(np.zeros(2, np.uint8), "e4m3")
    with pytest.raises(FormatError, match="code = 16, expected an integer from 0 to 15 for e2m1"):
        value_of(16, "e2m1")

"""Dialects: bytes keep their numbers on FNUZ hardware, or are refused."""

import numpy as np
import pytest

from kvref.errors import DTypeError, FormatError
from kvref.formats.dialects import FNUZ, from_fnuz, to_fnuz
from kvref.formats.elements import decode, values

ONE = np.ones(1, np.float32)
BYTES = np.arange(256, dtype=np.uint8)


@pytest.mark.parametrize("element", FNUZ)
def test_every_byte_that_goes_over_keeps_its_number(element: str) -> None:
    """Exhaustive: code · scale is the same, NaN stays NaN, and only −0 and NaN change their byte."""
    codes = BYTES[~np.isinf(values(element))]
    scales = np.array([0.37], np.float32)
    over, doubled = to_fnuz(codes, scales, element=element)
    before = decode(codes, element).astype(float) * scales[0]
    after = decode(over, FNUZ[element]).astype(float) * doubled[0]
    assert np.array_equal(before, after, equal_nan=True)
    kept = np.isfinite(before) & (codes != 0x80)
    assert (over == codes)[kept].all()
    assert (over[codes == 0x80] == 0x00).all()
    assert (over[np.isnan(before)] == 0x80).all()


@pytest.mark.parametrize("element", FNUZ)
def test_every_byte_that_comes_back_keeps_its_number(element: str) -> None:
    """Exhaustive, and the way there and back is the identity except for the sign of 0 and the bits of NaN."""
    codes = BYTES[np.isfinite(values(element)) | (BYTES == 0x80)]
    back, halved = from_fnuz(codes, np.array([0.74], np.float32), element=element)
    before = decode(codes, FNUZ[element]).astype(float) * np.float32(0.74)
    after = decode(back, element).astype(float) * halved[0]
    assert np.array_equal(before, after, equal_nan=True)
    again, scales = to_fnuz(back, halved, element=element)
    assert (again == codes).all()
    assert scales.tolist() == [np.float32(0.74)]


def test_fnuz_halves_every_finite_number() -> None:
    """All bytes finite and not zero in both, for both elements: the ratio is exactly 2."""
    for element, other in FNUZ.items():
        both = np.isfinite(values(element)) & np.isfinite(values(other)) & (values(element) != 0)
        assert both.sum() > 240
        assert (values(element)[both] == 2 * values(other)[both]).all()


@pytest.mark.parametrize(("element", "code"), [("e4m3fn", 0x7F), ("e4m3fn", 0xFF), ("e5m2", 0x7C)])
def test_a_number_of_fnuz_alone_does_not_come_back(element: str, code: int) -> None:
    """±240 has the byte that is NaN elsewhere: read as the other dialect it poisons a whole row."""
    with pytest.raises(
        FormatError, match=rf"codes holds {code:#04x}, a number of {FNUZ[element]} that {element}"
    ):
        from_fnuz(np.array([1, code], np.uint8), ONE, element=element)


def test_what_cannot_go_over_is_refused() -> None:
    """An infinity, a scale without its double or its half, an element without a twin, numbers for codes."""
    with pytest.raises(FormatError, match=r"codes holds infinities of e5m2 \(0xfc\)"):
        to_fnuz(np.array([0xFC], np.uint8), ONE, element="e5m2")
    with pytest.raises(FormatError, match=r"scales holds 3.*e\+38, of which float32 has not 2.0 times"):
        to_fnuz(BYTES, np.array([1, 3e38], np.float32), element="e4m3fn")
    smallest = np.array([2.0**-149], np.float32)
    with pytest.raises(FormatError, match=r"of which float32 has not 0.5 times"):
        from_fnuz(np.array([1], np.uint8), smallest, element="e4m3fn")
    with pytest.raises(FormatError, match="element = 'e4m3fnuz', expected one of e4m3fn, e5m2"):
        to_fnuz(BYTES, ONE, element="e4m3fnuz")
    with pytest.raises(FormatError, match="codes has dtype int8"):
        to_fnuz(BYTES.view(np.int8), ONE, element="e4m3fn")
    with pytest.raises(FormatError, match="scales has dtype float64, expected float32"):
        to_fnuz(BYTES, np.ones(1), element="e4m3fn")
    with pytest.raises(DTypeError, match="scales is a float"):
        to_fnuz(BYTES, 1.0, element="e4m3fn")  # type: ignore[arg-type]


def test_nan_and_infinite_scales_stay_as_they_are() -> None:
    """They are wrong before and after; the codes are not to blame."""
    scales = np.array([np.nan, np.inf, 0.0], np.float32)
    assert np.array_equal(to_fnuz(BYTES, scales, element="e4m3fn")[1], scales, equal_nan=True)

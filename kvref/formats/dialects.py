"""Dialects: the same bytes on hardware whose 8-bit floats are FNUZ, and what cannot be carried over.

FNUZ has its bias one higher, so a byte that is a finite number in both stands for half as much there; its
only NaN is the byte that elsewhere is −0. A cache moves over by keeping its bytes, except those few, and
doubling its scales. Nothing in a byte says which dialect it is in: whoever reads one must be told.

Source: vLLM and FBGEMM (#4113) double the scales they load on such hardware; Noune et al. 2022 for FNUZ.
For porters: the refusals are the point. A byte that is NaN in one dialect is ±240 in the other.
"""

import numpy as np

from kvref.arrays import Array, check_array
from kvref.errors import FormatError, shown
from kvref.formats.elements import check_codes, values

#: Element -> its FNUZ twin, whose finite values are half as large.
FNUZ = {"e4m3fn": "e4m3fnuz", "e5m2": "e5m2fnuz"}


def to_fnuz(codes: Array, scales: Array, *, element: str) -> tuple[Array, Array]:
    """Return codes of an element's FNUZ twin, and the scales with which they stand for the same numbers.

    −0 becomes 0 and NaN of any sign becomes the only NaN; every other byte stays.
    Raises: FormatError if the element has no twin, a code is an infinity, or a scale has no double.
    """
    _check_element(element)
    check_codes("codes", codes, element)
    infinite = np.isinf(values(element))[codes]
    if infinite.any():
        raise FormatError(f"codes holds infinities of {element} ({_first(codes, infinite)}), FNUZ has none")
    nan = np.isnan(values(element))
    table = np.where(nan, 0x80, np.arange(256)).astype(np.uint8)
    table[0x80] = 0x00
    return table[codes], _times(scales, 2.0)


def from_fnuz(codes: Array, scales: Array, *, element: str) -> tuple[Array, Array]:
    """Return codes of `element` for codes of its FNUZ twin, and scales for the same numbers.

    NaN becomes the last code, 0x7F.
    Raises: FormatError if the element has no twin, a byte is a number only in FNUZ (its largest, which are
    NaN or an infinity elsewhere), or a scale has no half.
    """
    _check_element(element)
    check_codes("codes", codes, FNUZ[element])
    alone = ~np.isfinite(values(element)) & np.isfinite(values(FNUZ[element]))
    if alone[codes].any():
        raise FormatError(
            f"codes holds {_first(codes, alone[codes])}, a number of {FNUZ[element]} that {element} has not"
        )
    table = np.arange(256, dtype=np.uint8)
    table[0x80] = 0x7F
    return table[codes], _times(scales, 0.5)


def _check_element(element: str) -> None:
    if not isinstance(element, str) or element not in FNUZ:
        raise FormatError(f"element = {shown(element)}, expected one of {', '.join(FNUZ)}")


def _first(codes: Array, where: Array) -> str:
    return f"{int(codes[where].flat[0]):#04x}"


def _times(scales: Array, factor: float) -> Array:
    """Return float32 scales times a power of two, exactly."""
    check_array("scales", scales)
    if scales.dtype != np.float32:
        raise FormatError(f"scales has dtype {scales.dtype}, expected float32")
    with np.errstate(over="ignore", under="ignore"):
        changed: Array = (scales * np.float32(factor)).astype(np.float32)
        lost = np.isfinite(scales) & (changed / np.float32(factor) != scales)
    if lost.any():
        raise FormatError(f"scales holds {scales[lost].flat[0]}, of which float32 has not {factor} times")
    return changed

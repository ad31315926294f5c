"""Casts: a real number becomes a code in one rounding, and then by the path's word for what has no number.

The definition is a look at every number of the element: the nearest wins, a tie goes where the path says,
and the range counts as unlimited until the rounding is done. Only then does overflow have its say.

The array twin reads the answer from a table. Sixteen bits of a float32 are enough to know it, if the last
of them says whether anything was cut off (rounding to odd): every tie of these elements has at most six
significant bits, so no number that was cut off can be one. float16 and bfloat16 need no cut.

Realises: KV-FMT-002 nearest-even, KV-FMT-003 overflow-as-declared, KV-FMT-004 subnormals-kept,
KV-FMT-005 nan-as-declared, KV-FMT-006 sign-of-zero, KV-FMT-007 rounded-once,
KV-FMT-008 codes-are-fixed-points, KV-FMT-009 half-inputs-exhaustive, KV-FMT-010 float32-exhaustive.
For porters: build `code_of` and test the fast one against it at every midpoint and its neighbours.
Source: IEEE 754-2019, 4.3.1 (nearest, ties to even, overflow decided after rounding); Boldo and
Melquiond 2008 (rounding to odd).
"""

from fractions import Fraction
from functools import lru_cache
from math import copysign, isfinite, isinf, isnan
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, as_array, is_integer, is_real, to_odd_float32
from kvref.errors import ArgumentError, DTypeError, FormatError, shown
from kvref.formats.elements import CHUNK, FloatElement, IntElement, element_of, largest, values
from kvref.formats.integers import int_code, int_codes, refuse_nan
from kvref.formats.paths import CANONICAL, Path, check_path


def code_of(x: float | Fraction, element: str, path: Path = CANONICAL) -> int:
    """Return the code of a number, by definition.

    Raises: ArgumentError if `x` is no real number that a float, an integer or a Fraction holds exactly;
    FormatError if it is NaN and the element has none and the path refuses it, or there is no such element,
    or it is E8M0, whose casts are `kvref.formats.exponents`.
    """
    kind = element_of(element)
    check_path(path)
    x = _exact(x)
    if isinstance(kind, IntElement):
        return int_code(x, kind, path)
    _check_cast(kind)
    negative = copysign(1.0, x) < 0
    if isnan(x):
        return nan_codes(element, path)[negative]
    magnitudes = _exact_magnitudes(element)
    last = len(magnitudes) - 2
    if isinf(x):
        return _signed(overflow_code(element, path), negative, kind, path, nonzero=True)
    size = abs(Fraction(x))
    gaps = [abs(size - magnitude) for magnitude in magnitudes]
    least = min(gaps)
    nearest = [code for code, gap in enumerate(gaps) if gap == least]
    code = _of_tie(nearest, kind, path)
    code = overflow_code(element, path) if code > last else code
    return _signed(code, negative, kind, path, nonzero=x != 0)


def encode(x: ArrayLike, element: str, path: Path = CANONICAL) -> Array:
    """Return the codes of real numbers of any dtype, uint8 of the same shape.

    Raises: DTypeError if `x` does not hold real numbers; FormatError as `code_of`, naming the first NaN.
    """
    kind = element_of(element)
    check_path(path)
    numbers = as_array("x", x)
    if not is_real(numbers):
        raise DTypeError(f"x has dtype {numbers.dtype}, expected real numbers")
    if isinstance(kind, IntElement):
        return int_codes(numbers, kind, path)
    _check_cast(kind)
    if element == "e2m1" and path.e2m1_nan == "refuse":
        refuse_nan(numbers, element)
    if numbers.dtype.itemsize == 1:  # an 8-bit float is exact in float32, and so is its code
        numbers = numbers.astype(np.float32)
    if numbers.dtype == np.float64:
        numbers = to_odd_float32(numbers)
    flat = np.ascontiguousarray(numbers).reshape(-1)
    source = "bfloat16" if flat.dtype == np.float32 else flat.dtype.name
    table = _table(element, source, _relevant(kind, path))
    result = np.empty(flat.size, np.uint8)
    _look_up(flat, table, result)
    return result.reshape(numbers.shape)


def overflow_code(element: str, path: Path) -> int:
    """Return the code, without a sign, of what is past the largest number."""
    top = int(np.flatnonzero(values(element) == largest(element))[0])
    if element == "e4m3fn" and path.e4m3_overflow == "nan":
        return 0x7F
    if element == "e5m2" and path.e5m2_overflow == "inf":
        return 0x7C
    if element.endswith("fnuz") and path.fnuz_overflow == "nan":
        return 0x80
    return top


def nan_codes(element: str, path: Path) -> tuple[int, int]:
    """Return the codes of NaN and of NaN with its sign bit set.

    Raises: FormatError if the element has no NaN and the path refuses it.
    """
    if element == "e2m1":
        if path.e2m1_nan == "refuse":
            raise FormatError(
                f"x is NaN, expected a number: {element} has no NaN (KV-FMT-005 nan-as-declared)"
            )
        return {
            "largest": (0x7, 0x7),
            "zero": (0x0, 0x0),
            "negative_zero": (0x8, 0x8),
            "signed_zero": (0x0, 0x8),
            "flipped_zero": (0x8, 0x0),
        }[path.e2m1_nan]
    top = int(np.flatnonzero(values(element) == largest(element))[0])
    if path.fp8_nan.startswith("largest"):
        return top, top if path.fp8_nan == "largest_positive" else 0x80 | top
    if element.endswith("fnuz"):
        return 0x80, 0x80
    quiet = 0x7E if element == "e5m2" and path.fp8_nan == "quiet" else 0x7F
    plus = 0x80 | quiet if path.fp8_nan == "negative" else quiet
    return plus, quiet if path.fp8_nan == "positive" else 0x80 | quiet


def _exact(x: Any) -> float | Fraction:
    """Return one real number as Python holds it, NumPy's and ml_dtypes' own among them."""
    if isinstance(x, float):
        return x
    if isinstance(x, np.generic | np.ndarray) and x.ndim == 0 and _is_float(x):
        return float(x)
    whole = is_integer(x)
    number = Fraction(int(x)) if whole else x
    try:
        if isinstance(number, Fraction) and isfinite(number):
            return number
    except OverflowError:
        pass
    found = f"an integer of {int(x).bit_length()} bits" if whole else f"{x!r:.80}"
    raise ArgumentError(f"x = {found}, expected a real number within the range of float64")


def _is_float(x: Any) -> bool:
    """Say whether a scalar of NumPy is a floating-point number that float64 holds exactly."""
    try:
        bits = ml_dtypes.finfo(x.dtype).bits
    except ValueError:
        return False
    plain = type(x) is np.ndarray or isinstance(x, np.generic)  # and no mask
    return plain and x.dtype.kind != "c" and bits <= 64


def _check_cast(kind: FloatElement) -> None:
    if kind.special == "exponent":
        raise FormatError(
            f"element = {shown(kind.name)}, expected one with a sign; see kvref.formats.exponents"
        )


@lru_cache
def _magnitudes(element: str) -> Array:
    """Return the numbers from zero to the largest, and the one that would come next, float64."""
    kind = element_of(element)
    table = values(element)[: 2 ** (kind.bits - 1)]
    finite = table[np.isfinite(table)].astype(np.float64)
    return np.append(finite, 2 * finite[-1] - finite[-2])


@lru_cache
def _exact_magnitudes(element: str) -> tuple[Fraction, ...]:
    return tuple(Fraction(float(magnitude)) for magnitude in _magnitudes(element))


def _of_tie(nearest: list[int], kind: FloatElement, path: Path) -> int:
    """Choose between the codes on both sides of a tie; there is one where it is none."""
    ties = path.e2m1_ties if kind.name == "e2m1" else "even"
    if ties == "even":
        return min(nearest, key=lambda code: code % 2)
    return max(nearest) if ties == "away" else min(nearest)


def _signed(code: int, negative: bool, kind: FloatElement, path: Path, *, nonzero: bool) -> int:
    """Add the sign; of zero only where the element has two of them and the path keeps it."""
    if code == 0 and kind.special == "fnuz":
        return 0
    if code == 0:
        negative = _zero_is_negative(kind, path, negative, nonzero=nonzero)
    return code | (negative << (kind.bits - 1))


def _zero_is_negative(kind: FloatElement, path: Path, negative: bool, *, nonzero: bool) -> bool:
    """Say which zero is stored for a zero that was given, or for a number that was rounded to it."""
    answer = path.e2m1_zero if kind.name == "e2m1" else path.fp8_zero
    if answer == "negative" and not nonzero:
        return True
    return negative and (answer == "kept" or (answer != "dropped" and nonzero))


@lru_cache(maxsize=256)
def _relevant(kind: FloatElement, path: Path) -> Path:
    """Return a path with everything canonical that a cast to this element never asks about."""
    small = ("e2m1_nan", "e2m1_ties", "e2m1_zero")
    large = ("e4m3_overflow", "e5m2_overflow", "fnuz_overflow", "fp8_nan", "fp8_zero")
    asked = small if kind.name == "e2m1" else large
    return Path(**{name: getattr(path, name) for name in asked})


@lru_cache(maxsize=64)
def _table(element: str, source: str, path: Path) -> Array:
    """Return the code of every 16-bit number of a source dtype."""
    kind = element_of(element)
    assert isinstance(kind, FloatElement)
    dtype = ml_dtypes.bfloat16 if source == "bfloat16" else np.float16
    with np.errstate(invalid="ignore"):
        numbers = np.arange(2**16, dtype=np.uint16).view(dtype).astype(np.float64)
    magnitudes = _magnitudes(element)
    ties = (magnitudes[:-1] + magnitudes[1:]) / 2
    size, signed = np.abs(numbers), np.signbit(numbers)
    codes = np.searchsorted(ties, size, side="left")  # a tie falls to the lower code
    on_tie = ties[np.minimum(codes, len(ties) - 1)] == size
    up = codes % 2 == 1 if path.e2m1_ties == "even" else np.full(codes.shape, path.e2m1_ties == "away")
    codes = np.where(on_tie & up, codes + 1, codes)
    codes = np.where(codes > len(magnitudes) - 2, overflow_code(element, path), codes)
    negative = signed.copy()
    for nonzero in (False, True):
        for sign in (False, True):
            here = (codes == 0) & ((numbers != 0) == nonzero) & (signed == sign)
            negative[here] = kind.special != "fnuz" and _zero_is_negative(kind, path, sign, nonzero=nonzero)
    codes = codes | np.where(negative, 1 << (kind.bits - 1), 0)
    if not (element == "e2m1" and path.e2m1_nan == "refuse"):
        plus, minus = nan_codes(element, path)
        codes = np.where(np.isnan(numbers), np.where(signed, minus, plus), codes)
    return codes.astype(np.uint8)


def _look_up(flat: Array, table: Array, result: Array) -> None:
    """Look up codes in chunks, so that an index is still in the core's cache when the table is asked."""
    bits = flat.view(np.uint16 if flat.itemsize == 2 else np.uint32)
    index = _upper_half if flat.itemsize == 4 else np.asarray
    for start in range(0, flat.size, CHUNK):
        part = slice(start, start + CHUNK)
        np.take(table, index(bits[part]), out=result[part], mode="clip")  # needs no copy of `result`


def _upper_half(bits: Array) -> Array:
    """Return the upper halves of 32-bit words, the last bit set where the lower half is not zero.

    0xFFFF added to a lower half carries exactly then.
    """
    low = np.uint32(0xFFFF)
    halves: Array = (bits | ((bits & low) + low)) >> np.uint32(16)
    return halves

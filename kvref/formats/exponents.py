"""E8M0: a scale that is nothing but an exponent, and how a group of numbers comes to share one.

A byte b stands for 2^(b − 127); 0xFF is NaN; there is no zero, no sign, and byte 0 is 2^−127, which float32
holds as a subnormal number. A group's exponent follows from its largest magnitude by one of these rules:

    floor     ⌊log2 amax⌋ − emax                the OCP rule; what lies past the largest element saturates
    ceil      ⌈log2 amax⌉ − emax
    even      floor, of amax rounded to the element's mantissa first (a half rounds up)
    rceil     ⌈log2(amax / largest)⌉            the smallest scale under which nothing saturates
    nearest   log2(amax / largest) rounded
    even_one_bit   even, as if every element had one bit of mantissa

where emax is the exponent of the element's largest number. Exponents are read from the bits: the logarithm of
the number below a power of two rounds up to the power itself.

Realises: KV-FMT-030 shared-exponent-as-declared, KV-FMT-031 exponent-from-bits, KV-FMT-033 mx-zero-group,
KV-FMT-034 nan-group, KV-FMT-035 inf-group, KV-FMT-036 smallest-scale-is-no-zero, KV-FMT-037 nan-scale.
For porters: `floor` first; take the exponent field, never a logarithm.
Source: OCP Microscaling (MX) 1.0, 5.4 and 6.3; torchao's four scale modes; breccia for `nearest`.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, narrow, widen
from kvref.errors import FormatError
from kvref.formats.elements import FloatElement, decode, element_of, largest
from kvref.formats.paths import CANONICAL, Path

NAN = 0xFF
FLOAT32 = np.dtype(np.float32)
#: Argument of `cast` -> its words.
CAST_WORDS = {
    "rounding": ("nearest", "down", "up"),
    "zero": ("smallest", "nan"),
    "negative": ("magnitude", "nan"),
    "overflow": ("nan", "largest"),
}
#: The amax / largest that stands in for a smaller one where the path says so.
SMALLEST_RATIO = np.float32(1e-10)


def shared_exponent(
    amax: Array, element: str, path: Path = CANONICAL, dtype: np.dtype[Any] = FLOAT32
) -> Array:
    """Return the E8M0 byte of groups from their largest magnitudes, float32 >= 0 or NaN, of any shape.

    `dtype` is that of the numbers, in which some writers also take the logarithm.
    """
    least = SMALLEST_RATIO * np.float32(largest(element))
    size = np.maximum(amax, least) if path.mx_zero_group == "1e-10" else amax
    works = dtype if path.mx_exponent == "log2_input" else FLOAT32
    with np.errstate(divide="ignore", invalid="ignore"):
        if path.mx_exponent == "field" or path.mx_scale in ("even", "even_one_bit"):
            exponent = _by_bits(size, element, path.mx_scale)
        else:
            exponent = _by_logarithm(size, element, path.mx_scale, works)
        exponent = np.where(size == 0, -np.inf, exponent)
    byte = np.clip(np.where(np.isnan(amax), 0, exponent), -127, 127) + 127
    if path.mx_inf_group != "largest":
        byte = np.where(np.isinf(amax), NAN if path.mx_inf_group == "nan" else NAN - 1, byte)
    return np.where(np.isnan(amax), NAN, byte).astype(np.uint8)


def scale_of(exponents: Array) -> Array:
    """Return the scales that E8M0 bytes stand for, float32, exactly."""
    return decode(exponents, "e8m0")


def cast(
    x: ArrayLike,
    *,
    rounding: Literal["nearest", "down", "up"] = "nearest",
    zero: Literal["smallest", "nan"] = "smallest",
    negative: Literal["magnitude", "nan"] = "magnitude",
    overflow: Literal["nan", "largest"] = "nan",
) -> Array:
    """Return the E8M0 bytes of real numbers, each on its own, as libraries cast to that dtype.

    Halfway between two powers of two `nearest` takes the larger; zero, signs and what is past 2^127 go
    where the caller says. NaN is NaN.
    Raises: DTypeError if `x` does not hold real numbers; FormatError if a word is none of those listed.
    """
    for name, word in (
        ("rounding", rounding),
        ("zero", zero),
        ("negative", negative),
        ("overflow", overflow),
    ):
        _check_word(name, word)
    numbers = widen("x", x)
    size = np.abs(numbers)
    fraction, exponent = np.frexp(size)  # size = fraction · 2^exponent, fraction in [1/2, 1)
    down = exponent - 1
    step = {
        "down": np.zeros(size.shape, np.bool_),
        "up": fraction > 0.5,
        "nearest": fraction >= 0.75,
    }[rounding]
    wanted = np.where(size == 0, -127, down + step)
    past = NAN if overflow == "nan" else NAN - 1
    byte = np.where((wanted > 127) | np.isinf(size), past, np.clip(wanted, -127, 127) + 127)
    byte = np.where((size == 0) & (zero == "nan"), NAN, byte)
    byte = np.where((numbers < 0) & (negative == "nan"), NAN, byte)
    return np.where(np.isnan(numbers), NAN, byte).astype(np.uint8)


def _check_word(name: str, word: Any) -> None:
    if not isinstance(word, str) or word not in CAST_WORDS[name]:
        raise FormatError(f"{name} = {word!r:.80}, expected one of {', '.join(CAST_WORDS[name])}")


def _by_bits(amax: Array, element: str, rule: str) -> Array:
    """Return the exponents by the bits of amax."""
    if rule in ("rceil", "nearest"):
        fraction, exponent = np.frexp(amax.astype(np.float64) / largest(element))
        infinite = np.isinf(amax)
        over = fraction > 0.5 if rule == "rceil" else fraction**2 >= 0.5
        return np.where(infinite, 128, exponent - 1 + over)
    kind = element_of(element)
    assert isinstance(kind, FloatElement)
    bits = amax.view(np.uint32)
    if rule in ("even", "even_one_bit"):
        kept = kind.mantissa_bits if rule == "even" else 1
        bits = bits + np.uint32(1 << (22 - kept))  # half a step of that mantissa
    field = (bits >> np.uint32(23)).astype(np.int64) - 127
    if rule == "ceil":
        field = field + ((bits & np.uint32(0x7FFFFF)) != 0)
    return field - _emax(element)


def _by_logarithm(amax: Array, element: str, rule: str, works: np.dtype[Any]) -> Array:
    """Return the exponents by a logarithm rounded to `works`, as code that calls log2 does."""
    ratio = narrow(amax / np.float32(largest(element)), works) if rule in ("rceil", "nearest") else amax
    log = narrow(np.log2(ratio.astype(np.float64)), works).astype(np.float32)
    log = np.where(np.isinf(amax), 128.0, log)
    if rule in ("rceil", "nearest"):
        return np.asarray(np.ceil(log) if rule == "rceil" else np.rint(log))
    return np.asarray((np.floor(log) if rule == "floor" else np.ceil(log)) - _emax(element))


def _emax(element: str) -> int:
    """Return the exponent of an element's largest number."""
    return int(np.frexp(largest(element))[1]) - 1

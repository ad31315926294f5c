"""Casts: one rounding, then the path's word; held to the definition and to libraries, each under its path."""

import warnings
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.arrays import Array
from kvref.errors import DTypeError, FormatError
from kvref.formats.casts import code_of, encode
from kvref.formats.elements import ELEMENTS, FloatElement, decode, largest, value_of, values
from kvref.formats.paths import PATHS, Path

FLOATS = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e2m1")
INTEGERS = ("int8", "int4", "uint8", "uint4", "uint2")
#: The path each library takes, and how it casts.
ML_DTYPES = Path(
    e4m3_overflow="nan", e5m2_overflow="inf", fnuz_overflow="nan", fp8_nan="quiet", e2m1_nan="flipped_zero"
)
TORCH = Path(e5m2_overflow="inf", fnuz_overflow="nan")
OLD_TORCH = Path(e4m3_overflow="nan", e5m2_overflow="inf", fnuz_overflow="nan")
CUDA_HOST = Path(fp8_nan="positive")
HALVES = np.arange(2**16, dtype=np.uint16)
#: Answers that a cast to a float asks for.
ASKED = ("e4m3_overflow", "e5m2_overflow", "fnuz_overflow", "fp8_nan", "fp8_zero")
ASKED_E2M1 = ("e2m1_nan", "e2m1_ties", "e2m1_zero")

paths = st.fixed_dictionaries({name: st.sampled_from(PATHS[name]) for name in (*ASKED, *ASKED_E2M1)}).map(
    lambda answers: Path(**{**answers, "e2m1_nan": answers["e2m1_nan"].replace("refuse", "zero")})
)
bits = st.integers(0, 2**32 - 1).map(lambda b: np.array([b], np.uint32).view(np.float32))


def near_ties(element: str) -> Array:
    """Every number, every midpoint, the ends of the range, all with their float32 neighbours, both signs."""
    finite = np.unique(values(element)[np.isfinite(values(element))]).astype(np.float64)
    mids = (finite[:-1] + finite[1:]) / 2
    past = largest(element) * np.array([1 + 2.0**-5, 1 + 2.0**-4, 1 + 2.0**-3, 1.25, 2, 1e3])
    some = np.concatenate([finite, mids, past, [2.0**-149, 1e-40, 3e38, np.inf, 0.0]]).astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        around = np.concatenate(
            [some, np.nextafter(some, np.float32(np.inf)), np.nextafter(some, -np.float32(np.inf))]
        )
    return np.concatenate([around, -around, nans()])


def nans() -> Array:
    """NaN of both signs, quiet and signalling, with payloads in high and in low bits."""
    high = np.array([0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0x7FA00000, 0x7FC0FFFF, 0x7F80FFFF], np.uint32)
    return np.concatenate([high, high | np.uint32(0x80000000)]).view(np.float32)


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("path", [Path(), ML_DTYPES, Path(fp8_nan="largest", fp8_zero="dropped")])
def test_table_is_the_definition(element: str, path: Path) -> None:
    """At every tie, its neighbours and the ends of the range the twin gives what the definition gives."""
    some = near_ties(element)
    assert encode(some, element, path).tolist() == [code_of(float(x), element, path) for x in some]


@pytest.mark.parametrize("ties", PATHS["e2m1_ties"])
@pytest.mark.parametrize("zero", PATHS["e2m1_zero"])
def test_table_is_the_definition_for_e2m1(ties: str, zero: str) -> None:
    """Under each answer about ties and zeros as well."""
    path, some = Path(e2m1_ties=ties, e2m1_zero=zero), near_ties("e2m1")
    assert encode(some, "e2m1", path).tolist() == [code_of(float(x), "e2m1", path) for x in some]


@given(bits, st.sampled_from(FLOATS), paths)
def test_twins_agree_anywhere(x: Array, element: str, path: Path) -> None:
    """For any bits of float32 and any path."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert int(encode(x, element, path)[0]) == code_of(float(x[0]), element, path)


@given(st.floats(allow_nan=False), st.sampled_from(FLOATS))
def test_float64_is_rounded_once(x: float, element: str) -> None:
    """A float64 a hair past a tie goes to the far side of it, which a stop in float32 forgets."""
    assert int(encode(np.array([x]), element)[0]) == code_of(x, element)


@pytest.mark.parametrize("element", FLOATS)
def test_float64_just_past_a_tie(element: str) -> None:
    """The smallest step of float64 off every midpoint decides."""
    finite = np.unique(np.abs(values(element)[np.isfinite(values(element))])).astype(np.float64)
    mids = (finite[:-1] + finite[1:]) / 2
    codes = np.arange(len(finite))
    np.testing.assert_array_equal(encode(np.nextafter(mids, np.inf), element), codes[1:])
    np.testing.assert_array_equal(encode(np.nextafter(mids, 0), element), codes[:-1])


def _ml_dtypes(x: Array, element: str) -> Array:
    name = f"float4_{element}fn" if element == "e2m1" else f"float8_{element}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return x.astype(getattr(ml_dtypes, name)).view(np.uint8)


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_all_halves_as_ml_dtypes(element: str, dtype: type) -> None:
    """Every float16 and every bfloat16 gets the code another library gives it, under that library's path."""
    x = HALVES.view(dtype)
    np.testing.assert_array_equal(encode(x, element, ML_DTYPES), _ml_dtypes(x, element))


@pytest.mark.parametrize("element", FLOATS)
def test_float32_as_ml_dtypes(element: str) -> None:
    """Ties, their neighbours, and a million patterns of bits."""
    drawn = np.random.default_rng(1).integers(0, 2**32, 2**20, dtype=np.uint32).view(np.float32)
    x = np.concatenate([near_ties(element), drawn])
    np.testing.assert_array_equal(encode(x, element, ML_DTYPES), _ml_dtypes(x, element))


@pytest.mark.parametrize("element", FLOATS[:4])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_as_torch(element: str, dtype: str) -> None:
    """torch saturates E4M3, and takes E5M2 to infinity and the FNUZ pair to NaN: one path, every code."""
    torch = pytest.importorskip("torch")
    x = near_ties(element) if dtype == "float32" else HALVES
    tensor = torch.from_numpy(x if dtype == "float32" else x.view(np.int16)).view(getattr(torch, dtype))
    theirs = tensor.to(getattr(torch, f"float8_{element}")).view(torch.uint8).numpy()
    ours = x if dtype == "float32" else x.view(np.float16 if dtype == "float16" else ml_dtypes.bfloat16)
    np.testing.assert_array_equal(encode(ours, element, TORCH), theirs)


def test_as_onnx() -> None:
    """The reference evaluator of ONNX saturates on request, to the same codes."""
    onnx = pytest.importorskip("onnx")
    from onnx.reference.ops.op_cast import cast_to

    x = near_ties("e4m3fn")
    x = x[~np.isnan(x)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = cast_to(x, onnx.TensorProto.FLOAT8E4M3FN, saturate=True).view(np.uint8)
    np.testing.assert_array_equal(encode(x, "e4m3fn"), theirs)


@pytest.mark.parametrize("element", FLOATS)
def test_codes_are_fixed_points(element: str) -> None:
    """The code of a code's number is that code, −0 included; of NaN, the path's NaN."""
    kind = ELEMENTS[element]
    codes = np.arange(2**kind.bits, dtype=np.uint8)
    numbers = decode(codes, element)
    again = encode(numbers, element, Path(e5m2_overflow="inf"))
    fine = ~np.isnan(numbers)
    np.testing.assert_array_equal(again[fine], codes[fine])
    assert np.isnan(decode(again[~fine], element)).all()


@pytest.mark.parametrize("element", FLOATS)
def test_order_is_kept_and_no_number_is_nearer(element: str) -> None:
    """Sorted numbers give sorted codes, and each is within half a gap."""
    x = np.sort(np.random.default_rng(3).normal(size=20000).astype(np.float32) * largest(element) / 3)
    back = decode(encode(x, element), element).astype(np.float64)
    assert (np.diff(back) >= 0).all()
    finite = np.unique(values(element)[np.isfinite(values(element))]).astype(np.float64)
    inside = np.abs(x) <= largest(element)
    nearest = np.abs(x[inside, None].astype(np.float64) - finite).min(axis=1)
    np.testing.assert_array_equal(np.abs(back - x)[inside], nearest)


def test_wrong_through_a_shorter_stop() -> None:
    """17 + 2^-7 lies past the tie at 17; through bfloat16 it lands on it and goes the other way."""
    x = np.array([17 + 2.0**-7], np.float32)
    once, twice = encode(x, "e4m3fn"), encode(x.astype(ml_dtypes.bfloat16), "e4m3fn")
    assert (value_of(int(once[0]), "e4m3fn"), value_of(int(twice[0]), "e4m3fn")) == (18.0, 16.0)


@pytest.mark.parametrize("element", INTEGERS)
@pytest.mark.parametrize("ties", PATHS["int_ties"])
def test_integers_are_the_definition(element: str, ties: str) -> None:
    """Halves, ends of the range, and infinities."""
    path = Path(int_ties=ties)
    some = np.concatenate(
        [np.arange(-300, 301) / 2, np.arange(-520, 521) / 4 + 1e-7, [np.inf, -np.inf, 1e30, -0.0]]
    ).astype(np.float32)
    assert encode(some, element, path).tolist() == [code_of(float(x), element, path) for x in some]


@pytest.mark.parametrize(
    ("ties", "to_int"),
    [
        ("even", np.rint),
        ("away", lambda x: np.trunc(x + np.copysign(0.5, x))),
        ("up", lambda x: np.floor(x + 0.5)),
    ],
)
def test_integers_by_the_book(ties: str, to_int: Callable[[Array], Array]) -> None:
    """Each rounding is the one NumPy or the textbook has, exact on multiples of an eighth."""
    x = np.arange(-1100, 1100) / 8
    expected = np.clip(to_int(x), -128, 127).astype(np.int8).view(np.uint8)
    np.testing.assert_array_equal(encode(x, "int8", Path(int_ties=ties)), expected)


def test_lowest_integer_is_the_path_s() -> None:
    """A symmetric writer never stores −128."""
    x = np.array([-500.0, -127.6, -127.5, 127.9])
    assert encode(x, "int8").view(np.int8).tolist() == [-128, -128, -128, 127]
    assert encode(x, "int8", Path(int8_lowest="-127")).view(np.int8).tolist() == [-127, -127, -127, 127]


@pytest.mark.parametrize(
    ("path", "plus", "minus"),
    [
        (Path(), 0x7F, 0xFF),
        (Path(fp8_nan="positive"), 0x7F, 0x7F),
        (Path(fp8_nan="largest"), 0x7E, 0xFE),
    ],
)
def test_nan_is_the_path_s(path: Path, plus: int, minus: int) -> None:
    """NaN keeps its sign, loses it, or is lost."""
    codes = encode(nans(), "e4m3fn", path)
    assert set(codes[:6].tolist()) == {plus}
    assert set(codes[6:].tolist()) == {minus}


def test_nan_where_there_is_none_is_refused() -> None:
    """Integers have no NaN, and neither has E2M1 under the strict answer; the first one is named."""
    with pytest.raises(FormatError, match=r"x\[1\] is NaN, expected a number: int8 has no NaN"):
        encode(np.array([1.0, np.nan]), "int8")
    with pytest.raises(FormatError, match=r"x\[0, 1\] is NaN, expected a number: e2m1 has no NaN"):
        encode(np.array([[1.0, np.nan]], np.float32), "e2m1", Path(e2m1_nan="refuse"))
    with pytest.raises(FormatError, match="x is NaN"):
        code_of(float("nan"), "e2m1", Path(e2m1_nan="refuse"))


def test_what_cannot_be_cast_is_refused() -> None:
    """Integers in, a scale's element, an unknown element, an unknown answer."""
    with pytest.raises(DTypeError, match="x has dtype int64, expected real numbers"):
        encode(np.arange(3), "e4m3fn")
    with pytest.raises(FormatError, match="element = 'e8m0', expected one with a sign"):
        encode(np.ones(3), "e8m0")
    with pytest.raises(FormatError, match="element = 'fp8', expected one of"):
        encode(np.ones(3), "fp8")
    with pytest.raises(FormatError, match=r"path\.e4m3_overflow = 'clip', expected one of saturate, nan"):
        Path(e4m3_overflow="clip")
    with pytest.raises(FormatError, match="path holds 'overflow', expected names among e4m3_overflow"):
        Path.of({"overflow": "nan"})


def test_decisions_are_found_by_the_names_of_their_choices() -> None:
    """What a subject declares with hyphens is the same path."""
    assert Path.of({"e4m3-overflow": "nan"}) == Path.of({"e4m3_overflow": "nan"}) == Path(e4m3_overflow="nan")


@pytest.mark.parametrize("element", FLOATS)
def test_eight_bit_floats_are_inputs_too(element: str) -> None:
    """A number that is already in 8 bits is converted by its value, never by its byte."""
    given = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e5m2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(encode(given, element), encode(given.astype(np.float32), element))


def test_every_float_element_is_tested() -> None:
    """A new element joins these tests."""
    casts = {n for n, e in ELEMENTS.items() if isinstance(e, FloatElement) and e.special != "exponent"}
    assert casts == set(FLOATS)
    assert set(ELEMENTS) - casts - {"e8m0"} == set(INTEGERS)

"""The public edge: names of dtypes, exact widening, shape checks, raw files."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.arrays import (
    DTYPES,
    as_indices,
    check_count,
    check_flag,
    check_scalar,
    check_shape,
    check_word,
    dtype_name,
    dtype_of,
    narrow,
    read_raw,
    widen,
    write_raw,
)
from kvref.errors import ArgumentError, DTypeError, ShapeError

NARROW = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("name", NARROW)
def test_every_code_is_widened_exactly(name: str) -> None:
    """All codes of a narrow format come back from float64 and from float32 with the same bits."""
    kind = DTYPES[name]
    codes = np.arange(2 ** (8 * kind.itemsize), dtype=f"u{kind.itemsize}").view(kind)
    for wide in (np.float64, np.float32):
        with np.errstate(invalid="ignore"):
            back = widen("x", codes, wide).astype(kind)
        same = back.view(f"u{kind.itemsize}") == codes.view(f"u{kind.itemsize}")
        assert (same | np.isnan(widen("x", codes))).all()


@pytest.mark.parametrize("name", NARROW)
@given(st.data())
def test_narrowing_rounds_once(name: str, data: st.DataObject) -> None:
    """A hair off the middle of two neighbours goes to the nearer one, the middle itself to the even code."""
    kind = DTYPES[name]
    codes = np.arange(2 ** (8 * kind.itemsize - 1), dtype=f"u{kind.itemsize}")  # from 0 upwards
    finite = codes[np.isfinite(widen("x", codes.view(kind)))]
    below = data.draw(st.integers(0, len(finite) - 2))
    low, high = widen("x", finite[below : below + 2].view(kind))
    middle, even = (low + high) / 2, (low, high)[below % 2]
    given_numbers = np.array([low, np.nextafter(middle, low), middle, np.nextafter(middle, high), high])
    expected = np.array([low, low, even, high, high])
    np.testing.assert_array_equal(widen("x", narrow(given_numbers, kind)), expected)
    np.testing.assert_array_equal(widen("x", narrow(-given_numbers, kind)), -expected)


@pytest.mark.parametrize("dtype", [np.float16, np.int64, None, "junk", complex, ">f8"])
def test_arithmetic_is_float64_or_float32(dtype: object) -> None:
    """Anything else would compute with numbers the inputs do not have."""
    with pytest.raises(DTypeError, match="expected float64 or float32"):
        widen("x", np.zeros(2, np.float16), dtype)


@pytest.mark.parametrize("value", ["0.5", 1 + 0j, np.complex128(1), np.True_, True, [0.5], 10**400, None])
def test_what_only_looks_like_a_number_is_refused(value: object) -> None:
    """Text, truth values, complex and nested numbers are no scalars, whatever float() makes of them."""
    with pytest.raises(ArgumentError, match=r"x = .*, expected a finite number"):
        check_scalar("x", value)


@pytest.mark.parametrize("value", [2, 0.5, np.float32(0.5), np.array(0.5), DTYPES["bfloat16"].type(0.5)])
def test_any_real_scalar_is_a_number(value: object) -> None:
    """Python and NumPy scalars, 0-d arrays and the narrow formats."""
    assert check_scalar("x", value) in (0.5, 2.0)


def test_arguments_that_are_no_arrays_are_named() -> None:
    """Ragged lists, foreign objects and integers past int64 are refused by the name of the argument."""
    with pytest.raises(ShapeError, match="x holds rows of unequal length"):
        widen("x", [[1.0], [1.0, 2.0]])
    with pytest.raises(DTypeError, match="x is a list, expected a NumPy array"):
        check_shape("x", [1.0], ["n"])
    with pytest.raises(DTypeError, match="x holds 18446744073709551615, expected integers below"):
        as_indices("x", np.array([2**64 - 1], np.uint64), ["n"])
    with pytest.raises(ArgumentError, match="x = 9223372036854775808, expected an integer below"):
        check_count("x", 2**63)
    with pytest.raises(ArgumentError, match="x = 1, expected True or False"):
        check_flag("x", 1)


@pytest.mark.parametrize("name", DTYPES)
def test_names_and_dtypes_are_one_to_one(name: str) -> None:
    """A name gives a dtype and the dtype gives the name."""
    assert dtype_name(np.zeros(1, dtype_of(name))) == name


@given(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 4), max_size=3), st.integers(0, 9))
def test_raw_files_keep_every_bit(
    tmp_path_factory: pytest.TempPathFactory, name: str, shape: list, at: int
) -> None:
    """Written and read back, behind any offset, byte for byte; strided arrays are written in C order."""
    path: Path = tmp_path_factory.mktemp("raw") / "x.bin"
    rng = np.random.default_rng(len(shape))
    x = rng.integers(0, 2, [*shape, 2]).astype(DTYPES[name])[..., 0]
    write_raw(path, x)
    path.write_bytes(b"\xff" * at + path.read_bytes())
    back = read_raw(path, name, x.shape, offset=at)
    assert back.tobytes() == np.ascontiguousarray(x).tobytes()
    assert back.shape == x.shape


def test_short_file_is_refused(tmp_path: Path) -> None:
    """The message says how many elements there are and how many were expected."""
    write_raw(tmp_path / "x.bin", np.zeros(3, np.float32))
    with pytest.raises(ShapeError, match=r"x.bin holds 3 elements of float32, expected 4 for \[2, 2\]"):
        read_raw(tmp_path / "x.bin", "float32", (2, 2))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: dtype_of("bf16"), DTypeError, "dtype = 'bf16', expected one of float64"),
        (lambda: dtype_name(np.zeros(1, complex)), DTypeError, "dtype complex128"),
        (lambda: widen("q", [1, 2]), DTypeError, "q has dtype int64, expected real numbers"),
        (lambda: widen("q", [True]), DTypeError, "q has dtype bool"),
        (lambda: widen("q", ["a"]), DTypeError, "q has dtype <U1"),
        (
            lambda: check_shape("q", np.zeros(3), ["n", 2]),
            ShapeError,
            r"q has shape \[3\], expected \[n, 2\]",
        ),
        (lambda: as_indices("t", [1.5], ["n"]), DTypeError, "t has dtype float64, expected integers"),
        (lambda: as_indices("t", [True], ["n"]), DTypeError, "t has dtype bool, expected integers"),
        (lambda: check_scalar("scale", None), ArgumentError, "scale = None, expected a finite number"),
        (lambda: check_scalar("scale", True), ArgumentError, "scale = True, expected a finite number"),
        (
            lambda: check_scalar("softcap", -1, positive=True),
            ArgumentError,
            "softcap = -1, expected a finite pos",
        ),
        (lambda: check_count("window", "3"), ArgumentError, "window = '3', expected an integer >= 1"),
        (
            lambda: check_count("window", 10**5000),
            ArgumentError,
            "window = an integer of 16610 bits, expected",
        ),
        (lambda: check_flag("flag", 10**5000), ArgumentError, "flag = an integer of 16610 bits"),
        (lambda: check_scalar("scale", 10**5000), ArgumentError, "scale = an integer of 16610 bits"),
        (lambda: check_word("mode", 10**5000, ["a"]), ArgumentError, "mode = an integer of 16610 bits"),
        (
            lambda: check_word("mode", "b" * 99, ["a", "c"]),
            ArgumentError,
            r"mode = 'b+\.\.\.b+', expected one of a, c",
        ),
        (lambda: dtype_of(10**5000), DTypeError, "dtype = an integer of 16610 bits"),
    ],
)
def test_bad_input_is_named(call, error: type[Exception], message: str) -> None:
    """The argument, what was found, what was expected."""
    with pytest.raises(error, match=message):
        call()


def test_empty_lists_are_indices() -> None:
    """An empty Python list has no dtype of its own and is taken as integers."""
    assert as_indices("rows", [], ["num_rows"]).dtype == np.int64

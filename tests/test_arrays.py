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
    check_scalar,
    check_shape,
    dtype_name,
    dtype_of,
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
    ],
)
def test_bad_input_is_named(call, error: type[Exception], message: str) -> None:
    """The argument, what was found, what was expected."""
    with pytest.raises(error, match=message):
        call()


def test_empty_lists_are_indices() -> None:
    """An empty Python list has no dtype of its own and is taken as integers."""
    assert as_indices("rows", [], ["num_rows"]).dtype == np.int64

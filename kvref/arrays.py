"""Arrays at the public edge: dtype names, exact widening, correct narrowing, shape checks, raw tensor files.

For porters: `widen` and `narrow` are the only numerical acts here. Every reference function first widens its
inputs exactly, then computes; so two formats that store the same number give the same answer.
Source: IEEE 754-2019 for the binary formats; OCP OFP8 for the 8-bit ones, through ml_dtypes.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvref.errors import ArgumentError, DTypeError, ShapeError, shown

Array = NDArray[Any]

#: Every dtype kvref names, by the name used in claims, files and on the wire.
DTYPES: dict[str, np.dtype[Any]] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "int64": np.dtype(np.int64),
    "int32": np.dtype(np.int32),
    "uint8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LARGEST = np.iinfo(np.int64).max


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a kvref dtype name.

    Raises: DTypeError if the name is not one of `DTYPES`.
    """
    if not isinstance(name, str) or name not in DTYPES:
        raise DTypeError(f"dtype = {shown(name)}, expected one of {', '.join(DTYPES)}")
    return DTYPES[name]


def dtype_name(x: Array) -> str:
    """Return the kvref name of an array's dtype.

    Raises: DTypeError if kvref has no name for it.
    """
    if x.dtype not in _NAMES:
        raise DTypeError(f"an array has dtype {x.dtype}, expected one of {', '.join(DTYPES)}")
    return _NAMES[x.dtype]


def is_real(x: Array) -> bool:
    """Say whether an array holds real numbers of a format kvref knows."""
    return _NAMES.get(x.dtype, "").startswith(("float", "bfloat"))


def check_real(name: str, x: Array) -> None:
    """Check that an array holds real numbers.

    Raises: DTypeError.
    """
    if not is_real(x):
        raise DTypeError(f"{name} has dtype {x.dtype}, expected real numbers (float64 … float8_e5m2)")


def as_array(name: str, x: ArrayLike) -> Array:
    """Return anything array-like as a NumPy array.

    Raises: ShapeError if nested lists have no common shape; DTypeError if NumPy cannot read it at all, or if
    it has a mask, which NumPy would drop.
    """
    _refuse_masked(name, x)
    try:
        return np.asarray(x)
    except ValueError:
        raise ShapeError(f"{name} holds rows of unequal length, expected one shape") from None
    except (TypeError, RuntimeError) as error:  # a tensor on a device, or of a dtype NumPy does not have
        raise DTypeError(f"{name} is a {type(x).__name__}, expected an array NumPy reads ({error})") from None


def widen(name: str, x: ArrayLike, dtype: Any = np.float64) -> Array:
    """Return real numbers exactly as `dtype` (float64, or float32 for speed).

    Raises: DTypeError if `x` does not hold real numbers, or holds float64 where float32 is asked for, or
    `dtype` is neither of the two.
    """
    wanted = _working_dtype(dtype)
    array = as_array(name, x)
    check_real(name, array)
    if array.dtype.itemsize > wanted.itemsize:
        raise DTypeError(f"{name} has dtype {array.dtype}, which {wanted} cannot hold exactly")
    with np.errstate(invalid="ignore"):  # some NumPy casts call a signalling NaN invalid; it is kept as NaN
        return array.astype(wanted, copy=False)


def narrow(x: Array, dtype: Any) -> Array:
    """Return real numbers as a new array of `dtype`, rounded once, to nearest with ties to even.

    A number past the largest becomes infinity, or NaN where the format has no infinity (float8_e4m3fn).
    """
    wanted = np.dtype(dtype)
    if x.dtype == np.float64 and wanted not in (np.float64, np.float32, np.float16):
        x = to_odd_float32(x)  # ml_dtypes rounds by way of float32, which would round twice
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(wanted)


def check_shape(name: str, x: Array, shape: Sequence[int | str]) -> dict[str, int]:
    """Check rank and extents; an axis given by name may have any extent, and its extent is returned.

    Raises: ShapeError naming the argument, its shape, and the expected shape; DTypeError if it is no array.

    >>> check_shape("q", np.zeros((5, 8, 64)), ["num_tokens", "num_q_heads", 64])
    {'num_tokens': 5, 'num_q_heads': 8}
    """
    check_array(name, x)
    expected = "[" + ", ".join(str(axis) for axis in shape) + "]"
    if x.ndim != len(shape):
        raise ShapeError(f"{name} has shape {list(x.shape)}, expected {expected}")
    free = {axis: size for axis, size in zip(shape, x.shape, strict=True) if isinstance(axis, str)}
    if any(axis != size for axis, size in zip(shape, x.shape, strict=True) if not isinstance(axis, str)):
        raise ShapeError(f"{name} has shape {list(x.shape)}, expected {expected}")
    return free


def check_array(name: str, x: Any) -> None:
    """Check that an argument that is read or written in place is a NumPy array.

    Raises: DTypeError.
    """
    if not isinstance(x, np.ndarray):
        raise DTypeError(f"{name} is a {type(x).__name__}, expected a NumPy array")
    _refuse_masked(name, x)


def as_indices(name: str, x: ArrayLike, shape: Sequence[int | str]) -> Array:
    """Return an integer array as int64, its shape checked.

    Raises: DTypeError if it does not hold integers, or one past the range of int64; ShapeError as
    `check_shape`.
    """
    array = as_array(name, x)
    if array.size == 0 and array.dtype == np.float64:
        array = array.astype(np.int64)  # an empty Python list has no dtype of its own
    if not np.issubdtype(array.dtype, np.integer):
        raise DTypeError(f"{name} has dtype {array.dtype}, expected integers")
    check_shape(name, array, shape)
    if array.dtype == np.uint64 and (array > np.uint64(_LARGEST)).any():
        raise DTypeError(f"{name} holds {array.max()}, expected integers below 2^63")
    return array.astype(np.int64)


def check_scalar(name: str, value: Any, *, positive: bool = False) -> float:
    """Return a finite real scalar as a Python float.

    Raises: ArgumentError if it is not a number, not finite, or (where asked) not positive.
    """
    wanted = "a finite positive number" if positive else "a finite number"
    try:
        number = float(value) if _is_number(value) else np.nan
    except OverflowError:  # an integer past the range of float64
        number = np.nan
    if not np.isfinite(number) or (positive and number <= 0):
        raise ArgumentError(f"{name} = {shown(value)}, expected {wanted}")
    return number


def check_count(name: str, value: Any, *, minimum: int = 1) -> int:
    """Return an integer count as a Python int.

    Raises: ArgumentError if it is not an integer, below `minimum`, or past the range of int64.
    """
    if not is_integer(value) or value < minimum:
        raise ArgumentError(f"{name} = {shown(value)}, expected an integer >= {minimum}")
    if value > _LARGEST:
        raise ArgumentError(f"{name} = {shown(value)}, expected an integer below 2^63")
    return int(value)


def is_integer(value: Any) -> bool:
    """Say whether a value is one integer, Python's or NumPy's, and no truth value."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_index(value: Any, stop: int) -> bool:
    """Say whether a value is an integer from 0 to below `stop`."""
    return is_integer(value) and 0 <= int(value) < stop


def check_flag(name: str, value: Any) -> bool:
    """Return a truth value as a Python bool.

    Raises: ArgumentError if it is anything else, a number included.
    """
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(f"{name} = {shown(value)}, expected True or False")
    return bool(value)


def check_word(name: str, value: Any, words: Collection[str]) -> str:
    """Return one of the words that an argument may be.

    Raises: ArgumentError if it is anything else.
    """
    if not isinstance(value, str) or value not in words:
        raise ArgumentError(f"{name} = {shown(value)}, expected one of {', '.join(words)}")
    return value


def write_raw(path: Path, x: Array) -> None:
    """Write an array as raw little-endian C-order bytes, without a header."""
    np.ascontiguousarray(x).tofile(path)


def read_raw(path: Path, dtype: str, shape: Sequence[int], *, offset: int = 0) -> Array:
    """Read an array written by `write_raw`, `offset` bytes into the file.

    Raises: ShapeError if the file is too short; DTypeError if the dtype has no name.
    """
    kind = dtype_of(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    found = (path.stat().st_size - offset) // kind.itemsize
    if found < count:
        raise ShapeError(f"{path.name} holds {found} elements of {dtype}, expected {count} for {list(shape)}")
    return np.fromfile(path, dtype=kind, count=count, offset=offset).reshape(shape)


def _working_dtype(dtype: Any) -> np.dtype[Any]:
    try:
        wanted = np.dtype(object if dtype is None else dtype)
    except TypeError:
        wanted = np.dtype(object)
    if wanted not in (np.float64, np.float32):
        raise DTypeError(f"dtype = {shown(dtype)}, expected float64 or float32")
    return wanted


def _refuse_masked(name: str, x: Any) -> None:
    if type(x) is not np.ndarray and isinstance(x, np.ndarray) and hasattr(x, "mask"):
        raise DTypeError(f"{name} is a {type(x).__name__}, expected an array without a mask")


def _is_number(value: Any) -> bool:
    """Say whether a value is one real number, and neither a truth value nor text that reads as a number."""
    if isinstance(value, int | float | np.integer | np.floating):
        return not isinstance(value, bool)
    return isinstance(value, np.generic | np.ndarray) and value.ndim == 0 and is_real(np.asarray(value))


def to_odd_float32(x: Array) -> Array:
    """Round float64 to float32 towards zero and set the last bit of whatever was inexact.

    The odd bit remembers on which side of every shorter number x lies, so a second rounding comes out as if
    it had been the only one. Source: Boldo and Melquiond 2008.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        near = x.astype(np.float32)
    exact = near.astype(np.float64)
    code = near.view(np.uint32)
    code = np.where(np.abs(exact) > np.abs(x), code - 1, code)
    odd: Array = np.where((exact != x) & ~np.isnan(x), code | 1, code).astype(np.uint32)
    return odd.view(np.float32)

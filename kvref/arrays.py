"""Arrays at the public edge: dtype names, exact widening, shape checks, raw tensor files.

For porters: `widen` is the only numerical act here. Every reference function first widens its inputs
exactly, then computes; so two formats that store the same number give the same answer.
Source: IEEE 754-2019 for the binary formats; OCP OFP8 for the 8-bit ones, through ml_dtypes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvref.errors import ArgumentError, DTypeError, ShapeError

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


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a kvref dtype name.

    Raises: DTypeError if the name is not one of `DTYPES`.
    """
    if name not in DTYPES:
        raise DTypeError(f"dtype = {name!r}, expected one of {', '.join(DTYPES)}")
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


def widen(name: str, x: ArrayLike, dtype: Any = np.float64) -> Array:
    """Return real numbers exactly as `dtype` (float64, or float32 for speed).

    Raises: DTypeError if `x` does not hold real numbers, or holds float64 where float32 is asked for.
    """
    array = np.asarray(x)
    if not is_real(array):
        raise DTypeError(f"{name} has dtype {array.dtype}, expected real numbers (float64 … float8_e5m2)")
    if array.dtype.itemsize > np.dtype(dtype).itemsize:
        raise DTypeError(f"{name} has dtype {array.dtype}, which {np.dtype(dtype)} cannot hold exactly")
    with np.errstate(invalid="ignore"):  # some NumPy casts call a signalling NaN invalid; it is kept as NaN
        return array.astype(dtype, copy=False)


def check_shape(name: str, x: Array, shape: Sequence[int | str]) -> dict[str, int]:
    """Check rank and extents; an axis given by name may have any extent, and its extent is returned.

    Raises: ShapeError naming the argument, its shape, and the expected shape.

    >>> check_shape("q", np.zeros((5, 8, 64)), ["num_tokens", "num_q_heads", 64])
    {'num_tokens': 5, 'num_q_heads': 8}
    """
    expected = "[" + ", ".join(str(axis) for axis in shape) + "]"
    if x.ndim != len(shape):
        raise ShapeError(f"{name} has shape {list(x.shape)}, expected {expected}")
    free = {axis: size for axis, size in zip(shape, x.shape, strict=True) if isinstance(axis, str)}
    if any(axis != size for axis, size in zip(shape, x.shape, strict=True) if not isinstance(axis, str)):
        raise ShapeError(f"{name} has shape {list(x.shape)}, expected {expected}")
    return free


def as_indices(name: str, x: ArrayLike, shape: Sequence[int | str]) -> Array:
    """Return an integer array as int64, its shape checked.

    Raises: DTypeError if it does not hold integers; ShapeError as `check_shape`.
    """
    array = np.asarray(x)
    if array.size == 0 and array.dtype == np.float64:
        array = array.astype(np.int64)  # an empty Python list has no dtype of its own
    if not np.issubdtype(array.dtype, np.integer):
        raise DTypeError(f"{name} has dtype {array.dtype}, expected integers")
    check_shape(name, array, shape)
    return array.astype(np.int64)


def check_scalar(name: str, value: Any, *, positive: bool = False) -> float:
    """Return a finite real scalar as a Python float.

    Raises: ArgumentError if it is not a number, not finite, or (where asked) not positive.
    """
    wanted = "a finite positive number" if positive else "a finite number"
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name} = {value!r}, expected {wanted}") from None
    if not np.isfinite(number) or (positive and number <= 0) or isinstance(value, bool):
        raise ArgumentError(f"{name} = {value!r}, expected {wanted}")
    return number


def check_count(name: str, value: Any, *, minimum: int = 1) -> int:
    """Return an integer count as a Python int.

    Raises: ArgumentError if it is not an integer, or below `minimum`.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise ArgumentError(f"{name} = {value!r}, expected an integer >= {minimum}")
    return int(value)


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

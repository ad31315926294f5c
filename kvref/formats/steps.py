"""Steps of writers and readers: float32, one after the other, in the order an engine takes them.

A code at a tie hangs on the last bit of what was rounded before it. So the asymmetric formats and the blocks
of bytes are computed as engines compute them, each step rounded to float32, or to the dtype of the input
where an engine never leaves it. One step is two in some programs: a compiler may contract a product and the
sum after it into one operation (fused multiply-add), which rounds once.

Realises: KV-FMT-021 division-as-declared, KV-FMT-052 zero-point-rounding.
For porters: your language has these steps; what it needs is to be kept from contracting or reordering them.
Source: IEEE 754-2019, 5.4.1; for the exact error of a sum, Knuth 1969 (two-sum); Boldo and Melquiond 2008.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, dtype_of, narrow, widen
from kvref.errors import DTypeError, FormatError, shown
from kvref.formats.paths import CANONICAL, Path


def float32_numbers(x: Array) -> Array:
    """Return the numbers of a writer's input as float32, exactly, all of them finite.

    Raises: DTypeError if `x` holds no real numbers that float32 can hold; FormatError naming the first that
    is infinite or NaN.
    """
    numbers = widen("x", x, np.float32)
    found = ~np.isfinite(numbers)
    if found.any():
        at = [int(i) for i in np.argwhere(found)[0]]
        raise FormatError(f"x{at} is {numbers[tuple(at)]}, expected a finite number: its group has no scale")
    return numbers


def step(x: Array, dtype: str) -> Array:
    """Return the result of one operation as a program in `dtype` has it: rounded to it, held in float32.

    Raises: DTypeError if `dtype` is not float32, bfloat16 or float16.
    """
    if dtype not in ("float32", "bfloat16", "float16"):
        raise DTypeError(f"dtype = {shown(dtype)}, expected float32, bfloat16 or float16")
    if dtype == "float32":
        return np.asarray(x, np.float32)
    return narrow(x, dtype_of(dtype)).astype(np.float32)


def operation(over: np.ufunc, a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
    """Return a product or quotient as a program in `dtype` has it: operands rounded to it, then the result.

    Numbers come as float32. In float64 their product is exact, and their quotient so near that rounding it
    again is as if it had been exact.
    """
    if dtype == np.float32:
        return np.asarray(over(a, b))
    exact = over(*(narrow(x, dtype).astype(np.float64) for x in (a, b)))
    return narrow(exact, dtype)


def multiply_add(a: Array, b: Array, c: ArrayLike, path: Path = CANONICAL) -> Array:
    """Return a · b + c of float32 numbers in float32: rounded twice, or once where the path fuses them."""
    with np.errstate(over="ignore", invalid="ignore"):
        if path.multiply_add == "rounded":
            return np.asarray(a * b + np.asarray(c, np.float32), np.float32)
        product = np.asarray(a, np.float64) * b  # exact: twice 24 bits are fewer than 53
        return sum_to_float32(product, np.asarray(c, np.float64))


def sum_to_float32(a: Array, b: Array) -> Array:
    """Return the sum of float64 numbers in float32, rounded once.

    The float64 sum is made odd where it is inexact, so that rounding it again is as if it had been exact.
    """
    near = a + b
    other = near - a
    error = (a - (near - other)) + (b - other)
    even = near.view(np.uint64) & 1 == 0
    inexact = (error != 0) & np.isfinite(near)
    odd = np.where(inexact & even, np.nextafter(near, np.copysign(np.inf, error)), near)
    return odd.astype(np.float32)

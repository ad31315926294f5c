"""What rounding to a number format costs, and what many roundings in a row cost.

Every error bound of the package starts here: a rounded number is off by at most u·|x| + η, and N roundings in
a row move a number by at most γ_N of itself.

For porters: two formulas; the derivations that use them are in `spec/bounds.md`.
Source: IEEE 754-2019 (formats, subnormal numbers); Higham 2002, sections 2.1 and 3.1 (u and γ).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from kvref.arrays import Array, dtype_of
from kvref.errors import ArgumentError, DTypeError, shown


@dataclass(frozen=True)
class Format:
    """What rounding to a number format costs: |rounded − x| <= roundoff·|x| + underflow, up to `largest`."""

    roundoff: float
    underflow: float
    largest: float

    @staticmethod
    def of(dtype: str, rounding: str = "nearest") -> "Format":
        """Return the costs of a format; truncating costs a whole unit in the last place, not half of one.

        Formats with the exponent range of float32 may flush subnormal numbers to zero, as fast modes do, so
        their underflow is the smallest normal number; the narrow formats keep them.
        Raises: DTypeError if the name is not a real dtype.
        """
        if not isinstance(dtype, str) or not dtype.startswith(("float", "bfloat")):
            raise DTypeError(f"dtype = {shown(dtype)}, expected the name of a real dtype")
        return _costs(dtype, rounding == "truncate")

    def rounded(self, size: Array) -> Array:
        """Return how far a number of at most this size may move; infinity where the format overflows."""
        moved = self.roundoff * size + self.underflow
        return np.where(size + moved > self.largest, np.inf, moved)


@lru_cache
def _costs(dtype: str, truncating: bool) -> Format:
    info: Any = ml_dtypes.finfo(dtype_of(dtype))
    most = 2.0 if truncating else 1.0
    wide_range = float(info.smallest_normal) <= 2.0**-126
    underflow = float(info.smallest_normal) if wide_range else float(info.smallest_subnormal) / 2 * most
    return Format(2.0 ** -(int(info.nmant) + 1) * most, underflow, float(info.max))


def gamma(count: Array | float, roundoff: float) -> Array:
    """Return γ = N·u / (1 − N·u): `count` roundings in a row move a number by at most γ of itself.

    Infinity once N·u reaches 1: then nothing can be said any more.
    """
    total = np.asarray(count * roundoff, np.float64)
    return np.where(total < 1, total / np.where(total < 1, 1 - total, 1.0), np.inf)


def check_fields(record: Mapping[str, Any], kind: type) -> None:
    """Check that a flat record of an arithmetic names fields of its kind alone.

    Raises: ArgumentError.
    """
    known = [field.name for field in fields(kind)]
    unknown = sorted(set(record) - set(known), key=str)
    if unknown:
        raise ArgumentError(f"arithmetic has {shown(unknown[0])}, expected names among {', '.join(known)}")

"""What a writer returns, before codes are packed."""

from typing import NamedTuple

from kvref.arrays import Array


class Coded(NamedTuple):
    """Codes, one a byte, and what goes with them."""

    codes: Array
    scales: Array | None = None
    zeros: Array | None = None
    global_scale: Array | None = None

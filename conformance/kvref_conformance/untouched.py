"""Memory that reaches far and costs little: it is there once it is written.

Caches whose blocks lie 2^30 elements apart span gigabytes and hold a few blocks. The system is told not to
set memory aside for the rest, so that such a view fits a small machine.
"""

import mmap
import sys

import numpy as np

from kvref.arrays import Array

#: Below this many bytes an ordinary array serves.
LARGE = 2**28
#: `MAP_NORESERVE`, which Python names since 3.13 only.
_NO_RESERVE = {"linux": 0x4000, "darwin": 0x40}.get(sys.platform, 0)


def untouched(size: int) -> Array:
    """Return `size` bytes of zeros, none of them resident if there are many."""
    if size < LARGE:
        return np.zeros(size, np.uint8)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    return np.frombuffer(mmap.mmap(-1, size, flags), np.uint8)

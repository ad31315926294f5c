"""How libraries cast, as paths: what each does with numbers that have no code of their own.

A page draws its tables from here, and `tests/formats/test_published_tables.py` holds every path to what the
library was seen to return, and to the library itself where it is installed.
"""

from math import inf, nan
from typing import Any

from kvref.formats.paths import CANONICAL, Path

#: Element -> library -> its path.
CASTS: dict[str, dict[str, Path]] = {
    "e4m3fn": {
        "torch 2.13": CANONICAL,
        "torch up to 2.11": Path(e4m3_overflow="nan"),
        "ml_dtypes 0.6": Path(e4m3_overflow="nan"),
        "CUDA 12.9, SATFINITE": Path(fp8_nan="positive"),
        "CUDA 12.9, NOSAT": Path(e4m3_overflow="nan", fp8_nan="positive"),
        "onnx 1.23, saturate": Path(fp8_nan="positive"),
    },
    "e5m2": {
        "torch 2.13": Path(e5m2_overflow="inf"),
        "ml_dtypes 0.6": Path(e5m2_overflow="inf", fp8_nan="quiet"),
        "CUDA 12.9, SATFINITE": Path(fp8_nan="positive"),
        "CUDA 12.9, NOSAT": Path(e5m2_overflow="inf", fp8_nan="positive"),
    },
    "e4m3fnuz": {
        "torch 2.13": Path(fnuz_overflow="nan"),
        "ml_dtypes 0.6": Path(fnuz_overflow="nan"),
    },
    "e2m1": {
        "CUDA 12.9": CANONICAL,
        "ml_dtypes 0.6": Path(e2m1_nan="flipped_zero"),
        "FlashInfer append": Path(e2m1_nan="signed_zero"),
        "onnx 1.23": Path(e2m1_nan="negative_zero"),
    },
}

#: Library -> how it casts to E8M0, as options of `kvref.formats.exponents.cast`.
E8M0_CASTS: dict[str, dict[str, Any]] = {
    "torch 2.13": {},
    "ml_dtypes 0.6": {"zero": "nan", "negative": "nan"},
    "CUDA 12.9, RoundZero": {"rounding": "down", "overflow": "largest"},
    "CUDA 12.9, RoundPosInf": {"rounding": "up", "overflow": "largest"},
}

#: Element -> the numbers at which libraries differ, or might.
WITNESSES: dict[str, tuple[float, ...]] = {
    "e4m3fn": (448.0, 464.0, 464.00003, 480.0, 1e30, inf, -inf, nan, -nan, -0.0, 2.0**-10),
    "e5m2": (61439.996, 61440.0, 1e30, inf, nan, -nan),
    "e4m3fnuz": (240.0, 247.9, 248.0, inf, nan, -0.0),
    "e2m1": (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, nan, -nan, -0.0, -0.1),
    "e8m0": (0.0, 1.4, 1.5, 1.6, -1.0, -2.0, inf, nan, 3.4e38),
}

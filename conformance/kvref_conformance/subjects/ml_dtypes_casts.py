"""ml_dtypes: what NumPy's `astype` to an 8-bit float does, as code that divides by a scale and casts has it.

The raw entry point is `(x / scales).astype(ml_dtypes.float8_…)`, and back `codes.astype(float32) * scales`.

Choices: a cast has no saturation. Past the largest number it gives NaN, in E5M2 infinity, and the NaN it
writes in E5M2 is 0x7E.
Source: ml_dtypes 0.6, ml_dtypes/include/float8.h.
"""

from typing import Any

import ml_dtypes
import numpy as np

from kvref_conformance.claims import Claims

_DTYPES = {
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "fp8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
}


class MlDtypesCasts:
    """`quantize_kv` and `dequantize_kv` by casts of ml_dtypes."""

    claims = Claims(
        name="ml_dtypes casts",
        version=str(ml_dtypes.__version__),
        dtypes=("float32", "float16", "bfloat16"),
        formats=tuple(_DTYPES),
        choices={
            "e4m3-overflow": "nan",
            "e5m2-overflow": "inf",
            "fnuz-overflow": "nan",
            "fp8-nan": "quiet",
        },
    )

    def quantize_kv(self, x: Any, *, format: str, scales: Any) -> Any:
        """Divide, cast."""
        with np.errstate(all="ignore"):
            return (x / scales[:, None]).astype(_DTYPES[format]).view(np.uint8)

    def dequantize_kv(self, codes: Any, *, format: str, dtype: str, scales: Any) -> Any:
        """Cast, multiply."""
        with np.errstate(all="ignore"):
            numbers = codes.view(_DTYPES[format]).astype(np.float32) * scales[:, None]
            return numbers.astype(dtype if dtype.startswith("float") else ml_dtypes.bfloat16)

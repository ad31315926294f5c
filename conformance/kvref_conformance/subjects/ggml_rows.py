"""ggml's rows of blocks, the cache types of llama.cpp, called in the library that xllamacpp ships.

The raw entry points are `quantize_row_*_ref`, the portable code, and `dequantize_row_*`; `ggml_vector` calls
`quantize_row_*`, which for q8_0 is the code of the processor's vector unit. Both are C functions over float32
rows; the adapter hands over addresses.

Choices: the portable code rounds q8_0 half away from zero, the vector code half to even and by 127 / amax.
The exponent of MXFP4 comes from a logarithm.
Source: llama.cpp, ggml/src/ggml-quants.c and ggml/src/ggml-cpu/arch/x86/quants.c, in xllamacpp 2026.10.
"""

import ctypes
from importlib.metadata import version
from typing import Any

import numpy as np

from kvref_conformance.claims import Claims

try:
    from xllamacpp import xllamacpp
except ImportError as error:
    raise ImportError("the subject ggml needs xllamacpp: pip install 'kvref[formats]'") from error

_LIBRARY = ctypes.CDLL(xllamacpp.__file__)
#: Format -> the numbers and the bytes of a block.
_BLOCKS = {"ggml_q8_0": (32, 34), "ggml_q4_0": (32, 18), "ggml_mxfp4": (32, 17), "ggml_nvfp4": (64, 36)}


def _claims(name: str, **choices: str) -> Claims:
    return Claims(
        name=name,
        version=version("xllamacpp"),
        formats=tuple(_BLOCKS),
        choices={"mx-exponent": "log2", **choices},
    )


def _row(function: str, source: Any, size: int, made: Any) -> Any:
    """Call a function over a row: address of the source, address of what is made, numbers."""
    entry = getattr(_LIBRARY, function)
    entry.argtypes, entry.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64), None
    entry(source.ctypes.data, made.ctypes.data, size)
    return made


class Ggml:
    """`quantize_kv` and `dequantize_kv` by ggml's portable code."""

    suffix = "_ref"
    claims = _claims("ggml rows", **{"int-ties": "away"})

    def quantize_kv(self, x: Any, *, format: str) -> Any:
        """Return blocks of bytes."""
        numbers, size = _BLOCKS[format]
        if x.shape[2] % numbers:
            raise NotImplementedError(f"rows of {format} hold blocks of {numbers}, as ggml_row_size asserts")
        rows = np.ascontiguousarray(x)
        made = np.empty((*x.shape[:2], x.shape[2] // numbers * size), np.uint8)
        return _row(f"quantize_row_{format.removeprefix('ggml_')}{self.suffix}", rows, rows.size, made)

    def dequantize_kv(self, codes: Any, *, format: str, dtype: str) -> Any:
        """Return numbers, which are float32."""
        numbers, size = _BLOCKS[format]
        rows = np.ascontiguousarray(codes)
        made = np.empty((*codes.shape[:2], codes.shape[2] // size * numbers), np.float32)
        return _row(f"dequantize_row_{format.removeprefix('ggml_')}", rows, made.size, made)


class GgmlVector(Ggml):
    """The same by the code for the processor's vector unit."""

    suffix = ""
    claims = _claims("ggml rows (vector code)", **{"q8-0-reciprocal": "of_amax"})

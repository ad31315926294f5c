"""How a group reads its codes: every number is slope · element + offset, whatever the format.

The slope is the product of all scales, the offset the zero point. Both are found by reading, under the same
scales, a cache of zeros and a cache of ones; so there is one account of each format, its reader.

For porters: handy in tests; a reader does not need it.
Source: the definitions of the formats, in `spec/formats.md`.
"""

from dataclasses import dataclass, replace

import numpy as np

from kvref.arrays import Array
from kvref.formats.elements import values
from kvref.formats.format import Format, Quantized, format_of
from kvref.formats.ggml import BLOCKS, kind_of
from kvref.formats.paths import CANONICAL, Path
from kvref.formats.scaled import check_stored, dequantize


@dataclass(frozen=True)
class Line:
    """What codes of a group become: slope · element + offset; both float64, one for every number."""

    slope: Array
    offset: Array


def line_of(quantized: Quantized, format: str | Format, path: Path = CANONICAL) -> Line:
    """Return slope and offset of every number of a cache; its codes are not looked at.

    Raises: as `dequantize`.
    """
    format = format_of(format)
    check_stored(quantized, format, path)
    zeros = quantized.zeros
    flat = quantized if zeros is None else replace(quantized, zeros=np.zeros_like(zeros))
    none, one = (dequantize(with_codes(flat, format, number), format, path=path) for number in (0.0, 1.0))
    with np.errstate(invalid="ignore"):
        slope = one - none
    offset = dequantize(with_codes(quantized, format, 0.0), format, path=path)
    return Line(slope, offset)


def with_codes(quantized: Quantized, format: Format, number: float) -> Quantized:
    """Return the same scales with every code that of one number of the element."""
    code = int(np.flatnonzero(values(format.element) == number)[0])
    byte = (
        code | code << 4
        if format.packed or format.name in ("ggml_q4_0", "ggml_mxfp4", "ggml_nvfp4")
        else code
    )
    if format.family != "ggml":
        return replace(quantized, codes=np.full_like(quantized.codes, byte))
    block, codes = BLOCKS[kind_of(format)], quantized.codes.copy()
    body = codes.reshape(*codes.shape[:-1], codes.shape[-1] // block.bytes, block.bytes)
    body[..., block.scale_bytes :] = byte
    return replace(quantized, codes=codes)

"""gfloat: number formats as data, rounded and encoded by one function for all of them.

The raw entry points are `round_ndarray` and `encode_ndarray` for the FP8 formats, with saturation, and
`encode_block` under `compute_scale_amax` for the MX formats, a group at a time; back `decode_ndarray` and
`decode_block`. A division by the scale is NumPy's, as in the library's own `quantize_block`.

Choices: a NaN has one code, the last. The shared exponent comes from a logarithm, and an infinity gives
its group the largest scale; E2M1 refuses NaN.
Source: gfloat 0.5, src/gfloat/block.py and round_ndarray.py.
"""

from importlib.metadata import version
from typing import Any

import numpy as np

from kvref_conformance.claims import Claims

try:
    import gfloat
    from gfloat import block, formats
except ImportError as error:
    raise ImportError("the subject gfloat needs gfloat: pip install 'kvref[formats]'") from error

_ELEMENTS = {"fp8_e4m3": formats.format_info_ocp_e4m3, "fp8_e5m2": formats.format_info_ocp_e5m2}
_BLOCKS = {
    "mxfp8_e4m3": formats.format_info_mxfp8_e4m3,
    "mxfp8_e5m2": formats.format_info_mxfp8_e5m2,
    "mxfp4": formats.format_info_mxfp4_e2m1,
}


class Gfloat:
    """`quantize_kv` and `dequantize_kv` by gfloat's element and block formats."""

    claims = Claims(
        name="gfloat",
        version=version("gfloat"),
        formats=(*_ELEMENTS, *_BLOCKS),
        choices={"fp8-nan": "negative", "mx-exponent": "log2", "mx-inf-group": "top", "e2m1-nan": "refuse"},
    )

    def quantize_kv(self, x: Any, *, format: str, scales: Any = None) -> Any:
        """Return codes, and shared exponents for MX formats."""
        with np.errstate(all="ignore"):
            if format in _ELEMENTS:
                element = _ELEMENTS[format]
                rounded = gfloat.round_ndarray(element, x / scales[:, None], sat=True)
                return gfloat.encode_ndarray(element, rounded).astype(np.uint8)
            kind = _BLOCKS[format]
            rows = [_encoded(kind, group) for group in x.reshape(-1, kind.k)]
        whole = np.array(rows, np.uint8).reshape(*x.shape[:2], -1, kind.k + 1)
        codes = whole[..., 1:].reshape(x.shape)
        return _packed(codes) if format == "mxfp4" else codes, whole[..., 0].copy()

    def dequantize_kv(self, codes: Any, *, format: str, dtype: str, scales: Any) -> Any:
        """Return numbers, which are float32."""
        with np.errstate(all="ignore"):
            if format in _ELEMENTS:
                numbers = gfloat.decode_ndarray(_ELEMENTS[format], codes).astype(np.float32)
                return numbers * scales[:, None]
            kind = _BLOCKS[format]
            plain = _unpacked(codes) if format == "mxfp4" else codes
            rows = [
                list(block.decode_block(kind, (scale, *group)))
                for scale, group in zip(
                    scales.ravel().tolist(), plain.reshape(-1, kind.k).tolist(), strict=True
                )
            ]
            return np.array(rows).reshape(plain.shape).astype(np.float32)


def _encoded(kind: Any, group: Any) -> list[int]:
    """Return the scale and the codes of one group, as `quantize_block` makes them."""
    scale = block.compute_scale_amax(kind.etype.emax, group)
    return list(block.encode_block(kind, scale, group / scale))


def _packed(codes: Any) -> Any:
    return codes[..., ::2] | codes[..., 1::2] << 4


def _unpacked(packed: Any) -> Any:
    return np.stack([packed & 0x0F, packed >> 4], axis=-1).reshape(*packed.shape[:2], -1)

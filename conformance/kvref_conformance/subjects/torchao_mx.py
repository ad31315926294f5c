"""torchao's microscaling: MXFP8 and MXFP4 in each of its four rules for the shared exponent.

The raw entry points are `to_mx` and `to_dtype` of `torchao.prototype.mx_formats.mx_tensor`, the reference
path behind `MXTensor`. Nothing is converted but the views of bytes as dtypes. One subject for each rule,
since a user picks it (`ScaleCalculationMode`); `torchao_mx` is the default, the rule of the OCP.

Choices: the rule; `RCEIL` takes a logarithm in float32. Where the scale is 2^-127, numbers are divided by
2^-126, and by `RCEIL` not at all. A reader casts code and scale to the dtype that is asked for and multiplies
there.
Source: torchao 0.18, torchao/prototype/mx_formats/mx_tensor.py.
"""

from typing import Any

from kvref_conformance.claims import Claims

try:
    import torch
    import torchao
    from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_dtype, to_mx
except ImportError as error:
    raise ImportError("the subject torchao_mx needs torchao: pip install 'kvref[formats]'") from error

#: Format -> the dtype by which torchao names its element, and the size of a group.
_ELEMENTS = {
    "mxfp8_e4m3": (torch.float8_e4m3fn, 32),
    "mxfp8_e5m2": (torch.float8_e5m2, 32),
    "mxfp4": (torch.float4_e2m1fn_x2, 32),
    "mxfp4_group16": (torch.float4_e2m1fn_x2, 16),
}


def _claims(rule: str, **choices: str) -> Claims:
    return Claims(
        name=f"torchao to_mx ({rule})",
        version=str(torchao.__version__),
        dtypes=("float32", "bfloat16"),
        formats=tuple(_ELEMENTS),
        choices={"mx-smallest-divisor": "smallest_normal", "decode-dtype": "output", **choices},
    )


class TorchaoMX:
    """`quantize_kv` and `dequantize_kv` by the OCP's rule."""

    framework = "torch"
    mode = ScaleCalculationMode.FLOOR
    claims = _claims("FLOOR")

    def quantize_kv(self, x: Any, *, format: str) -> Any:
        """Return codes and shared exponents."""
        element, size = _ELEMENTS[format]
        scales, codes = to_mx(x.contiguous(), element, size, self.mode)
        return codes.view(torch.uint8), scales.view(torch.uint8)

    def dequantize_kv(self, codes: Any, *, format: str, dtype: str, scales: Any) -> Any:
        """Return numbers of a dtype."""
        element, size = _ELEMENTS[format]
        data = codes if element == torch.float4_e2m1fn_x2 else codes.view(element)
        return to_dtype(data, scales.view(torch.float8_e8m0fnu), element, size, getattr(torch, dtype))


class TorchaoMXCeil(TorchaoMX):
    """The exponent is rounded up."""

    mode = ScaleCalculationMode.CEIL
    claims = _claims("CEIL", **{"mx-scale": "ceil"})


class TorchaoMXEven(TorchaoMX):
    """The largest magnitude is rounded to the element's mantissa first."""

    mode = ScaleCalculationMode.EVEN
    claims = _claims("EVEN", **{"mx-scale": "even"})


class TorchaoMXRceil(TorchaoMX):
    """The exponent is the smallest under which nothing saturates, as on Blackwell."""

    mode = ScaleCalculationMode.RCEIL
    claims = _claims("RCEIL", **{"mx-scale": "rceil", "mx-exponent": "log2", "mx-smallest-divisor": "one"})

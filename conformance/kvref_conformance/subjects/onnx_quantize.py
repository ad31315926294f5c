"""ONNX's QuantizeLinear and DequantizeLinear in the reference evaluator, the operators' executable text.

The raw entry points are the two operators in `onnx.reference`, with one scale, or one for each head by the
attribute `axis`.

Choices: the NaN that is written in E5M2 is 0x7E.
Source: ONNX 1.23, onnx/reference/ops/op_quantize_linear.py and op_dequantize_linear.py.
"""

from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from kvref_conformance.claims import Claims
from kvref_conformance.subjects.onnx_models import dequantize_linear, quantize_linear

try:
    import onnx
    from onnx.reference import ReferenceEvaluator
except ImportError as error:
    raise ImportError("the subject onnx_quantize needs onnx: pip install 'kvref[onnxruntime]'") from error

_ELEMENTS = {
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "fp8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "int8": np.int8,
}


class OnnxQuantize:
    """`quantize_kv` and `dequantize_kv` by the reference of QuantizeLinear and DequantizeLinear."""

    claims = Claims(
        name="onnx reference QuantizeLinear",
        version=str(onnx.__version__),
        formats=tuple(_ELEMENTS),
        choices={"fp8-nan": "quiet"},
    )

    def quantize_kv(self, x: Any, *, format: str, scales: Any) -> Any:
        """Run QuantizeLinear."""
        evaluator = _evaluator(quantize_linear, _name(format), len(scales) > 1)
        with np.errstate(all="ignore"):
            (codes,) = evaluator.run(None, {"x": x, "y_scale": _operand(scales)})
        return codes.view(np.uint8)

    def dequantize_kv(self, codes: Any, *, format: str, dtype: str, scales: Any) -> Any:
        """Run DequantizeLinear."""
        evaluator = _evaluator(dequantize_linear, _name(format), len(scales) > 1)
        with np.errstate(all="ignore"):
            (out,) = evaluator.run(None, {"x": codes.view(_ELEMENTS[format]), "x_scale": _operand(scales)})
        return out


def _name(format: str) -> str:
    return str(np.dtype(_ELEMENTS[format]).name)


def _operand(scales: Any) -> Any:
    """Return scales as the operator takes them: a scalar if there is one for all."""
    return scales if len(scales) > 1 else scales.reshape(())


@lru_cache
def _evaluator(model: Any, element: str, per_head: bool) -> Any:
    return ReferenceEvaluator(model("float32", element, per_head))

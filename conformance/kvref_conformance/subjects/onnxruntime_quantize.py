"""ONNX Runtime's QuantizeLinear and DequantizeLinear on CPU.

The raw entry points are the two operators, with one scale, or one for each head by the attribute `axis`.
`onnxruntime_unsaturated` sets the attribute `saturate` of the first to 0.

Choices: in float16 both operators work in float16, with scales of float16. Without saturation E4M3 overflows
to NaN, E5M2 to infinity and the FNUZ pair to NaN.
Source: ONNX Runtime 1.32, onnxruntime/core/providers/cpu/quantization/quantize_linear.cc and
include/onnxruntime/core/common/float8.h.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from kvref_conformance.claims import Claims
from kvref_conformance.subjects.onnx_models import ELEMENTS, dequantize_linear, quantize_linear

try:
    import onnxruntime
except ImportError as error:
    raise ImportError(
        "the subject onnxruntime_quantize needs onnxruntime: pip install 'kvref[onnxruntime]'"
    ) from error

_ELEMENTS = {
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "fp8_e4m3fnuz": "float8_e4m3fnuz",
    "fp8_e5m2fnuz": "float8_e5m2fnuz",
    "int8": "int8",
}


#: In float16 both operators work in float16 throughout; in float32 these answers change nothing.
_HALF = {"scale-division": "input_scale", "decode-dtype": "output"}


class OnnxRuntimeQuantize:
    """`quantize_kv` and `dequantize_kv` by QuantizeLinear and DequantizeLinear."""

    saturate = True
    claims = Claims(
        name="onnxruntime QuantizeLinear",
        version=str(onnxruntime.__version__),
        dtypes=("float32", "float16"),
        formats=tuple(_ELEMENTS),
        choices=_HALF,
    )

    def quantize_kv(self, x: Any, *, format: str, scales: Any) -> Any:
        """Run QuantizeLinear."""
        made = np.empty(x.shape, np.uint8)
        options = (x.dtype.name, _ELEMENTS[format], len(scales) > 1, self.saturate)
        _run(_session(quantize_linear, *options), x, scales.astype(x.dtype), made)
        return made

    def dequantize_kv(self, codes: Any, *, format: str, dtype: str, scales: Any) -> Any:
        """Run DequantizeLinear."""
        made = np.empty(codes.shape, dtype)
        session = _session(dequantize_linear, dtype, _ELEMENTS[format], len(scales) > 1)
        _run(session, codes, scales.astype(dtype), made)
        return made


class OnnxRuntimeUnsaturated(OnnxRuntimeQuantize):
    """The same with `saturate` 0, which has a meaning for float elements alone."""

    saturate = False
    claims = Claims(
        name="onnxruntime QuantizeLinear (saturate=0)",
        version=str(onnxruntime.__version__),
        dtypes=("float32", "float16"),
        formats=tuple(_ELEMENTS)[:4],
        choices={**_HALF, "e4m3-overflow": "nan", "e5m2-overflow": "inf", "fnuz-overflow": "nan"},
    )


def _run(session: Any, x: Any, scales: Any, made: Any) -> None:
    """Run a session on an array, into an array; uint8 stands for the element that the session names."""
    binding = session.io_binding()
    operand = scales if len(scales) > 1 else scales.reshape(())  # without an axis there is one scale
    for found, array in zip(session.get_inputs(), (x, operand), strict=True):
        binding.bind_ortvalue_input(found.name, _value(array, found.type))
    (found,) = session.get_outputs()
    binding.bind_ortvalue_output(found.name, _value(made, found.type))
    session.run_with_iobinding(binding)


def _value(x: Any, kind: str) -> Any:
    """Return a value of the runtime that shares the memory of an array."""
    whole = x if x.ndim == 0 else np.ascontiguousarray(x)
    if whole.dtype != np.uint8:
        return onnxruntime.OrtValue.ortvalue_from_numpy(whole)
    element = next(name for name in _ELEMENTS.values() if kind == f"tensor({name.replace('_', '')})")
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(whole, ELEMENTS[element])


@lru_cache
def _session(model: Any, dtype: str, element: str, per_head: bool, *options: bool) -> Any:
    """Return a session of one operator, on one thread."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    made = model(dtype, element, per_head, *options).SerializeToString()
    return onnxruntime.InferenceSession(made, settings, providers=["CPUExecutionProvider"])

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


class OnnxRuntimeQuantize:
    """`quantize_kv` and `dequantize_kv` by QuantizeLinear and DequantizeLinear."""

    saturate = True
    claims = Claims(
        name="onnxruntime QuantizeLinear",
        version=str(onnxruntime.__version__),
        formats=tuple(_ELEMENTS),
    )

    def quantize_kv(self, x: Any, *, format: str, scales: Any) -> Any:
        """Run QuantizeLinear."""
        element, made = _ELEMENTS[format], np.empty(x.shape, np.uint8)
        session = _session(quantize_linear, element, len(scales) > 1, saturate=self.saturate)
        _run(session, (x, "float32"), _operand(scales), (made, element))
        return made

    def dequantize_kv(self, codes: Any, *, format: str, dtype: str, scales: Any) -> Any:
        """Run DequantizeLinear."""
        element, made = _ELEMENTS[format], np.empty(codes.shape, np.float32)
        session = _session(dequantize_linear, element, len(scales) > 1)
        _run(session, (codes, element), _operand(scales), (made, "float32"))
        return made


class OnnxRuntimeUnsaturated(OnnxRuntimeQuantize):
    """The same with `saturate` 0, which has a meaning for float elements alone."""

    saturate = False
    claims = Claims(
        name="onnxruntime QuantizeLinear (saturate=0)",
        version=str(onnxruntime.__version__),
        formats=tuple(_ELEMENTS)[:4],
        choices={"e4m3-overflow": "nan", "e5m2-overflow": "inf", "fnuz-overflow": "nan"},
    )


def _operand(scales: Any) -> Any:
    """Return scales as the operators take them: a scalar if there is one for all."""
    return scales if len(scales) > 1 else scales.reshape(())


def _run(session: Any, x: tuple[Any, str], scales: Any, made: tuple[Any, str]) -> None:
    """Run a session on bytes of an element, into bytes of an element."""
    binding = session.io_binding()
    names = [
        *(found.name for found in session.get_inputs()),
        *(found.name for found in session.get_outputs()),
    ]
    binding.bind_ortvalue_input(names[0], _value(*x))
    binding.bind_ortvalue_input(names[1], _value(scales, "float32"))
    binding.bind_ortvalue_output(names[2], _value(*made))
    session.run_with_iobinding(binding)


def _value(x: Any, element: str) -> Any:
    """Return a value of the runtime that shares the memory of an array."""
    whole = x if x.ndim == 0 else np.ascontiguousarray(x)
    if element == "float32":
        return onnxruntime.OrtValue.ortvalue_from_numpy(whole)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(whole, ELEMENTS[element])


@lru_cache
def _session(model: Any, element: str, per_head: bool, **options: bool) -> Any:
    """Return a session of one operator, on one thread and without fast math."""
    made = model("float32", element, per_head, **options)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(made.SerializeToString(), settings, providers=providers)

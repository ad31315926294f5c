"""ONNX's own reference evaluator of LinearAttention-27 and CausalConvWithState-27: their definition.

The recurrence is computed in float32 whatever the inputs are. The operator has one key head a value head,
so the adapter repeats key heads. Only float32 is claimed, for a decay that is rounded to half precision is
another.
Source: onnx 1.23, onnx/reference/ops/op_linear_attention.py and op_causal_conv_with_state.py.
"""

from functools import lru_cache
from typing import Any

from kvref.recurrent.arithmetic import ScanArithmetic
from kvref_conformance.claims import Claims
from kvref_conformance.subjects.onnx_models import version
from kvref_conformance.subjects.onnx_scans import conv, conv_update, delta, delta_update

try:
    from onnx.reference import ReferenceEvaluator
except ImportError as error:
    raise ImportError(
        "the subject onnx_reference_scans needs onnx: pip install 'kvref[onnxruntime]'"
    ) from error


class OnnxReferenceScans:
    """Delta rules and convolutions by onnx.reference."""

    claims = Claims(
        name="onnx.reference scans",
        version=version(),
        scan_arithmetic=ScanArithmetic(chunk_size=None),
        dtypes=("float32",),
        head_dims=(64, 128, 80),
        conv_widths=(4, 3, 2),
        features=("conv_bias", "silu", "delta_scale", "value_width"),
    )

    def causal_conv(self, *tensors: Any, **arguments: Any) -> Any:
        """Convolve each request behind its window."""
        return conv(_run, *tensors, **arguments)

    def causal_conv_update(self, *tensors: Any, **arguments: Any) -> Any:
        """Convolve one token of each request."""
        return conv_update(_run, *tensors, **arguments)

    def gated_delta_rule(self, *tensors: Any, **arguments: Any) -> Any:
        """Scan each request, with a decay for each head."""
        return delta(_run, *tensors, **arguments)

    def gated_delta_rule_update(self, *tensors: Any, **arguments: Any) -> Any:
        """Advance one token of each request."""
        return delta_update(_run, *tensors, **arguments)

    def kimi_delta_attention(self, *tensors: Any, **arguments: Any) -> Any:
        """Scan each request, with a decay for each channel."""
        return delta(_run, *tensors, **arguments)

    def kimi_delta_attention_update(self, *tensors: Any, **arguments: Any) -> Any:
        """Advance one token of each request."""
        return delta_update(_run, *tensors, **arguments)


def _run(model: Any, options: tuple[Any, ...], inputs: dict[str, Any]) -> Any:
    return _evaluator(model, options).run(None, inputs)


@lru_cache(maxsize=256)
def _evaluator(model: Any, options: tuple[Any, ...]) -> Any:
    return ReferenceEvaluator(model("", *options))

"""ONNX's own reference evaluator of Attention-24: the operator's definition, run in NumPy.

Queries and keys are each multiplied by sqrt(scale) and rounded. Only float32 is claimed: in a narrow dtype
NumPy also rounds every exponential and every quotient of the softmax to it, which the suite has no words for.

Choices: past `nonpad_kv_seqlen` a bias of −inf is added, so a NaN there stays NaN.
Source: onnx 1.23, onnx/reference/ops/op_attention.py.
"""

from functools import lru_cache
from typing import Any

from kvref.attention.arithmetic import Arithmetic
from kvref_conformance.claims import Claims
from kvref_conformance.subjects.onnx_attention import attend_gathered, attend_packed
from kvref_conformance.subjects.onnx_models import attention_24, version

try:
    from onnx.reference import ReferenceEvaluator
except ImportError as error:
    raise ImportError("the subject onnx_reference needs onnx: pip install 'kvref[onnxruntime]'") from error


class OnnxReference:
    """`attention` and `paged_attention` by Attention-24 in onnx.reference, one call a request."""

    claims = Claims(
        name="onnx.reference Attention-24",
        version=version(),
        arithmetic=Arithmetic(query="input", key="input", normalized=True, merges=0, block=None),
        dtypes=("float32",),
        head_dims=(64, 80, 96, 128, 192, 256),
        block_sizes=(1, 8, 16, 32, 64, 128, 256),
        features=("prefill", "non_causal", "softcap", "mask", "value_width"),
        choices={"dead-slots": "any_finite"},
    )

    def attention(self, q: Any, k: Any, v: Any, **arguments: Any) -> Any:
        """Attend over packed keys and values."""
        return attend_packed(_run, q, k, v, **arguments)

    def paged_attention(self, q: Any, k_cache: Any, v_cache: Any, **arguments: Any) -> Any:
        """Attend over gathered blocks."""
        return attend_gathered(_run, q, k_cache, v_cache, **arguments)


def _run(inputs: dict[str, Any], dtype: str, scale: float, causal: bool, softcap: float | None) -> Any:
    return _evaluator(dtype, scale, causal, softcap, "attn_mask" in inputs).run(None, inputs)[0]


@lru_cache(maxsize=256)
def _evaluator(dtype: str, scale: float, causal: bool, softcap: float | None, masked: bool) -> Any:
    return ReferenceEvaluator(attention_24(dtype, scale, causal, softcap, masked))

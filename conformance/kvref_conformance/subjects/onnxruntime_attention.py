"""ONNX Runtime's CPU kernel of ai.onnx Attention-24, with an external cache and `nonpad_kv_seqlen`.

Choices: what lies past `nonpad_kv_seqlen` has weight 0 and still multiplies, so NaN there reaches the output.
Source: ONNX Runtime 1.32, onnxruntime/core/providers/cpu/llm/attention.cc.
"""

from functools import lru_cache
from typing import Any

from kvref.attention.arithmetic import Arithmetic
from kvref_conformance.claims import Claims
from kvref_conformance.subjects.onnx_attention import attend_gathered, attend_packed
from kvref_conformance.subjects.onnx_models import attention_24

try:
    import onnxruntime
except ImportError as error:
    raise ImportError(
        "the subject onnxruntime_attention needs onnxruntime: pip install 'kvref[onnxruntime]'"
    ) from error


class OnnxRuntimeAttention:
    """`attention` and `paged_attention` by Attention-24 in ONNX Runtime, one call a request."""

    claims = Claims(
        name="onnxruntime Attention-24",
        version=str(onnxruntime.__version__),
        arithmetic=Arithmetic(scores="input", normalized=True, merges=0, block=None),
        dtypes=("float32", "float16"),
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
    return _session(dtype, scale, causal, softcap, "attn_mask" in inputs).run(None, inputs)[0]


@lru_cache(maxsize=256)
def _session(dtype: str, scale: float, causal: bool, softcap: float | None, masked: bool) -> Any:
    model = attention_24(dtype, scale, causal, softcap, masked)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised as well; printed, they would only repeat
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

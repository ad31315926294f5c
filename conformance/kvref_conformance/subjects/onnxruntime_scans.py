"""ONNX Runtime's operators for recurrent layers: GatedDeltaNet, LinearAttention, CausalConvWithState.

The raw entry points are the operators of com.microsoft on CPU. GatedDeltaNet takes a ragged batch as it is,
with one state a request; an update is a batch of requests of one token, whose states the adapter gathers
and puts back. LinearAttention takes requests of one length and one key head a value head; see `onnx_scans`.

Choices: GatedDeltaNet keeps its state as [head_v_dim, head_k_dim].
Source: ONNX Runtime 1.32, onnxruntime/contrib_ops/cpu/bert/{gated_delta_net,linear_attention}.cc and
onnxruntime/contrib_ops/cpu/nn/causal_conv_with_state.cc.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from kvref.recurrent.arithmetic import ScanArithmetic
from kvref_conformance.claims import Claims
from kvref_conformance.subjects.onnx_models import one_node
from kvref_conformance.subjects.onnx_scans import conv, conv_update, delta, delta_update

try:
    import onnxruntime
except ImportError as error:
    raise ImportError(
        "the subject onnxruntime_scans needs onnxruntime: pip install 'kvref[onnxruntime]'"
    ) from error


class OnnxRuntimeScans:
    """Delta rules by GatedDeltaNet, a ragged batch a call, and convolutions."""

    claims = Claims(
        name="onnxruntime GatedDeltaNet",
        version=str(onnxruntime.__version__),
        scan_arithmetic=ScanArithmetic(chunk_size=None),
        dtypes=("float32", "float16"),
        head_dims=(64, 128, 80),
        conv_widths=(4, 3, 2),
        features=("conv_bias", "silu", "delta_scale", "qk_l2norm", "value_width"),
        choices={"state-layout": "value_key"},
    )

    def causal_conv(self, *tensors: Any, **arguments: Any) -> Any:
        """Convolve each request behind its window."""
        return conv(_run, *tensors, **arguments)

    def causal_conv_update(self, *tensors: Any, **arguments: Any) -> Any:
        """Convolve one token of each request."""
        return conv_update(_run, *tensors, **arguments)

    def gated_delta_rule(self, *tensors: Any, **arguments: Any) -> Any:
        """Scan a ragged batch, with a decay for each head."""
        return _delta(*tensors, **arguments)

    def gated_delta_rule_update(
        self, q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, *, state_indices: Any, **variant: Any
    ) -> Any:
        """Advance one token of each request."""
        starts, states = np.arange(len(q) + 1), state[state_indices]
        out, state[state_indices] = _delta(
            q, k, v, g, beta, query_start_loc=starts, initial_state=states, **variant
        )
        return out

    kimi_delta_attention = gated_delta_rule
    kimi_delta_attention_update = gated_delta_rule_update


class OnnxRuntimeLinear:
    """Delta rules by LinearAttention, one call a request."""

    claims = Claims(
        name="onnxruntime LinearAttention",
        version=str(onnxruntime.__version__),
        scan_arithmetic=ScanArithmetic(chunk_size=64),
        dtypes=("float32",),
        head_dims=(64, 128, 80),
        features=("delta_scale", "value_width"),
    )

    def gated_delta_rule(self, *tensors: Any, **arguments: Any) -> Any:
        """Scan each request, with a decay for each head."""
        return delta(_run, *tensors, **arguments)

    def gated_delta_rule_update(self, *tensors: Any, **arguments: Any) -> Any:
        """Advance one token of each request."""
        return delta_update(_run, *tensors, **arguments)

    kimi_delta_attention = gated_delta_rule
    kimi_delta_attention_update = gated_delta_rule_update


def _delta(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    *,
    query_start_loc: Any,
    initial_state: Any,
    scale: float | None = None,
    qk_l2norm: bool = False,
) -> Any:
    inputs = {
        "query": q,
        "key": k,
        "value": v,
        "cu_seqlens": query_start_loc.astype(np.int32),
        "decay": g,
        "beta": beta.astype(g.dtype),  # both have one dtype, and this widens
        "initial_state": initial_state,
    }
    inputs = {name: np.ascontiguousarray(x) for name, x in inputs.items()}
    return _run(_gated_delta_net, (q.dtype.name, g.dtype.name, scale, qk_l2norm), inputs)


def _gated_delta_net(domain: str, dtype: str, gates: str, scale: float | None, qk_l2norm: bool) -> Any:
    inputs = (
        *((name, dtype) for name in ("query", "key", "value")),
        ("cu_seqlens", "int32"),
        *((name, gates) for name in ("decay", "beta")),
        ("initial_state", "float32"),
    )
    outputs = (("output", dtype), ("final_state", "float32"))
    attributes = (("scale", scale), ("qk_l2_norm", int(qk_l2norm)), ("update_rule", "gated_delta"))
    return one_node("GatedDeltaNet", domain, inputs, outputs, attributes)


def _run(model: Any, options: tuple[Any, ...], inputs: dict[str, Any]) -> Any:
    return _session(model, options).run(None, inputs)


@lru_cache(maxsize=512)
def _session(model: Any, options: tuple[Any, ...]) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4  # errors are raised as well; printed, they would only repeat
    return onnxruntime.InferenceSession(
        model("com.microsoft", *options).SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )

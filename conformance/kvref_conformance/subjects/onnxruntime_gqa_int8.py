"""ONNX Runtime's GroupQueryAttention over an int8 cache, as its generation loop calls it.

The raw entry point is com.microsoft GroupQueryAttention on CPU with `kv_cache_bit_width` 8: it quantises this
step's keys and values into the buffer, then attends over the buffer. One scale goes in as PER_TENSOR; scales
of heads go in as PER_CHANNEL, repeated over the channels of a head. The adapter gathers a request's blocks
into the buffer; the last tokens, whose codes are there already, are handed in again as the numbers that these
codes stand for. `quantize_kv` reads the buffer after one step from nothing.

Choices: numbers are multiplied by 1 / scale. A value before the window has weight 0 and still multiplies.
Source: ONNX Runtime 1.32, onnxruntime/contrib_ops/cpu/bert/group_query_attention.cc.
"""

from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from kvref.attention.arithmetic import Arithmetic
from kvref_conformance.claims import Claims
from kvref_conformance.subjects.onnx_models import one_node

try:
    import onnxruntime
except ImportError as error:
    raise ImportError(
        "the subject onnxruntime_int8 needs onnxruntime: pip install 'kvref[onnxruntime]'"
    ) from error


class OnnxRuntimeInt8:
    """`quantize_kv` and `quantized_paged_attention` by GroupQueryAttention, one call a request."""

    claims = Claims(
        name="onnxruntime GroupQueryAttention (int8 cache)",
        version=str(onnxruntime.__version__),
        arithmetic=Arithmetic(probabilities="float32", normalized=True, merges=0),
        head_dims=(64, 80, 96, 128, 192, 256),
        block_sizes=(1, 8, 16, 32, 64, 128, 256),
        features=("prefill", "non_causal", "window", "softcap", "sinks"),
        formats=("int8",),
        choices={"scale-division": "reciprocal", "dead-slots": "any_finite"},
    )

    def quantize_kv(self, x: Any, *, format: str, scales: Any) -> Any:
        """Append x to an empty buffer, as keys and as values; return the keys that lie there."""
        shape = (1, x.shape[1], len(x), x.shape[2])
        buffers = [np.zeros(shape, np.int8), np.zeros(shape, np.int8)]
        _attend(np.zeros_like(x), [x, x], buffers, [scales, scales], len(x), scale=1.0)
        return np.ascontiguousarray(buffers[0][0].transpose(1, 0, 2)).view(np.uint8)

    def quantized_paged_attention(
        self,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        *,
        format: str,
        block_tables: Any,
        seq_lens: Any,
        query_start_loc: Any,
        k_scales: Any,
        v_scales: Any,
        **variant: Any,
    ) -> Any:
        """Attend over gathered blocks."""
        parts, scales = [], [k_scales, v_scales]
        for request, (first, last) in enumerate(pairwise(query_start_loc.tolist())):
            n = int(seq_lens[request])
            buffers = [_gather(cache, block_tables[request], n) for cache in (k_cache, v_cache)]
            new = [
                buffer[0, :, max(n - (last - first), 0) : n].transpose(1, 0, 2).astype(np.float32)
                * own[:, None]
                for buffer, own in zip(buffers, scales, strict=True)
            ]
            parts.append(_attend(q[first:last], new, buffers, scales, n, **variant))
        return np.concatenate(parts)


def _gather(cache: Any, table: Any, n: int) -> Any:
    """Return a request's blocks as a buffer of integers `[1, KVH, buffer, D]`."""
    blocks = cache[table[: -(-n // cache.shape[1])]]
    return np.ascontiguousarray(blocks.reshape(-1, *cache.shape[2:]).transpose(1, 0, 2))[None].view(np.int8)


def _attend(
    q: Any,
    new: list[Any],
    buffers: list[Any],
    scales: list[Any],
    n: int,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Any = None,
) -> Any:
    """Call the operator for one request, which writes the new tokens into the buffers; return its output."""
    if len(q) == 0:
        return q
    attributes: dict[str, Any] = {"scale": scale, "causal": int(causal), "kv_cache_bit_width": 8}
    attributes |= {} if window is None else {"local_window_size": window}
    attributes |= {} if softcap is None else {"softcap": softcap}
    whole = all(len(own) == 1 for own in scales)  # keys and values must be of one kind
    attributes |= dict.fromkeys(("k_quant_type", "v_quant_type"), "PER_TENSOR" if whole else "PER_CHANNEL")
    heads = q.shape[1], new[0].shape[1]
    session = _session(*heads, tuple(attributes.items()), sinks is not None)
    binding = session.io_binding()
    for name, x in (("query", q), ("key", new[0]), ("value", new[1])):
        binding.bind_cpu_input(name, np.ascontiguousarray(x).reshape(1, len(x), x.shape[1] * x.shape[2]))
    binding.bind_cpu_input("seqlens_k", np.array([n - 1], np.int32))
    binding.bind_cpu_input("total_sequence_length", np.array([n], np.int32))
    if sinks is not None:
        binding.bind_cpu_input("head_sink", sinks.astype(q.dtype))
    for which, own in zip("kv", scales, strict=True):
        spread = own if whole else np.resize(own, heads[1]).repeat(q.shape[2])
        binding.bind_cpu_input(f"{which}_scale", spread)
    binding.bind_output("output")
    for which, buffer in zip(("key", "value"), buffers, strict=True):
        shared = onnxruntime.OrtValue.ortvalue_from_numpy(buffer)
        binding.bind_ortvalue_input(f"past_{which}", shared)
        binding.bind_ortvalue_output(f"present_{which}", shared)
    session.run_with_iobinding(binding)
    return binding.get_outputs()[0].numpy().reshape(q.shape)


@lru_cache(maxsize=512)
def _session(heads: int, kv_heads: int, attributes: tuple[tuple[str, Any], ...], sinks: bool) -> Any:
    absent = ("cos_cache", "sin_cache", "position_ids", "attention_bias")
    inputs = (
        *((name, "float32") for name in ("query", "key", "value")),
        *((name, "int8") for name in ("past_key", "past_value")),
        ("seqlens_k", "int32"),
        ("total_sequence_length", "int32"),
        *((name, None) for name in absent),
        ("head_sink", "float32" if sinks else None),
        ("k_scale", "float32"),
        ("v_scale", "float32"),
    )
    model = one_node(
        "GroupQueryAttention",
        "com.microsoft",
        inputs,
        (("output", "float32"), ("present_key", "int8"), ("present_value", "int8")),
        (("num_heads", heads), ("kv_num_heads", kv_heads), *attributes),
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised as well; printed, they would only repeat
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

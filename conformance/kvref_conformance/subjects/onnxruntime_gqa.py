"""ONNX Runtime's GroupQueryAttention with past and present in one buffer, as its generation loop calls it.

The raw entry point is com.microsoft GroupQueryAttention on CPU: it appends this step's keys and values to the
buffer at `seqlens_k + 1 − q_len`, then attends. The adapter gathers a request's blocks into the buffer
`[1, KVH, buffer, D]` (what follows the context in its last block is dead), binds the buffer as past and as
present, and for `append_and_attend` copies the appended rows back to their slots. For `paged_attention`,
where there is nothing to append, the last q_len tokens of the context are handed in as new, which writes them
where they already are.

Choices: a value before the window has weight 0 and still multiplies, so NaN there reaches the output; nothing
past the context is read.
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
        "the subject onnxruntime needs onnxruntime: pip install 'kvref[onnxruntime]'"
    ) from error


class OnnxRuntimeGQA:
    """`paged_attention` and `append_and_attend` by GroupQueryAttention, one call a request."""

    claims = Claims(
        name="onnxruntime GroupQueryAttention",
        version=str(onnxruntime.__version__),
        arithmetic=Arithmetic(probabilities="float32", normalized=True, merges=0),
        dtypes=("float32", "float16"),
        head_dims=(64, 80, 96, 128, 192, 256),
        block_sizes=(1, 8, 16, 32, 64, 128, 256),
        features=("prefill", "non_causal", "window", "softcap", "sinks"),
        choices={"dead-slots": "any_finite"},
    )

    def paged_attention(
        self,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        *,
        block_tables: Any,
        seq_lens: Any,
        query_start_loc: Any,
        scale: float,
        **variant: Any,
    ) -> Any:
        """Attend over gathered blocks."""
        parts = []
        for request, (first, last) in enumerate(pairwise(query_start_loc.tolist())):
            n = int(seq_lens[request])
            buffers = _gather(k_cache, v_cache, block_tables[request], n)
            new = [buffer[0, :, max(n - (last - first), 0) : n].transpose(1, 0, 2) for buffer in buffers]
            parts.append(_attend(q[first:last], new, buffers, n, scale, **variant)[0])
        return np.concatenate(parts)

    def append_and_attend(
        self,
        q: Any,
        k: Any,
        v: Any,
        k_cache: Any,
        v_cache: Any,
        *,
        slot_mapping: Any,
        block_tables: Any,
        seq_lens: Any,
        query_start_loc: Any,
        scale: float,
        **variant: Any,
    ) -> Any:
        """Append and attend in the buffer, then copy what was appended to its slots."""
        parts = []
        for request, (first, last) in enumerate(pairwise(query_start_loc.tolist())):
            n = int(seq_lens[request])
            buffers = _gather(k_cache, v_cache, block_tables[request], n)
            new = [k[first:last], v[first:last]]
            out, present = _attend(q[first:last], new, buffers, n, scale, **variant)
            parts.append(out)
            slots = slot_mapping[first:last]
            at = np.divmod(slots[slots >= 0], k_cache.shape[1])
            for cache, buffer in zip((k_cache, v_cache), present, strict=True):
                cache[at] = buffer[0, :, n - (last - first) : n].transpose(1, 0, 2)[slots >= 0]
        return np.concatenate(parts)


def _gather(k_cache: Any, v_cache: Any, table: Any, n: int) -> list[Any]:
    """Return a request's blocks as two buffers `[1, KVH, buffer, D]`."""
    blocks = table[: -(-n // k_cache.shape[1])]
    return [
        np.ascontiguousarray(cache[blocks].reshape(-1, *cache.shape[2:]).transpose(1, 0, 2))[None]
        for cache in (k_cache, v_cache)
    ]


def _attend(
    q: Any,
    new: list[Any],
    buffers: list[Any],
    n: int,
    scale: float,
    *,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Any = None,
) -> tuple[Any, list[Any]]:
    """Call the operator for one request; return its output `[Q, H, D]` and the two buffers after it."""
    if len(q) == 0:
        return q, buffers
    attributes = {"scale": scale, "causal": int(causal)}
    attributes |= {} if window is None else {"local_window_size": window}
    attributes |= {} if softcap is None else {"softcap": softcap}
    heads = q.shape[1], new[0].shape[1]
    session = _session(q.dtype.name, *heads, tuple(attributes.items()), sinks is not None)
    binding = session.io_binding()
    for name, x in (("query", q), ("key", new[0]), ("value", new[1])):
        binding.bind_cpu_input(name, np.ascontiguousarray(x).reshape(1, len(x), x.shape[1] * x.shape[2]))
    binding.bind_cpu_input("seqlens_k", np.array([n - 1], np.int32))
    binding.bind_cpu_input("total_sequence_length", np.array([n], np.int32))
    if sinks is not None:
        binding.bind_cpu_input("head_sink", sinks.astype(q.dtype))
    binding.bind_output("output")
    shared = [onnxruntime.OrtValue.ortvalue_from_numpy(buffer) for buffer in buffers]
    for which, value in zip(("key", "value"), shared, strict=True):
        binding.bind_ortvalue_input(f"past_{which}", value)
        binding.bind_ortvalue_output(f"present_{which}", value)
    session.run_with_iobinding(binding)
    return binding.get_outputs()[0].numpy().reshape(q.shape), [value.numpy() for value in shared]


@lru_cache(maxsize=512)
def _session(
    dtype: str, heads: int, kv_heads: int, attributes: tuple[tuple[str, Any], ...], sinks: bool
) -> Any:
    absent = ("cos_cache", "sin_cache", "position_ids", "attention_bias")
    inputs = (
        *((name, dtype) for name in ("query", "key", "value", "past_key", "past_value")),
        ("seqlens_k", "int32"),
        ("total_sequence_length", "int32"),
        *((name, None) for name in absent),
        ("head_sink", dtype if sinks else None),
    )
    model = one_node(
        "GroupQueryAttention",
        "com.microsoft",
        inputs,
        (("output", dtype), ("present_key", dtype), ("present_value", dtype)),
        (("num_heads", heads), ("kv_num_heads", kv_heads), *attributes),
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised as well; printed, they would only repeat
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

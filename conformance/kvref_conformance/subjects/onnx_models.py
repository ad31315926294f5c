"""One-node ONNX models, so that an operator of a runtime can be called like a function.

Attributes such as the scale are part of a model, so there is one model for each set of attributes and input
dtypes; shapes stay open.
"""

from typing import Any

try:
    import onnx
    from onnx import TensorProto, helper
except ImportError as error:
    raise ImportError("this subject needs onnx: pip install 'kvref[onnxruntime]'") from error

#: Element types by the dtype names of the suite.
ELEMENTS = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "int8": TensorProto.INT8,
    "bool": TensorProto.BOOL,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8_e5m2": TensorProto.FLOAT8E5M2,
    "float8_e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ,
    "float8_e5m2fnuz": TensorProto.FLOAT8E5M2FNUZ,
}

#: The opsets that hold Attention-24 and the com.microsoft operators, and a model format both runtimes read.
OPSETS = (("", 24), ("com.microsoft", 1))
IR_VERSION = 10


def one_node(
    operator: str,
    domain: str,
    inputs: tuple[tuple[str, str | None], ...],
    outputs: tuple[tuple[str, str], ...],
    attributes: tuple[tuple[str, Any], ...],
    opset: int = OPSETS[0][1],
) -> Any:
    """Return a model with one node; `inputs` are (name, dtype) in the operator's order, None if absent."""
    names = [name if dtype is not None else "" for name, dtype in inputs]
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(operator, names, [name for name, _ in outputs], domain=domain, **dict(attributes))
    graph = helper.make_graph(
        [node],
        operator,
        [helper.make_tensor_value_info(name, ELEMENTS[dtype], None) for name, dtype in inputs if dtype],
        [helper.make_tensor_value_info(name, ELEMENTS[dtype], None) for name, dtype in outputs],
    )
    opsets = [helper.make_opsetid(name, version) for name, version in (("", opset), *OPSETS[1:])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def attention_24(dtype: str, scale: float, causal: bool, softcap: float | None, masked: bool) -> Any:
    """Return ai.onnx Attention-24 over an external cache: `nonpad_kv_seqlen` says how much of it is live."""
    attributes: list[tuple[str, Any]] = [("scale", scale), ("is_causal", int(causal))]
    if softcap is not None:
        attributes.append(("softcap", softcap))
    return one_node(
        "Attention",
        "",
        (
            ("Q", dtype),
            ("K", dtype),
            ("V", dtype),
            ("attn_mask", "bool" if masked else None),
            ("past_key", None),
            ("past_value", None),
            ("nonpad_kv_seqlen", "int64"),
        ),
        (("Y", dtype),),
        tuple(attributes),
    )


def quantize_linear(dtype: str, element: str, per_head: bool, saturate: bool = True) -> Any:
    """Return ai.onnx QuantizeLinear to an 8-bit element, with one scale or one a head [T, H, D]."""
    attributes: list[tuple[str, Any]] = [("output_dtype", ELEMENTS[element])]
    attributes += [("axis", 1)] if per_head else []
    attributes += [] if saturate else [("saturate", 0)]
    return one_node(
        "QuantizeLinear", "", (("x", dtype), ("y_scale", dtype)), (("y", element),), tuple(attributes)
    )


def dequantize_linear(dtype: str, element: str, per_head: bool) -> Any:
    """Return ai.onnx DequantizeLinear from an 8-bit element, with one scale or one a head [T, H, D]."""
    attributes = (("axis", 1),) if per_head else ()
    return one_node("DequantizeLinear", "", (("x", element), ("x_scale", dtype)), (("y", dtype),), attributes)


def version() -> str:
    """Return the version of onnx."""
    return str(onnx.__version__)

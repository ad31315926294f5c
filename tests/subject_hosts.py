"""The real implementations, the libraries each needs, and a host of one where they are installed."""

import importlib.util
import os

import pytest

from kvref_conformance.host import Host
from kvref_conformance.runner.target import Target

#: Subject -> the libraries it needs, the first of them its own.
LIBRARIES = {
    "torch": ("torch",),
    "torch_static_cache": ("torch",),
    "torch_flex": ("torch",),
    "onnxruntime": ("onnxruntime", "onnx"),
    "onnxruntime_attention": ("onnxruntime", "onnx"),
    "onnx_reference": ("onnx",),
    "jax": ("jax",),
    "vllm_cpu": ("vllm",),
    "vllm_mla": ("vllm",),
}
#: The same for those that write and read formats.
OF_FORMATS = {
    "ml_dtypes_casts": ("ml_dtypes",),
    "torch_casts": ("torch",),
    "torch_casts_in_place": ("torch",),
    "jax_casts": ("jax",),
    "onnx_quantize": ("onnx",),
    "onnxruntime_quantize": ("onnxruntime", "onnx"),
    "onnxruntime_unsaturated": ("onnxruntime", "onnx"),
    "onnxruntime_int8": ("onnxruntime", "onnx"),
    "gfloat": ("gfloat",),
    "torchao_mx": ("torchao", "torch"),
    "torchao_mx_ceil": ("torchao", "torch"),
    "torchao_mx_even": ("torchao", "torch"),
    "torchao_mx_rceil": ("torchao", "torch"),
    "torchao_nvfp4": ("torchao", "torch"),
    "torchao_nvfp4_tiled": ("torchao", "torch"),
    "compressed_tensors_kv": ("compressed_tensors", "torch"),
    "compressed_tensors_mx": ("compressed_tensors", "torch"),
    "compressed_tensors_nvfp4": ("compressed_tensors", "torch"),
    "modelopt_mxfp4": ("modelopt", "torch"),
    "modelopt_nvfp4": ("modelopt", "torch"),
    "ggml": ("xllamacpp",),
    "ggml_vector": ("xllamacpp",),
    "vllm_cpu_fp8": ("vllm", "torch"),
    "vllm_int4": ("vllm", "torch"),
    "vllm_int8": ("vllm", "torch"),
    "sglang_mx16": ("sglang", "torch"),
}
#: The same for those that manage blocks.
OF_MANAGERS = {
    "vllm_kv_cache_manager": ("vllm", "torch", "msgspec"),
    "sglang_radix_cache": ("sglang", "torch", "msgspec"),
    "sglang_unified_cache": ("sglang", "torch", "msgspec"),
    "torch_paged_attention": ("torch",),
    "transformers_continuous_cache": ("transformers", "torch"),
    "dynamo_index": ("dynamo",),
    "kvfit": ("kvfit",),
}
#: The same for those that scan.
OF_SCANS = {
    "transformers_scans": ("transformers", "torch"),
    "transformers_steps": ("transformers", "torch"),
    "transformers_mamba_steps": ("transformers", "torch"),
    "fla_naive": ("fla", "torch"),
    "fla_naive_chunked": ("fla", "torch"),
    "onnx_reference_scans": ("onnx",),
    "onnxruntime_scans": ("onnxruntime", "onnx"),
    "onnxruntime_linear": ("onnxruntime", "onnx"),
    "vllm_cpu_conv": ("vllm", "torch"),
    "vllm_cpu_mamba": ("vllm", "torch"),
    "vllm_cpu_gdn": ("vllm", "torch"),
}
#: The same for those that manage states beside blocks.
OF_SNAPSHOTS = {"vllm_hybrid_manager": ("vllm", "torch"), "sglang_mamba_cache": ("sglang", "torch")}
ALL = LIBRARIES | OF_FORMATS | OF_MANAGERS | OF_SCANS | OF_SNAPSHOTS
#: Libraries that need an environment of their own -> the variable that names its interpreter.
ELSEWHERE = {
    "vllm": "KVREF_VLLM_PYTHON",
    "sglang": "KVREF_SGLANG_PYTHON",
    "transformers": "KVREF_TRANSFORMERS_PYTHON",
    "dynamo": "KVREF_DYNAMO_PYTHON",
    "fla": "KVREF_FLA_PYTHON",
    "kvfit": "KVREF_KVFIT_PYTHON",
}


def open_subject(name: str) -> Host:
    """Return a host of a subject, or skip where its library is missing."""
    own = ELSEWHERE.get(ALL[name][0])
    if own is not None:
        if own not in os.environ:
            pytest.skip(f"{own} does not name an interpreter with {ALL[name][0]}")
        return Target(subject=name, python=os.environ[own]).open()
    for library in ALL[name]:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed; the subject is {library}'s own kernel")
    return Target(subject=name).open()


def opened(hosts: dict[str, Host], name: str) -> Host:
    """Return the host of a subject among those that are open, opening it first if it is not there."""
    if name not in hosts:
        hosts[name] = open_subject(name)
    return hosts[name]

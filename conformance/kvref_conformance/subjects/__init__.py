"""Subjects that come with the suite: one of its own, and adapters to real implementations.

An adapter moves axes, cuts a ragged batch into calls and gathers blocks where its entry point has none. It
repairs nothing: what an implementation does differently is a declared choice or a failure in its report.
Importing this package imports no implementation.
"""

#: Name on the command line -> where the subject is.
BUILT_IN = {
    "tiled": "kvref_conformance.subjects.tiled:Tiled",
    "torch": "kvref_conformance.subjects.torch_sdpa:TorchSDPA",
    "torch_static_cache": "kvref_conformance.subjects.torch_static_cache:TorchStaticCache",
    "torch_flex": "kvref_conformance.subjects.torch_flex:TorchFlex",
    "onnxruntime": "kvref_conformance.subjects.onnxruntime_gqa:OnnxRuntimeGQA",
    "onnxruntime_attention": "kvref_conformance.subjects.onnxruntime_attention:OnnxRuntimeAttention",
    "onnx_reference": "kvref_conformance.subjects.onnx_reference:OnnxReference",
    "jax": "kvref_conformance.subjects.jax_ragged:JaxRagged",
    "vllm_cpu": "kvref_conformance.subjects.vllm_cpu:VllmCpu",
    "vllm_mla": "kvref_conformance.subjects.vllm_mla:VllmMLA",
}

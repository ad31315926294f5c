"""Subjects that come with the suite: one of its own, and adapters to real implementations.

An adapter moves axes, cuts a ragged batch into calls and gathers blocks where its entry point has none. It
repairs nothing: what an implementation does differently is a declared choice or a failure in its report.
Importing this package imports no implementation.
"""

#: Name on the command line -> where the subject is.
BUILT_IN = {
    "tiled": "kvref_conformance.subjects.tiled:Tiled",
    "bitwise": "kvref_conformance.subjects.bitwise:Bitwise",
    "scanned": "kvref_conformance.subjects.scanned:Scanned",
    "lists": "kvref_conformance.subjects.lists:Lists",
    "lists_radix": "kvref_conformance.subjects.lists:RadixOfLists",
    "reference_scans": "kvref_conformance.subjects.reference_scans:ReferenceScans",
    "reference_memory": "kvref_conformance.subjects.reference_memory:ReferenceMemory",
    "reference_radix": "kvref_conformance.subjects.reference_prefix:ReferenceRadix",
    "torch": "kvref_conformance.subjects.torch_sdpa:TorchSDPA",
    "torch_static_cache": "kvref_conformance.subjects.torch_static_cache:TorchStaticCache",
    "torch_flex": "kvref_conformance.subjects.torch_flex:TorchFlex",
    "onnxruntime": "kvref_conformance.subjects.onnxruntime_gqa:OnnxRuntimeGQA",
    "onnxruntime_attention": "kvref_conformance.subjects.onnxruntime_attention:OnnxRuntimeAttention",
    "onnx_reference": "kvref_conformance.subjects.onnx_reference:OnnxReference",
    "jax": "kvref_conformance.subjects.jax_ragged:JaxRagged",
    "vllm_cpu": "kvref_conformance.subjects.vllm_cpu:VllmCpu",
    "vllm_mla": "kvref_conformance.subjects.vllm_mla:VllmMLA",
    "ml_dtypes_casts": "kvref_conformance.subjects.ml_dtypes_casts:MlDtypesCasts",
    "torch_casts": "kvref_conformance.subjects.torch_casts:TorchCasts",
    "torch_casts_in_place": "kvref_conformance.subjects.torch_casts:TorchCastsInPlace",
    "jax_casts": "kvref_conformance.subjects.jax_casts:JaxCasts",
    "onnx_quantize": "kvref_conformance.subjects.onnx_quantize:OnnxQuantize",
    "onnxruntime_quantize": "kvref_conformance.subjects.onnxruntime_quantize:OnnxRuntimeQuantize",
    "onnxruntime_unsaturated": "kvref_conformance.subjects.onnxruntime_quantize:OnnxRuntimeUnsaturated",
    "onnxruntime_int8": "kvref_conformance.subjects.onnxruntime_gqa_int8:OnnxRuntimeInt8",
    "gfloat": "kvref_conformance.subjects.gfloat_formats:Gfloat",
    "torchao_mx": "kvref_conformance.subjects.torchao_mx:TorchaoMX",
    "torchao_mx_ceil": "kvref_conformance.subjects.torchao_mx:TorchaoMXCeil",
    "torchao_mx_even": "kvref_conformance.subjects.torchao_mx:TorchaoMXEven",
    "torchao_mx_rceil": "kvref_conformance.subjects.torchao_mx:TorchaoMXRceil",
    "torchao_nvfp4": "kvref_conformance.subjects.torchao_nvfp4:TorchaoNVFP4",
    "torchao_nvfp4_tiled": "kvref_conformance.subjects.torchao_nvfp4:TorchaoNVFP4Tiled",
    "compressed_tensors_kv": "kvref_conformance.subjects.compressed_tensors_kv:CompressedTensorsKV",
    "compressed_tensors_mx": "kvref_conformance.subjects.compressed_tensors_mx:CompressedTensorsMX",
    "compressed_tensors_nvfp4": "kvref_conformance.subjects.compressed_tensors_nvfp4:CompressedTensorsNVFP4",
    "modelopt_mxfp4": "kvref_conformance.subjects.modelopt_mxfp4:ModeloptMXFP4",
    "modelopt_nvfp4": "kvref_conformance.subjects.modelopt_nvfp4:ModeloptNVFP4",
    "ggml": "kvref_conformance.subjects.ggml_rows:Ggml",
    "ggml_vector": "kvref_conformance.subjects.ggml_rows:GgmlVector",
    "vllm_cpu_fp8": "kvref_conformance.subjects.vllm_cpu_fp8:VllmCpuFP8",
    "vllm_int4": "kvref_conformance.subjects.vllm_int4:VllmInt4",
    "vllm_int8": "kvref_conformance.subjects.vllm_int8:VllmInt8",
    "sglang_mx16": "kvref_conformance.subjects.sglang_mx16:SglangMX16",
    "vllm_kv_cache_manager": "kvref_conformance.subjects.vllm_kv_cache_manager:VllmKVCacheManager",
    "sglang_radix_cache": "kvref_conformance.subjects.sglang_radix_cache:SglangRadixCache",
    "sglang_unified_cache": "kvref_conformance.subjects.sglang_unified_cache:SglangUnifiedCache",
    "dynamo_index": "kvref_conformance.subjects.dynamo_index:DynamoIndex",
    "torch_paged_attention": "kvref_conformance.subjects.torch_paged_attention:TorchPagedAttention",
    "transformers_continuous_cache": (
        "kvref_conformance.subjects.transformers_continuous_cache:TransformersContinuousCache"
    ),
}

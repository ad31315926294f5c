"""NVIDIA Model Optimizer's NVFP4, as it writes checkpoints.

The raw entry points are `NVFP4QTensor.quantize` and `NVFP4QTensor.dequantize` of
`modelopt.torch.quantization.qtensor.nvfp4_tensor`. The adapter views bytes as dtypes.

Choices: a group of zeros has the scale 1, one with a NaN the scale NaN, any other at least the smallest
subnormal number of E4M3; −0 loses its sign; a reader multiplies the two scales first.
Source: nvidia-modelopt 0.47, modelopt/torch/quantization/qtensor/nvfp4_tensor.py.
"""

from typing import Any

from kvref_conformance.claims import Claims

try:
    import modelopt
    import torch
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
except ImportError as error:
    raise ImportError(
        "the subject modelopt_nvfp4 needs Model Optimizer: pip install nvidia-modelopt==0.47.0"
    ) from error


class ModeloptNVFP4:
    """`quantize_kv` and `dequantize_kv` by NVFP4QTensor."""

    framework = "torch"
    claims = Claims(
        name="modelopt NVFP4QTensor",
        version=str(modelopt.__version__),
        dtypes=("float32", "float16", "bfloat16"),
        formats=("nvfp4", "nvfp4_tensor"),
        choices={
            "nvfp4-scale-floor": "one",
            "nvfp4-nan-group": "nan",
            "e2m1-zero": "negative_only",
            "nvfp4-decode-order": "scales_first",
        },
    )

    def quantize_kv(self, x: Any, *, format: str, global_scale: Any = None) -> Any:
        """Return codes, scales of groups, and the global scale where it is not given."""
        given = None if global_scale is None else global_scale[0]
        stored, scales, own = NVFP4QTensor.quantize(x.contiguous(), 16, weights_scaling_factor_2=given)
        codes, bytes_of = stored._quantized_data, scales.view(torch.uint8)
        return (codes, bytes_of, own.reshape(1)) if global_scale is None else (codes, bytes_of)

    def dequantize_kv(self, codes: Any, *, format: str, dtype: str, scales: Any, global_scale: Any) -> Any:
        """Return numbers of a dtype."""
        wanted = getattr(torch, dtype)
        shape = torch.Size((*codes.shape[:2], 2 * codes.shape[2]))
        return NVFP4QTensor(shape, wanted, codes.contiguous()).dequantize(
            wanted,
            scale=scales.contiguous().view(torch.float8_e4m3fn),
            double_scale=global_scale[0],
            block_sizes={-1: 16},
        )

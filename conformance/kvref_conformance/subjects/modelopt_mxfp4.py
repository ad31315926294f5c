"""NVIDIA Model Optimizer's MXFP4, as it writes checkpoints.

The raw entry points are `MXFP4QTensor.quantize` and `MXFP4QTensor.dequantize` of
`modelopt.torch.quantization.qtensor.mxfp4_tensor`. The adapter views bytes as dtypes.

Choices: nothing saturates (`rceil`), by a logarithm in float32; a tie takes the smaller number; a zero of
either sign has the code of −0.
Source: nvidia-modelopt 0.47, modelopt/torch/quantization/qtensor/mxfp4_tensor.py.
"""

from typing import Any

from kvref_conformance.claims import Claims

try:
    import modelopt
    import torch
    from modelopt.torch.quantization.qtensor.mxfp4_tensor import MXFP4QTensor
except ImportError as error:
    raise ImportError(
        "the subject modelopt_mxfp4 needs Model Optimizer: pip install nvidia-modelopt==0.47.0"
    ) from error

#: Format -> numbers in a group.
_SIZES = {"mxfp4": 32, "mxfp4_group16": 16}


class ModeloptMXFP4:
    """`quantize_kv` and `dequantize_kv` by MXFP4QTensor."""

    framework = "torch"
    claims = Claims(
        name="modelopt MXFP4QTensor",
        version=str(modelopt.__version__),
        dtypes=("float32", "float16", "bfloat16"),
        formats=tuple(_SIZES),
        choices={
            "mx-scale": "rceil",
            "mx-exponent": "log2",
            "e2m1-ties": "toward_zero",
            "e2m1-zero": "negative",
        },
    )

    def quantize_kv(self, x: Any, *, format: str) -> Any:
        """Return codes and shared exponents."""
        stored, scales = MXFP4QTensor.quantize(x.contiguous(), _SIZES[format])
        return stored._quantized_data, scales.view(*x.shape[:2], -1)

    def dequantize_kv(self, codes: Any, *, format: str, dtype: str, scales: Any) -> Any:
        """Return numbers of a dtype."""
        wanted = getattr(torch, dtype)
        shape = torch.Size((*codes.shape[:2], 2 * codes.shape[2]))
        stored = MXFP4QTensor(shape, wanted, codes.contiguous())
        return stored.dequantize(wanted, scale=scales.contiguous(), block_sizes={-1: _SIZES[format]})

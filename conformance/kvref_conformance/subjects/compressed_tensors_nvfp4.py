"""compressed-tensors' NVFP4, as llm-compressor writes it and vLLM reads it.

The raw entry points are `calculate_qparams` and `generate_gparam`, which choose scales from the extremes of
groups and of the tensor, `NVFP4PackedCompressor.compress`, and `dequantize` over `unpack_fp4_from_uint8`. The
adapter flattens tokens and heads into the rows of a weight, takes the extremes of each group as an observer
does, and views bytes as dtypes.

Choices: the global scale is the one that encodes; a group scale that came out as zero is 0.125, and NaN where
there is a NaN; −0 loses its sign; a reader divides the two scales first. amax / 6 is rounded to the dtype of
the input.
Source: compressed-tensors 0.20, compressed_tensors/quantization/utils/helpers.py and
compressed_tensors/compressors/nvfp4.
"""

from typing import Any

from kvref_conformance.claims import Claims

try:
    import compressed_tensors
    import torch
    from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor, unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
except ImportError as error:
    raise ImportError(
        "the subject compressed_tensors_nvfp4 needs compressed-tensors: pip install 'kvref[formats]'"
    ) from error

_ARGS = QuantizationArgs(
    num_bits=4,
    type="float",
    strategy="tensor_group",
    group_size=16,
    symmetric=True,
    dynamic=False,
    scale_dtype=torch.float8_e4m3fn,
    zp_dtype=torch.float8_e4m3fn,
)
_SCHEME = QuantizationScheme(targets=["Linear"], weights=_ARGS)


class CompressedTensorsNVFP4:
    """`quantize_kv` and `dequantize_kv` by the functions of the NVFP4 compressor."""

    framework = "torch"
    claims = Claims(
        name="compressed-tensors NVFP4",
        version=str(compressed_tensors.__version__),
        dtypes=("float32", "float16", "bfloat16"),
        formats=("nvfp4", "nvfp4_tensor"),
        choices={
            "scale-division": "input",
            "nvfp4-operand": "encode",
            "nvfp4-division": "encode",
            "nvfp4-scale-floor": "epsilon",
            "nvfp4-nan-group": "nan",
            "e2m1-zero": "negative_only",
            "nvfp4-decode-order": "scales_first",
        },
    )

    def quantize_kv(self, x: Any, *, format: str, global_scale: Any = None) -> Any:
        """Return codes, scales of groups, and the global scale where it is not given."""
        rows = x.reshape(-1, x.shape[2]).contiguous()
        own = generate_gparam(rows.min(), rows.max()) if global_scale is None else global_scale
        groups = rows.unflatten(-1, (-1, 16))
        chosen, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), _ARGS, global_scale=own)
        weight = {"weight": rows, "weight_scale": chosen, "weight_global_scale": own}
        stored = NVFP4PackedCompressor.compress(weight, _SCHEME)
        codes = stored["weight_packed"].view(*x.shape[:2], -1)
        scales = stored["weight_scale"].view(torch.uint8).view(*x.shape[:2], -1)
        return (codes, scales, own) if global_scale is None else (codes, scales)

    def dequantize_kv(self, codes: Any, *, format: str, dtype: str, scales: Any, global_scale: Any) -> Any:
        """Return numbers of a dtype."""
        rows = codes.reshape(-1, codes.shape[2])
        numbers = unpack_fp4_from_uint8(rows, len(rows), 2 * rows.shape[1], dtype=torch.float32)
        chosen = scales.reshape(len(rows), -1).view(torch.float8_e4m3fn).to(torch.float32)
        wanted = getattr(torch, dtype)
        out = dequantize(numbers, chosen, args=_ARGS, dtype=wanted, global_scale=global_scale)
        return out.view(*codes.shape[:2], -1)

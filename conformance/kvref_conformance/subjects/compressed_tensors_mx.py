"""compressed-tensors' MXFP4 and MXFP8, as llm-compressor writes them and vLLM reads them.

The raw entry points are `calculate_qparams`, which chooses scales from the extremes of groups,
`MXFP4PackedCompressor` and `MXFP8QuantizationCompressor`. The adapter flattens tokens and heads into the rows
of a weight, takes the extremes of each group as an observer does, and views bytes as dtypes. It claims
bfloat16 alone, which is what the decompressors return.

Choices: the largest magnitude is rounded to one mantissa bit before its exponent is taken, for E4M3 elements
too; −0 loses its sign in E2M1.
Source: compressed-tensors 0.20, compressed_tensors/quantization/utils/mxfp_utils.py,
compressed_tensors/compressors/mx_utils.py, mxfp4 and mxfp8.
"""

from typing import Any

from kvref_conformance.claims import Claims

try:
    import compressed_tensors
    import torch
    from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
    from compressed_tensors.compressors.mxfp8.base import MXFP8QuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams
except ImportError as error:
    raise ImportError(
        "the subject compressed_tensors_mx needs compressed-tensors: pip install 'kvref[formats]'"
    ) from error


def _args(num_bits: int) -> Any:
    return QuantizationArgs(
        num_bits=num_bits,
        type="float",
        strategy="group",
        group_size=32,
        symmetric=True,
        dynamic=False,
        scale_dtype=torch.uint8,
        zp_dtype=torch.uint8,
    )


#: Format -> its compressor, its arguments, and the name of a weight's codes.
_PARTS = {
    "mxfp4": (MXFP4PackedCompressor, _args(4), "weight_packed"),
    "mxfp8_e4m3": (MXFP8QuantizationCompressor, _args(8), "weight"),
}


class CompressedTensorsMX:
    """`quantize_kv` and `dequantize_kv` by the compressors of MX weights."""

    framework = "torch"
    claims = Claims(
        name="compressed-tensors MX",
        version=str(compressed_tensors.__version__),
        dtypes=("bfloat16",),
        formats=tuple(_PARTS),
        choices={"mx-scale": "even_one_bit", "e2m1-zero": "negative_only"},
    )

    def quantize_kv(self, x: Any, *, format: str) -> Any:
        """Return codes and shared exponents."""
        compressor, args, name = _PARTS[format]
        rows = x.reshape(-1, x.shape[2]).contiguous()
        groups = rows.unflatten(-1, (-1, 32))
        chosen, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
        stored = compressor.compress({"weight": rows, "weight_scale": chosen}, _scheme(args))
        codes, scales = stored[name].view(torch.uint8), stored["weight_scale"]
        return codes.view(*x.shape[:2], -1), scales.view(*x.shape[:2], -1)

    def dequantize_kv(self, codes: Any, *, format: str, dtype: str, scales: Any) -> Any:
        """Return numbers, which are bfloat16."""
        compressor, args, name = _PARTS[format]
        rows = codes.reshape(-1, codes.shape[2])
        data = rows if format == "mxfp4" else rows.view(torch.float8_e4m3fn)
        stored = {name: data, "weight_scale": scales.reshape(len(rows), -1)}
        out = compressor.decompress(stored, _scheme(args))["weight"]
        return out.view(*codes.shape[:2], -1)


def _scheme(args: Any) -> Any:
    return QuantizationScheme(targets=["Linear"], weights=args)

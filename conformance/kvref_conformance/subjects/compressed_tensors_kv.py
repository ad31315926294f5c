"""compressed-tensors' FP8 and int8 for keys and values, as it quantises a cache in a model.

The raw entry points are `quantize` and `dequantize` of `compressed_tensors.quantization.lifecycle.forward`,
with the strategy `tensor` for one scale and `attn_head` for one a head. Scales are parameters of a model and
have its dtype, so they are handed over in that of the numbers. The adapter puts heads before tokens, and
views bytes as dtypes.

Choices: with scales in 16 bits, quotients and products are in 16 bits as well.
Source: compressed-tensors 0.20, compressed_tensors/quantization/lifecycle/forward_helpers.py and
compressed_tensors/modeling/kvcache.py.
"""

from typing import Any

from kvref_conformance.claims import Claims

try:
    import compressed_tensors
    import torch
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
except ImportError as error:
    raise ImportError(
        "the subject compressed_tensors_kv needs compressed-tensors: pip install 'kvref[formats]'"
    ) from error

#: Format -> the kind of its element, and its dtype.
_KINDS = {"fp8_e4m3": ("float", torch.float8_e4m3fn), "int8": ("int", torch.int8)}


class CompressedTensorsKV:
    """`quantize_kv` and `dequantize_kv` by the functions under QuantizedKVCache."""

    framework = "torch"
    claims = Claims(
        name="compressed-tensors KV cache",
        version=str(compressed_tensors.__version__),
        dtypes=("float32", "float16", "bfloat16"),
        formats=tuple(_KINDS),
        choices={"scale-division": "input_scale", "decode-dtype": "output"},
    )

    def quantize_kv(self, x: Any, *, format: str, scales: Any) -> Any:
        """Return codes."""
        _, dtype = _KINDS[format]
        heads_first = x.transpose(0, 1)[None]
        codes = quantize(heads_first, *_operands(scales, x.dtype), _args(format, scales), dtype=dtype)
        return codes[0].transpose(0, 1).contiguous().view(torch.uint8)

    def dequantize_kv(self, codes: Any, *, format: str, dtype: str, scales: Any) -> Any:
        """Return numbers of a dtype."""
        heads_first = codes.view(_KINDS[format][1]).transpose(0, 1)[None]
        operands = _operands(scales, getattr(torch, dtype))
        out = dequantize(heads_first, *operands, _args(format, scales))
        return out[0].transpose(0, 1).contiguous()


def _operands(scales: Any, dtype: Any) -> tuple[Any, None]:
    """Return scales in the shape of their strategy, and no zero point."""
    own = scales.to(dtype)
    return (own if len(own) == 1 else own[:, None, None]), None


def _args(format: str, scales: Any) -> Any:
    strategy = "tensor" if len(scales) == 1 else "attn_head"
    return QuantizationArgs(num_bits=8, type=_KINDS[format][0], strategy=strategy, symmetric=True)

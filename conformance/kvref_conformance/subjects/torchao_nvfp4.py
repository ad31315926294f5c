"""torchao's NVFP4: two levels of scales, linear or in the tiles a Blackwell matrix unit reads.

The raw entry points are `NVFP4Tensor.to_nvfp4` and `NVFP4Tensor.dequantize` of
`torchao.prototype.mx_formats.nvfp4_tensor`, and `per_tensor_amax_to_scale` where the writer chooses the
global scale. The adapter views bytes as dtypes, and for the tiles flattens tokens and heads into rows.

Choices: no group has a smaller scale than 2^-6, so that small groups are coarse and a group of zeros has the
byte 0x08; a group with a NaN has the scale NaN; numbers are multiplied by (1 / g) / s; a reader multiplies
the two scales first.
Source: torchao 0.18, torchao/prototype/mx_formats/nvfp4_tensor.py.
"""

from typing import Any

from kvref_conformance.claims import Claims

try:
    import torch
    import torchao
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
except ImportError as error:
    raise ImportError("the subject torchao_nvfp4 needs torchao: pip install 'kvref[formats]'") from error


def _claims(name: str, **choices: str) -> Claims:
    return Claims(
        name=name,
        version=str(torchao.__version__),
        dtypes=("float32", "bfloat16"),
        formats=("nvfp4", "nvfp4_tensor"),
        choices={
            "nvfp4-division": "two_reciprocals",
            "nvfp4-scale-floor": "smallest_normal",
            "nvfp4-nan-group": "nan",
            "nvfp4-decode-order": "scales_first",
            **choices,
        },
    )


class TorchaoNVFP4:
    """`quantize_kv` and `dequantize_kv` with scales in order."""

    framework = "torch"
    tiled = False
    claims = _claims("torchao NVFP4Tensor")

    def quantize_kv(self, x: Any, *, format: str, global_scale: Any = None) -> Any:
        """Return codes, scales of groups, and the global scale where it is not given."""
        own = per_tensor_amax_to_scale(x.abs().max()) if global_scale is None else global_scale[0]
        rows = x.reshape(-1, x.shape[2]).contiguous()
        found = NVFP4Tensor.to_nvfp4(rows, per_tensor_scale=own, is_swizzled_scales=self.tiled)
        codes, scales = found.qdata.view(*x.shape[:2], -1), found.scale.view(torch.uint8)
        wide = -(-x.shape[2] // 64) * 4  # groups of a row, in whole tiles
        scales = scales.view(-1, wide) if self.tiled else scales.view(*x.shape[:2], -1)
        return (codes, scales, own.reshape(1)) if global_scale is None else (codes, scales)

    def dequantize_kv(self, codes: Any, *, format: str, dtype: str, scales: Any, global_scale: Any) -> Any:
        """Return numbers of a dtype."""
        wanted = getattr(torch, dtype)
        rows = codes.reshape(-1, codes.shape[2])
        bytes_of = scales if self.tiled else scales.reshape(len(rows), -1)
        stored = NVFP4Tensor(
            rows,
            bytes_of.view(torch.float8_e4m3fn),
            16,
            wanted,
            global_scale[0],
            is_swizzled_scales=self.tiled,
        )
        return stored.dequantize(wanted).view(*codes.shape[:2], -1)


class TorchaoNVFP4Tiled(TorchaoNVFP4):
    """The same with scales in tiles of 128 rows and 4 groups."""

    tiled = True
    claims = _claims("torchao NVFP4Tensor (swizzled scales)", **{"scale-layout": "tiled_128x4"})

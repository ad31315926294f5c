"""PyTorch's casts to 8-bit floats, as a cache writer in plain PyTorch has them: divide by the scale, cast.

The raw entry point is `(x / scales).to(torch.float8_…)`, and back `codes.to(float32) * scales`. Scales are a
float32 tensor with an axis, so PyTorch widens what it divides to float32. `torch_casts_in_place` divides by
`x.div_(scales)`, as SGLang's `set_kv_buffer` does, which leaves the quotient in the dtype of x.

Choices: E4M3 saturates, infinities too (so it has since 2.12; before, it gave NaN). E5M2 overflows to
infinity, and the FNUZ pair to NaN.
Source: PyTorch 2.13, torch/headeronly/util/Float8_e4m3fn.h and its siblings.
"""

from dataclasses import replace
from typing import Any

from kvref_conformance.claims import Claims

try:
    import torch
except ImportError as error:
    raise ImportError("the subject torch_casts needs PyTorch: pip install 'kvref[torch]'") from error

_DTYPES = {
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "fp8_e4m3fnuz": torch.float8_e4m3fnuz,
    "fp8_e5m2fnuz": torch.float8_e5m2fnuz,
}


class TorchCasts:
    """`quantize_kv` and `dequantize_kv` by `Tensor.to`."""

    framework = "torch"
    claims = Claims(
        name="torch casts",
        version=str(torch.__version__),
        dtypes=("float32", "float16", "bfloat16"),
        formats=tuple(_DTYPES),
        choices={"e5m2-overflow": "inf", "fnuz-overflow": "nan"},
    )

    def quantize_kv(self, x: Any, *, format: str, scales: Any) -> Any:
        """Divide, cast."""
        return (x / scales[:, None]).to(_DTYPES[format]).view(torch.uint8)

    def dequantize_kv(self, codes: Any, *, format: str, dtype: str, scales: Any) -> Any:
        """Cast, multiply."""
        return (codes.view(_DTYPES[format]).to(torch.float32) * scales[:, None]).to(getattr(torch, dtype))


class TorchCastsInPlace(TorchCasts):
    """The same with a division in place."""

    claims = replace(
        TorchCasts.claims,
        name="torch casts after div_",
        choices={**TorchCasts.claims.choices, "scale-division": "input"},
    )

    def quantize_kv(self, x: Any, *, format: str, scales: Any) -> Any:
        """Divide a copy in place, cast."""
        return x.clone().div_(scales[:, None]).to(_DTYPES[format]).view(torch.uint8)

"""SGLang's 4-bit cache `fp4_mx_block16`: E2M1 under shared exponents, in groups of 16.

The raw entry points are `FP4MXBlock16KVQuantizeUtil.batched_quantize` and `batched_dequantize` of
`sglang.srt.layers.quantization.kvfp4_tensor`, run eagerly. They are plain PyTorch; the packages above them
import all of a server, so their `__init__` files are passed over.

Choices: groups run through all heads of a token; amax / 6 is raised to 1e-10 and its logarithm, taken in the
dtype of the input, rounded up; every tie moves away from zero, and −0 loses its sign.
Source: SGLang 0.5.23, python/sglang/srt/layers/quantization/kvfp4_tensor.py.
"""

import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from kvref_conformance.claims import Claims

try:
    import torch

    _found = find_spec("sglang")
    if _found is None or not _found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'sglang'")
except (ImportError, ValueError) as error:
    raise ImportError(
        "the subject sglang_mx16 needs SGLang: pip install --no-deps sglang==0.5.23, and PyTorch"
    ) from error

_PLACE = "sglang.srt.layers.quantization"


def _module(root: str) -> Any:
    """Import the module of the cache without running the packages above it."""
    for depth in range(1, _PLACE.count(".") + 2):
        parts = _PLACE.split(".")[:depth]
        package = ModuleType(".".join(parts))
        package.__path__ = ["/".join((root, *parts[1:]))]
        sys.modules.setdefault(package.__name__, package)
    return import_module(f"{_PLACE}.kvfp4_tensor")


_KV = _module(_found.submodule_search_locations[0]).FP4MXBlock16KVQuantizeUtil
torch.compiler.set_stance("force_eager")


class SglangMX16:
    """`quantize_kv` and `dequantize_kv` by FP4MXBlock16KVQuantizeUtil."""

    framework = "torch"
    claims = Claims(
        name="SGLang fp4_mx_block16",
        version=version("sglang"),
        dtypes=("float32", "float16", "bfloat16"),
        formats=("mxfp4_group16",),
        choices={
            "mx-scale": "rceil",
            "mx-exponent": "log2_input",
            "mx-zero-group": "1e-10",
            "mx-span": "flattened",
            "e2m1-ties": "away",
            "e2m1-zero": "negative_only",
        },
    )

    def quantize_kv(self, x: Any, *, format: str) -> Any:
        """Return codes and shared exponents."""
        return _KV.batched_quantize(x.contiguous())

    def dequantize_kv(self, codes: Any, *, format: str, dtype: str, scales: Any) -> Any:
        """Return numbers of a dtype."""
        return _KV.batched_dequantize(codes, scales, getattr(torch, dtype))

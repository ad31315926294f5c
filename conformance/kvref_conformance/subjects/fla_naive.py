"""The naive references of flash-linear-attention, against which its kernels are tested.

The raw entry points are `naive_recurrent_gated_delta_rule`, `naive_chunk_gated_delta_rule` and
`naive_recurrent_kda`. They are loaded from their files, for the package around them asks for a GPU. They
take one request, so the adapter cuts a ragged batch into calls. The two of the gated delta rule take one
key head a value head, and the adapter repeats key heads, as fla's layer does; their arguments are passed by
name, for one of them has `beta` before `g` and the other after it.
Source: fla-core 0.6.0, fla/ops/gated_delta_rule/naive.py and fla/ops/kda/naive.py.
"""

from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from kvref.recurrent.arithmetic import ScanArithmetic
from kvref_conformance.claims import Claims
from kvref_conformance.subjects.ragged import requests

try:
    import torch
except ImportError as error:
    raise ImportError("the subject fla_naive needs PyTorch: pip install 'kvref[torch]'") from error


def _functions(operator: str) -> Any:
    """Return the module of an operator's naive functions, without the package around it."""
    package = find_spec("fla")
    if package is None or not package.submodule_search_locations:
        raise ImportError(
            "the subject fla_naive needs fla-core: pip install --no-deps fla-core==0.6.0 einops"
        )
    path = Path(package.submodule_search_locations[0]) / "ops" / operator / "naive.py"
    spec = spec_from_file_location(f"fla_naive_{operator}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"the subject fla_naive found no {operator}/naive.py in fla-core")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_GDN, _KDA = _functions("gated_delta_rule"), _functions("kda")


class FlaNaive:
    """`gated_delta_rule` and `kimi_delta_attention` token by token, one call a request."""

    framework = "torch"
    claims = Claims(
        name="fla naive recurrences",
        version=version("fla-core"),
        scan_arithmetic=ScanArithmetic(chunk_size=None),
        dtypes=("float32",),
        head_dims=(64, 128, 80),
        features=("delta_scale", "value_width"),
    )

    def gated_delta_rule(self, q: Any, k: Any, v: Any, *gates: Any, **arguments: Any) -> Any:
        """Scan each request token by token."""
        return _scan(_GDN.naive_recurrent_gated_delta_rule, *_repeated(q, k, v), *gates, **arguments)

    def kimi_delta_attention(self, *tensors: Any, **arguments: Any) -> Any:
        """Scan each request token by token."""
        return _scan(_KDA.naive_recurrent_kda, *tensors, **arguments)


class FlaNaiveChunked:
    """`gated_delta_rule` in chunks of 64, one call a request."""

    framework = "torch"
    claims = Claims(
        name="fla naive chunks",
        version=version("fla-core"),
        scan_arithmetic=ScanArithmetic(chunk_size=64),
        dtypes=("float32",),
        head_dims=(64, 128, 80),
        features=("delta_scale", "value_width"),
    )

    def gated_delta_rule(self, q: Any, k: Any, v: Any, *gates: Any, **arguments: Any) -> Any:
        """Scan each request in chunks."""
        return _scan(_GDN.naive_chunk_gated_delta_rule, *_repeated(q, k, v), *gates, **arguments)


def _repeated(q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    """Give each value head its key head."""
    group = v.shape[1] // k.shape[1]
    return q.repeat_interleave(group, 1), k.repeat_interleave(group, 1), v


def _scan(
    rule: Callable[..., Any],
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    *,
    query_start_loc: Any,
    initial_state: Any,
    scale: float | None = None,
) -> Any:
    out, final = torch.empty_like(v), initial_state.clone()
    for request, tokens in requests(query_start_loc):
        names = dict(zip(("q", "k", "v", "g", "beta"), (q, k, v, g, beta), strict=True))
        out[tokens], final[request] = rule(
            **{name: x[tokens][None] for name, x in names.items()},
            scale=scale,
            initial_state=initial_state[request : request + 1],
            output_final_state=True,
        )
    return out, final

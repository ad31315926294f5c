"""Rotations: one call of `apply_rope`, and vectors in which a wrong angle, pair or direction cannot hide."""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array, dtype_name
from kvref.attention.rope import Yarn
from kvref_conformance.cases import Case, Level, lattice
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Call, OutputSpec, Scalar
from kvref_conformance.probes.random import dyadic

#: Of RoFormer, Llama 3 and Qwen 2.5.
BASES = (10000.0, 500000.0, 1000000.0)


def rotation_cases(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Return seven tokens over two requests; styles, bases, heads and widths in turn."""
    return [
        replace(case, seq_lens=(4, 3), query_lens=(4, 3)).with_options(
            style=claims.rope_styles[i % len(claims.rope_styles)], base=BASES[i % len(BASES)]
        )
        for i, case in enumerate(lattice(claims, verb, level))
    ]


def vectors(case: Case) -> Array:
    """Return bell-shaped vectors `[num_tokens, num_heads, head_dim]`, some negative zeros at their ends.

    No component of the first two pairs of either style is small, so a rotation of any token moves it.
    """
    rng = np.random.default_rng(case.seed + 53)
    x = dyadic(rng, (case.num_tokens, case.num_q_heads, case.head_dim), case.dtype)
    x[..., :4] = np.copysign(np.maximum(np.abs(x[..., :4]), 1), x[..., :4])
    x[..., -3:] = np.where(rng.random(x[..., -3:].shape) < 0.5, -0.0, x[..., -3:])
    return x


def present_rope(x: Array, positions: Array, case: Case, rotary_dim: int, yarn: Yarn | None = None) -> Call:
    """Return the call of `apply_rope` with the case's base and style."""
    params: dict[str, Scalar] = {"base": case.option("base"), "rotary_dim": rotary_dim}
    params["style"] = case.option("style")
    if yarn is not None:
        params |= {"factor": yarn.factor, "original_context": yarn.original_context}
        params |= {"beta_fast": yarn.beta_fast, "beta_slow": yarn.beta_slow, "magnitude": yarn.magnitude}
    tensors = {"x": x, "positions": np.asarray(positions, np.int64)}
    return Call("apply_rope", tensors, params, {"out": OutputSpec(dtype_name(x), x.shape)})

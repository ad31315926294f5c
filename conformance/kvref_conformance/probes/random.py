"""Random problems whose values are small dyadic rationals, exact in every dtype of the suite.

Drawn as integers and divided by a power of two, so that a seed means the same numbers in any language that
has the same integers, and no rounding happens before the subject's own.
"""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.cases import Case
from kvref_conformance.problems import Problem, cast


def dyadic(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Return bell-shaped values in about ±4, multiples of 1/32."""
    return cast(np.clip(rng.integers(-32, 33, (4, *shape)).sum(axis=0), -127, 127) / 32.0, dtype)


def random_problem(case: Case, *, v_head_dim: int | None = None, **variant: Any) -> Problem:
    """Return a problem with bell-shaped queries, keys and values; the scale is far from head_dim ** -0.5."""
    rng = np.random.default_rng(case.seed + 7)
    tokens = sum(case.seq_lens)
    width = case.head_dim if v_head_dim is None else v_head_dim
    return Problem(
        q=dyadic(rng, (case.num_tokens, case.num_q_heads, case.head_dim), case.dtype),
        k=dyadic(rng, (tokens, case.num_kv_heads, case.head_dim), case.dtype),
        v=dyadic(rng, (tokens, case.num_kv_heads, width), case.dtype),
        seq_lens=np.array(case.seq_lens, np.int64),
        query_lens=np.array(case.query_lens, np.int64),
        variant={"scale": 0.21875, **variant},
        dtype=case.dtype,
    )

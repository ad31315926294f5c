"""One small request to a real implementation: values count positions, so an output says what was read."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.cases import Case
from kvref_conformance.host import Host
from kvref_conformance.problems import Placement, Problem, cast, present


def read(
    host: Host,
    n: int,
    *,
    verb: str = "paged_attention",
    queries: int = 1,
    logit: float = 0.0,
    dead: tuple[float, float] = (0.0, 0.0),
    killed: tuple[int, ...] = (),
    dtype: str = "float32",
    block_size: int = 32,
    **variant: Any,
) -> Array:
    """Return `out[:, 0, 0]` of one request: the mean of the positions each query attended to.

    `dead` is the key and the value in slots outside the context, and at the positions of `killed`.
    """
    variant = {"scale": 1.0, **variant}
    q, k, v = np.zeros((queries, 1, 64)), np.zeros((n, 1, 64)), np.zeros((n, 1, 64))
    q[..., 0], k[..., 0], v[...] = logit, 1, np.arange(n)[:, None, None]
    for position in killed:
        k[position], v[position] = dead
    problem = Problem(
        cast(q, dtype),
        cast(k, dtype),
        cast(v, dtype),
        np.array([n]),
        np.array([queries]),
        variant,
        dtype,
    )
    case = Case(
        verb=verb,
        seq_lens=(n,),
        query_lens=(queries,),
        num_kv_heads=1,
        group=1,
        block_size=block_size,
        dtype=dtype,
    )
    answer = host.call(present(problem, case, Placement(seed=1, poison=dead)))
    unwritten: Mapping[str, int] = answer.unwritten
    out = np.asarray(answer.outputs["out"]).astype(np.float64)[:, 0, 0]
    return out if not unwritten else np.full_like(out, np.nan)

"""What one call asks, cut into one piece of work per request."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvref.arrays import Array

#: Returns keys `[N, num_kv_heads, head_dim]` and values `[N, num_kv_heads, v_head_dim]` of some positions.
Fetch = Callable[[Array], tuple[Array, Array]]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The variant of attention a call asks for, as it was passed."""

    scale: float
    causal: bool = True
    window: int | None = None
    chunk_size: int | None = None
    softcap: float | None = None
    sinks: Array | None = None
    alibi_slopes: Array | None = None
    span_ids: Array | None = None
    mask: Array | None = None


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The query tokens of a call and the lengths that divide them, as they were passed."""

    q: Array
    query_start_loc: Array
    seq_lens: Array
    rules: Rules


@dataclass(frozen=True, kw_only=True)
class Work:
    """One request: its queries, its context, and the parts of the rules that are its own."""

    request: int
    rows: slice
    """Which rows of the batch these are."""
    q: Array
    """[num_q_heads, num_rows, head_dim] in the working format."""
    t: Array
    """[num_rows] positions of the queries."""
    kv_len: int
    fetch: Fetch
    rules: Rules
    spans: Array | None
    """[kv_len] span ids of this request."""
    mask: Array | None
    """[num_rows, kv_len] booleans of this request."""
    dtype: np.dtype[Any]
    """The dtype of q, to which P is rounded."""


def working_format(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the format sums run in: float32, or float64 where the inputs are float64."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)

"""Pieces: a writer works on a few tokens at a time, so that all it makes of them stays in a core's cache.

This is for speed alone: a writer that treats each token on its own gives the same answer in one piece.

Realises: KV-FMT-073 every-token.
For porters: leave it out; a compiled loop makes no intermediate arrays.
Source: follows from the definitions, in which no group reaches beyond one token.
"""

from collections.abc import Callable, Iterable

import numpy as np

from kvref.arrays import Array
from kvref.formats.format import Quantized

#: Numbers of a piece: what a writer makes of that many (a few MiB) fits in the caches near a core.
PIECE = 2**18


def in_pieces(write: Callable[[Array], Quantized], x: Array) -> Quantized:
    """Return what `write` makes of x [num_tokens, num_kv_heads, head_dim], asked for some tokens at a time.

    Everything it makes is joined along the tokens: what all of them share is not among it.
    """
    tokens = max(1, PIECE // max(1, x[:1].size))
    if len(x) <= tokens:
        return write(x)
    parts = [write(x[start : start + tokens]) for start in range(0, len(x), tokens)]
    return Quantized(
        np.concatenate([part.codes for part in parts]),
        _joined(part.scales for part in parts),
        _joined(part.zeros for part in parts),
        _joined(part.global_scale for part in parts),
    )


def _joined(parts: Iterable[Array | None]) -> Array | None:
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if present else None

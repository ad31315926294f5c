"""A ragged batch cut into the calls of an entry point that takes one request.

A request without tokens is not called: its state is the one it came with. Where an entry point of Mamba-2
takes once a channel what the contract has once a head, it is repeated, as a view.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any


def requests(query_start_loc: Any) -> Iterator[tuple[int, slice]]:
    """Yield the requests that have tokens, with the tokens of each."""
    for request, (first, last) in enumerate(pairwise(query_start_loc.tolist())):
        if first < last:
            yield request, slice(first, last)


def for_each_channel(
    width: int, state_dim: int, dt: Any, A: Any, variant: Mapping[str, Any]
) -> tuple[Any, Any, dict[str, Any]]:
    """Repeat the step sizes, A, D and dt_bias of heads for the channels of each (tensors of PyTorch)."""
    wide = {
        name: value[:, None].expand(-1, width) if name in ("D", "dt_bias") else value
        for name, value in variant.items()
    }
    return dt[:, :, None].expand(-1, -1, width), A[:, None, None].expand(-1, width, state_dim), wide

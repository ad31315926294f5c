"""A ragged batch cut into the calls of an entry point that takes one request.

A request without tokens is not called: its state is the one it came with.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any


def requests(query_start_loc: Any) -> Iterator[tuple[int, slice]]:
    """Yield the requests that have tokens, with the tokens of each."""
    for request, (first, last) in enumerate(pairwise(query_start_loc.tolist())):
        if first < last:
            yield request, slice(first, last)

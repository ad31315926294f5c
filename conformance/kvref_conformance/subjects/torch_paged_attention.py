"""PyTorch's PagedAttention helper as block tables: `reserve`, `erase` and its page table.

The helper knows rows of a batch, and for each how many pages it has. Which row is a request's, and how many
of its tokens are there, is the caller's to keep, so the adapter keeps it. There is no fork and no way back
but `erase`.

Source: PyTorch 2.13, torch/nn/attention/experimental/_paged_attention.py.
"""

from typing import Any

from kvref_conformance.claims import Claims

try:
    import torch
    from torch.nn.attention.experimental._paged_attention import PagedAttention
except ImportError as error:
    raise ImportError(
        "the subject torch_paged_attention needs PyTorch: pip install 'kvref[torch]'"
    ) from error

#: Rows of the batch: requests that are there at one time.
MAX_BATCH = 64


class Tables:
    """A `PagedAttention` of one page size."""

    def __init__(self, num_blocks: int, block_sizes: list[int]) -> None:
        (self._size,) = block_sizes
        self._paged = PagedAttention(num_blocks, self._size, MAX_BATCH, device="cpu")
        self._rows: dict[int, Any] = {}
        self._num_tokens: dict[int, int] = {}
        self._spare = [torch.tensor([row]) for row in range(MAX_BATCH)]

    def add(self, request: int) -> None:
        """Give a request a row that no other has."""
        if request in self._rows:
            raise KeyError(f"request {request} has a row")
        self._rows[request], self._num_tokens[request] = self._spare.pop(), 0

    def append(self, request: int, num_tokens: int) -> dict[str, list[int]]:
        """`reserve`."""
        start = self._num_tokens[request]
        stop = start + num_tokens
        self._paged.reserve(self._rows[request], torch.tensor([stop]))
        self._num_tokens[request] = stop
        row, size = self._paged.page_table[self._rows[request][0]], self._size
        slots = [int(row[at // size]) * size + at % size for at in range(start, stop)]
        return {
            "slots": slots,
            "copy_sources": [],
            "copy_targets": [],
            "copy_counts": [],
            "copy_groups": [],
        }

    def free(self, request: int) -> None:
        """`erase`."""
        row = self._rows.pop(request)
        del self._num_tokens[request]
        self._paged.erase(row)
        self._spare.append(row)

    def block_table(self, request: int, group: int) -> list[int]:
        """Return the pages of a row, as many as it has."""
        pages = self._paged.page_table[self._rows[request][0]].tolist()
        return [page for page in pages if page != -1]

    def num_free(self) -> int:
        """Return how many pages are empty."""
        return len(self._paged.empty_pages)


class TorchPagedAttention:
    """`block_tables` by PagedAttention: add, append, free."""

    claims = Claims(name="torch PagedAttention", version=str(torch.__version__), block_sizes=(4, 1, 3, 16))
    block_tables = Tables

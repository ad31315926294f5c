"""Two ways to write down which blocks a request has: a padded matrix, and compressed rows.

Dense: `block_tables [num_requests, max_blocks]` with `seq_lens [num_requests]` in tokens. Compressed (CSR):
the blocks of all requests one after another in `kv_indices`; `kv_indptr [num_requests + 1]` says where each
request's begin, counted in blocks; `kv_last_page_len [num_requests]` says how many tokens its last block
holds, 1 to block_size. So

    seq_len = block_size · (num_blocks − 1) + last_page_len,   and 0 where there is no block.

Realises: KV-ATTN-092 csr-equals-dense.
For porters: a request of length 0 is a special case in one direction only: the formula would give a negative
length.
Source: FlashInfer names the compressed arrays; vLLM the dense ones.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, as_indices, check_count
from kvref.errors import ArgumentError, BlockTableError, LengthError

#: The largest block id and the largest length: both arrays are int32.
_LARGEST = int(np.iinfo(np.int32).max)


class DenseTables(NamedTuple):
    """`block_tables [num_requests, max_blocks]`, padded; `seq_lens [num_requests]` in tokens; int32."""

    block_tables: Array
    seq_lens: Array


class CsrTables(NamedTuple):
    """`kv_indptr [num_requests + 1]` in blocks, `kv_indices`, `kv_last_page_len [num_requests]`; int32."""

    kv_indptr: Array
    kv_indices: Array
    kv_last_page_len: Array


def dense_to_csr(block_tables: ArrayLike, seq_lens: ArrayLike, *, block_size: int) -> CsrTables:
    """Return compressed rows; what pads the matrix is never read.

    A request of length 0 has no blocks, and 1 as its last length, which says nothing but is in range.
    Raises: ShapeError, DTypeError, LengthError, BlockTableError, ArgumentError.
    """
    size = check_count("block_size", block_size)
    lens = as_indices("seq_lens", seq_lens, ["num_requests"])
    tables = as_indices("block_tables", block_tables, [len(lens), "max_blocks"])
    if (lens < 0).any():
        where = int(np.argmax(lens < 0))
        raise LengthError(f"seq_lens[{where}] = {lens[where]}, expected >= 0 (KV-ATTN-092 csr-equals-dense)")
    _check_int32("seq_lens", lens)
    needed = -(-lens // size)  # [B]
    if (needed > tables.shape[1]).any():
        where = int(np.argmax(needed > tables.shape[1]))
        raise BlockTableError(
            f"block_tables has {tables.shape[1]} entries a request, but seq_lens[{where}] = {lens[where]} "
            f"needs {needed[where]} blocks of {size} (KV-ATTN-092 csr-equals-dense)"
        )
    live = np.arange(tables.shape[1]) < needed[:, None]
    indices = tables[live]
    _check_blocks("block_tables", indices)
    indptr = np.concatenate([[0], np.cumsum(needed)])
    last = np.where(lens == 0, 1, lens - size * (needed - 1))
    return CsrTables(*(x.astype(np.int32) for x in (indptr, indices, last)))


def csr_to_dense(
    kv_indptr: ArrayLike,
    kv_indices: ArrayLike,
    kv_last_page_len: ArrayLike,
    *,
    block_size: int,
    padding: int = -1,
) -> DenseTables:
    """Return the matrix, as wide as the longest request and padded with `padding`, and the lengths.

    Raises: ShapeError, DTypeError, LengthError, BlockTableError, ArgumentError.
    """
    size = check_count("block_size", block_size)
    last = as_indices("kv_last_page_len", kv_last_page_len, ["num_requests"])
    indptr = as_indices("kv_indptr", kv_indptr, [len(last) + 1])
    indices = as_indices("kv_indices", kv_indices, ["num_indices"])
    counts = np.diff(indptr)
    if indptr[0] != 0 or (counts < 0).any() or indptr[-1] != len(indices):
        raise LengthError(
            f"kv_indptr = {indptr.tolist()}, expected to rise from 0 to {len(indices)}, the blocks in "
            "kv_indices (KV-ATTN-092 csr-equals-dense)"
        )
    wrong = (counts > 0) & ((last < 1) | (last > size))
    if wrong.any():
        where = int(np.argmax(wrong))
        raise LengthError(
            f"kv_last_page_len[{where}] = {last[where]}, expected 1 to {size} where there are blocks "
            "(KV-ATTN-092 csr-equals-dense)"
        )
    _check_blocks("kv_indices", indices)
    if check_count("padding", padding, minimum=-_LARGEST - 1) > _LARGEST:
        raise ArgumentError(f"padding = {padding}, expected an int32 (KV-ATTN-092 csr-equals-dense)")
    tables = np.full((len(last), int(counts.max(initial=0))), padding, np.int32)
    tables[np.arange(tables.shape[1]) < counts[:, None]] = indices
    lens = np.where(counts == 0, 0, size * (counts - 1) + last)
    _check_int32("the length from kv_last_page_len", lens)
    return DenseTables(tables, lens.astype(np.int32))


def _check_blocks(name: str, blocks: Array) -> None:
    if ((blocks < 0) | (blocks > _LARGEST)).any():
        found = blocks[(blocks < 0) | (blocks > _LARGEST)][0]
        raise BlockTableError(
            f"{name} names block {found}, expected 0 to {_LARGEST} (KV-ATTN-092 csr-equals-dense)"
        )


def _check_int32(name: str, lengths: Array) -> None:
    if (lengths > _LARGEST).any():
        where = int(np.argmax(lengths > _LARGEST))
        raise LengthError(
            f"{name}[{where}] = {lengths[where]}, expected at most {_LARGEST} (KV-ATTN-092 csr-equals-dense)"
        )

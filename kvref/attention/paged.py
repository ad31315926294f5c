"""Attention over a cache of blocks, found through block tables.

Position i of a request lives in slot `block_tables[request, i // block_size] * block_size + i % block_size`.
Reading gathers a piece of the context from its slots, attends to it, and merges the piece into the rest: the
answer does not depend on where the blocks are. Only attended slots are gathered.

Realises: KV-ATTN-006 running-rescale, KV-ATTN-010 slot-address, KV-ATTN-012 dead-slots, KV-ATTN-013
placement-free, KV-ATTN-014 table-in-range, KV-ATTN-015 table-padding, KV-ATTN-017 shared-blocks, KV-ATTN-018
wide-offsets, KV-ATTN-019 strided-cache, KV-ATTN-050 write-slot, KV-ATTN-051 negative-slot-skipped,
KV-ATTN-052 write-touches-nothing-else, KV-ATTN-053 keys-and-values-apart, KV-ATTN-054 append-then-attend,
KV-ATTN-055 slots-distinct.
For porters: build `write_kv`, then `paged_attention` with one piece; pieces are for speed only.
Source: Kwon et al. 2023 (PagedAttention), section 4.1; vLLM names `slot_mapping` and skips negative slots.
"""

from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, as_array, as_indices, check_real, check_shape, narrow, widen
from kvref.attention.batch import Batch
from kvref.attention.dense import attend, check_query_heads
from kvref.attention.masks import VariantArgs
from kvref.attention.merge import State, empty_state, merge
from kvref.errors import ArgumentError, BlockTableError, DTypeError, ShapeError, SlotMappingError

#: Tokens gathered at a time: 256 tokens of 8 heads of 128 float32 are 1 MiB, which stays in a core's cache.
TOKENS_PER_PIECE = 256


def paged_attention(
    q: ArrayLike,
    k_cache: Array,
    v_cache: Array,
    *,
    block_tables: ArrayLike,
    seq_lens: ArrayLike,
    query_start_loc: ArrayLike,
    rows: ArrayLike | None = None,
    dtype: Any = np.float64,
    **variant: Unpack[VariantArgs],
) -> State:
    """Attend for a ragged batch over a cache of blocks.

    Shapes: q [num_tokens, num_q_heads, head_dim]; k_cache, v_cache [num_blocks, block_size, num_kv_heads,
    head_dim], any strides; block_tables [num_requests, max_blocks], entries past a request's length are never
    read; seq_lens [num_requests]; query_start_loc [num_requests + 1]. `rows` picks query tokens and returns
    only those. `variant`: see `Variant`.
    Returns out [num_tokens, num_q_heads, head_dim] and lse [num_tokens, num_q_heads] in nats, in `dtype`.
    Raises: ShapeError, DTypeError, LengthError, BlockTableError, ArgumentError.
    """
    q = widen("q", q, dtype)
    check_cache(k_cache, v_cache)
    check_query_heads(q, "k_cache", *k_cache.shape[2:])
    batch = Batch.of(q, query_start_loc, seq_lens, variant)
    tables = check_block_tables(block_tables, batch.seq_lens, k_cache.shape[0], k_cache.shape[1])
    result = batch.empty(rows, q, v_cache.shape[3])
    keys, values = _room("k_cache", k_cache, q.dtype), _room("v_cache", v_cache, q.dtype)
    for request, places, queries in batch.by_request(rows):
        allowed = batch.allowed(request, queries)  # [Q, N]
        state = empty_state(len(queries), q.shape[1], v_cache.shape[3], dtype)
        for piece in _pieces(int(batch.seq_lens[request])):
            if not allowed[:, piece].any():
                continue
            slots = locate(tables[request], np.arange(piece.start, piece.stop), k_cache.shape[1])
            part = attend(
                q[queries],
                _gather(k_cache, slots, keys),
                _gather(v_cache, slots, values),
                allowed[:, piece],
                scale=batch.variant.scale,
                softcap=batch.variant.softcap,
                bias=batch.bias(request, queries, piece),
            )
            state = merge(state, part)
        result.out[places], result.lse[places] = batch.finish(state)
    return result


def locate(block_table: Array, positions: Array, block_size: int) -> tuple[Array, Array]:
    """Return (block, offset in the block) of positions of one request (KV-ATTN-010 slot-address)."""
    return block_table[positions // block_size], positions % block_size


def write_kv(k: ArrayLike, v: ArrayLike, k_cache: Array, v_cache: Array, *, slot_mapping: ArrayLike) -> None:
    """Write each token's key and value into its slot, in place; a negative slot is skipped.

    Shapes: k, v [num_tokens, num_kv_heads, head_dim]; caches as `paged_attention`; slot_mapping [num_tokens].
    The values are converted to the cache's dtype by one rounding, as `arrays.narrow`: to nearest even, past
    the largest number to infinity, or to NaN where the format has none. `k` and `v` may be views of a cache.
    All or nothing: where this raises, no slot has changed.
    Raises: ShapeError, DTypeError, SlotMappingError (a slot the cache does not have, or one given twice),
    ArgumentError (caches that lie over each other, so that one write undoes another).
    """
    keys, values = as_array("k", k), as_array("v", v)
    check_cache(k_cache, v_cache)
    check_shape("k", keys, ["num_tokens", *k_cache.shape[2:]])
    check_shape("v", values, [keys.shape[0], *v_cache.shape[2:]])
    widen("k", keys), widen("v", values)
    slots = _check_slots(slot_mapping, keys.shape[0], k_cache.shape[0] * k_cache.shape[1])
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if not cache.flags.writeable:
            raise DTypeError(f"{name} is read-only, expected an array that can be written in place")
    written = slots >= 0
    at = np.divmod(slots[written], k_cache.shape[1])
    new_keys, new_values = narrow(keys[written], k_cache.dtype), narrow(values[written], v_cache.dtype)
    old_keys, old_values = k_cache[at], v_cache[at]
    k_cache[at], v_cache[at] = new_keys, new_values
    if not (_same_bits(k_cache[at], new_keys) and _same_bits(v_cache[at], new_values)):
        k_cache[at], v_cache[at] = old_keys, old_values
        raise ArgumentError(
            "k_cache and v_cache lie over each other, expected a place of its own for every key and value "
            "(KV-ATTN-053 keys-and-values-apart)"
        )


def append_and_attend(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    k_cache: Array,
    v_cache: Array,
    *,
    slot_mapping: ArrayLike,
    block_tables: ArrayLike,
    seq_lens: ArrayLike,
    query_start_loc: ArrayLike,
    dtype: Any = np.float64,
    **variant: Unpack[VariantArgs],
) -> State:
    """Write this step's keys and values, then attend: the new tokens are part of their own context.

    Shapes and errors: as `write_kv` and `paged_attention`; `seq_lens` include the tokens written here.
    """
    q = np.array(widen("q", q, dtype))  # q may be a view of a cache
    no_rows: list[int] = []
    tables = {"block_tables": block_tables, "seq_lens": seq_lens, "query_start_loc": query_start_loc}
    paged_attention(
        q, k_cache, v_cache, rows=no_rows, dtype=dtype, **tables, **variant
    )  # refuse before writing
    write_kv(k, v, k_cache, v_cache, slot_mapping=slot_mapping)
    return paged_attention(q, k_cache, v_cache, dtype=dtype, **tables, **variant)


def check_cache(k_cache: Array, v_cache: Array) -> None:
    """Check that two arrays are the key and the value cache of one pool of blocks.

    Raises: ShapeError, DTypeError.
    """
    check_shape("k_cache", k_cache, ["num_blocks", "block_size", "num_kv_heads", "head_dim"])
    check_shape("v_cache", v_cache, [*k_cache.shape[:3], "head_dim"])
    check_block_size("k_cache", k_cache)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        check_real(name, cache)


def check_block_size(name: str, cache: Array) -> None:
    """Check that the blocks of a cache, `[num_blocks, block_size, ...]`, hold at least one slot.

    Raises: ShapeError.
    """
    if cache.shape[1] == 0:
        raise ShapeError(f"{name} has block_size 0, expected at least 1 (KV-ATTN-010 slot-address)")


def check_block_tables(block_tables: ArrayLike, seq_lens: Array, num_blocks: int, block_size: int) -> Array:
    """Return block tables as integers, every entry that a length needs checked; the rest may be anything.

    Raises: ShapeError, DTypeError, BlockTableError (KV-ATTN-014 table-in-range).
    """
    tables = as_indices("block_tables", block_tables, [len(seq_lens), "max_blocks"])
    needed = -(-seq_lens // block_size)  # [B]
    if (needed > tables.shape[1]).any():
        request = int(np.argmax(needed > tables.shape[1]))
        raise BlockTableError(
            f"block_tables has {tables.shape[1]} entries a request, but seq_lens[{request}] = "
            f"{seq_lens[request]} needs {needed[request]} blocks of {block_size} (KV-ATTN-014 table-in-range)"
        )
    live = np.arange(tables.shape[1])[None, :] < needed[:, None]
    wrong = live & ((tables < 0) | (tables >= num_blocks))
    if wrong.any():
        request, entry = np.argwhere(wrong)[0]
        raise BlockTableError(
            f"block_tables[{request}, {entry}] = {tables[request, entry]}, but k_cache has {num_blocks} "
            "blocks (KV-ATTN-014 table-in-range)"
        )
    return tables


def _check_slots(slot_mapping: ArrayLike, num_tokens: int, num_slots: int) -> Array:
    slots = as_indices("slot_mapping", slot_mapping, [num_tokens])
    if (slots >= num_slots).any():
        token = int(np.argmax(slots >= num_slots))
        raise SlotMappingError(
            f"slot_mapping[{token}] = {slots[token]}, but the cache has {num_slots} slots "
            "(KV-ATTN-050 write-slot)"
        )
    written, counts = np.unique(slots[slots >= 0], return_counts=True)
    if (counts > 1).any():
        raise SlotMappingError(
            f"slot_mapping names slot {written[counts > 1][0]} {counts.max()} times, expected each slot once "
            "(KV-ATTN-055 slots-distinct)"
        )
    return slots


def _same_bits(x: Array, y: Array) -> bool:
    return x.tobytes() == y.tobytes()


def _room(name: str, cache: Array, dtype: Any) -> Array:
    """Return memory for one gathered piece; it is used again for every piece, so it is touched only once.

    Raises: DTypeError, before anything is read or written, if `dtype` cannot hold the cache exactly.
    """
    width = widen(name, cache[:0], dtype).dtype
    return np.empty((TOKENS_PER_PIECE, *cache.shape[2:]), width)


def _gather(cache: Array, slots: tuple[Array, Array], room: Array) -> Array:
    """Copy slots of a cache into `room`, widened exactly, and return that part of it."""
    piece = room[: len(slots[0])]
    with np.errstate(invalid="ignore"):  # some NumPy casts call a signalling NaN invalid
        piece[...] = cache[slots]
    return piece


def _pieces(kv_len: int) -> list[slice]:
    starts = range(0, kv_len, TOKENS_PER_PIECE)
    return [slice(start, min(start + TOKENS_PER_PIECE, kv_len)) for start in starts]

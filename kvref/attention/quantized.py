"""Attention over a cache of codes: find the slots, read the numbers that their codes stand for, attend.

The codes of a slot are read under the scales of that slot, or of the whole cache, and under nothing else.
What they stand for is exact, so this is paged attention over other numbers, and whatever the chapter on
attention says of keys and values holds for those. Only attended slots are read: any other may hold NaN, in
its codes and in its scales.

Realises: KV-FMT-090 attend-over-dequantised, KV-FMT-091 keys-and-values-have-own-scales,
KV-FMT-092 scale-of-own-slot, KV-FMT-093 dead-codes-stay-dead, KV-FMT-094 variants-under-formats.
For porters: dequantise what you gather; folding scales into logits and outputs is for speed only.
Source: the definitions; FlashInfer and TensorRT-LLM fold the scales of a whole cache, vLLM those of slots.
"""

from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, as_array, check_array, check_shape, dtype_name, widen
from kvref.attention.batch import Batch
from kvref.attention.dense import attend, check_query_heads
from kvref.attention.masks import VariantArgs
from kvref.attention.merge import State, empty_state, merge
from kvref.attention.paged import TOKENS_PER_PIECE, check_block_size, check_block_tables, locate
from kvref.errors import FormatError, ShapeError
from kvref.formats.format import Format, Quantized, format_of
from kvref.formats.ggml import block_of, kind_of
from kvref.formats.packing import restore_scales
from kvref.formats.paths import CANONICAL, Path, check_path
from kvref.formats.scaled import decoded, dequantize


@dataclass(frozen=True)
class CodeCache:
    """Keys or values: codes [num_blocks, block_size, num_kv_heads, bytes], and their scales.

    Scales, and the second scale of a two-level format, belong to slots where they have block and offset as
    their first axes, and to the whole cache where they have one axis.
    """

    codes: Array
    scales: Array | None
    global_scale: Array | None
    format: Format
    path: Path

    @property
    def head_dim(self) -> int:
        """How many numbers the bytes of one head hold."""
        width: int = self.codes.shape[3]
        if self.format.family == "ggml":
            block = block_of(kind_of(self.format))
            return width // block.bytes * block.numbers
        return 2 * width if self.format.packed else width

    def at(self, slots: tuple[Array, Array]) -> Quantized:
        """Return what is stored in some slots, in their order."""
        return Quantized(
            self.codes[slots], _of_slots(self.scales, slots), None, _of_slots(self.global_scale, slots)
        )

    def numbers(self, slots: tuple[Array, Array], dtype: str) -> Array:
        """Return the numbers in some slots, float64 [num_slots, num_kv_heads, head_dim].

        They are exact, or rounded to `dtype`, that of q, if the path attends to such.
        """
        found = self.at(slots)
        if self.path.attend_values == "input":
            return widen("codes", decoded(found, self.format, dtype=dtype, path=self.path))
        return dequantize(found, self.format, path=self.path)


def quantized_paged_attention(
    q: ArrayLike,
    k_cache: Array,
    v_cache: Array,
    *,
    format: str | Format,
    block_tables: ArrayLike,
    seq_lens: ArrayLike,
    query_start_loc: ArrayLike,
    k_scales: ArrayLike | None = None,
    v_scales: ArrayLike | None = None,
    k_global_scale: ArrayLike | None = None,
    v_global_scale: ArrayLike | None = None,
    path: Path = CANONICAL,
    rows: ArrayLike | None = None,
    **variant: Unpack[VariantArgs],
) -> State:
    """Attend for a ragged batch over a cache of blocks that holds codes.

    Shapes: q, block_tables, seq_lens, query_start_loc, rows, variant and the result as `paged_attention`;
    k_cache, v_cache uint8 [num_blocks, block_size, num_kv_heads, bytes]. Scales that belong to the whole
    cache: float32 [1] or [num_kv_heads]; scales of slots: [num_blocks, block_size, num_kv_heads], and
    [..., groups] where a head has several. The same holds for the global scales of two-level formats. Under
    path.v_scale_layout "interleaved" the value scales of each block and head lie in that order; scale_layout
    is for scales that have no slots, and not looked at.
    Raises: as `paged_attention`; FormatError if the format has groups beyond one token, or zeros, or codes
    or scales are not those of the format.
    """
    caches = code_caches(k_cache, v_cache, format, k_scales, v_scales, k_global_scale, v_global_scale, path)
    dtype, q = dtype_name(as_array("q", q)), widen("q", q)
    batch, tables, width = check_code_batch(q, caches, block_tables, query_start_loc, seq_lens, variant)
    result = batch.empty(rows, q, width)
    for request, places, queries in batch.by_request(rows):
        allowed = batch.allowed(request, queries)  # [Q, N]
        state = empty_state(len(queries), q.shape[1], width)
        for start in range(0, int(batch.seq_lens[request]), TOKENS_PER_PIECE):
            piece = allowed[:, start : start + TOKENS_PER_PIECE]
            read = np.flatnonzero(piece.any(axis=0))
            if not len(read):
                continue
            slots = locate(tables[request], start + read, k_cache.shape[1])
            keys, values = (cache.numbers(slots, dtype) for cache in caches)
            bias = batch.bias(request, queries, slice(start, start + piece.shape[1]))
            part = attend(
                q[queries],
                keys,
                values,
                piece[:, read],
                scale=batch.variant.scale,
                softcap=batch.variant.softcap,
                bias=None if bias is None else bias[..., read],
            )
            state = merge(state, part)
        result.out[places], result.lse[places] = batch.finish(state)
    return result


def code_caches(
    k_cache: Array,
    v_cache: Array,
    format: str | Format,
    k_scales: ArrayLike | None,
    v_scales: ArrayLike | None,
    k_global_scale: ArrayLike | None,
    v_global_scale: ArrayLike | None,
    path: Path,
) -> tuple[CodeCache, CodeCache]:
    """Return keys and values, their codes and scales checked against each other; nothing is read yet.

    Raises: FormatError, ShapeError, DTypeError.
    """
    kind = format_of(format)
    check_path(path)
    if kind.group == "tokens" or kind.zeros or path.scale_axis == "tokens":
        raise FormatError(
            f"format = {kind.name} with path.scale_axis = {path.scale_axis}, expected one whose scales each "
            "belong to one token, and that has no zeros"
        )
    own = replace(path, scale_layout="linear")
    keys = _cache("k", k_cache, k_scales, k_global_scale, kind, own)
    values = _cache("v", v_cache, v_scales, v_global_scale, kind, own)
    if values.codes.shape[:3] != keys.codes.shape[:3]:
        raise ShapeError(
            f"v_cache has shape {list(v_cache.shape)}, expected {list(k_cache.shape[:3])} first, as k_cache"
        )
    check_block_size("k_cache", k_cache)
    if own.v_scale_layout == "interleaved" and values.scales is not None and values.scales.ndim == 4:
        by_head = values.scales.swapaxes(1, 2)  # [num_blocks, num_kv_heads, block_size, groups]
        in_order = restore_scales(by_head, "interleaved", rows=by_head.shape[2], columns=by_head.shape[3])
        values = replace(values, scales=in_order.swapaxes(1, 2))
    return keys, values


def check_code_batch(
    q: Array,
    caches: tuple[CodeCache, CodeCache],
    block_tables: ArrayLike,
    query_start_loc: ArrayLike,
    seq_lens: ArrayLike,
    variant: Any,
) -> tuple[Batch, Array, int]:
    """Return the batch, its block tables, and the width of values, checked against the caches.

    Raises: as `quantized_paged_attention`.
    """
    keys, values = caches
    num_blocks, block_size, num_kv_heads, _ = keys.codes.shape
    check_query_heads(q, "k_cache", num_kv_heads, keys.head_dim)
    batch = Batch.of(q, query_start_loc, seq_lens, variant)
    return batch, check_block_tables(block_tables, batch.seq_lens, num_blocks, block_size), values.head_dim


def _cache(
    side: str,
    codes: Array,
    scales: ArrayLike | None,
    global_scale: ArrayLike | None,
    format: Format,
    path: Path,
) -> CodeCache:
    check_shape(f"{side}_cache", codes, ["num_blocks", "block_size", "num_kv_heads", "bytes"])
    if codes.dtype != np.uint8:
        raise FormatError(f"{side}_cache has dtype {codes.dtype}, expected uint8 codes of {format.name}")
    parts = {f"{side}_scales": scales, f"{side}_global_scale": global_scale}
    found: list[Array | None] = []
    for name, part in parts.items():
        array = None if part is None else as_array(name, part)
        if array is not None:
            check_array(name, array)
            if array.ndim != 1 and array.shape[:2] != codes.shape[:2]:
                raise ShapeError(
                    f"{name} has shape {list(array.shape)}, expected one axis, or {list(codes.shape[:2])} "
                    f"first, as {side}_cache (KV-FMT-092 scale-of-own-slot)"
                )
        found.append(array)
    return CodeCache(codes, found[0], found[1], format, path)


def _of_slots(part: Array | None, slots: tuple[Array, Array]) -> Array | None:
    return part if part is None or part.ndim == 1 else part[slots]

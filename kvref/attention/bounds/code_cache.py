"""The bound of a kernel that attends over a cache of codes: its arithmetic's, and what decoding adds to that.

The answer it is held to is attention over the numbers that the codes stand for, so nothing that the format
lost is in the bound. A kernel has more roundings over codes than over numbers, a few in float32, wherever it
applies the scales; where it says that it attends over rounded numbers, those are the numbers, exactly.

For porters: `paged_bound` first; this is the same with another way to read a slot.
Source: derived in `spec/bounds.md`, on what a format adds.
"""

from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, as_array, dtype_name, widen
from kvref.attention.arithmetic import Arithmetic, resolved
from kvref.attention.bounds.attention import Bound, fill_in, judge_request, no_bound
from kvref.attention.bounds.decoding import Decoding
from kvref.attention.masks import VariantArgs
from kvref.attention.merge import State
from kvref.attention.paged import locate
from kvref.attention.quantized import CodeCache, check_code_batch, code_caches
from kvref.formats.format import Format
from kvref.formats.lines import line_of
from kvref.formats.paths import CANONICAL, Path

_LARGEST, _UNDERFLOW = float(np.finfo(np.float32).max), float(np.finfo(np.float32).smallest_normal)


def quantized_paged_bound(
    q: ArrayLike,
    k_cache: Array,
    v_cache: Array,
    *,
    format: str | Format,
    block_tables: ArrayLike,
    seq_lens: ArrayLike,
    query_start_loc: ArrayLike,
    arithmetic: Arithmetic,
    k_scales: ArrayLike | None = None,
    v_scales: ArrayLike | None = None,
    k_global_scale: ArrayLike | None = None,
    v_global_scale: ArrayLike | None = None,
    path: Path = CANONICAL,
    independent: bool = False,
    rows: ArrayLike | None = None,
    **variant: Unpack[VariantArgs],
) -> tuple[State, Bound]:
    """Return the exact answer of `quantized_paged_attention` and the bound around it.

    Shapes and errors: as there; "input" in `arithmetic` is the dtype of `q`; `independent` as
    `attention_bound`. A row that attends to a number past the largest of float32 has an infinite bound: a
    kernel that decodes in float32 has no such number.
    """
    facts, dtype = resolved(arithmetic, "q", q), dtype_name(as_array("q", q))
    caches = code_caches(k_cache, v_cache, format, k_scales, v_scales, k_global_scale, v_global_scale, path)
    q = widen("q", q)
    batch, tables, width = check_code_batch(q, caches, block_tables, query_start_loc, seq_lens, variant)
    state, bound = batch.empty(rows, q, width), no_bound(batch, rows, q, width)
    for request, places, queries in batch.by_request(rows):
        allowed = batch.allowed(request, queries)
        read = np.flatnonzero(allowed.any(axis=0))
        if not len(read):
            continue
        slots = locate(tables[request], read, k_cache.shape[1])
        whole = [np.zeros((allowed.shape[1], k_cache.shape[2], cache.head_dim)) for cache in caches]
        for numbers, cache in zip(whole, caches, strict=True):
            numbers[read] = cache.numbers(slots, dtype)
        keys, values = whole
        decoding = decoding_of(caches, slots, read, allowed.shape[1])
        part = judge_request(batch, request, queries, q, keys, values, facts, independent, decoding)
        past = np.any([(np.abs(numbers) > _LARGEST).any(axis=2) for numbers in whole], axis=0)
        past_rows = np.repeat(allowed @ past, q.shape[1] // past.shape[1], axis=1)  # [Q, H]
        part[1].out[past_rows], part[1].lse[past_rows] = np.inf, np.inf
        fill_in(state, bound, places, part)
    return state, bound


def decoding_of(
    caches: tuple[CodeCache, CodeCache], slots: tuple[Array, Array], read: Array, kv_len: int
) -> Decoding | None:
    """Return how a kernel decodes a context of which it reads some positions, in some slots.

    One rounding for each scale that is no power of two. A kernel that rounds keys and values to the dtype of
    q has done so by the path, and rounds nothing else: None.
    """
    form = caches[0].format
    if caches[0].path.attend_values == "input":
        return None
    units = np.ones((3, kv_len, caches[0].codes.shape[2]))
    for unit, cache in zip(units, caches, strict=False):
        unit[read] = np.maximum(1.0, _units(cache, slots))
    if form.group == "token_head":
        units[2, read] = np.minimum(1.0, _units(caches[1], slots))
    elif form.global_scale == "token_head":
        units[2, read] = np.minimum(1.0, _global_units(caches[1], slots))
    roundings = (form.scale_element != "e8m0") + (form.global_scale != "")
    return Decoding(roundings, _UNDERFLOW, *units)


def _units(cache: CodeCache, slots: tuple[Array, Array]) -> Array:
    """Return the largest that one stands for in each slot and head, `[num_slots, num_kv_heads]`."""
    largest = np.abs(line_of(cache.at(slots), cache.format, cache.path).slope).max(axis=2, initial=0.0)
    if cache.format.global_scale:
        largest = np.maximum(largest, _global_units(cache, slots))
    return np.where(np.isnan(largest), np.inf, largest)


def _global_units(cache: CodeCache, slots: tuple[Array, Array]) -> Array:
    """Return the second scale of each slot and head."""
    stored = cache.at(slots).global_scale
    assert stored is not None
    with np.errstate(divide="ignore"):
        wide = stored.astype(np.float64)
        decode = 1 / wide if cache.path.nvfp4_operand == "encode" else wide
    return np.broadcast_to(decode, (len(slots[0]), cache.codes.shape[2]))

"""Asserts for other people's tests: hold a kernel's output to the reference within a derived bound.

One line replaces a guessed `atol`. Arrays may be NumPy, torch (CPU or CUDA) or jax; nothing is imported until
a function is called. On failure the message names the worst component, the bound, and the known fault that
gives the same answer, if there is one.

    kvref.testing.assert_paged_attention(
        out, q, k_cache, v_cache, block_tables=tables, seq_lens=lens, query_start_loc=starts, scale=0.125
    )

Realises: KV-CONF-016 nan-fails, KV-CONF-017 derived-bounds.
"""

from typing import Any, Unpack

import numpy as np

from kvref.arrays import Array
from kvref.attention.arithmetic import Arithmetic
from kvref.attention.bounds import Bound, dense_bound, merge_bound, paged_bound
from kvref.attention.masks import VariantArgs
from kvref.attention.merge import State
from kvref.attention.paged import check_block_tables, write_kv
from kvref.testing.codes import assert_dequantize_kv, assert_quantize_kv
from kvref.testing.inputs import (
    as_numpy,
    check_cache_shape,
    chosen_rows,
    facts_of,
    lengths,
    needed_blocks,
    plain_variant,
)
from kvref.testing.judge import Case, diagnosis, hold

__all__ = [
    "MAX_ROWS",
    "assert_attention",
    "assert_dequantize_kv",
    "assert_merge",
    "assert_paged_attention",
    "assert_quantize_kv",
    "assert_write_kv",
]

#: Query tokens checked of a longer input, the first and the last of every request first.
MAX_ROWS = 128


def assert_attention(
    out: Any,
    q: Any,
    k: Any,
    v: Any,
    *,
    query_start_loc: Any,
    seq_lens: Any,
    lse: Any = None,
    arithmetic: Arithmetic | None = None,
    rows: Any = None,
    max_rows: int = MAX_ROWS,
    **variant: Unpack[VariantArgs],
) -> None:
    """Assert that an output is attention over keys and values packed request after request.

    Shapes: out [num_tokens, num_q_heads, v_head_dim], lse [num_tokens, num_q_heads] in nats, the rest as
    `kvref.attention.dense.attention`; `variant` has the scale and what else shapes the logits.
    `arithmetic` says what the kernel's arithmetic is; None stands for the strict default: float32 inside, P
    rounded to the dtype of q, the result to the dtype of `out`. All query tokens are checked, or `rows`, or a
    fixed sample of `max_rows`: first and last of each request, the others evenly spaced.
    Raises: AssertionError; ShapeError, DTypeError, LengthError, ArgumentError where the input is wrong, or
    where the bound is so wide that zeros are within it as well, so that a pass would say nothing.
    """
    out, q, k, v = as_numpy(out), as_numpy(q), as_numpy(k), as_numpy(v)
    starts, lens = lengths(query_start_loc, seq_lens)
    tensors = {"q": q, "k": k, "v": v, "query_start_loc": starts, "seq_lens": lens}
    case = Case("attention", tensors, plain_variant(variant), facts_of(arithmetic, out))
    chosen = chosen_rows(tensors, rows, max_rows)

    def judge(facts: Arithmetic) -> tuple[State, Bound]:
        named: Any = {"query_start_loc": starts, "seq_lens": lens, "rows": chosen, **case.variant}
        return dense_bound(q, k, v, arithmetic=facts, **named)

    hold(case, out, None if lse is None else as_numpy(lse), judge, chosen)


def assert_paged_attention(
    out: Any,
    q: Any,
    k_cache: Any,
    v_cache: Any,
    *,
    block_tables: Any,
    seq_lens: Any,
    query_start_loc: Any,
    lse: Any = None,
    arithmetic: Arithmetic | None = None,
    rows: Any = None,
    max_rows: int = MAX_ROWS,
    **variant: Unpack[VariantArgs],
) -> None:
    """Assert that an output is attention over a cache of blocks.

    Shapes: caches [num_blocks, block_size, num_kv_heads, head_dim], block_tables [num_requests, max_blocks],
    the rest, the sample and the errors as `assert_attention`. Of a large cache on a device only the blocks in
    the tables are copied.
    Raises: BlockTableError besides.
    """
    out, q = as_numpy(out), as_numpy(q)
    starts, lens = lengths(query_start_loc, seq_lens)
    check_cache_shape("k_cache", k_cache)
    check_cache_shape("v_cache", v_cache)
    tables = check_block_tables(as_numpy(block_tables), lens, *k_cache.shape[:2])
    k_cache, v_cache, tables = needed_blocks(k_cache, v_cache, tables, lens)
    tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "block_tables": tables}
    tensors |= {"query_start_loc": starts, "seq_lens": lens}
    case = Case("paged_attention", tensors, plain_variant(variant), facts_of(arithmetic, out))
    chosen = chosen_rows(tensors, rows, max_rows)

    def judge(facts: Arithmetic) -> tuple[State, Bound]:
        named: Any = {"query_start_loc": starts, "seq_lens": lens, "rows": chosen, **case.variant}
        return paged_bound(q, k_cache, v_cache, block_tables=tables, arithmetic=facts, **named)

    hold(case, out, None if lse is None else as_numpy(lse), judge, chosen)


def assert_write_kv(
    k_cache_after: Any,
    v_cache_after: Any,
    k: Any,
    v: Any,
    k_cache_before: Any,
    v_cache_before: Any,
    *,
    slot_mapping: Any,
) -> None:
    """Assert that a write put each token into its slot, bit for bit, and touched nothing else.

    Shapes: caches [num_blocks, block_size, num_kv_heads, head_dim], k and v [num_tokens, num_kv_heads,
    head_dim], slot_mapping [num_tokens], negative where a token is not written. A NaN that was written may
    have any payload.
    Raises: AssertionError; ShapeError, DTypeError, SlotMappingError where the input itself is wrong.
    """
    before = {"k_cache": as_numpy(k_cache_before), "v_cache": as_numpy(v_cache_before)}
    after = {"k_cache": as_numpy(k_cache_after), "v_cache": as_numpy(v_cache_after)}
    expected = {name: np.array(cache) for name, cache in before.items()}
    new, slots = {"k": as_numpy(k), "v": as_numpy(v)}, as_numpy(slot_mapping)
    write_kv(new["k"], new["v"], expected["k_cache"], expected["v_cache"], slot_mapping=slots)
    written = np.isin(np.arange(expected["k_cache"].shape[0] * expected["k_cache"].shape[1]), slots)
    for name, cache in after.items():
        _same_form(f"{name}_after", cache, before[name])
        code = f"u{cache.itemsize}"
        wrong = cache.view(code) != expected[name].view(code)
        wrong &= ~(written.reshape(*cache.shape[:2], 1, 1) & np.isnan(cache) & np.isnan(expected[name]))
        if not wrong.any():
            continue
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        slot = at[0] * cache.shape[1] + at[1]
        tokens = np.flatnonzero(slots == slot)
        whose = f"token {int(tokens[0])} belongs there" if len(tokens) else "no token belongs there"
        message = (
            f"{name}{list(at)} = {cache[at]}, expected {expected[name][at]}: slot {slot}, {whose} "
            f"({int(wrong.any(axis=(2, 3)).sum())} slots differ; KV-ATTN-050 write-slot, KV-ATTN-052 "
            "write-touches-nothing-else)"
        )
        tensors = {**new, **before, "slot_mapping": slots}
        case = Case("write_kv", tensors, {}, Arithmetic())
        raise AssertionError(message + diagnosis(case, after))


def assert_merge(
    out: Any,
    lse: Any,
    out_a: Any,
    lse_a: Any,
    out_b: Any,
    lse_b: Any,
    *,
    arithmetic: Arithmetic | None = None,
) -> None:
    """Assert that (out, lse) combines two partial states over disjoint sets of slots.

    Shapes: out [num_tokens, num_q_heads, head_dim], lse [num_tokens, num_q_heads] in nats; an empty part is
    (0, −inf). `arithmetic`, and the refusal of what would say nothing, as `assert_attention`.
    Raises: AssertionError; ShapeError, DTypeError where the input itself is wrong.
    """
    parts = {"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b}
    tensors = {name: as_numpy(x) for name, x in parts.items()}
    case = Case("merge_attention_states", tensors, {}, facts_of(arithmetic, out))
    every = np.arange(tensors["out_a"].shape[0] if tensors["out_a"].ndim else 0)
    hold(case, as_numpy(out), as_numpy(lse), lambda facts: merge_bound(**tensors, arithmetic=facts), every)


def _same_form(name: str, x: Array, like: Array) -> None:
    if x.shape != like.shape or x.dtype != like.dtype:
        raise AssertionError(
            f"{name} has dtype {x.dtype} and shape {list(x.shape)}, "
            f"expected {like.dtype} and {list(like.shape)}"
        )

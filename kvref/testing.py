"""Asserts for other people's tests: hold a kernel's output to the reference within a derived bound.

One line replaces a guessed `atol`. Arrays may be NumPy, torch (CPU or CUDA) or jax; nothing is imported until
a function is called. On failure the message names the worst component, the bound, and the known fault that
gives the same answer, if there is one.

    kvref.testing.assert_paged_attention(
        out, q, k_cache, v_cache, block_tables=tables, seq_lens=lens, query_start_loc=starts, scale=0.125
    )

Realises: KV-CONF-016 nan-fails, KV-CONF-017 derived-bounds.
"""

from dataclasses import dataclass, replace
from typing import Any, Unpack, cast

import numpy as np

from kvref.arrays import Array, as_indices, dtype_name
from kvref.attention.arithmetic import Arithmetic
from kvref.attention.bounds import Bound, dense_bound, exceeds, paged_bound
from kvref.attention.bounds.merge import merge_bound
from kvref.attention.masks import VariantArgs
from kvref.attention.merge import State
from kvref.attention.paged import check_block_tables, write_kv

#: Query tokens checked of a longer input, the first and the last of every request first.
MAX_ROWS = 128
#: Elements of the largest cache that is kept whole; of a larger one, only the blocks in the tables.
_WHOLE_CACHE = 2**24


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
    Raises: AssertionError; ShapeError, DTypeError, LengthError, ArgumentError where the input is wrong.
    """
    out, q, k, v = _numpy(out), _numpy(q), _numpy(k), _numpy(v)
    starts, lens = _lengths(query_start_loc, seq_lens)
    tensors = {"q": q, "k": k, "v": v, "query_start_loc": starts, "seq_lens": lens}
    case = _Case("attention", tensors, _variant(variant), _facts(arithmetic, out))
    chosen = _chosen(tensors, rows, max_rows)
    state, bound = dense_bound(
        q,
        k,
        v,
        query_start_loc=starts,
        seq_lens=lens,
        arithmetic=case.facts,
        rows=chosen,
        **case.variant,
    )
    _hold(case, out, None if lse is None else _numpy(lse), state, bound, chosen)


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
    out, q = _numpy(out), _numpy(q)
    starts, lens = _lengths(query_start_loc, seq_lens)
    tables = check_block_tables(_numpy(block_tables), lens, *k_cache.shape[:2])
    k_cache, v_cache, tables = _needed(k_cache, v_cache, tables, lens)
    tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "block_tables": tables}
    tensors |= {"query_start_loc": starts, "seq_lens": lens}
    case = _Case("paged_attention", tensors, _variant(variant), _facts(arithmetic, out))
    chosen = _chosen(tensors, rows, max_rows)
    state, bound = paged_bound(
        q,
        k_cache,
        v_cache,
        block_tables=tables,
        query_start_loc=starts,
        seq_lens=lens,
        arithmetic=case.facts,
        rows=chosen,
        **case.variant,
    )
    _hold(case, out, None if lse is None else _numpy(lse), state, bound, chosen)


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
    head_dim], slot_mapping [num_tokens], negative where a token is not written.
    Raises: AssertionError; ShapeError, DTypeError, SlotMappingError where the input itself is wrong.
    """
    before = {"k_cache": _numpy(k_cache_before), "v_cache": _numpy(v_cache_before)}
    after = {"k_cache": _numpy(k_cache_after), "v_cache": _numpy(v_cache_after)}
    expected = {name: np.array(cache) for name, cache in before.items()}
    new, slots = {"k": _numpy(k), "v": _numpy(v)}, _numpy(slot_mapping)
    write_kv(new["k"], new["v"], expected["k_cache"], expected["v_cache"], slot_mapping=slots)
    for name, cache in after.items():
        _same_form(f"{name}_after", cache, before[name])
        wrong = ~((cache == expected[name]) | ((cache != cache) & (expected[name] != expected[name])))
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
        case = _Case("write_kv", tensors, {}, Arithmetic())
        raise AssertionError(message + _diagnosis(case, after))


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
    (0, −inf). `arithmetic` as `assert_attention`.
    Raises: AssertionError; ShapeError, DTypeError where the input itself is wrong.
    """
    parts = {"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b}
    tensors = {name: _numpy(x) for name, x in parts.items()}
    case = _Case("merge_attention_states", tensors, {}, _facts(arithmetic, out))
    state, bound = merge_bound(**tensors, arithmetic=case.facts)
    _hold(case, _numpy(out), _numpy(lse), state, bound, np.arange(len(state.out)))


@dataclass(frozen=True)
class _Case:
    """One judged call: what went in, and the arithmetic it is held to."""

    verb: str
    tensors: dict[str, Array]
    variant: VariantArgs
    facts: Arithmetic


def _hold(case: _Case, out: Array, lse: Array | None, state: State, bound: Bound, rows: Array) -> None:
    """Compare the chosen rows of an output, and of its lse, with the reference."""
    total = case.tensors["q" if "q" in case.tensors else "out_a"].shape[0]
    pairs = [("out", out, state.out, bound.out)]
    pairs += [] if lse is None else [("lse", lse, state.lse, bound.lse)]
    for name, whole, expected, allowed in pairs:
        form = [total, *expected.shape[1:]]
        if list(whole.shape) != form:
            raise AssertionError(f"{name} has shape {list(whole.shape)}, expected {form}")
        observed = whole[rows]
        outside = exceeds(observed, expected, allowed)
        if not outside.any():
            continue
        at = _worst(observed.astype(np.float64), expected, allowed, outside)
        token = int(rows[at[0]])
        sample = "" if len(rows) == total else f"; {len(rows)} of {total} query tokens were checked"
        message = (
            f"{_place(case, token, at)}: {name} = {float(observed[at]):.6g}, expected "
            f"{expected[at]:.6g} ± {allowed[at]:.2g} ({int(outside.sum())} of {outside.size} outside{sample})"
        )
        answer = {"out": out} if lse is None else {"out": out, "lse": lse}
        raise AssertionError(message + _diagnosis(case, answer))


def _place(case: _Case, token: int, at: tuple[int, ...]) -> str:
    channel = f", channel {at[2]}" if len(at) > 2 else ""
    place = f"token {token}, head {at[1]}{channel}"
    if "query_start_loc" not in case.tensors:
        return place
    request = int(np.searchsorted(case.tensors["query_start_loc"], token, side="right") - 1)
    return f"request {request}, {place}"


def _diagnosis(case: _Case, answer: dict[str, Array]) -> str:
    """Return the faults that give the same answer, each as a line."""
    from kvref_conformance.runner.asserted import known_faults

    sentences = known_faults(case.verb, {**case.tensors, **case.variant}, answer, case.facts)
    return "".join(f"\nas if: {sentence}" for sentence in sentences)


def _chosen(tensors: dict[str, Array], rows: Any, max_rows: int) -> Array:
    """Return the query tokens to check: the given rows, all, or a fixed sample."""
    total = tensors["q"].shape[0]
    if rows is not None:
        return as_indices("rows", _numpy(rows), ["num_rows"])
    if total <= max_rows:
        return np.arange(total)
    starts = tensors["query_start_loc"]
    filled = np.diff(starts) > 0
    ends = np.unique(np.concatenate([starts[:-1][filled], starts[1:][filled] - 1]))
    if len(ends) >= max_rows:
        return np.asarray(ends[np.linspace(0, len(ends) - 1, max_rows).astype(np.int64)])
    others = np.setdiff1d(np.arange(total), ends)
    spread = np.linspace(0, len(others) - 1, max_rows - len(ends)).astype(np.int64)
    return np.union1d(ends, others[spread])


def _needed(k_cache: Any, v_cache: Any, tables: Array, seq_lens: Array) -> tuple[Array, Array, Array]:
    """Return caches and tables; of large caches only the blocks in use, renumbered."""
    num_blocks, block_size = k_cache.shape[:2]
    if int(np.prod(k_cache.shape)) <= _WHOLE_CACHE:
        return _numpy(k_cache), _numpy(v_cache), tables
    live = np.arange(tables.shape[1])[None, :] < -(-seq_lens // block_size)[:, None]
    used = np.unique(tables[live])
    number = np.zeros(num_blocks, np.int64)
    number[used] = np.arange(len(used))
    index = used.tolist() if hasattr(k_cache, "detach") else used  # torch takes lists, NumPy and jax arrays
    return (
        _numpy(k_cache[index]),
        _numpy(v_cache[index]),
        np.where(live, number[np.where(live, tables, 0)], 0),
    )


def _lengths(query_start_loc: Any, seq_lens: Any) -> tuple[Array, Array]:
    lens = as_indices("seq_lens", _numpy(seq_lens), ["num_requests"])
    return as_indices("query_start_loc", _numpy(query_start_loc), [len(lens) + 1]), lens


def _facts(arithmetic: Arithmetic | None, out: Any) -> Arithmetic:
    """Return the arithmetic to hold an output to; undeclared, the result is rounded to its own dtype."""
    return replace(Arithmetic(), output=dtype_name(_numpy(out))) if arithmetic is None else arithmetic


def _variant(variant: VariantArgs) -> VariantArgs:
    plain: Any = {name: x if x is None or np.isscalar(x) else _numpy(x) for name, x in variant.items()}
    return cast(VariantArgs, plain)  # the same keys, tensors as NumPy arrays


def _numpy(x: Any) -> Array:
    from kvref_conformance.host.bridges import to_numpy

    return np.asarray(x) if isinstance(x, list | tuple | int | float) else to_numpy(x)


def _same_form(name: str, x: Array, like: Array) -> None:
    if x.shape != like.shape or x.dtype != like.dtype:
        raise AssertionError(
            f"{name} has dtype {x.dtype} and shape {list(x.shape)}, "
            f"expected {like.dtype} and {list(like.shape)}"
        )


def _worst(observed: Array, expected: Array, bound: Array, outside: Array) -> tuple[int, ...]:
    """Return the index that is furthest outside; NaN counts as furthest."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        excess = np.abs(observed - expected) / np.maximum(bound, np.finfo(np.float64).tiny)
    excess = np.where(outside, np.where(np.isnan(excess), np.inf, excess), -1.0)
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), excess.shape))

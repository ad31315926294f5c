"""Asserts for other people's tests: hold a kernel's output to the reference within a derived bound.

One line replaces a guessed `atol`. Arrays may be NumPy, torch (CPU or CUDA) or jax; nothing is imported until
a function is called. On failure the message names the worst component, the bound, and the known fault that
gives the same answer, if there is one.

    kvref.testing.assert_paged_attention(
        out, q, k_cache, v_cache, block_tables=tables, seq_lens=lens, query_start_loc=starts, scale=0.125
    )

Realises: KV-CONF-016 nan-fails, KV-CONF-017 derived-bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Unpack, cast

import numpy as np

from kvref.arrays import Array, as_indices, check_count, dtype_name, is_real
from kvref.attention.arithmetic import REFERENCE, Arithmetic
from kvref.attention.bounds import Bound, dense_bound, exceeds, paged_bound
from kvref.attention.bounds.merge import merge_bound
from kvref.attention.masks import VariantArgs
from kvref.attention.merge import State
from kvref.attention.paged import check_block_tables, write_kv
from kvref.errors import ArgumentError, DTypeError, ShapeError

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
    Raises: AssertionError; ShapeError, DTypeError, LengthError, ArgumentError where the input is wrong, or
    where the bound is so wide that zeros are within it as well, so that a pass would say nothing.
    """
    out, q, k, v = _numpy(out), _numpy(q), _numpy(k), _numpy(v)
    starts, lens = _lengths(query_start_loc, seq_lens)
    tensors = {"q": q, "k": k, "v": v, "query_start_loc": starts, "seq_lens": lens}
    case = _Case("attention", tensors, _variant(variant), _facts(arithmetic, out))
    chosen = _chosen(tensors, rows, max_rows)

    def judge(facts: Arithmetic) -> tuple[State, Bound]:
        named: Any = {"query_start_loc": starts, "seq_lens": lens, "rows": chosen, **case.variant}
        return dense_bound(q, k, v, arithmetic=facts, **named)

    _hold(case, out, None if lse is None else _numpy(lse), judge, chosen)


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
    _check_cache_shape("k_cache", k_cache)
    _check_cache_shape("v_cache", v_cache)
    tables = check_block_tables(_numpy(block_tables), lens, *k_cache.shape[:2])
    k_cache, v_cache, tables = _needed(k_cache, v_cache, tables, lens)
    tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "block_tables": tables}
    tensors |= {"query_start_loc": starts, "seq_lens": lens}
    case = _Case("paged_attention", tensors, _variant(variant), _facts(arithmetic, out))
    chosen = _chosen(tensors, rows, max_rows)

    def judge(facts: Arithmetic) -> tuple[State, Bound]:
        named: Any = {"query_start_loc": starts, "seq_lens": lens, "rows": chosen, **case.variant}
        return paged_bound(q, k_cache, v_cache, block_tables=tables, arithmetic=facts, **named)

    _hold(case, out, None if lse is None else _numpy(lse), judge, chosen)


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
    before = {"k_cache": _numpy(k_cache_before), "v_cache": _numpy(v_cache_before)}
    after = {"k_cache": _numpy(k_cache_after), "v_cache": _numpy(v_cache_after)}
    expected = {name: np.array(cache) for name, cache in before.items()}
    new, slots = {"k": _numpy(k), "v": _numpy(v)}, _numpy(slot_mapping)
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
    (0, −inf). `arithmetic`, and the refusal of what would say nothing, as `assert_attention`.
    Raises: AssertionError; ShapeError, DTypeError where the input itself is wrong.
    """
    parts = {"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b}
    tensors = {name: _numpy(x) for name, x in parts.items()}
    case = _Case("merge_attention_states", tensors, {}, _facts(arithmetic, out))
    every = np.arange(tensors["out_a"].shape[0] if tensors["out_a"].ndim else 0)
    _hold(case, _numpy(out), _numpy(lse), lambda facts: merge_bound(**tensors, arithmetic=facts), every)


@dataclass(frozen=True)
class _Case:
    """One judged call: what went in, and the arithmetic it is held to."""

    verb: str
    tensors: dict[str, Array]
    variant: VariantArgs
    facts: Arithmetic


def _hold(
    case: _Case,
    out: Array,
    lse: Array | None,
    judge: Callable[[Arithmetic], tuple[State, Bound]],
    rows: Array,
) -> None:
    """Compare the chosen rows of an output, and of its lse, with what `judge` says under an arithmetic."""
    state, bound = judge(case.facts)
    total = case.tensors["q" if "q" in case.tensors else "out_a"].shape[0]
    if np.isnan(state.out).any():
        at = tuple(int(i) for i in np.argwhere(np.isnan(state.out))[0])
        raise ArgumentError(
            f"{_place(case, int(rows[at[0]]), at)}: the exact answer is NaN, expected inputs that are finite "
            "where they are attended to"
        )
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
    size = np.abs(state.out)
    # a pass that zeros would get says nothing, unless the answer is 0 as far as the reference can tell
    if size.size and (size <= bound.out).all() and (size > judge(REFERENCE)[1].out).any():
        raise ArgumentError(
            f"the bound is {bound.out.max():.2g} and no expected number is above {size.max():.2g}, expected "
            "outputs that tell a kernel from zeros: shorter contexts, values that do not cancel, or an "
            "`arithmetic` with the `depth` of the kernel's sums"
        )


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
    total, max_rows = tensors["q"].shape[0], check_count("max_rows", max_rows)
    if rows is not None:
        given = as_indices("rows", _numpy(rows), ["num_rows"])
        if total and len(given) == 0:
            raise ArgumentError(f"rows is empty, expected at least one of the {total} query tokens")
        return given
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


def _check_cache_shape(name: str, cache: Any) -> None:
    """Check the shape of a cache that is still on its device."""
    shape = getattr(cache, "shape", None)
    if shape is None:
        raise DTypeError(f"{name} is a {type(cache).__name__}, expected a tensor")
    if len(shape) != 4 or shape[1] == 0:
        raise ShapeError(
            f"{name} has shape {list(shape)}, expected [num_blocks, block_size, num_kv_heads, head_dim]"
        )


def _lengths(query_start_loc: Any, seq_lens: Any) -> tuple[Array, Array]:
    lens = as_indices("seq_lens", _numpy(seq_lens), ["num_requests"])
    return as_indices("query_start_loc", _numpy(query_start_loc), [len(lens) + 1]), lens


def _facts(arithmetic: Arithmetic | None, out: Any) -> Arithmetic:
    """Return the arithmetic to hold an output to; undeclared, the result is rounded to its own dtype."""
    found = _numpy(out)
    if not is_real(found):
        raise DTypeError(f"out has dtype {found.dtype}, expected real numbers (float64 … float8_e5m2)")
    return replace(Arithmetic(), output=dtype_name(found)) if arithmetic is None else arithmetic


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

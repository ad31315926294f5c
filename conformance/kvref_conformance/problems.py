"""Attention problems, and how each verb presents them.

A problem is logical: for each request, queries and the keys and values of its context, nothing of where they
lie. A presentation turns it into one call of one verb: packed, or scattered over scrambled blocks with poison
in every slot that must not be read. One problem, many presentations, one answer: that is the law.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kvref.arrays import Array, dtype_of
from kvref.formats.format import Quantized
from kvref_conformance.cases import Case
from kvref_conformance.contracts import Call, OutputSpec, Scalar
from kvref_conformance.untouched import untouched

#: Finite poison for dead slots: reading one pulls weight towards it, whatever the query.
POISON_KEY, POISON_VALUE = 64.0, -200.0
#: Views of a cache: a gap after every block, wider for values than for keys; heads before offsets in memory.
GAPS, HEADS_FIRST = "gaps between blocks", "heads before offsets"
VIEWS = (GAPS, HEADS_FIRST)
#: Which variant arguments are tensors; the others are scalars.
_TENSOR_VARIANTS = ("sinks", "alibi_slopes", "span_ids", "mask")


@dataclass(frozen=True)
class CodedContexts:
    """Contexts as a writer has stored them: codes, and scales that belong to a token or to all."""

    format: str
    keys: Quantized
    values: Quantized
    interleaved: bool = False
    """Whether the scales of values take turns within a block, four tokens at a time."""


@dataclass(frozen=True)
class Problem:
    """Queries, contexts, and the variant of attention between them; all values exact in `dtype`.

    Where contexts are codes, k and v are the numbers that these stand for, exact in float64.
    """

    q: Array
    """[num_tokens, num_q_heads, head_dim]"""
    k: Array
    """[sum(seq_lens), num_kv_heads, head_dim]"""
    v: Array
    """[sum(seq_lens), num_kv_heads, v_head_dim]"""
    seq_lens: Array
    query_lens: Array
    variant: Mapping[str, Any]
    dtype: str
    hunts: Array | None = None
    """[num_tokens, num_q_heads] position of the needle each query hunts, −1 for none. A needle that is in the
    attended set has weight exactly 1, so the answer has no rounding there."""
    codes: CodedContexts | None = None

    @property
    def query_start_loc(self) -> Array:
        """Where each request's query tokens begin, `[num_requests + 1]`."""
        return np.concatenate([[0], np.cumsum(self.query_lens)]).astype(np.int32)

    @property
    def context_start_loc(self) -> Array:
        """Where each request's context begins in k and v, `[num_requests + 1]`."""
        return np.concatenate([[0], np.cumsum(self.seq_lens)])

    def but(self, **changes: Any) -> "Problem":
        """Return the problem with some fields changed."""
        return replace(self, **changes)

    def rows_of(self, requests: Sequence[int]) -> Array:
        """Return the rows of q that belong to some requests, in their order."""
        return _ranges(self.query_start_loc, requests)

    def only(self, requests: Sequence[int]) -> "Problem":
        """Return the problem of some requests, in their order; for variants that have no tensor of tokens."""
        tokens, context = self.rows_of(requests), _ranges(self.context_start_loc, requests)
        return self.but(
            q=self.q[tokens],
            k=self.k[context],
            v=self.v[context],
            seq_lens=self.seq_lens[list(requests)],
            query_lens=self.query_lens[list(requests)],
            hunts=None if self.hunts is None else self.hunts[tokens],
        )

    def request_of(self, token: int) -> int:
        """Return the request a query token belongs to."""
        return int(np.searchsorted(self.query_start_loc, token, side="right") - 1)


def _ranges(starts: Array, which: Sequence[int]) -> Array:
    return np.concatenate([np.arange(starts[i], starts[i + 1]) for i in which])


def cast(x: Array, dtype: str) -> Array:
    """Round an array to a dtype by name (to nearest, ties to even)."""
    return np.asarray(x).astype(dtype_of(dtype))


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a problem's contexts lie, and what the rest of memory holds."""

    seed: int = 0
    poison: tuple[float, float] = (POISON_KEY, POISON_VALUE)
    """What dead slots hold, key and value."""
    table_padding: int | None = None
    """What entries past the last needed block hold; None: the id of some poisoned block."""
    spare_blocks: int = 3
    shared_blocks: int = 0
    """Leading blocks that all requests share (their contexts must agree there)."""
    block_stride: int | None = None
    """Elements from one block to the next, if the caches are strided views; where they are fewer than a block
    has, blocks lie over each other."""
    view: str = ""
    """One of `VIEWS`, if the caches are views of something larger that lies near."""
    tables: Array | None = None
    """Block tables to use as they are, instead of drawing them."""
    num_blocks: int | None = None


@dataclass(frozen=True)
class Placed:
    """A problem's contexts in a cache of blocks."""

    k_cache: Array
    v_cache: Array
    block_tables: Array
    slot_of: list[Array]
    """For each request, the slot of each position."""
    extra: Mapping[str, Any] = field(default_factory=dict)


def place(problem: Problem, block_size: int, placement: Placement) -> Placed:
    """Scatter contexts over blocks in scrambled order, every other slot poisoned."""
    tables, slot_of, num_blocks = scattered(problem.seq_lens, block_size, placement)
    shape = (num_blocks, block_size, problem.k.shape[1])
    k_cache = blank(shape, problem.k.shape[2], problem.dtype, placement.poison[0], placement.block_stride)
    v_cache = blank(shape, problem.v.shape[2], problem.dtype, placement.poison[1], placement.block_stride)
    for slots, start in zip(slot_of, problem.context_start_loc, strict=False):
        block, offset = np.divmod(slots, block_size)
        k_cache[block, offset] = problem.k[start : start + len(slots)]
        v_cache[block, offset] = problem.v[start : start + len(slots)]
    if placement.view:
        k_cache = viewed(k_cache, placement.view, "k_cache")
        v_cache = viewed(v_cache, placement.view, "v_cache")
    return Placed(k_cache, v_cache, tables, slot_of)


def scattered(seq_lens: Array, block_size: int, placement: Placement) -> tuple[Array, list[Array], int]:
    """Return block tables in scrambled order, the slots of each request's positions, and how many blocks."""
    rng = np.random.default_rng(placement.seed)
    needed = [-(-int(n) // block_size) for n in seq_lens]
    shared = placement.shared_blocks
    own = [max(n - shared, 0) for n in needed]
    num_blocks = placement.num_blocks or sum(own) + shared + placement.spare_blocks
    ids = rng.permutation(num_blocks)
    common, rest = ids[:shared], list(ids[shared:])
    width = max([*needed, 1]) + 1
    padding = int(ids[-1]) if placement.table_padding is None else placement.table_padding
    tables = np.full((len(needed), width), padding, np.int32)
    for request, count in enumerate(needed):
        mine = [rest.pop(0) for _ in range(own[request])]
        tables[request, :count] = [*common[:count], *mine][:count]
    if placement.tables is not None:
        tables = placement.tables.astype(np.int32)
    slot_of = []
    for request, n in enumerate(seq_lens):
        at = np.arange(int(n))
        slot_of.append(tables[request, at // block_size].astype(np.int64) * block_size + at % block_size)
    return tables, slot_of, num_blocks


def viewed(cache: Array, view: str, name: str) -> Array:
    """Return the cache `[num_blocks, block_size, num_kv_heads, head_dim]` as a view of other memory."""
    blocks, size, heads, width = cache.shape
    if view == HEADS_FIRST:
        memory = np.ascontiguousarray(cache.transpose(0, 2, 1, 3))
        return memory.transpose(0, 2, 1, 3)
    gap = 1 if name == "k_cache" else 3
    larger = np.zeros((blocks, size + gap, heads, width), cache.dtype)
    larger[:, :size] = cache
    return larger[:, :size]


def blank(shape: tuple[int, ...], head_dim: int, dtype: str, fill: float, block_stride: int | None) -> Array:
    """Return a cache filled with one number, its blocks `block_stride` elements apart if that is given."""
    kind = dtype_of(dtype)
    if block_stride is None:
        return np.full((*shape, head_dim), fill, kind)
    span = (shape[0] - 1) * block_stride + int(np.prod(shape[1:])) * head_dim
    flat = untouched(span * kind.itemsize).view(kind)  # only the blocks themselves become resident
    inner = (shape[2] * head_dim, head_dim, 1)
    strides = tuple(step * kind.itemsize for step in (block_stride, *inner))
    view = np.lib.stride_tricks.as_strided(flat, (*shape, head_dim), strides)
    if block_stride >= shape[1] * inner[0]:
        view[...] = fill  # blocks that lie over each other are left at zero: filling them would take long
    return view


def present(problem: Problem, case: Case, placement: Placement, *, lse: bool = False) -> Call:
    """Return the call of `case.verb` that asks this problem."""
    tensors, lengths, params, outputs = asked(problem, lse=lse)
    if case.verb == "attention":
        return Call(case.verb, {**tensors, "k": problem.k, "v": problem.v, **lengths}, params, outputs)
    placed = place(problem, case.block_size, placement)
    caches = {"k_cache": placed.k_cache, "v_cache": placed.v_cache}
    tables = {"block_tables": placed.block_tables}
    if case.verb == "paged_attention":
        return Call(case.verb, {**tensors, **caches, **tables, **lengths}, params, outputs)
    new, slots = _take_new(problem, placed, placement)
    given = {**tensors, **new, **caches, "slot_mapping": slots, **tables, **lengths}
    return Call(case.verb, given, params, outputs, in_place=("k_cache", "v_cache"))


def asked(
    problem: Problem, *, lse: bool
) -> tuple[dict[str, Array], dict[str, Array], dict[str, Scalar], dict[str, OutputSpec]]:
    """Return queries and tensors of the variant, lengths, scalars of the variant, and what must come back."""
    params: dict[str, Scalar] = {"return_lse": True} if lse else {}
    tensors: dict[str, Array] = {"q": problem.q}
    for name, value in problem.variant.items():
        if value is None or (name == "causal" and value is True):
            continue
        if name in _TENSOR_VARIANTS:
            tensors[name] = np.asarray(value)
        else:
            params[name] = value
    lengths = {"query_start_loc": problem.query_start_loc, "seq_lens": problem.seq_lens.astype(np.int32)}
    out_shape = (problem.q.shape[0], problem.q.shape[1], problem.v.shape[2])
    outputs = {"out": OutputSpec(problem.dtype, out_shape)}
    if lse:
        outputs["lse"] = OutputSpec("float32", out_shape[:2])
    return tensors, lengths, params, outputs


def _take_new(problem: Problem, placed: Placed, placement: Placement) -> tuple[dict[str, Array], Array]:
    """Take this step's tokens out of the cache again: they arrive as k and v, with their slots."""
    at: list[int] = []
    slots: list[int] = []
    for request, start in enumerate(problem.context_start_loc[:-1]):
        n, n_q = int(problem.seq_lens[request]), int(problem.query_lens[request])
        first = n - n_q  # negative where there are more queries than context: those tokens have no slot
        at.extend(min(start + max(i, 0), len(problem.k) - 1) for i in range(first, n))
        slots.extend(int(placed.slot_of[request][i]) if i >= 0 else -1 for i in range(first, n))
    slot_mapping = np.array(slots, np.int64)
    written = slot_mapping[slot_mapping >= 0]
    block_size = placed.k_cache.shape[1]
    placed.k_cache[written // block_size, written % block_size] = placement.poison[0]
    placed.v_cache[written // block_size, written % block_size] = placement.poison[1]
    index = np.array(at, np.int64)
    empty = len(problem.k) == 0
    new_k = np.zeros((len(at), *problem.k.shape[1:]), problem.k.dtype) if empty else problem.k[index]
    new_v = np.zeros((len(at), *problem.v.shape[1:]), problem.v.dtype) if empty else problem.v[index]
    return {"k": new_k, "v": new_v}, slot_mapping

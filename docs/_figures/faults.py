"""Faulty kernels, and inputs to try them on: what the figures about tolerances are computed from.

The kernel is an emulated split attention as many run it: logits and sums in float32, weights rounded to
bfloat16 before they meet the values, eight splits merged through their lse, the result in bfloat16. Each
fault is one small change to it, or to what it reads.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import ml_dtypes
import numpy as np

from kvref.arrays import Array
from kvref.attention.arithmetic import Arithmetic
from kvref.attention.bounds import Bound, attention_bound
from kvref.attention.dense import attend
from kvref_conformance.emulation import Kernel, run

NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM, SPLITS, BLOCK = 16, 4, 64, 8, 16
GROUP = NUM_Q_HEADS // NUM_KV_HEADS
SCALE = 0.11

FLASH = Arithmetic(probabilities="bfloat16", output="bfloat16", merges=1, block=64)
NAIVE = Arithmetic(
    scores="bfloat16", probabilities="bfloat16", output="bfloat16", merges=0, block=None, normalized=True
)


@dataclass(frozen=True, eq=False)
class Inputs:
    """One query token over a context of n tokens, and one stale token behind it.

    q [1, num_q_heads, head_dim]; k and v [n + 1, num_kv_heads, head_dim], the last row not part of the
    context.
    """

    q: Array
    k: Array
    v: Array
    scale: float = SCALE

    @property
    def context(self) -> tuple[Array, Array]:
        """Keys and values that are to be attended to."""
        return self.k[:-1], self.v[:-1]


@dataclass(frozen=True)
class Fault:
    """A kernel by what is wrong with it; `reads` changes its inputs, `computes` replaces its last steps."""

    name: str
    reads: Callable[[Inputs], Inputs] = lambda x: x
    computes: Callable[[Inputs], Array] | None = None
    arithmetic: Arithmetic = FLASH
    correct: bool = False

    def answer(self, x: Inputs) -> Array:
        """What it returns, `[num_q_heads, head_dim]`."""
        compute = self.computes or _kernel(self.arithmetic)
        return compute(self.reads(x)).astype(np.float64)


def random_inputs(n: int, seed: int = 0) -> Inputs:
    """Standard normal q, k and v: what most tests use."""
    rng = np.random.default_rng(seed)
    return Inputs(
        _bf16(rng.normal(size=(1, NUM_Q_HEADS, HEAD_DIM))),
        _bf16(rng.normal(size=(n + 1, NUM_KV_HEADS, HEAD_DIM))),
        _bf16(rng.normal(size=(n + 1, NUM_KV_HEADS, HEAD_DIM))),
    )


def needles(n: int, seed: int = 0) -> Inputs:
    """Each head hunts one token at an edge of a block, a split or the context; behind it lies a trap."""
    rng = np.random.default_rng(seed)
    q = np.zeros((1, NUM_Q_HEADS, HEAD_DIM))
    k = 0.01 * rng.normal(size=(n + 1, NUM_KV_HEADS, HEAD_DIM))
    v = rng.normal(size=(n + 1, NUM_KV_HEADS, HEAD_DIM))
    for head, at in enumerate(_edges(n)):
        channel, kv_head = head % GROUP, head // GROUP
        q[0, head, channel] = 1.0
        k[at, kv_head, channel] = (np.log(n) + 1) / SCALE
        v[at, kv_head, head] = 4.0
    k[n, :, :GROUP], v[n] = 2 * np.log(n) / SCALE, 100.0
    return Inputs(_bf16(q), _bf16(k), _bf16(v))


def all_negative(n: int, seed: int = 0) -> Inputs:
    """Every logit is near -30, so that a zero that was not masked takes the whole row."""
    x = random_inputs(n, seed)
    q, k = np.array(x.q, np.float64), 0.1 * np.array(x.k, np.float64)
    q[..., -1], k[..., -1] = 1.0, -30 / SCALE
    return replace(x, q=_bf16(q), k=_bf16(k))


def _edges(n: int) -> list[int]:
    near_end = [n - 17, n - 16, n - 15, n - 8, n - 4, n - 3, n - 2, n - 1]
    return [0, 1, BLOCK - 1, BLOCK, n // SPLITS - 1, n // SPLITS, n // 2 - 1, n // 2, *near_end]


@cache
def truth(x: Inputs, arithmetic: Arithmetic) -> tuple[Array, Bound]:
    """The exact answer, `[num_q_heads, head_dim]`, and the bound for one arithmetic."""
    k, v = x.context
    allowed = np.ones((1, len(k)), np.bool_)
    wide = [np.asarray(each, np.float64) for each in (x.q, k, v)]
    exact = attend(wide[0], wide[1], wide[2], allowed, scale=x.scale)
    bound = attention_bound(x.q, k, v, allowed, scale=x.scale, arithmetic=arithmetic)
    return exact.out[0], Bound(bound.out[0], bound.lse[0])


def _bf16(x: Array) -> Array:
    return np.asarray(x, np.float64).astype(ml_dtypes.bfloat16)


def _kernel(arithmetic: Arithmetic) -> Callable[[Inputs], Array]:
    """The correct kernel of an arithmetic."""

    def compute(x: Inputs) -> Array:
        k, v = x.context
        splits = SPLITS if arithmetic.merges else 1
        allowed = np.ones((1, len(k)), np.bool_)
        return run(Kernel(arithmetic, splits=splits), x.q, k, v, allowed, scale=x.scale).out[0]

    return compute


def _parts(x: Inputs) -> tuple[Array, Array]:
    """Output and lse of each split, `[SPLITS, num_q_heads, head_dim]` and `[SPLITS, num_q_heads]`."""
    k, v = x.context
    one = Kernel(replace(FLASH, merges=0, output="float32"))
    parts = [
        run(one, x.q, k[piece], v[piece], np.ones((1, len(piece)), np.bool_), scale=x.scale)
        for piece in np.array_split(np.arange(len(k)), SPLITS)
    ]
    return np.stack([p.out[0] for p in parts]), np.stack([p.lse[0] for p in parts])


def _merged(outs: Array, lses: Array) -> Array:
    w = np.exp(lses - lses.max(axis=0))
    return _bf16(np.einsum("sh,shd->hd", w / w.sum(axis=0), outs))


def _base_two(x: Inputs) -> Array:
    outs, lses = _parts(x)
    return _merged(outs, lses / np.log(2))


def _equal_shares(x: Inputs) -> Array:
    outs, _ = _parts(x)
    return _bf16(outs.mean(axis=0))


def _sums_in_bfloat16(x: Inputs) -> Array:
    """Sums of sixteen products are exact enough; what is carried from one to the next is bfloat16."""
    k, v = (np.repeat(np.asarray(each, np.float32), GROUP, axis=1) for each in x.context)
    logits = np.einsum("hd,nhd->hn", np.asarray(x.q[0], np.float32), k) * np.float32(x.scale)
    w = np.exp(logits - logits.max(axis=1, keepdims=True)).astype(ml_dtypes.bfloat16).astype(np.float32)
    acc = np.zeros((NUM_Q_HEADS, HEAD_DIM), np.float32)
    for start in range(0, len(k), BLOCK):
        piece = slice(start, start + BLOCK)
        acc = (acc + np.einsum("hn,nhd->hd", w[:, piece], v[piece])).astype(ml_dtypes.bfloat16)
        acc = acc.astype(np.float32)
    return _bf16(acc / w.sum(axis=1, keepdims=True))


def _softcapped(x: Inputs) -> Array:
    k, v = x.context
    allowed = np.ones((1, len(k)), np.bool_)
    return run(Kernel(FLASH, splits=SPLITS), x.q, k, v, allowed, scale=x.scale, softcap=50.0).out[0]


def _with(x: Inputs, rows: Array) -> Inputs:
    """The context with other rows; what lies behind it stays."""
    behind = [len(x.k) - 1]
    index = np.concatenate([rows, behind]).astype(np.int64)
    return replace(x, k=x.k[index], v=x.v[index])


def _n(x: Inputs) -> int:
    return len(x.k) - 1


def _wrong_block(x: Inputs) -> Inputs:
    """Sixteen tokens in the middle come from the block of somebody else."""
    other = random_inputs(BLOCK, seed=9)
    k, v = x.k.copy(), x.v.copy()
    at = slice(_n(x) // 2, _n(x) // 2 + BLOCK)
    k[at], v[at] = other.k[:BLOCK], other.v[:BLOCK]
    return replace(x, k=k, v=v)


def _stale_value(x: Inputs) -> Inputs:
    """The newest value had not been written when it was read."""
    v = x.v.copy()
    v[_n(x) - 1] = random_inputs(1, seed=5).v[0]
    return replace(x, v=v)


def _zero_key(x: Inputs) -> Inputs:
    """A padding slot full of zeros is attended to."""
    zero = np.zeros_like(x.k[:1])
    return replace(
        x, k=np.concatenate([x.k[:-1], zero, x.k[-1:]]), v=np.concatenate([x.v[:-1], zero, x.v[-1:]])
    )


def _tiled(x: Inputs) -> Array:
    """Query head h reads kv head h % num_kv_heads: as if the heads were asked in another order."""
    order = np.argsort(np.arange(NUM_Q_HEADS) % NUM_KV_HEADS, kind="stable")
    moved = _kernel(FLASH)(replace(x, q=x.q[:, order]))
    answer = np.empty_like(moved)
    answer[order] = moved
    return answer


#: Correct kernels first, then faults.
KERNELS = (
    Fault("correct: weights in bfloat16, 8 splits", correct=True),
    Fault("correct: everything in bfloat16", arithmetic=NAIVE, correct=True),
    Fault("the last token is dropped", lambda x: _with(x, np.arange(_n(x) - 1))),
    Fault("the first token is dropped", lambda x: _with(x, np.arange(1, _n(x)))),
    Fault("a token in the middle is dropped", lambda x: _with(x, np.delete(np.arange(_n(x)), _n(x) // 2))),
    Fault("the last token counts twice", lambda x: _with(x, np.append(np.arange(_n(x)), _n(x) - 1))),
    Fault("one slot past the length is read", lambda x: _with(x, np.arange(_n(x) + 1))),
    Fault("one padding slot of zeros is read", _zero_key),
    Fault("one block is somebody else's", _wrong_block),
    Fault("the newest value is stale", _stale_value),
    Fault("the scale is 1 % too large", lambda x: replace(x, scale=1.01 * x.scale)),
    Fault("a soft cap of 50 that nobody asked for", computes=_softcapped),
    Fault("base-2 lse merged as natural", computes=_base_two),
    Fault("splits averaged with equal shares", computes=_equal_shares),
    Fault("sums carried in bfloat16", computes=_sums_in_bfloat16),
    Fault("query heads tiled over kv heads", computes=_tiled),
)

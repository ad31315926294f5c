"""Correct kernels in low precision, emulated: they do what an `Arithmetic` declares, rounding by rounding.

A bound that a correct kernel can exceed is a false alarm; a bound nobody comes near is no test. Both are
measured with the kernels here. They share no line with the reference: the arithmetic is NumPy float32 (or
float64), and every number that a real kernel stores in a narrower format is rounded to it on the spot.

For porters: nothing here is needed to be correct; it is a source of correct answers that are not exact.
Source: FlashAttention-2 (online softmax), Flash-Decoding (splits merged through their lse).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from kvref.arrays import Array, dtype_name, dtype_of
from kvref.attention.arithmetic import Arithmetic


@dataclass(frozen=True)
class Kernel:
    """A kernel: its declared arithmetic, how many splits it cuts a context into, and the order of its sums.

    A serial kernel adds one product at a time, in order; the others leave the order to the matrix product.
    A flushing one has an exponential whose subnormal results are zero, like `ex2.approx.ftz`.
    """

    arithmetic: Arithmetic
    splits: int = 1
    serial: bool = False
    flushes: bool = False


class Answer(NamedTuple):
    """What a kernel returns: `out [num_rows, num_q_heads, head_dim]` in its output dtype, and the lse."""

    out: Array
    lse: Array


_FLOAT32 = Arithmetic(probabilities="float32", output="float32", merges=0, block=None, normalized=True)
_ONLINE = Arithmetic(probabilities="float32", output="float32", merges=0, block=64)
_BFLOAT16 = "bfloat16"
_NAIVE_BFLOAT16 = Arithmetic(
    scores=_BFLOAT16, probabilities=_BFLOAT16, output=_BFLOAT16, merges=0, block=None, normalized=True
)


def _flash(probabilities: str, output: str, **facts: Any) -> Arithmetic:
    return Arithmetic(**{"probabilities": probabilities, "output": output, "merges": 0, "block": 64, **facts})


#: Correct kernels by name; each is judged by the bound of its own declaration.
KERNELS: dict[str, Kernel] = {
    "float32 naive": Kernel(_FLOAT32),
    "float32 token-serial": Kernel(_FLOAT32, serial=True),
    "float32 online": Kernel(_ONLINE),
    "P bfloat16, out bfloat16": Kernel(_flash(_BFLOAT16, _BFLOAT16)),
    "P bfloat16, out float32": Kernel(_flash(_BFLOAT16, "float32")),
    "P float16, out float16": Kernel(_flash("float16", "float16")),
    "P float8_e4m3fn, out bfloat16": Kernel(_flash("float8_e4m3fn", _BFLOAT16)),
    "P float8_e4m3fn, out float32": Kernel(_flash("float8_e4m3fn", "float32")),
    "8 splits, parts float32": Kernel(_flash(_BFLOAT16, _BFLOAT16, merges=1), splits=8),
    "8 splits, parts bfloat16": Kernel(_flash(_BFLOAT16, _BFLOAT16, merges=1, partial=_BFLOAT16), splits=8),
    "bfloat16 naive": Kernel(_NAIVE_BFLOAT16),
    "P truncated": Kernel(_flash(_BFLOAT16, _BFLOAT16, rounding="truncate")),
    "P bfloat16 in the sum": Kernel(_flash(_BFLOAT16, _BFLOAT16, rounded_sum=True)),
    "exp flushed": Kernel(_ONLINE, flushes=True),
    "q scaled in bfloat16": Kernel(_flash(_BFLOAT16, _BFLOAT16, query=_BFLOAT16)),
    "q and k scaled in bfloat16": Kernel(_flash(_BFLOAT16, _BFLOAT16, query=_BFLOAT16, key=_BFLOAT16)),
    "sums in bfloat16": Kernel(_flash(_BFLOAT16, _BFLOAT16, accumulate=_BFLOAT16), serial=True),
}


def round_to(x: Array, dtype: str, rounding: str = "nearest") -> Array:
    """Round numbers to a narrower format and return them in their own dtype.

    "nearest" breaks ties to even, "truncate" drops what lies below the last place. A format as wide as the
    dtype of `x`, or wider, changes nothing. Overflow is infinity (NaN for formats without one), and the
    largest finite number when truncating.
    Raises: DTypeError if the dtype has no name.
    """
    target = dtype_of(dtype)
    if target.itemsize >= x.dtype.itemsize:
        return x
    if rounding == "nearest" and (x.dtype == np.float32 or target.kind == "f"):
        with np.errstate(over="ignore", invalid="ignore"):
            return x.astype(target).astype(x.dtype)
    info: Any = ml_dtypes.finfo(target)
    _, exponent = np.frexp(x)
    lowest = int(np.log2(float(info.smallest_normal))) + 1  # frexp's exponent of the smallest normal number
    place = np.maximum(exponent, lowest) - (int(info.nmant) + 1)
    units = np.ldexp(x, -place)
    whole = np.rint(units) if rounding == "nearest" else np.trunc(units)
    rounded: Array = np.ldexp(whole, place)
    if rounding == "truncate":
        rounded = np.clip(rounded, -float(info.max), float(info.max))
    with np.errstate(over="ignore", invalid="ignore"):
        return rounded.astype(target).astype(x.dtype)


def run(
    kernel: Kernel,
    q: Array,
    k: Array,
    v: Array,
    allowed: Array,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: Array | None = None,
) -> Answer:
    """Attend over one request as the kernel would.

    Shapes: q [num_rows, num_q_heads, head_dim], k and v [kv_len, num_kv_heads, head_dim], allowed [num_rows,
    kv_len], sinks [num_q_heads]. An empty row gives (0, −inf); positions outside `allowed` are multiplied by
    zero and must be finite.
    """
    facts = kernel.arithmetic.resolve(dtype_name(q))
    work = np.dtype(facts.working)
    num_rows, num_q_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    group = num_q_heads // num_kv_heads
    out = np.zeros((num_rows, num_q_heads, v.shape[2]), work)
    lse = np.full((num_rows, num_q_heads), -np.inf, work)
    for kv_head in range(num_kv_heads):
        heads = slice(kv_head * group, (kv_head + 1) * group)
        rows = q[:, heads].astype(work).reshape(num_rows * group, head_dim)
        inside = np.repeat(allowed, group, axis=0)
        keys, values = k[:, kv_head].astype(work), v[:, kv_head].astype(work)
        logits = np.where(inside, _logits(kernel, facts, rows, keys, scale, softcap), -np.inf).astype(work)
        pieces = np.array_split(np.arange(len(keys)), max(1, min(kernel.splits, len(keys))))
        parts = [_split(kernel, facts, logits[:, piece], values[piece]) for piece in pieces]
        whole = parts[0] if len(parts) == 1 else _combine(facts, parts)
        out[:, heads] = whole.out.reshape(num_rows, group, -1)
        lse[:, heads] = whole.lse.reshape(num_rows, group)
    if sinks is not None:
        with np.errstate(over="ignore"):
            out /= (1 + np.exp(sinks.astype(work) - lse))[..., None]
    return Answer(round_to(out, facts.output, facts.rounding).astype(dtype_of(facts.output)), lse)


def _logits(
    kernel: Kernel, facts: Arithmetic, q: Array, k: Array, scale: float, softcap: float | None
) -> Array:
    work, factor = q.dtype, q.dtype.type(scale)
    if facts.query is not None:
        part = factor if facts.key is None else np.sqrt(factor)
        q, factor = round_to(q * part, facts.query, facts.rounding), work.type(1)
        k = k if facts.key is None else round_to(k * part, facts.key, facts.rounding)
    logits = _product(kernel, facts, q, k.T) * factor
    if softcap is not None:
        logits = np.tanh(logits / work.type(softcap)) * work.type(softcap)
    return round_to(logits, facts.scores, facts.rounding)


def _split(kernel: Kernel, facts: Arithmetic, logits: Array, v: Array) -> Answer:
    """Attend over one split: a single pass, or block by block with a running maximum."""
    num_rows, n = logits.shape
    work = logits.dtype
    step = n if facts.block is None else facts.block
    peak = np.full((num_rows, 1), -np.inf, work)
    total, acc = np.zeros((num_rows, 1), work), np.zeros((num_rows, v.shape[1]), work)
    for start in range(0, n, step):
        piece = slice(start, start + step)
        seen = np.maximum(peak, logits[:, piece].max(axis=1, keepdims=True))
        reference = np.where(np.isneginf(seen), 0, seen).astype(work)
        old = np.exp(peak - reference)  # 0 before anything was seen
        w = np.exp(round_to(logits[:, piece] - reference, facts.scores, facts.rounding))
        if kernel.flushes:
            w = np.where(w < np.finfo(work).tiny, 0, w).astype(work)
        if facts.normalized:
            ones = np.ones((w.shape[1], 1), work)
            total = _product(kernel, facts, w, ones)
            w = w / np.where(total == 0, 1, total)
        p = round_to(w, facts.probabilities, facts.rounding)
        acc = _product(kernel, facts, p, v[piece], _keep(facts, acc * old))
        if not facts.normalized:
            summed = p if facts.rounded_sum else w
            ones = np.ones((w.shape[1], 1), work)
            total = _product(kernel, facts, summed, ones, _keep(facts, total * old))
        peak = seen
    out = acc if facts.normalized else acc / np.where(total == 0, 1, total)
    with np.errstate(divide="ignore"):
        lse = np.where(np.isneginf(peak), 0, peak) + np.log(total)
    return Answer(out, lse[:, 0])


def _combine(facts: Arithmetic, parts: list[Answer]) -> Answer:
    """Merge the splits at once; each partial output has been stored in the declared format."""
    lses = np.stack([part.lse for part in parts])  # [K, R]
    outs = np.stack([round_to(part.out, facts.partial, facts.rounding) for part in parts])
    peak = lses.max(axis=0)
    reference = np.where(np.isneginf(peak), 0, peak).astype(lses.dtype)
    w = np.exp(lses - reference)
    total = w.sum(axis=0)
    out = (w[..., None] * outs).sum(axis=0) / np.where(total == 0, 1, total)[:, None]
    with np.errstate(divide="ignore"):
        return Answer(out, reference + np.log(total))


def _product(kernel: Kernel, facts: Arithmetic, a: Array, b: Array, start: Array | None = None) -> Array:
    """Return start + a·b, `[R, D]` from `[R, N]` and `[N, D]`, every sum kept in the declared format."""
    if not kernel.serial:
        return a @ b if start is None else start + a @ b
    acc = np.zeros((a.shape[0], b.shape[1]), a.dtype) if start is None else start
    for j in range(a.shape[1]):
        acc = _keep(facts, acc + a[:, j : j + 1] * b[j])
    return acc


def _keep(facts: Arithmetic, x: Array) -> Array:
    return round_to(x, facts.accumulate, facts.rounding)

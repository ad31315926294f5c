"""Contexts of codes: needles and random numbers, stored as a writer stores them, under scales far from 1.

The numbers of needles are ones that their format holds exactly, under scales that are powers of two: what a
needle returns has no rounding. Each token, head and group has a magnitude of its own, and so has a scale of
its own, and keys have other scales than values.

Makes huge: scales of other slots, of the other side, of other heads; codes read in another order.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.formats.casts import encode
from kvref.formats.format import Format, Quantized
from kvref.formats.paths import Path
from kvref.formats.scaled import dequantize, quantize
from kvref_conformance.cases import Case
from kvref_conformance.probes import codes
from kvref_conformance.probes.exact_contexts import POWERS, Sheet, given_scales, needle_share, shares_of
from kvref_conformance.probes.format_cases import kind_of
from kvref_conformance.probes.random import dyadic
from kvref_conformance.problems import CodedContexts, Problem, cast

#: Scores that a needle has above all others, in nats.
GAP = 1000.0
SCALE = 0.3125
#: Uneven scales of whole caches, keys and values.
UNEVEN = (0.37, 2.9)
#: How the given scales of heads differ: by powers of two, by any factor, or one scale serves them all.
POWERED, APART, ONE = "powers", "apart", "one"
#: Decisions that say how stored bytes are read.
_READERS = ("nibble_order", "mx_span", "nvfp4_operand", "decode_dtype", "nvfp4_decode_order", "attend_values")


def code_needles(case: Case, hunts: Array, path: Path, **variant: Any) -> Problem:
    """Build a problem in which each query token and head hunts one position of its context, over codes.

    `hunts [num_tokens, num_q_heads]` holds positions, −1 for none.
    """
    kind = kind_of(case)
    sheet = Sheet.of(case, path)
    rng = np.random.default_rng(case.seed + 311)
    shares = rng.choice(shares_of(kind), sheet.shape)
    values = np.where(sheet.fixed != 0, sheet.fixed, shares) * sheet.units(1)
    units = sheet.units(0)
    keys = sheet.fixed * units
    queries = np.zeros((case.num_tokens, case.num_q_heads, case.head_dim))
    placed = np.full((case.num_tokens, case.num_q_heads), -1)
    starts = np.concatenate([[0], np.cumsum(case.seq_lens)])
    tokens = np.concatenate([[0], np.cumsum(case.query_lens)])
    for request, n in enumerate(case.seq_lens):
        rows = slice(tokens[request], tokens[request + 1])
        hunted = [int(p) for p in dict.fromkeys(hunts[rows].reshape(-1)) if 0 <= p < n]
        for channel, position in zip(sheet.free, hunted, strict=False):
            at = starts[request] + position
            keys[at, :, channel] = units[at, :, channel] * needle_share(kind)
            strong = 2.0 ** np.ceil(np.log2(GAP / (keys[at, :, channel].min() * SCALE)))
            hunters = hunts[rows] == position
            queries[rows, :, channel] = np.where(hunters, strong, 0.0)
            placed[rows][hunters] = position
    q = cast(queries, case.dtype)
    problem = _problem(case, q, (keys, values), path, POWERS, {"scale": SCALE, **variant})
    return problem.but(hunts=placed)


def random_codes(case: Case, path: Path, given: str = POWERED, **variant: Any) -> Problem:
    """Return a problem over the codes of bell-shaped keys and values, each token louder than the one before.

    Where scales are given they are uneven; `given` says how those of heads differ. `v_head_dim` in `variant`
    is the width of values.
    """
    rng = np.random.default_rng(case.seed + 313)
    width = int(variant.pop("v_head_dim", case.head_dim))
    shape = (sum(case.seq_lens), case.num_kv_heads, case.head_dim)
    loud = np.resize([0.4, 1.0, 0.7, 1.3], shape[0])[:, None, None]
    keys, values = (
        dyadic(rng, (*shape[:2], extent), "float32").astype(np.float64) * loud
        for extent in (case.head_dim, width)
    )
    q = dyadic(rng, (case.num_tokens, case.num_q_heads, case.head_dim), case.dtype)
    return _problem(case, q, (keys, values * 8), path, UNEVEN, {"scale": 0.0625, **variant}, given)


def stored_exactly(
    x: Array, kind: Format, path: Path, scale: float, heads: int, given: str = POWERED
) -> Quantized:
    """Return what a canonical writer stores, in the order of bytes and by the operand of a path.

    `scale` is the first of the scales that are given, one for each kv head; or the global one.
    """
    taken = Path(**{name: getattr(path, name) for name in _READERS})
    arguments: dict[str, Array] = {}
    if kind.group == "given":
        each = {POWERED: given_scales(scale, heads), APART: scale * _apart(heads), ONE: np.full(1, scale)}
        arguments["scales"] = each[given].astype(np.float32)
    if kind.global_scale == "given":
        operand = 1.0 / scale if path.nvfp4_operand == "encode" else scale
        arguments["global_scale"] = np.full(1, operand, np.float32)
    return quantize(x.astype(np.float32), kind, path=taken, **arguments)


def _apart(heads: int) -> Array:
    """Return factors of which no two are alike, nor any twice another, in no order."""
    return np.asarray(0.5 + (np.arange(heads) * 5 % 13) * 0.17)


def even_pairs(case: Case, path: Path, alike: bool = False) -> Problem:
    """Return contexts of two tokens whose exact scores are equal, and are not once keys are rounded.

    The first has 3 scales in 8 channels, the second 4 scales in 6; scores are far from zero. `alike`: all
    keys are the same, and values nearly cancel, so that they leave something else once they are rounded.
    """
    kind = kind_of(case)
    reading = codes.template(case, path, sum(case.seq_lens))
    three, four = (_code_of(number, kind) for number in (3.0, 4.0))
    keys = np.zeros_like(reading.codes)
    keys[::2, :, :8], keys[1::2, :, :6] = three, four
    other = three
    if alike:
        keys[1::2], other = keys[::2], _code_of(-3.75 if kind.element == "e4m3fn" else -3.0, kind)
    values = np.where(np.arange(len(keys)) % 2, other, four)[:, None, None].astype(np.uint8)
    scales = (UNEVEN[0], UNEVEN[1] if alike else POWERS[1])
    parts = []
    for plain, scale in zip((keys, np.broadcast_to(values, keys.shape).copy()), scales, strict=True):
        name = "scales" if kind.group == "given" else "global_scale"
        operand = 1 / scale if name == "global_scale" and path.nvfp4_operand == "encode" else scale
        given = np.full(1, operand, np.float32)
        own = replace(reading, codes=plain)
        own = replace(own, scales=given) if name == "scales" else replace(own, global_scale=given)
        parts.append(own.stored(replace(path, scale_layout="linear")))
    size = 0.125 if alike else 64.0
    q = cast(np.full((case.num_tokens, case.num_q_heads, case.head_dim), size), case.dtype)
    return over_codes(case, q, (parts[0], parts[1]), path, {"scale": SCALE})


def _code_of(number: float, kind: Format) -> int:
    return int(encode(np.array([number], np.float32), kind.element)[0])


def _problem(
    case: Case,
    q: Array,
    numbers_of: tuple[Array, Array],
    path: Path,
    scales: tuple[float, float],
    variant: dict[str, Any],
    given: str = POWERED,
) -> Problem:
    kind, heads = kind_of(case), case.num_kv_heads
    keys, values = (
        stored_exactly(x, kind, path, scale, heads, given)
        for x, scale in zip(numbers_of, scales, strict=True)
    )
    return over_codes(case, q, (keys, values), path, variant)


def over_codes(
    case: Case, q: Array, parts: tuple[Quantized, Quantized], path: Path, variant: dict[str, Any]
) -> Problem:
    """Return the problem over stored keys and values."""
    kind = kind_of(case)
    k, v = (dequantize(part, kind, path=replace(path, scale_layout="linear")) for part in parts)
    return Problem(
        q=q,
        k=k,
        v=v,
        seq_lens=np.array(case.seq_lens, np.int64),
        query_lens=np.array(case.query_lens, np.int64),
        variant=variant,
        dtype=case.dtype,
        codes=CodedContexts(kind.name, *parts, path.v_scale_layout == "interleaved"),
    )

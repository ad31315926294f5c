"""Worst cases of formats: keys and values that lose all their format may lose, with all losses agreeing.

Half the tokens have keys just above a tie between two codes, half have keys just below one, all on the same
side of q: quantising raises the logits of the first and lowers those of the others, each by all that the
format allows. The values of the first are high, those of the others low, and all of them lie just above a
tie, so that the answer rises by its weights and by its values. The numbers that set the scale of a group lie
in channels that q does not look at, or, where groups are made of tokens, in two tokens of each.

What the answer moved by, as a share of `format_bound`, says how tight the bound is. Scales are powers of two,
so that their own rounding does not blur the ties.

For porters: run `losses` to see what each format costs at worst; a bound nobody reaches would prove little.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.attention.bounds import format_bound
from kvref.attention.dense import attention
from kvref.attention.merge import State
from kvref.formats.elements import ELEMENTS, IntElement, values
from kvref.formats.format import FORMATS, Format, Quantized
from kvref.formats.lines import line_of
from kvref.formats.loss import loss_bound
from kvref.formats.scaled import dequantize, quantize

NUM_TOKENS, HEAD_DIM = 64, 128
#: What one code stands for.
UNIT = 2.0**-3
#: How far from a tie numbers lie, in gaps: enough to outlast the roundings of scales.
OFF_TIE = 2.0**-9
#: How far each logit moves.
CHANGE = 0.5


@dataclass(frozen=True)
class Worst:
    """One request with one head: q [1, 1, head_dim]; k and v [n, 1, head_dim] and what they are stored as."""

    format: Format
    q: Array
    k: Array
    v: Array
    stored_k: Quantized
    stored_v: Quantized


@dataclass(frozen=True)
class Loss:
    """What a format costs at worst: the largest change of the answer, and its share of the bound there."""

    format: str
    key: float
    """The largest loss of a key, as a share of the largest key."""
    change: float
    """The largest change of an output, as a share of the largest value."""
    reached: float
    """The largest change of an output as a share of its bound."""
    reached_lse: float
    """The same for the lse, where all keys are raised."""


def losses() -> list[Loss]:
    """Return what every format costs at worst, in the order of `FORMATS`."""
    return [_loss(FORMATS[name]) for name in FORMATS]


def worst(format: Format, *, all_up: bool = False) -> Worst:
    """Return the worst case of a format; with `all_up`, the one in which every logit is raised."""
    half = np.arange(NUM_TOKENS) % 4 < 2
    up = np.ones_like(half) if all_up else half
    k, stored_k, seen = _written(format, np.full(NUM_TOKENS, True), up)
    v, stored_v, _ = _written(format, half, np.full(NUM_TOKENS, True))
    q = np.where(seen, 1.0, 0.0)
    lost = loss_bound(k, stored_k, format)[:, 0]
    q *= CHANGE / (lost @ q).max()
    return Worst(format, q[None, None], k, v, stored_k, stored_v)


def moved(case: Worst) -> tuple[State, State, State]:
    """Return how far out and lse moved, their bounds, and the answer before."""
    before = [case.q, case.k, case.v]
    after = [dequantize(stored, case.format) for stored in (case.stored_k, case.stored_v)]
    lost = [loss_bound(case.k, case.stored_k, case.format), loss_bound(case.v, case.stored_v, case.format)]
    batch = {"query_start_loc": [0, 1], "seq_lens": [NUM_TOKENS], "scale": 1.0}
    exact, coded = attention(*before, **batch), attention(case.q, *after, **batch)  # type: ignore[arg-type]
    bound = format_bound(*before, *lost, **batch)  # type: ignore[arg-type]
    change = State(np.abs(coded.out - exact.out), np.abs(coded.lse - exact.lse))
    return change, State(*bound), exact


def _loss(format: Format) -> Loss:
    case = worst(format)
    change, bound, _ = moved(case)
    lse_change, lse_bound, _ = moved(worst(format, all_up=True))
    lost = np.abs(dequantize(case.stored_k, format) - case.k)[:, :, case.q[0, 0] > 0]
    return Loss(
        format.name,
        float(lost.max() / np.abs(case.k).max()),
        float(change.out.max() / np.abs(case.v).max()),
        float((change.out / bound.out).max()),
        float((lse_change.lse / lse_bound.lse).max()),
    )


def _written(format: Format, high: Array, up: Array) -> tuple[Array, Quantized, Array]:
    """Return numbers [n, 1, head_dim], what is stored of them, and the channels that set no scale.

    Token by token they are `high` or low, and lie just above a tie where `up` is, just below elsewhere.
    """
    x = np.zeros((NUM_TOKENS, HEAD_DIM))
    low_end, high_end = _ends(format)
    free = np.full(HEAD_DIM, True)
    fixed = np.full(x.shape, False)
    if format.group == "tokens":
        first = np.arange(HEAD_DIM) % 2 == 0
        for start in range(0, NUM_TOKENS, format.size):
            x[start], x[start + 1] = np.where(first, high_end, low_end), np.where(first, low_end, high_end)
            fixed[start : start + 2] = True
    elif format.group != "given":
        size = {"channels": format.size}.get(format.group, HEAD_DIM)
        size = 16 if format.name == "ggml_nvfp4" else size
        x[:, 0::size], x[:, 1::size] = low_end, high_end
        free[0::size] = free[1::size] = False
        fixed[:, ~free] = True
    ends = quantize((x * UNIT)[:, None].astype(np.float32), format, **_given(format))
    line = line_of(ends, format)
    ties = np.where(up, 1, -1) * OFF_TIE
    tie_low, tie_high, gap = _ties(format)
    place = np.where(high, tie_high, tie_low) + ties * gap
    numbers = line.slope[:, 0] * place[:, None] + line.offset[:, 0]
    made = np.where(fixed, x * UNIT, numbers)[:, None].astype(np.float32)
    stored = quantize(made, format, **_given(format))
    again = line_of(stored, format)
    assert np.array_equal(again.slope, line.slope), f"the numbers of {format.name} changed its scales"
    assert np.array_equal(again.offset, line.offset), f"the numbers of {format.name} changed its zeros"
    return made, stored, free


def _given(format: Format) -> dict[str, Any]:
    """Return the scales that a format is given."""
    if format.group == "given":
        return {"scales": np.array([UNIT], np.float32)}
    if format.global_scale == "given":
        return {"global_scale": np.array([UNIT / 64], np.float32)}
    return {}


def _ends(format: Format) -> tuple[float, float]:
    """Return the numbers that give a group the scale `UNIT`, in units."""
    if format.name == "ggml_q4_0":
        return -8.0, 7.0
    if format.name == "int4_token_head":
        return -7.0, 8.0
    top = float(np.max(values(format.element), initial=0.0, where=np.isfinite(values(format.element))))
    if format.family == "affine":
        steps = 255.0 if format.element == "int8" else top
        return -steps / 2, steps / 2
    return -top, top


def _ties(format: Format) -> tuple[float, float, float]:
    """Return a tie among the low and one among the high numbers of the element, and the gap around each."""
    table = values(format.element).astype(np.float64)
    finite = np.unique(table[np.isfinite(table)])
    if isinstance(ELEMENTS[format.element], IntElement):
        return float(finite[0]) + 1.5, float(finite[-1]) - 1.5, 1.0
    gap = float(finite[-1] - finite[-2])
    return -float(finite[-1]) + gap / 2, float(finite[-1]) - gap / 2, gap

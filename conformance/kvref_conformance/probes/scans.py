"""Problems of recurrent layers whose every answer is an exact number, in any format and in either form.

Decays are 1 or exp(−1000), which is 0 in float32 and nothing beside a number in float64; step sizes are 0, ½
or 1, write strengths 0, ½ or 1, keys one-hot, everything else small integers. So a delta rule is a memory
addressed by its keys, a Mamba state a set of counters, a convolution a sum of a few recent integers.

What is huge here: a wrong order of decay, read and write, a state of another request or of a chunk's border,
a head that reads another's key, a token left out or taken twice, a transposed state. What does not show:
anything that only rounds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.problems import cast
from kvref_conformance.scan_cases import DELTA, scan_of
from kvref_conformance.scan_problems import ScanProblem

#: The log of a decay that leaves nothing.
GONE = -1000.0
#: Scales of a delta rule: powers of two, far from head_dim ** -0.5.
SCALES = (2.0, 0.5)
#: Writes with half strength in a row under one key: each needs one more bit.
MOST_HALVES = 2


def coded(case: Case, claims: Claims, **options: Any) -> ScanProblem:
    """Return the exact problem of a case; `options` are those of `_delta`, `_mamba` or `_conv`."""
    scan = scan_of(case.verb)
    draw = Draw(case, claims)
    inputs, params, shape = _BUILDERS[scan](draw, **options)
    steps, largest = (4, 7) if scan in DELTA else (1, 31)  # halved twice, a correction still has eight bits
    initial = steps * draw.numbers((len(case.query_lens), *shape), largest)
    before = np.array(case.seq_lens) > np.array(case.query_lens)
    initial = initial * before.reshape(-1, *[1] * len(shape))
    return ScanProblem(scan, inputs, np.array(case.query_lens, np.int64), initial, params, case.dtype)


@dataclass(frozen=True)
class Draw:
    """Draws the tensors of a case."""

    case: Case
    claims: Claims

    @property
    def rng(self) -> np.random.Generator:
        """A generator that begins anew."""
        return np.random.default_rng([self.case.seed, 3])

    def claimed(self, feature: str) -> bool:
        """Say whether a feature is claimed."""
        return feature in self.claims.features

    def numbers(self, shape: tuple[int, ...], largest: int, turn: int = 0) -> Array:
        """Return integers from −largest to largest, none of them 0, that differ by place."""
        rng = np.random.default_rng([self.case.seed, turn, *shape])
        drawn = rng.integers(1, largest + 1, shape) * rng.choice([-1, 1], shape)
        return np.asarray(drawn, np.float64)

    def typed(self, x: Array) -> Array:
        """Return numbers in the dtype of the case."""
        return np.asarray(cast(x, self.case.dtype))


def single(x: Array) -> Array:
    """Return numbers in float32."""
    return np.asarray(x, np.float32)


def _conv(draw: Draw, *, bias: bool = False, taps: Array | None = None) -> tuple[Any, ...]:
    """Small integer weights, no two columns of a channel alike; a bias where it is asked for and claimed."""
    case = draw.case
    channels, width = case.num_kv_heads * case.head_dim, int(case.option("conv_width"))
    weight = _weights(channels, width) if taps is None else np.broadcast_to(taps, (channels, width))
    inputs = {"x": draw.typed(draw.numbers((case.num_tokens, channels), 31)), "weight": draw.typed(weight)}
    if bias and draw.claimed("conv_bias"):
        inputs["bias"] = draw.typed(draw.numbers((channels,), 15, 1))
    return inputs, {}, (channels, width - 1)


def _weights(channels: int, width: int) -> Array:
    """Return weights ±1, ±2, ±3 … of a window, turned by one from channel to channel."""
    at = (np.arange(channels)[:, None] + np.arange(width)) % width
    return (at % 3 + 1.0) * np.where((at + np.arange(channels)[:, None] // width) % 2, -1, 1)


def _selective(draw: Draw, **options: Any) -> tuple[Any, ...]:
    """A counter for some entries of each channel's state, the last input for the others."""
    case = draw.case
    channels, entries = case.num_kv_heads * case.head_dim, int(case.option("state_dim"))
    A = np.where(draw.rng.random((channels, entries)) < 0.25, GONE, 0.0)
    inputs = _mamba(draw, (channels,), (), entries, A)
    return inputs, {}, (channels, entries)


def _ssd(draw: Draw, **options: Any) -> tuple[Any, ...]:
    """A counter in most heads, the last input in the others."""
    case = draw.case
    A = np.where((np.arange(case.num_q_heads) + case.seed) % 4 == 3, GONE, 0.0)
    shape = (case.num_q_heads, case.head_dim)
    inputs = _mamba(draw, shape, (case.num_kv_heads,), int(case.option("state_dim")), A)
    return inputs, {}, (*shape, int(case.option("state_dim")))


def _mamba(draw: Draw, per_token: tuple[int, ...], groups: tuple[int, ...], entries: int, A: Array) -> Any:
    """One-hot B and C; C reads what B has just written in half of the tokens."""
    tokens, rng = draw.case.num_tokens, draw.rng
    written = rng.integers(0, entries, (tokens, *groups))
    read = np.where(rng.random(written.shape) < 0.5, written, rng.integers(0, entries, written.shape))
    inputs = {
        "x": draw.typed(2 * draw.numbers((tokens, *per_token), 4)),
        "dt": draw.typed(rng.choice([0.0, 0.5, 1.0], (tokens, per_token[0]))),
        "A": single(A),
        "B": draw.typed(one_hot(written, entries)),
        "C": draw.typed(one_hot(read, entries)),
    }
    if draw.claimed("skip"):
        inputs["D"] = single(draw.numbers((per_token[0],), 3, 1))
    return inputs


def _delta(draw: Draw, *, gone: float = 0.04) -> tuple[Any, ...]:
    """A memory: write under a key, read back; `gone` is the share of tokens that forget before they read."""
    case, rng = draw.case, draw.rng
    tokens, heads, width = case.num_tokens, case.num_q_heads, case.head_dim
    few = min(width, 11)
    places = rng.permutation(width)[:few]
    key = rng.integers(0, few, (tokens, case.num_kv_heads))
    asked = np.where(rng.random(key.shape) < 0.5, key, rng.integers(0, few, key.shape))
    beta = _strengths(draw, np.repeat(key, case.group, axis=1))
    shape = (tokens, heads, width) if case.verb.startswith("kimi") else (tokens, heads)
    forgets = rng.random(shape) < (gone if len(shape) == 2 else 2 * gone)
    v_dim = int(case.option("v_dim"))
    inputs = {
        "q": draw.typed(one_hot(places[asked], width)),
        "k": draw.typed(one_hot(places[key], width)),
        "v": draw.typed(4 * draw.numbers((tokens, heads, v_dim), 15)),
        "g": single(np.where(forgets, GONE, 0.0)),
        "beta": draw.typed(beta),
    }
    passed = draw.claimed("delta_scale") and case.seed % 3 < 2  # in one case of three the usual one is meant
    scale = {"scale": SCALES[case.seed % 2]} if passed else {}
    return inputs, scale, (heads, width, v_dim)


def _strengths(draw: Draw, key: Array) -> Array:
    """Return write strengths, no more than `MOST_HALVES` halves in a row under one key."""
    drawn = draw.rng.choice([0.0, 0.5, 1.0], key.shape, p=[0.15, 0.35, 0.5])
    halves: dict[tuple[int, int, int], int] = {}
    starts = np.cumsum([0, *draw.case.query_lens])
    request = np.searchsorted(starts, np.arange(len(key)), side="right")
    for (token, head), strength in np.ndenumerate(drawn):
        place = (int(request[token]), head, int(key[token, head]))
        if strength == 0.5 and halves.get(place, 0) >= MOST_HALVES:
            drawn[token, head] = strength = 1.0
        halves[place] = (
            halves.get(place, 0) + 1 if strength == 0.5 else 0 if strength else halves.get(place, 0)
        )
    return drawn


def one_hot(index: Array, width: int) -> Array:
    """Return vectors that are 1 at one place, `[..., width]`."""
    return np.asarray(index[..., None] == np.arange(width), np.float64)


_BUILDERS: Mapping[str, Callable[..., tuple[Any, ...]]] = {
    "causal_conv": _conv,
    "selective_scan": _selective,
    "ssd_scan": _ssd,
    **dict.fromkeys(DELTA, _delta),
}

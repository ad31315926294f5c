"""Rotary position embedding: what a token's absolute position does to its queries and keys.

Channels are taken in pairs, and pair i of a token at position p is turned by the angle p · θ_i, with
θ_i = base^(−2i / rotary_dim). Two rotations by p and by s subtract in a dot product, so q·k depends on the
distance p − s alone; and a cached key is moved by `delta` positions by turning it once more, by delta · θ_i.

Realises: KV-ATTN-080 rope-pairs, KV-ATTN-081 rope-partial, KV-ATTN-082 rope-position, KV-ATTN-083
rope-rerotation, KV-ATTN-084 rope-yarn, KV-ATTN-085 rope-nope.
For porters: one style and one base make a model; YaRN changes the frequencies and one factor, nothing else.
Source: Su et al. 2021 (RoFormer), section 3.2; GPT-NeoX (half-split, partial); Peng et al. 2023 (YaRN), 3.2.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, as_indices, check_count, check_scalar, check_shape, widen
from kvref.errors import ArgumentError, LengthError, shown

#: How channels pair up: (i, i + rotary_dim / 2), or (2i, 2i + 1).
STYLES = ("half", "interleaved")
#: Which `rotary_dim` channels of a head turn; the others pass unchanged.
ROTATED_PARTS = ("first", "last")


@dataclass(frozen=True, kw_only=True)
class Yarn:
    """Context extension by frequency: slow pairs are interpolated by `factor`, fast pairs keep their angle.

    A pair that completes more than `beta_fast` turns over the original context is fast, one with fewer than
    `beta_slow` is slow; between them the share of interpolation rises linearly with the pair's index.

    Realises: KV-ATTN-084 rope-yarn. Raises: ArgumentError.
    """

    factor: float
    """New context length divided by the original one, >= 1."""
    original_context: int
    """Tokens the model was trained on before the extension."""
    beta_fast: float = 32.0
    """Turns over the original context."""
    beta_slow: float = 1.0
    """Turns over the original context."""
    mscale: float | None = None
    """Multiplies the rotated channels; None is 0.1 · ln(factor) + 1, and 1.0 where `scale` carries it."""
    whole_pairs: bool = True
    """The ramp begins and ends at whole pair indices (rounded outwards), as most models were trained."""

    def __post_init__(self) -> None:
        check_scalar("beta_slow", self.beta_slow, positive=True)
        check_scalar("beta_fast", self.beta_fast, positive=True)
        check_count("original_context", self.original_context)
        if self.mscale is not None:
            check_scalar("mscale", self.mscale, positive=True)
        if check_scalar("factor", self.factor) < 1:
            raise ArgumentError(
                f"factor = {shown(self.factor)}, expected a number >= 1 (KV-ATTN-084 rope-yarn)"
            )
        if self.beta_fast < self.beta_slow:
            raise ArgumentError(
                f"beta_fast = {shown(self.beta_fast)}, expected at least beta_slow = {shown(self.beta_slow)} "
                "(KV-ATTN-084 rope-yarn)"
            )

    @property
    def magnitude(self) -> float:
        """The factor on every rotated channel of q and of k."""
        return 0.1 * math.log(self.factor) + 1.0 if self.mscale is None else float(self.mscale)

    def interpolated(self, base: float, rotary_dim: int) -> Array:
        """Return each pair's share of interpolation, 0 (fast) to 1 (slow), `[rotary_dim / 2]`."""
        first, last = (self._pair_with_turns(b, base, rotary_dim) for b in (self.beta_fast, self.beta_slow))
        if self.whole_pairs:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, rotary_dim - 1)
        last = max(last, first + 0.001)  # a ramp without width is a step, free of a division by zero
        share: Array = np.clip((np.arange(rotary_dim // 2) - first) / (last - first), 0.0, 1.0)
        return share

    def _pair_with_turns(self, turns: float, base: float, rotary_dim: int) -> float:
        """Solve original_context · θ_i = 2π · turns for the (fractional) pair index i."""
        radians_per_token = 2 * math.pi * turns / self.original_context
        return -rotary_dim * math.log(radians_per_token) / (2 * math.log(base))


def inverse_frequencies(base: float, rotary_dim: int, yarn: Yarn | None = None) -> Array:
    """Return the angle per position of every pair, in radians, `[rotary_dim / 2]`.

    Raises: ArgumentError if the base is not above 1 or `rotary_dim` is odd.

    >>> inverse_frequencies(10000.0, 4)
    array([1.  , 0.01])
    """
    if check_scalar("base", base) <= 1:
        raise ArgumentError(f"base = {shown(base)}, expected a number > 1 (KV-ATTN-080 rope-pairs)")
    if check_count("rotary_dim", rotary_dim, minimum=0) % 2:
        raise ArgumentError(f"rotary_dim = {rotary_dim}, expected an even number (KV-ATTN-080 rope-pairs)")
    theta: Array = np.float64(base) ** (-np.arange(0, rotary_dim, 2) / max(rotary_dim, 1))
    if yarn is None or rotary_dim == 0:
        return theta
    share = yarn.interpolated(base, rotary_dim)
    stretched: Array = share * (theta / yarn.factor) + (1 - share) * theta
    return stretched


def channel_pairs(
    head_dim: int, rotary_dim: int, style: str = "half", rotated_part: str = "first"
) -> tuple[Array, Array]:
    """Return the two channels of every pair, each `[rotary_dim / 2]` (KV-ATTN-080, KV-ATTN-081).

    Raises: ArgumentError if a name is unknown, or `rotary_dim` is odd or wider than the head.

    >>> channel_pairs(8, 4, "half"), channel_pairs(8, 4, "interleaved", "last")
    ((array([0, 1]), array([2, 3])), (array([4, 6]), array([5, 7])))
    """
    for name, value, known in (("style", style, STYLES), ("rotated_part", rotated_part, ROTATED_PARTS)):
        if value not in known:
            raise ArgumentError(
                f"{name} = {shown(value)}, expected one of {', '.join(known)} (KV-ATTN-080 rope-pairs)"
            )
    if check_count("rotary_dim", rotary_dim, minimum=0) % 2 or rotary_dim > head_dim:
        raise ArgumentError(
            f"rotary_dim = {rotary_dim}, expected an even number <= head_dim = {head_dim} "
            "(KV-ATTN-081 rope-partial)"
        )
    start = 0 if rotated_part == "first" else head_dim - rotary_dim
    channels = np.arange(start, start + rotary_dim)
    if style == "half":
        return channels[: rotary_dim // 2], channels[rotary_dim // 2 :]
    return channels[0::2], channels[1::2]


def apply_rope(
    x: ArrayLike,
    *,
    positions: ArrayLike,
    base: float,
    rotary_dim: int | None = None,
    style: str = "half",
    rotated_part: str = "first",
    yarn: Yarn | None = None,
    dtype: Any = np.float64,
) -> Array:
    """Rotate queries or keys to their tokens' absolute positions.

    Shapes: x [num_tokens, num_heads, head_dim]; positions [num_tokens], each >= 0 and counted from the start
    of the request, wherever the token lies in the batch or in the cache. `rotary_dim` None turns the whole
    head; 0 turns nothing (a NoPE layer). Angles are float64; the result is a new array in `dtype`.
    Raises: ShapeError, DTypeError, LengthError (a negative position), ArgumentError.

    Realises: KV-ATTN-080 rope-pairs, KV-ATTN-082 rope-position, KV-ATTN-085 rope-nope.
    """
    x = widen("x", x, dtype)
    check_shape("x", x, ["num_tokens", "num_heads", "head_dim"])
    at = as_indices("positions", positions, [x.shape[0]])
    if (at < 0).any():
        token = int(np.argmax(at < 0))
        raise LengthError(f"positions[{token}] = {at[token]}, expected >= 0 (KV-ATTN-082 rope-position)")
    magnitude = 1.0 if yarn is None else yarn.magnitude
    return _turn(x, at, base, rotary_dim, style, rotated_part, yarn, magnitude)


def rerotate(
    x: ArrayLike,
    *,
    delta: ArrayLike,
    base: float,
    rotary_dim: int | None = None,
    style: str = "half",
    rotated_part: str = "first",
    yarn: Yarn | None = None,
    dtype: Any = np.float64,
) -> Array:
    """Move keys that are already rotated by `delta` positions, forwards or (negative) back.

    Shapes: x [num_tokens, num_heads, head_dim]; delta [num_tokens]. A key rotated to p comes back as the same
    key rotated to p + delta, up to rounding. YaRN's magnitude is in the key already and is not applied again.
    Raises: ShapeError, DTypeError, ArgumentError.

    Realises: KV-ATTN-083 rope-rerotation.
    """
    x = widen("x", x, dtype)
    check_shape("x", x, ["num_tokens", "num_heads", "head_dim"])
    by = as_indices("delta", delta, [x.shape[0]])
    return _turn(x, by, base, rotary_dim, style, rotated_part, yarn, 1.0)


def _turn(
    x: Array,
    steps: Array,
    base: float,
    rotary_dim: int | None,
    style: str,
    rotated_part: str,
    yarn: Yarn | None,
    magnitude: float,
) -> Array:
    head_dim = x.shape[2]
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    a, b = channel_pairs(head_dim, rotary_dim, style, rotated_part)
    angles = steps[:, None, None] * inverse_frequencies(base, rotary_dim, yarn)  # [T, 1, R/2]
    cos, sin = magnitude * np.cos(angles), magnitude * np.sin(angles)
    turned = x.copy()
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # infinity times a sine of 0 is NaN, and stays in its pair
        turned[..., a] = cos * x[..., a] - sin * x[..., b]
        turned[..., b] = sin * x[..., a] + cos * x[..., b]
    return turned

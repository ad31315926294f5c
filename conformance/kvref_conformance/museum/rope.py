"""Faults of rotary positions: which channels turn, by how much, and from where positions count."""

import numpy as np

from kvref.arrays import Array, dtype_of
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.tiled import Tiled

_ROPE = ("apply_rope",)


@exhibit(
    as_if="channels were paired in the other style",
    fault="F12 layout",
    breaks=("KV-ATTN-080",),
    may_also_break=("KV-ATTN-082",),
    verbs=_ROPE,
    rope_styles=("half", "interleaved"),
)
class PairsOfOtherStyle(Tiled):
    """Half-split channels are turned as interleaved ones, and the other way round.

    A plant: both are rotations and both pass a round trip. A checkpoint is trained for one of them.
    """

    def pairs(self, head_dim: int, rotary_dim: int, style: str) -> tuple[Array, Array]:
        """Return the other style's pairs."""
        return super().pairs(head_dim, rotary_dim, "interleaved" if style == "half" else "half")


@exhibit(
    as_if="frequencies were spread over head_dim instead of rotary_dim",
    fault="F02 unit",
    breaks=("KV-ATTN-080",),
    verbs=_ROPE,
)
class FrequenciesOfHeadDim(Tiled):
    """The exponent divides by the whole head.

    A plant: the two are equal where the whole head turns.
    """

    def rotated_width(self, head_dim: int, rotary_dim: int) -> int:
        """Remember the head's width."""
        self._head_dim = head_dim
        return super().rotated_width(head_dim, rotary_dim)

    def frequencies(self, base: float, rotary_dim: int) -> Array:
        """Return the first frequencies of a full head."""
        return super().frequencies(base, self._head_dim)[: rotary_dim // 2]


@exhibit(
    as_if="the whole head was rotated",
    fault="F02 unit",
    breaks=("KV-ATTN-081",),
    may_also_break=("KV-ATTN-080",),
    verbs=_ROPE,
)
class WholeHeadRotated(Tiled):
    """The rotary width is not looked at.

    A plant: most models rotate the whole head.
    """

    def rotated_width(self, head_dim: int, rotary_dim: int) -> int:
        """Return the head's width, if anything turns at all."""
        return head_dim if rotary_dim else 0


@exhibit(
    as_if="the last rotary_dim channels were rotated",
    fault="F12 layout",
    breaks=("KV-ATTN-081",),
    may_also_break=("KV-ATTN-080",),
    verbs=_ROPE,
)
class LastChannelsRotated(Tiled):
    """The rotated part is taken from the end of the head.

    A plant: some models have it there, in the layout of their checkpoint.
    """

    def pairs(self, head_dim: int, rotary_dim: int, style: str) -> tuple[Array, Array]:
        """Return pairs at the end."""
        first, second = super().pairs(head_dim, rotary_dim, style)
        return first + head_dim - rotary_dim, second + head_dim - rotary_dim


@exhibit(
    as_if="positions were counted from the first token of the call",
    fault="F19 position or mask",
    seen_in=("pytorch/executorch#2010",),
    breaks=("KV-ATTN-082",),
    may_also_break=("KV-ATTN-080", "KV-ATTN-083"),
    verbs=_ROPE,
)
class PositionsFromZero(Tiled):
    """Rotation starts at 0 in every call.

    The table of frequencies was not sliced at the start position on the path with a cache. Prompts are right
    and every decoded token stands at position 0.
    """

    def token_positions(self, positions: Array) -> Array:
        """Take the first rows of the table."""
        return np.arange(len(positions), dtype=np.float64)


@exhibit(
    as_if="all tokens were rotated to the largest position of the call",
    fault="F19 position or mask",
    seen_in=("scouzi1966/maclocal-api#92", "unslothai/unsloth#3803", "Blaizzy/mlx-vlm#1110"),
    breaks=("KV-ATTN-082",),
    may_also_break=("KV-ATTN-080", "KV-ATTN-083"),
    verbs=_ROPE,
)
class OneCursorForAll(Tiled):
    """The rows of a padded batch share one position.

    A cursor counts the padded length. Short rows were rotated by their own positions when they were prefilled
    and by the cursor's now.
    """

    def token_positions(self, positions: Array) -> Array:
        """Return the largest position for every token."""
        at = super().token_positions(positions)
        return np.full_like(at, at.max(initial=0))


@exhibit(
    as_if="positions were advanced by the length of the prompt once more",
    fault="F19 position or mask",
    seen_in=("skyzh/tiny-llm#46",),
    breaks=("KV-ATTN-082",),
    may_also_break=("KV-ATTN-080",),
    verbs=_ROPE,
)
class PositionsAdvancedTwice(Tiled):
    """What was there before the call is added to the position again.

    The loop adds the size of the previous input after the input was replaced: 12 where 7 was meant.
    """

    def token_positions(self, positions: Array) -> Array:
        """Add the first position once more."""
        at = super().token_positions(positions)
        return np.asarray(at + at[:1])


@exhibit(
    as_if="a shift of the whole context moved the tokens of the first stream only",
    fault="F19 position or mask",
    seen_in=("ggml-org/llama.cpp#3835", "ggml-org/llama.cpp#14742"),
    breaks=("KV-ATTN-083",),
    verbs=_ROPE,
)
class ShiftSkipped(Tiled):
    """Cached keys are not rotated again when a context is shifted.

    The flag that triggers it was set only if some cell had been freed, and later the loop covered the first
    of two streams alone. Relative positions are wrong from then on.
    """

    def token_positions(self, positions: Array) -> Array:
        """Where all tokens move alike, move the first half and leave the others where they are."""
        at = super().token_positions(positions)
        shift = len(at) > 1 and bool((at == at[0]).all())
        return np.where(np.arange(len(at)) < (len(at) + 1) // 2, at, 0) if shift else at


@exhibit(
    as_if="angles were computed from positions in bfloat16",
    fault="F13 scale or encoding",
    breaks=("KV-ATTN-082",),
    may_also_break=("KV-ATTN-080", "KV-ATTN-083"),
    verbs=_ROPE,
)
class PositionsInBfloat16(Tiled):
    """Positions are converted to the model's dtype before they are multiplied.

    A plant: beyond 256 neighbouring tokens have the same position, and beyond 2048 sixteen of them have.
    """

    def token_positions(self, positions: Array) -> Array:
        """Round the positions."""
        return np.asarray(positions).astype(dtype_of("bfloat16")).astype(np.float64)


@exhibit(
    as_if="rotary_dim = 0 was taken to mean the whole head",
    fault="F21 one path only",
    breaks=("KV-ATTN-085",),
    verbs=_ROPE,
)
class NoneMeansAll(Tiled):
    """A rotary width of 0 falls back to the head's width.

    A plant of `rotary_dim or head_dim`: layers without positions get them.
    """

    def rotated_width(self, head_dim: int, rotary_dim: int) -> int:
        """Return the head's width where nothing should turn."""
        return rotary_dim or head_dim


@exhibit(
    as_if="the frequencies of all pairs were divided by the factor",
    fault="F13 scale or encoding",
    breaks=("KV-ATTN-084",),
    verbs=_ROPE,
    features=("yarn",),
)
class YarnStretchesAllPairs(Tiled):
    """Positions are interpolated for fast pairs as for slow ones.

    A plant: linear interpolation under the name of YaRN. Long contexts work, and neighbours are told apart
    less well than before.
    """

    def interpolated(self, theta: Array, ramp: Array, factor: float) -> Array:
        """Divide everything."""
        return theta / factor


@exhibit(
    as_if="the ramp ran the other way",
    fault="F12 layout",
    breaks=("KV-ATTN-084",),
    verbs=_ROPE,
    features=("yarn",),
)
class YarnRampReversed(Tiled):
    """Slow pairs keep their frequency and fast ones are stretched.

    A plant: the share of the plain frequency is taken for that of the divided one.
    """

    def interpolated(self, theta: Array, ramp: Array, factor: float) -> Array:
        """Swap the shares."""
        return super().interpolated(theta, 1 - ramp, factor)


@exhibit(
    as_if="the magnitude was applied twice",
    fault="F13 scale or encoding",
    breaks=("KV-ATTN-084",),
    verbs=_ROPE,
    features=("yarn",),
)
class YarnMagnitudeTwice(Tiled):
    """The vectors are multiplied by the magnitude, and the tables hold it already.

    A plant: with a magnitude of 1 nothing shows, and several models have it so.
    """

    def cos_sin(self, angle: Array, magnitude: float) -> tuple[Array, Array]:
        """Square the magnitude."""
        return super().cos_sin(angle, magnitude**2)

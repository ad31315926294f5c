"""Faults around attention over codes: the order of scales, and dead codes."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.beside_formats import ANY_ATTENTION, less
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.bitwise import Bitwise
from kvref_conformance.subjects.tiled import Tiled

_ATTEND = ("quantized_paged_attention",)
_GIVEN = ("fp8_e4m3", "int8")


@exhibit(
    as_if="scales of values that take turns by fours were read in order",
    fault="F12 layout",
    seen_in=("vllm-project/vllm#50084", "vllm-project/vllm#55976"),
    breaks=("KV-FMT-071",),
    may_also_break=less(ANY_ATTENTION, "KV-FMT-071"),
    verbs=_ATTEND,
    features=("prefill",),
    formats=("nvfp4", "mxfp4_group16"),
    choices={"v-scale-layout": "interleaved"},
)
class TurnsIgnored(Bitwise):
    """The writer arranges scales of values for one kernel, and another reads them.

    Every tensor has its shape and dtype, keys are right, and values are under the scales of other tokens and
    groups. The relative error of values was 0.76 where 0.095 is due, and the test's tolerance was wider.
    """

    def in_order_of_slots(self, scales: Array | None) -> Array | None:
        """Read them as they lie."""
        return scales


@exhibit(
    as_if="scales of values were put in turns over heads instead of tokens",
    fault="F12 layout",
    seen_in=("vllm-project/vllm#49012",),
    breaks=("KV-FMT-071",),
    may_also_break=less(ANY_ATTENTION, "KV-FMT-071"),
    verbs=_ATTEND,
    features=("prefill",),
    formats=("nvfp4",),
    choices={"v-scale-layout": "interleaved"},
)
class TurnsOverHeads(Bitwise):
    """The size of a block is read from the axis of heads.

    In a layout with heads outermost the second extent is their number. Four heads take turns where four
    tokens should; with fewer the kernel refuses.
    """

    def in_order_of_slots(self, scales: Array | None) -> Array | None:
        """Take turns along the other axis, over as many as there are."""
        if scales is None or scales.ndim < 4:
            return scales
        blocks, slots, heads, groups = scales.shape
        turns = 4 if heads % 4 == 0 else heads
        lying = scales.reshape(blocks, slots, heads // turns, groups, turns)
        return lying.swapaxes(-1, -2).reshape(scales.shape)


class _Multiplies(Tiled):
    """Values are multiplied by their weights, those of weight zero too, and tiles are read whole."""

    def tiles(self, kv_len: int) -> list[Array]:
        """Return tiles that are all full."""
        return [np.arange(start, start + self.tile) for start in range(0, kv_len, self.tile)]

    def blended(self, weights: Array, v: Array) -> Array:
        """Return P·V, zero times whatever is there included."""
        values = v[:, self.kv_heads(len(weights), v.shape[1])].transpose(1, 0, 2)
        return np.asarray(weights @ values)


@exhibit(
    as_if="dead codes were multiplied by a weight of zero",
    fault="F10 NaN spread",
    seen_in=("vllm-project/vllm#57716",),
    breaks=("KV-FMT-093",),
    verbs=_ATTEND,
    features=("prefill",),
    formats=("fp8_e4m3", "mxfp4", "fp8_e4m3_token_head"),
)
class DeadCodesMultiplied(Bitwise):
    """Scores of dead slots are masked, and their values take part in P·V.

    Bytes of a pooled latent cache held NaN codes that no request owned. Zero times NaN is NaN, and from the
    first step on the request was lost.
    """

    def kernel(self) -> Tiled:
        """Return a kernel that reads whole tiles."""
        return _Multiplies()

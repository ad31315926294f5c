"""Faults around attention over codes: the order of scales, dead codes, and variants that were left out."""

from typing import Any

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


@exhibit(
    as_if="the sinks were left out where the cache is quantised",
    fault="F21 one path only",
    seen_in=("kekzl/imp#1345", "NVIDIA/cudnn-frontend#636"),
    breaks=("KV-FMT-094",),
    verbs=_ATTEND,
    features=("prefill", "sinks"),
    formats=_GIVEN,
)
class SinksDroppedUnderFormats(Bitwise):
    """Each cache dtype has a kernel of its own, and the sinks reached one of them.

    The launchers for quantised caches took a number of sinks and no pointer to them. A model with learned
    sinks used up its tokens and answered nothing.
    """

    def quantized_paged_attention(self, *tensors: Array, sinks: Array | None = None, **options: Any) -> Any:
        """Attend without sinks."""
        return super().quantized_paged_attention(*tensors, **options)


@exhibit(
    as_if="the window was left out where the cache is quantised",
    fault="F21 one path only",
    breaks=("KV-FMT-094",),
    verbs=_ATTEND,
    features=("prefill", "window"),
    formats=_GIVEN,
)
class WindowDroppedUnderFormats(Bitwise):
    """The quantised kernel reads the whole context.

    A plant, of the exhibit before for another argument.
    """

    def quantized_paged_attention(self, *tensors: Array, window: int | None = None, **options: Any) -> Any:
        """Attend without a window."""
        return super().quantized_paged_attention(*tensors, **options)

"""Faults of variants over codes: what was asked of attention and is lost where the cache is quantised."""

from typing import Any

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.bitwise import Bitwise

_ATTEND, _GIVEN = ("quantized_paged_attention",), ("fp8_e4m3", "int8")


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


@exhibit(
    as_if="the mask was left out where the cache is quantised",
    fault="F21 one path only",
    breaks=("KV-FMT-094",),
    verbs=_ATTEND,
    features=("prefill", "mask"),
    formats=_GIVEN,
)
class MaskDroppedUnderFormats(Bitwise):
    """The quantised kernel is causal and nothing else.

    A plant, of an argument that few callers have.
    """

    def quantized_paged_attention(self, *tensors: Array, mask: Array | None = None, **options: Any) -> Any:
        """Attend to whatever came before."""
        return super().quantized_paged_attention(*tensors, **options)


@exhibit(
    as_if="the soft cap was left out where a window is asked for as well",
    fault="F21 one path only",
    breaks=("KV-FMT-094",),
    verbs=_ATTEND,
    features=("prefill", "window", "softcap"),
    formats=_GIVEN,
)
class CapDroppedInWindows(Bitwise):
    """The kernel for windows was copied before the one without learned to cap.

    A plant of two variants that are each right alone.
    """

    def quantized_paged_attention(self, *tensors: Array, **options: Any) -> Any:
        """Attend without a cap where there is a window."""
        kept = {name: x for name, x in options.items() if name != "softcap" or "window" not in options}
        return super().quantized_paged_attention(*tensors, **kept)

"""Faults of partial states: what a split reports, and how parts combine."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import EVERY_OUTPUT, exhibit
from kvref_conformance.subjects.tiled import Tiled
from kvref_conformance.subjects.tiled.rules import Work

_MERGE = ("merge_attention_states",)


@exhibit(
    as_if="the lse was the logarithm to base 2",
    fault="F13 scale or encoding",
    seen_in=("sgl-project/sglang#35045",),
    breaks=("KV-ATTN-030",),
    may_also_break=("KV-ATTN-033", "KV-ATTN-034"),
    features=("lse",),
)
class LseInBits(Tiled):
    """The kernel returns log2 of the total weight and does not say so.

    Its exponential is base 2, so its logarithm is. Merged as nats, the longer part weighs too much: an error
    that grows with the length of the prefix.
    """

    def spell_lse(self, lse: Array) -> Array:
        """Divide by ln 2."""
        return np.asarray(lse / np.log(2.0), lse.dtype)


@exhibit(
    as_if="two empty parts were merged by the formula, exp(-inf - -inf)",
    fault="F14 empty state",
    seen_in=("flashinfer-ai/flashinfer#4051", "vllm-project/vllm#28181", "vllm-project/vllm#39148"),
    breaks=("KV-ATTN-031",),
    verbs=_MERGE,
)
class EmptyPartsGiveNaN(Tiled):
    """The difference of two infinite lse is taken.

    Every chunked prefill starts with an empty past, and a padded row has an empty present as well. One
    backend was guarded and the next was not.
    """

    def reference_lse(self, lses: Array) -> Array:
        """Return the largest lse, infinite or not."""
        return np.asarray(lses.max(axis=0))


@exhibit(
    as_if="an empty part was merged with the weight of a logit of 0",
    fault="F14 empty state",
    breaks=("KV-ATTN-031",),
    verbs=_MERGE,
)
class EmptyPartWeighsOne(Tiled):
    """An lse of minus infinity is replaced by 0 to avoid NaN.

    A plant of a repair that is worse than the fault: NaN is seen, a wrong weight is not.
    """

    def lse_part(self, lse: Array, out: Array) -> Array:
        """Replace what is infinite."""
        return np.where(np.isneginf(lse), 0, super().lse_part(lse, out))


@exhibit(
    as_if="the merged lse was that of the larger part",
    fault="F14 empty state",
    breaks=("KV-ATTN-032",),
    may_also_break=("KV-ATTN-033",),
    verbs=_MERGE,
)
class MergedLseIsTheLarger(Tiled):
    """The lse of a merge leaves out the logarithm of the summed weights.

    A plant: the first merge of two parts is right in its output, and the second one weighs them wrongly. So
    the result depends on the grouping.
    """

    def combine(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        """Return the larger lse."""
        out, _ = super().combine(outs, lses)
        return out, lses.max(axis=0)


@exhibit(
    as_if="parts were merged relative to the first one's lse",
    fault="F14 empty state",
    breaks=("KV-ATTN-032",),
    verbs=_MERGE,
)
class MergeRelativeToFirst(Tiled):
    """The reference is the first part's lse, not the larger one.

    Where the second part is heavier by more than 88 nats the weight overflows, so the order of the parts
    decides between an answer and NaN.
    """

    def reference_lse(self, lses: Array) -> Array:
        """Return the first lse."""
        return np.where(np.isneginf(lses[0]), super().reference_lse(lses), lses[0])


@exhibit(
    as_if="parts were averaged with equal weights",
    fault="F14 empty state",
    breaks=("KV-ATTN-033",),
    may_also_break=("KV-ATTN-032",),
    verbs=_MERGE,
)
class PartsAveraged(Tiled):
    """Every part has the same weight, whatever its lse.

    A plant. Parts of equal length over random keys have nearly equal weights.
    """

    def part_weights(self, lses: Array, peak: Array) -> Array:
        """Return ones for parts that hold anything."""
        return np.where(np.isneginf(lses), 0, np.ones_like(lses))


@exhibit(
    as_if="the splits of a context were merged without their lse",
    fault="F14 empty state",
    seen_in=("flashinfer-ai/flashinfer#50",),
    breaks=("KV-ATTN-006",),
    may_also_break=EVERY_OUTPUT,
)
class SplitLseNotStored(Tiled):
    """Partial lse are stored only where the caller asked for an lse.

    The pointer is null and the kernel skips the store; the merge of its own splits reads what the workspace
    held. With return_lse=True all is well.
    """

    def answer(self, *args: Any, **options: Any) -> Any:
        """Remember whether the lse was asked for."""
        self._stored = bool(args[3])
        return super().answer(*args, **options)

    def combine(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        """Merge with zeros where nothing was stored."""
        return super().combine(outs, lses if self._stored else np.zeros_like(lses))


@exhibit(
    as_if="the lse was stored head-major",
    fault="F12 layout",
    seen_in=("vllm-project/vllm#22003",),
    breaks=("KV-ATTN-034",),
    may_also_break=("KV-ATTN-007", "KV-ATTN-030", "KV-ATTN-033"),
    features=("lse", "prefill"),
)
class LseHeadMajor(Tiled):
    """The lse is laid out [num_q_heads, num_tokens] and read as [num_tokens, num_q_heads].

    A transposed view was handed on as if it were contiguous: the heads of different tokens trade weights.
    """

    def spell_lse(self, lse: Array) -> Array:
        """Return the transposed array's memory in the other shape."""
        return np.ascontiguousarray(lse.T).reshape(lse.shape)


@exhibit(
    as_if="the second part's lse was read head-major",
    fault="F12 layout",
    seen_in=("local-inference-lab/vllm#17", "vllm-project/vllm#22003"),
    breaks=("KV-ATTN-032",),
    may_also_break=("KV-ATTN-031", "KV-ATTN-033"),
    verbs=_MERGE,
)
class SecondPartAtFirstStrides(Tiled):
    """One part is read at the strides of the other.

    The merge computes one offset and uses it twice. It is right until the two parts come from different
    kernels.
    """

    def merge_attention_states(
        self, out_a: Array, lse_a: Array, out_b: Array, lse_b: Array, *, out: Array | None = None
    ) -> tuple[Array, Array]:
        """Read the second lse in another order."""
        mixed = np.ascontiguousarray(lse_b.T).reshape(lse_b.shape)
        return super().merge_attention_states(out_a, lse_a, out_b, mixed, out=out)


@exhibit(
    as_if="the lse included the sink",
    fault="F14 empty state",
    breaks=("KV-ATTN-035",),
    may_also_break=("KV-ATTN-046",),
    features=("lse", "sinks"),
)
class LseIncludesSink(Tiled):
    """The sink's weight is part of the lse, undeclared.

    Two parts whose lse both contain it count the sink twice when they merge.
    """

    def after_sink(self, out: Array, lse: Array, work: Work) -> tuple[Array, Array]:
        """Add the sink to the lse."""
        out, lse = super().after_sink(out, lse, work)
        if work.rules.sinks is not None:
            lse = np.logaddexp(lse, self.sink_logits(work))
        return out, lse


@exhibit(
    as_if="a part with an lse below -1000 was taken for empty",
    fault="F14 empty state",
    breaks=("KV-ATTN-032",),
    verbs=_MERGE,
)
class DeepPartIsEmpty(Tiled):
    """Emptiness is told by an lse below some large negative number.

    A plant: logits are finite numbers, and all of a part may lie that deep.
    """

    def lse_part(self, lse: Array, out: Array) -> Array:
        """Take what lies deep for empty."""
        own = super().lse_part(lse, out)
        return np.where(own < -1000, -np.inf, own).astype(own.dtype)

"""Faults of what shapes a logit: soft cap, sinks, ALiBi."""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array, dtype_of
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.tiled import Tiled
from kvref_conformance.subjects.tiled.rules import Work


@exhibit(
    as_if="logits were clipped at the soft cap",
    fault="F13 scale or encoding",
    breaks=("KV-ATTN-040",),
    features=("softcap",),
)
class SoftcapClips(Tiled):
    """The cap cuts instead of bending.

    A plant. Far below the cap and far above it the two agree.
    """

    def capped(self, logits: Array, softcap: float) -> Array:
        """Cut at the cap."""
        return np.clip(logits, -softcap, softcap).astype(logits.dtype)


@exhibit(
    as_if="the soft cap was applied to q·k before the scale",
    fault="F13 scale or encoding",
    breaks=("KV-ATTN-040",),
    features=("softcap",),
)
class SoftcapBeforeScale(Tiled):
    """The product is capped first and scaled afterwards.

    A plant: the effective cap is cap times scale, so that large logits all look alike.
    """

    def scaled(self, products: Array, work: Work) -> Array:
        """Cap, then scale."""
        if work.rules.softcap is None:
            return super().scaled(products, work)
        return super().scaled(super().capped(products, work.rules.softcap), work)

    def capped(self, logits: Array, softcap: float) -> Array:
        """Do nothing: it is capped already."""
        return logits


@exhibit(
    as_if="the soft cap was ignored",
    fault="F21 one path only",
    breaks=("KV-ATTN-040",),
    features=("softcap",),
)
class SoftcapIgnored(Tiled):
    """Logits are not capped.

    A plant: near zero the cap changes nothing, so a kernel without it passes on small logits.
    """

    def capped(self, logits: Array, softcap: float) -> Array:
        """Return the logits."""
        return logits


@exhibit(
    as_if="the sink was left out of the denominator",
    fault="F14 empty state",
    seen_in=("kekzl/imp#1330",),
    breaks=("KV-ATTN-041",),
    may_also_break=("KV-ATTN-042", "KV-ATTN-043", "KV-ATTN-045"),
    features=("sinks",),
)
class SinkForgotten(Tiled):
    """The sink has no weight.

    A refactoring dropped the term, and two of the kernel's own tests passed: their sinks were small.
    """

    def after_sink(self, out: Array, lse: Array, work: Work) -> tuple[Array, Array]:
        """Return the state as it is."""
        return out, lse


@exhibit(
    as_if="all query heads of a group used the sink of the group's first head",
    fault="F12 layout",
    seen_in=("sgl-project/sgl-kernel-xpu#254",),
    breaks=("KV-ATTN-042",),
    features=("sinks",),
)
class SinkOfFirstHeadInGroup(Tiled):
    """One sink serves a whole group of query heads.

    The heads of a group are packed into one tile, and the epilogue looks the sink up once a tile.
    """

    def after_sink(self, out: Array, lse: Array, work: Work) -> tuple[Array, Array]:
        """Look the sink up by kv head."""
        if work.rules.sinks is None:
            return out, lse
        group = len(work.q) // work.fetch(np.zeros(0, np.int64))[0].shape[1]
        first = np.arange(len(work.q)) // group * group
        rules = replace(work.rules, sinks=np.asarray(work.rules.sinks)[first])
        return super().after_sink(out, lse, replace(work, rules=rules))


@exhibit(
    as_if="the sink was counted once in every split",
    fault="F14 empty state",
    seen_in=("ROCm/rocm-libraries#12227",),
    breaks=("KV-ATTN-043",),
    may_also_break=("KV-ATTN-041", "KV-ATTN-042", "KV-ATTN-045"),
    features=("sinks",),
)
class SinkInEverySplit(Tiled):
    """Each split adds the sink to its own denominator.

    One split publishes it and the next one, which does not know, seeds its maximum with it again. A context
    that fits one split is right.
    """

    def part(self, work: Work, tiles: list[Array], width: int) -> tuple[Array, Array]:
        """Give the sink its share of the split."""
        out, lse = super().part(work, tiles, width)
        if work.rules.sinks is None:
            return out, lse
        out, _ = super().after_sink(out, lse, work)
        return out, np.logaddexp(lse, self.sink_logits(work))

    def after_sink(self, out: Array, lse: Array, work: Work) -> tuple[Array, Array]:
        """Add nothing at the end."""
        return out, lse


@exhibit(
    as_if="the sink was multiplied by the scale",
    fault="F13 scale or encoding",
    seen_in=("ROCm/rocm-libraries#12227",),
    breaks=("KV-ATTN-045",),
    features=("sinks",),
)
class SinkScaled(Tiled):
    """The sink is treated like a product of q and k.

    Where the sink is appended as one more logit before the scale, it is scaled with the others.
    """

    def sink_logits(self, work: Work) -> Array:
        """Scale the sinks."""
        return (super().sink_logits(work) * work.rules.scale).astype(work.q.dtype)


@exhibit(
    as_if="the sink's share of an empty row was computed as exp(-inf - -inf)",
    fault="F14 empty state",
    breaks=("KV-ATTN-046",),
    features=("sinks",),
)
class SinkOnEmptyRowIsNaN(Tiled):
    """The weight of the sink is taken relative to the lse of the row.

    A plant: a row without tokens has none, and the difference of infinities spreads.
    """

    def after_sink(self, out: Array, lse: Array, work: Work) -> tuple[Array, Array]:
        """Divide by 1 + exp(sink - lse)."""
        if work.rules.sinks is None:
            return out, lse
        share = np.exp(lse - lse) / (1 + np.exp(self.sink_logits(work) - lse))
        return (out * share[..., None]).astype(out.dtype), lse


@exhibit(
    as_if="the lse of an empty row was its sink",
    fault="F14 empty state",
    seen_in=("ROCm/rocm-libraries#12229",),
    breaks=("KV-ATTN-046",),
    features=("sinks", "lse"),
)
class EmptyRowTakesSinkAsLse(Tiled):
    """Rows without tokens are handled on a path of their own, and that path treats the sink differently.

    One path includes the sink in the lse and the other leaves it out, so that a merge sees a part where there
    is none.
    """

    def after_sink(self, out: Array, lse: Array, work: Work) -> tuple[Array, Array]:
        """Return the sink for rows without weight."""
        out, lse = super().after_sink(out, lse, work)
        if work.rules.sinks is not None:
            lse = np.where(np.isneginf(lse), self.sink_logits(work), lse)
        return out, lse


@exhibit(
    as_if="the ALiBi bias had the opposite sign",
    fault="F13 scale or encoding",
    breaks=("KV-ATTN-044",),
    features=("alibi",),
)
class AlibiRewardsDistance(Tiled):
    """The bias is slope · (t - j).

    A plant: the farthest token gains most.
    """

    def distance(self, at: Array, t: Array) -> Array:
        """Count the other way."""
        return -super().distance(at, t)


@exhibit(
    as_if="the query heads of a group shared one ALiBi slope",
    fault="F12 layout",
    breaks=("KV-ATTN-044",),
    features=("alibi",),
)
class AlibiSlopeOfKvHead(Tiled):
    """Slopes are looked up by kv head.

    A plant, the sibling of the sink that was looked up once a group.
    """

    def bias(self, work: Work, at: Array) -> Array:
        """Use the first slope of each group."""
        slopes = np.asarray(work.rules.alibi_slopes)
        group = len(work.q) // work.fetch(at[:1])[0].shape[1]
        rules = replace(work.rules, alibi_slopes=slopes[np.arange(len(slopes)) // group * group])
        return super().bias(replace(work, rules=rules), at)


@exhibit(
    as_if="ALiBi distances were counted from the start of the context",
    fault="F19 position or mask",
    breaks=("KV-ATTN-044",),
    features=("alibi", "prefill", "lse"),
)
class AlibiFromStartOfContext(Tiled):
    """The bias is slope · j, without the query's own position.

    Softmax does not see a constant, so every output is right. The lse is not, and a merge uses the lse.
    """

    def distance(self, at: Array, t: Array) -> Array:
        """Count from position 0."""
        return super().distance(at, np.zeros_like(t))


@exhibit(
    as_if="the sink was soft-capped like a logit",
    fault="F13 scale or encoding",
    breaks=("KV-ATTN-045",),
    may_also_break=("KV-ATTN-001",),
    features=("sinks", "softcap"),
)
class SinkCapped(Tiled):
    """The cap is applied to every logit of a row, the sink among them.

    A plant: the sink joins the row as one more column, before the cap.
    """

    def sink_logits(self, work: Work) -> Array:
        """Cap the sinks."""
        sinks = super().sink_logits(work)
        return sinks if work.rules.softcap is None else self.capped(sinks, work.rules.softcap)


@exhibit(
    as_if="ALiBi slopes were rounded to bfloat16",
    fault="F13 scale or encoding",
    breaks=("KV-ATTN-044",),
    features=("alibi",),
)
class AlibiSlopesInBfloat16(Tiled):
    """Slopes are kept in the dtype of the model.

    A plant: with 8 heads all slopes are powers of two, and with 12 they are not.
    """

    def bias(self, work: Work, at: Array) -> Array:
        """Round the slopes."""
        low = np.asarray(work.rules.alibi_slopes).astype(dtype_of("bfloat16")).astype(np.float32)
        return super().bias(replace(work, rules=replace(work.rules, alibi_slopes=low)), at)

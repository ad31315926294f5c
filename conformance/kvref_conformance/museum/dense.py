"""Faults of the formula itself: weights, heads, the range of logits, rows that attend to nothing."""

from dataclasses import replace
from typing import Any

import numpy as np

from kvref.arrays import Array, dtype_of
from kvref_conformance.museum.exhibit import EVERY_OUTPUT, exhibit
from kvref_conformance.subjects.tiled import Tiled
from kvref_conformance.subjects.tiled.rules import Batch, Work


@exhibit(
    as_if="the exponential was taken to base 2",
    fault="F13 scale or encoding",
    breaks=("KV-ATTN-001",),
    may_also_break=("KV-ATTN-002", "KV-ATTN-006"),
)
class ExponentialBaseTwo(Tiled):
    """Weights are powers of 2 instead of e.

    The fast exponential of a GPU has base 2, and the factor log2(e) belongs into the scale. Left out, every
    distribution is flatter than it should be, by the same amount on every input.
    """

    def shaped(self, logits: Array, work: Work, at: Array, seen: Array) -> Array:
        """Return logits whose exponential is a power of 2."""
        shaped = super().shaped(logits, work, at, seen)
        return np.asarray(shaped * np.log(2.0).astype(shaped.dtype))


@exhibit(
    as_if="the scale was applied twice",
    fault="F13 scale or encoding",
    breaks=("KV-ATTN-002",),
    may_also_break=("KV-ATTN-001",),
)
class ScaleTwice(Tiled):
    """The scale multiplies q, and then the logits once more.

    The caller folds the scale into q and the kernel does not know. With the near-zero logits of a common test
    distribution nothing moves by more than the tolerance.
    """

    def scaled(self, products: Array, work: Work) -> Array:
        """Multiply by the scale, twice."""
        return super().scaled(super().scaled(products, work), work)


@exhibit(
    as_if="the scale that was passed was replaced by head_dim ** -0.5",
    fault="F13 scale or encoding",
    breaks=("KV-ATTN-002",),
    may_also_break=("KV-ATTN-001", "KV-ATTN-006"),
)
class ScaleOfItsOwn(Tiled):
    """The kernel scales by its own head_dim to the power -1/2.

    Right for most models, so it is found when one comes whose scale is another: Gemma 2, Gemma 4, anything
    with YaRN's factor folded in.
    """

    def scaled(self, products: Array, work: Work) -> Array:
        """Multiply by the default scale."""
        own = replace(work.rules, scale=work.q.shape[-1] ** -0.5)
        return super().scaled(products, replace(work, rules=own))


@exhibit(
    as_if="query head h read kv head h % num_kv_heads",
    fault="F12 layout",
    seen_in=("onnx/onnx#7274",),
    breaks=("KV-ATTN-003",),
    may_also_break=EVERY_OUTPUT,
)
class HeadsTiled(Tiled):
    """Query heads are dealt out to kv heads in turn.

    Grouped keys were repeated with a tile (0 1 0 1) where they should be repeated in place (0 0 1 1). With
    one kv head, or one query head to each, the two are the same.
    """

    def kv_heads(self, num_q_heads: int, num_kv_heads: int) -> Array:
        """Return h % num_kv_heads."""
        return np.asarray(np.arange(num_q_heads) % num_kv_heads)


@exhibit(
    as_if="the last query heads of a group of 7 read the next kv head (group rounded down to a power of two)",
    fault="F12 layout",
    seen_in=("apache/tvm#17466",),
    breaks=("KV-ATTN-003",),
    may_also_break=EVERY_OUTPUT,
)
class GroupRoundedToPowerOfTwo(Tiled):
    """The group size is rounded down to a power of two before heads are divided by it.

    Shifts are cheaper than divisions, and group sizes were 1, 4 and 8 in every test. With 28 query heads over
    4 kv heads the group is 7.
    """

    def kv_heads(self, num_q_heads: int, num_kv_heads: int) -> Array:
        """Return h shifted right."""
        group = num_q_heads // num_kv_heads
        head = np.arange(num_q_heads) >> (group.bit_length() - 1)
        return np.asarray(np.minimum(head, num_kv_heads - 1))


@exhibit(
    as_if="the empty places of a short last tile had logit 0 and counted in the denominator",
    fault="F09 padding as data",
    breaks=("KV-ATTN-004", "KV-ATTN-005"),
    may_also_break=EVERY_OUTPUT,
)
class PaddingInDenominator(Tiled):
    """A short tile is filled up with zero keys, which are scored and never masked.

    Their values are zero too, so only the denominator shows it: the output shrinks by the weight of a logit
    of 0. On ordinary inputs that is one token among many; where every real logit is -30 it takes the whole
    row.
    """

    def part(self, work: Work, tiles: list[Array], width: int) -> tuple[Array, Array]:
        """Count the padding of the last tile."""
        out, lse = super().part(work, tiles, width)
        padding = self.tile - len(tiles[-1]) if tiles else 0
        if padding == 0:
            return out, lse
        padded = np.logaddexp(lse, np.log(padding)).astype(lse.dtype)
        return out * np.exp(lse - padded)[..., None], padded


@exhibit(
    as_if="an excluded pair had the finite logit -50000",
    fault="F14 empty state",
    seen_in=("flashinfer-ai/flashinfer#4452",),
    breaks=("KV-ATTN-005",),
    may_also_break=("KV-ATTN-007",),
    features=("prefill", "lse"),
)
class FiniteSentinel(Tiled):
    """Excluded pairs get the logit -50000 instead of minus infinity.

    A row with no visible key then has a finite lse and the mean of the excluded values, and a row whose real
    logits lie below the sentinel attends to what it must not.
    """

    def exclude(self, logits: Array, seen: Array) -> Array:
        """Give a large negative number to excluded pairs."""
        return np.where(seen, logits, logits.dtype.type(-5e4))


@exhibit(
    as_if="the running maximum started at 0",
    fault="F14 empty state",
    breaks=("KV-ATTN-005",),
)
class MaximumStartsAtZero(Tiled):
    """The running maximum starts at 0 instead of minus infinity.

    Rows whose logits are all far below zero underflow to no weight at all. Random inputs have a positive
    logit somewhere.
    """

    def first_peak(self, work: Work) -> Array:
        """Start at zero."""
        return np.zeros(work.q.shape[:2], work.q.dtype)


@exhibit(
    as_if="logits were exponentiated without subtracting their maximum",
    fault="F13 scale or encoding",
    breaks=("KV-ATTN-005",),
    may_also_break=("KV-ATTN-006", "KV-ATTN-010", "KV-ATTN-011"),
)
class MaximumNotSubtracted(Tiled):
    """The exponential is taken of the logit as it is.

    It overflows float32 at 89 and returns NaN; in every smaller test it is exact.
    """

    def first_peak(self, work: Work) -> Array:
        """Keep the maximum at zero."""
        return np.zeros(work.q.shape[:2], work.q.dtype)

    def raised(self, peak: Array, logits: Array) -> Array:
        """Leave the maximum where it is."""
        return peak


@exhibit(
    as_if="the numerator was not rescaled when the running maximum grew",
    fault="F14 empty state",
    breaks=("KV-ATTN-006",),
    may_also_break=EVERY_OUTPUT,
)
class NumeratorNotRescaled(Tiled):
    """What was gathered under a smaller maximum keeps its old weight in the numerator.

    The maximum settles in the first tiles of random data. On a rising ramp the early tokens win over the late
    ones.
    """

    def rescaled(self, acc: Array, kept: Array) -> Array:
        """Return the numerator as it is."""
        return acc


@exhibit(
    as_if="the denominator was not rescaled when the running maximum grew",
    fault="F14 empty state",
    breaks=("KV-ATTN-006",),
    may_also_break=EVERY_OUTPUT,
)
class DenominatorNotRescaled(Tiled):
    """What was gathered under a smaller maximum keeps its old weight in the denominator."""

    def added_total(self, total: Array, kept: Array, weights: Array) -> Array:
        """Add without shrinking."""
        return super().added_total(total, np.ones_like(kept), weights)


@exhibit(
    as_if="a row that attends to nothing was divided by its zero weight",
    fault="F14 empty state",
    seen_in=("flashinfer-ai/flashinfer#2883", "flashinfer-ai/flashinfer#4484"),
    breaks=("KV-ATTN-007",),
    features=("lse",),
)
class EmptyRowIsNaN(Tiled):
    """A context without tokens gives 0/0.

    Requests of length 0 appear when a batch is padded for a captured graph. Their rows turn NaN, and whatever
    looks at the whole batch next, an amax or a norm, turns NaN as well.
    """

    def attend(self, work: Work, width: int) -> tuple[Array, Array]:
        """Divide where there is nothing to divide."""
        out, lse = super().attend(work, width)
        return out / (~np.isneginf(lse))[..., None].astype(out.dtype), lse


@exhibit(
    as_if="a row that attends to nothing had the lse 0",
    fault="F14 empty state",
    breaks=("KV-ATTN-007",),
    features=("lse",),
)
class EmptyRowWeighsOne(Tiled):
    """The lse of an empty row is what the buffer was cleared to.

    Zeros are a fine output for a row without context, and a disastrous lse: merged with a real part, the
    empty one has the weight of a logit of 0.
    """

    def spell_lse(self, lse: Array) -> Array:
        """Clear what is infinite."""
        return np.where(np.isneginf(lse), 0, lse).astype(lse.dtype)


@exhibit(
    as_if="tokens whose key is all zeros were not counted",
    fault="F09 padding as data",
    breaks=("KV-ATTN-008",),
    may_also_break=("KV-ATTN-002", "KV-ATTN-006"),
)
class ZeroKeyIsNoToken(Tiled):
    """The end of a context is told by rows of zeros.

    A cache that was zeroed at allocation invites it: what is still zero was never written. An all-zero key is
    legal all the same.
    """

    def logits(self, work: Work, k: Array, at: Array) -> Array:
        """Exclude keys without a nonzero channel."""
        written = k.any(axis=(1, 2))
        return self.exclude(super().logits(work, k, at), np.broadcast_to(written, (len(work.t), len(at))))


@exhibit(
    as_if="values were read at the width of the keys",
    fault="F12 layout",
    seen_in=("Dao-AILab/flash-attention#2368",),
    breaks=("KV-ATTN-009",),
    features=("value_width",),
)
class ValuesAtWidthOfKeys(Tiled):
    """Value rows are found with the key's head_dim as their stride.

    One offset serves both caches, which is right while they are equally wide. With keys of 192 and values of
    128 channels every row but the first starts in the wrong place.
    """

    def read_and_attend(self, batch: Batch, k_cache: Array, v_cache: Array, /, *rest: Any) -> Any:
        """Read values from where keys of the same number would lie."""
        rows = np.arange(v_cache[..., 0].size).reshape(v_cache.shape[:3])
        element = rows[..., None] * k_cache.shape[3] + np.arange(v_cache.shape[3])
        shifted = v_cache.reshape(-1)[element % v_cache.size]
        return super().read_and_attend(batch, k_cache, shifted, *rest)


@exhibit(
    as_if="the scale was rounded to bfloat16",
    fault="F13 scale or encoding",
    breaks=("KV-ATTN-002",),
)
class ScaleInBfloat16(Tiled):
    """The scale is kept in the dtype of the model.

    A plant: a power of two survives, and so does every scale of a common test.
    """

    def scaled(self, products: Array, work: Work) -> Array:
        """Round the scale."""
        low = float(np.asarray(work.rules.scale).astype(dtype_of("bfloat16")))
        return super().scaled(products, replace(work, rules=replace(work.rules, scale=low)))


@exhibit(
    as_if="groups of query heads beyond the second read the second kv head",
    fault="F12 layout",
    breaks=("KV-ATTN-003",),
)
class TwoKvHeadsAtMost(Tiled):
    """The kv head is clamped to the two that a configuration was written for.

    A plant: with one or two kv heads everything is right.
    """

    def kv_heads(self, num_q_heads: int, num_kv_heads: int) -> Array:
        """Clamp grouped heads."""
        heads = super().kv_heads(num_q_heads, num_kv_heads)
        return heads if num_q_heads == num_kv_heads else np.minimum(heads, 1)


@exhibit(
    as_if="tokens whose value is all zeros were not counted",
    fault="F09 padding as data",
    breaks=("KV-ATTN-008",),
)
class ZeroValueIsNoToken(Tiled):
    """A row of zeros in the value cache is taken for an unwritten one.

    A plant, the sibling of the key that was taken so: a value of zeros is a vote for zero.
    """

    def logits(self, work: Work, k: Array, at: Array) -> Array:
        """Exclude values without a nonzero channel."""
        written = work.fetch(at)[1].any(axis=(1, 2))
        return self.exclude(super().logits(work, k, at), np.broadcast_to(written, (len(work.t), len(at))))


@exhibit(
    as_if="the window was dropped because there were sinks",
    fault="F21 one path only",
    breaks=("KV-ATTN-001",),
    features=("window", "sinks"),
)
class WindowDroppedWithSinks(Tiled):
    """The kernel with sinks has no window.

    A plant: each of the two is right alone, and one layer in two has both.
    """

    def work(self, batch: Batch, *rest: Any) -> Work:
        """Drop the window where there are sinks."""
        rules = batch.rules
        dropped = replace(rules, window=None if rules.sinks is not None else rules.window)
        return super().work(replace(batch, rules=dropped), *rest)

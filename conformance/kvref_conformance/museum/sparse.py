"""Faults of choosing positions and of attending to the chosen."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.tiled import Tiled

_TOPK, _SPARSE = ("select_topk",), ("sparse_attention",)


@exhibit(
    as_if="positions that tie with the last chosen one were left out",
    fault="F01 boundary",
    breaks=("KV-ATTN-070",),
    verbs=_TOPK,
    features=("prefill",),
)
class TiesLeftOut(Tiled):
    """Only scores above the threshold are taken, and too few remain.

    A plant: the threshold is the score at rank k, and the comparison is strict. ReLU makes plateaus of exact
    zeros, so the set can shrink to nothing.
    """

    def ranked(self, scores: Array, candidates: Array, top_k: int) -> Array:
        """Take what is above the score at rank k."""
        best = super().ranked(scores, candidates, top_k)
        if len(best) < top_k:
            return best
        return best[scores[best] > scores[best[-1]]] if len(best) > 1 else best


@exhibit(
    as_if="a selection that was too short was filled up with its best position",
    fault="F09 padding as data",
    breaks=("KV-ATTN-070",),
    verbs=_TOPK,
    features=("prefill",),
)
class ShortSelectionRepeats(Tiled):
    """Where there are fewer candidates than top_k, one of them is named again.

    A plant: the selection is never short in a benchmark, and a repeated slot counts twice in the softmax.
    """

    def ranked(self, scores: Array, candidates: Array, top_k: int) -> Array:
        """Fill up with the best."""
        best = super().ranked(scores, candidates, top_k)
        return np.concatenate([best, np.repeat(best[:1], top_k - len(best))])


@exhibit(
    as_if="negative products were not dropped from the indexer's score",
    fault="F13 scale or encoding",
    breaks=("KV-ATTN-071",),
    may_also_break=("KV-ATTN-070",),
    verbs=_TOPK,
    features=("prefill",),
)
class IndexerWithoutRelu(Tiled):
    """The score is the plain weighted sum of products.

    A plant of what the documentation of one implementation says and its code does not do: one head that
    disagrees can outvote all that agree.
    """

    def indexer_score(self, products: Array, weights: Array) -> Array:
        """Sum all products."""
        return np.asarray((weights[..., None] * products).sum(axis=1))


@exhibit(
    as_if="negative terms were dropped after the head's weight was applied",
    fault="F13 scale or encoding",
    breaks=("KV-ATTN-071",),
    may_also_break=("KV-ATTN-070",),
    verbs=_TOPK,
    features=("prefill",),
)
class ReluAfterWeight(Tiled):
    """The weight goes into the product before ReLU.

    A plant: folding the weight into q is free, and exact as long as every weight is positive.
    """

    def indexer_score(self, products: Array, weights: Array) -> Array:
        """Weigh, then drop what is negative."""
        return np.asarray(np.maximum(weights[..., None] * products, 0).sum(axis=1))


@exhibit(
    as_if="the last tile of a selection was not read",
    fault="F01 boundary",
    breaks=("KV-ATTN-072",),
    verbs=_SPARSE,
    features=("prefill",),
)
class SelectionTailDropped(Tiled):
    """A selection is read in whole groups of four, and the rest is dropped.

    A plant: 2048 is a multiple of everything.
    """

    def selection(self, row: Array) -> Array:
        """Drop what does not fill a group."""
        chosen = super().selection(row)
        return chosen[: len(chosen) // 4 * 4]


@exhibit(
    as_if="the indexer offered positions after the query's own",
    fault="F19 position or mask",
    breaks=("KV-ATTN-073",),
    may_also_break=("KV-ATTN-070",),
    verbs=_TOPK,
    features=("prefill",),
)
class IndexerSeesTheFuture(Tiled):
    """Every position of the context is a candidate.

    A plant: the indexer trusts a causal mask further down, and sparse attention, which gets slots, has none.
    """

    def candidates(self, kv_len: int, t: int) -> Array:
        """Return the whole context."""
        return np.arange(kv_len)


@exhibit(
    as_if="-1 in a selection was read as the last slot of the cache",
    fault="F09 padding as data",
    breaks=("KV-ATTN-074",),
    may_also_break=("KV-ATTN-012",),
    verbs=_SPARSE,
    features=("prefill",),
)
class MissingEntryWraps(Tiled):
    """Entries that name nothing are read all the same.

    A plant: the index wraps or is clamped, and some slot stands in for none.
    """

    def selection(self, row: Array) -> Array:
        """Keep every entry."""
        return row


@exhibit(
    as_if="a selection was read up to its first -1",
    fault="F09 padding as data",
    breaks=("KV-ATTN-074",),
    verbs=_SPARSE,
    features=("prefill",),
)
class SelectionEndsAtFirstGap(Tiled):
    """The first missing entry ends the selection.

    A plant: entries are compacted by most indexers, so that a count would do. Selections that were filtered
    after they were made have gaps.
    """

    def selection(self, row: Array) -> Array:
        """Stop at the first gap."""
        gaps = np.flatnonzero(row < 0)
        return row[: gaps[0]] if len(gaps) else row


@exhibit(
    as_if="only the first 64 entries of a selection were read",
    fault="F02 unit",
    breaks=("KV-ATTN-072",),
    verbs=_SPARSE,
    features=("prefill",),
)
class OneTileOfSelection(Tiled):
    """A selection is taken to fit one tile.

    A plant: a test selects a handful of slots and a model 2048.
    """

    def selection(self, row: Array) -> Array:
        """Stop after a tile."""
        return super().selection(row)[:64]

"""Faults of what a caller says pair by pair: bidirectional spans and boolean masks."""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.tiled import Tiled
from kvref_conformance.subjects.tiled.rules import Batch, Rules, Work


@exhibit(
    as_if="spans were ignored",
    fault="F21 one path only",
    breaks=("KV-ATTN-024",),
    features=("spans", "prefill"),
)
class SpansIgnored(Tiled):
    """Image tokens see only what came before them.

    A plant: one backend has no mask for spans and stays causal.
    """

    def in_span(self, spans: Array, j: Array, t: Array) -> Array:
        """Admit nothing."""
        return np.zeros_like(j <= t)


@exhibit(
    as_if="tokens outside every span saw each other in both directions",
    fault="F19 position or mask",
    breaks=("KV-ATTN-024",),
    features=("spans", "prefill"),
)
class NegativeSpanIsASpan(Tiled):
    """The id -1 is compared like any other, so all text is one span.

    A plant: equality is tested, membership is not.
    """

    def in_span(self, spans: Array, j: Array, t: Array) -> Array:
        """Compare ids."""
        return np.asarray(spans[j] == spans[np.maximum(t, 0)])


@exhibit(
    as_if="spans were cut off by the window",
    fault="F19 position or mask",
    breaks=("KV-ATTN-024",),
    features=("spans", "prefill", "window"),
)
class SpanCutByWindow(Tiled):
    """The window is applied last, to spans as well.

    A plant: an image is wider than the window of a local layer, and half of it goes unseen.
    """

    def visible(self, work: Work, at: Array) -> Array:
        """Cut on both sides."""
        seen = super().visible(work, at)
        if work.rules.window is None:
            return seen
        return np.asarray(seen & (np.abs(at[None, :] - work.t[:, None]) < work.rules.window))


@exhibit(
    as_if="spans reached no further back than the chunk of queries",
    fault="F21 one path only",
    breaks=("KV-ATTN-024",),
    features=("spans", "prefill", "window"),
)
class SpanOnlyInChunk(Tiled):
    """The path over the cached context knows nothing of spans.

    A plant: an image that is cut by the end of a chunk is seen in one direction, and in a local layer not
    even that.
    """

    def in_span(self, spans: Array, j: Array, t: Array) -> Array:
        """Admit what belongs to the chunk."""
        return np.asarray(super().in_span(spans, j, t) & (j >= t.min()))


@exhibit(
    as_if="a span ended where its run of ids ended",
    fault="F19 position or mask",
    breaks=("KV-ATTN-024",),
    features=("spans", "prefill"),
)
class SpanIsOneRun(Tiled):
    """Positions of the same id see each other only within one unbroken run.

    A plant: ids are turned into starts and ends, and an image with line breaks between its rows falls apart.
    """

    def in_span(self, spans: Array, j: Array, t: Array) -> Array:
        """Compare runs as well."""
        run = np.cumsum(np.diff(spans, prepend=spans[:1]) != 0)
        return np.asarray(super().in_span(spans, j, t) & (run[j] == run[np.maximum(t, 0)]))


@exhibit(
    as_if="the boolean mask was ignored",
    fault="F19 position or mask",
    seen_in=("pytorch/pytorch#164702",),
    breaks=("KV-ATTN-025",),
    may_also_break=("KV-ATTN-012",),
    features=("mask", "prefill"),
)
class MaskForgotten(Tiled):
    """The mask is replaced by one that admits everything.

    Slicing a block mask dropped its rule and kept its shape. No error is raised; drafted branches see each
    other.
    """

    def mask_of(self, batch: Batch, request: int) -> Array | None:
        """Return no mask."""
        return None


@exhibit(
    as_if="the boolean mask was read key-major",
    fault="F12 layout",
    breaks=("KV-ATTN-025",),
    may_also_break=("KV-ATTN-012",),
    features=("mask", "prefill"),
)
class MaskTransposed(Tiled):
    """The flat mask is read one row per key.

    A plant: a square mask of a whole prompt hides it where it is symmetric.
    """

    def mask_of(self, batch: Batch, request: int) -> Array | None:
        """Read along the other axis."""
        mask = super().mask_of(batch, request)
        return None if mask is None else mask.reshape(mask.shape[::-1]).T


@exhibit(
    as_if="every request used the mask of the first",
    fault="F18 row mapping",
    breaks=("KV-ATTN-025",),
    may_also_break=("KV-ATTN-012",),
    features=("mask", "prefill"),
)
class MaskOfFirstRequest(Tiled):
    """The start of a request's own mask is left at 0.

    A plant: a batch of one, or of equal masks, is right.
    """

    def mask_of(self, batch: Batch, request: int) -> Array | None:
        """Read from the beginning."""
        mask = super().mask_of(batch, request)
        if mask is None or batch.rules.mask is None:
            return None
        return np.resize(batch.rules.mask, mask.size).reshape(mask.shape)


@exhibit(
    as_if="the boolean mask took the place of causality",
    fault="F19 position or mask",
    breaks=("KV-ATTN-025",),
    features=("mask", "prefill"),
)
class MaskReplacesCausality(Tiled):
    """With a mask of the caller's own, the causal rule is switched off.

    A plant: a True entry ahead of the query admits what it must not.
    """

    def by_position(self, rules: Rules, j: Array, t: Array) -> Array:
        """Be causal only without a mask."""
        return super().by_position(replace(rules, causal=rules.causal and rules.mask is None), j, t)

"""Faults of visibility: corner, windows, chunks, no causality, and chunks of a prompt."""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import EVERY_OUTPUT, exhibit
from kvref_conformance.subjects.tiled import Tiled
from kvref_conformance.subjects.tiled.rules import Rules, Work


@exhibit(
    as_if="the causal triangle was drawn from the top left corner",
    fault="F19 position or mask",
    seen_in=("pytorch/pytorch#108108", "pytorch/pytorch#144858", "onnx/onnx#8068"),
    breaks=("KV-ATTN-020", "KV-ATTN-028"),
    may_also_break=(*EVERY_OUTPUT, "KV-ATTN-007"),
    features=("prefill",),
)
class CornerTopLeft(Tiled):
    """Query i of a chunk sees positions 0 to i.

    With as many queries as keys there is one triangle; with fewer there are two, and the new tokens stand at
    the end of the cache, not at its beginning.
    """

    def query_positions(self, kv_len: int, num_rows: int) -> Array:
        """Stand at the beginning."""
        return np.arange(num_rows)


@exhibit(
    as_if="each query saw one position ahead of its own",
    fault="F01 boundary",
    breaks=("KV-ATTN-020",),
    may_also_break=(*EVERY_OUTPUT, "KV-ATTN-007"),
    features=("prefill",),
)
class CausalOneAhead(Tiled):
    """The causal comparison lets j = t + 1 pass.

    A plant. It shows in the last position of no row but the last, so decoding never meets it.
    """

    def is_causal_pair(self, j: Array, t: Array) -> Array:
        """Compare with one more."""
        return np.asarray(j <= t + 1)


@exhibit(
    as_if="a query did not see its own position",
    fault="F01 boundary",
    breaks=("KV-ATTN-020",),
    may_also_break=EVERY_OUTPUT,
    features=("prefill",),
)
class CausalStrict(Tiled):
    """The causal comparison excludes j = t.

    A plant: < where <= is meant.
    """

    def is_causal_pair(self, j: Array, t: Array) -> Array:
        """Compare strictly."""
        return np.asarray(j < t)


@exhibit(
    as_if="the window held one more token",
    fault="F01 boundary",
    seen_in=(
        "microsoft/onnxruntime#25927",
        "huggingface/transformers#39408",
        "mistralai/mistral-inference#60",
        "vllm-project/vllm#3385",
    ),
    breaks=("KV-ATTN-021",),
    may_also_break=("KV-ATTN-012",),
    features=("window",),
)
class WindowOneTooMany(Tiled):
    """The mask keeps t - W as well: inclusive on both ends.

    One engine counts tokens and another counts how far to look left. Passed on unconverted, a window of W
    reads W + 1 tokens.
    """

    def in_window(self, j: Array, t: Array, window: int) -> Array:
        """Keep the position just outside."""
        return super().in_window(j, t, window + 1)


@exhibit(
    as_if="the window held one token less",
    fault="F01 boundary",
    seen_in=("huggingface/transformers#37574",),
    breaks=("KV-ATTN-021",),
    features=("window",),
)
class WindowOneTooFew(Tiled):
    """The oldest token of the window is lost.

    A rolling cache rolls when it is full, not when it overflows, so it holds W - 1 tokens when the query
    comes.
    """

    def in_window(self, j: Array, t: Array, window: int) -> Array:
        """Lose the oldest position."""
        return super().in_window(j, t, window - 1)


@exhibit(
    as_if="the window was ignored",
    fault="F19 position or mask",
    seen_in=("EricLBuehler/mistral.rs#246",),
    breaks=("KV-ATTN-021",),
    may_also_break=("KV-ATTN-012",),
    features=("window",),
)
class WindowIgnored(Tiled):
    """Nothing is masked on the left.

    Short prompts are right. Beyond the window the model reads tokens it was never trained to see at that
    distance.
    """

    def in_window(self, j: Array, t: Array, window: int) -> Array:
        """Admit everything."""
        return np.ones_like(j <= t)


@exhibit(
    as_if="the window was applied to the tokens of the chunk and not to the cached context",
    fault="F21 one path only",
    seen_in=("vllm-project/vllm#4405",),
    breaks=("KV-ATTN-021",),
    may_also_break=("KV-ATTN-012",),
    features=("window", "prefill"),
)
class WindowForgottenOnContext(Tiled):
    """The path over the cached context has no window.

    A chunk of queries is attended in two passes, over the context and over itself, and only the second knows
    of the window.
    """

    def in_window(self, j: Array, t: Array, window: int) -> Array:
        """Admit what lies before the chunk."""
        return np.asarray(super().in_window(j, t, window) | (j < t.min()))


@exhibit(
    as_if="the window reached to the right as well",
    fault="F19 position or mask",
    seen_in=("ModelTC/LightLLM#1311",),
    breaks=("KV-ATTN-022",),
    features=("window", "prefill"),
)
class WindowOnBothSides(Tiled):
    """The window is given as (W - 1, W - 1), and causality is left to it.

    A window mask already masks the past, so the causal flag looks superfluous. Decoding has no future to see;
    a prompt has.
    """

    def by_position(self, rules: Rules, j: Array, t: Array) -> Array:
        """Admit both neighbours."""
        if rules.window is None:
            return super().by_position(rules, j, t)
        return np.asarray(np.abs(j - t) < rules.window)


@exhibit(
    as_if="the chunk slid along with the query instead of starting at multiples of its size",
    fault="F19 position or mask",
    breaks=("KV-ATTN-023",),
    features=("chunk_size",),
)
class ChunkSlides(Tiled):
    """Chunked attention is computed as a sliding window.

    A plant: both keep the last C tokens at the end of a chunk, and they differ everywhere else.
    """

    def in_chunk(self, j: Array, t: Array, chunk_size: int) -> Array:
        """Keep the last chunk_size positions."""
        return self.in_window(j, t, chunk_size)


@exhibit(
    as_if="causality was applied although it was switched off",
    fault="F21 one path only",
    breaks=("KV-ATTN-026",),
    features=("non_causal", "prefill"),
)
class AlwaysCausal(Tiled):
    """The flag `causal` is not looked at.

    A plant: encoder and cross attention run on a path written for decoders.
    """

    def by_position(self, rules: Rules, j: Array, t: Array) -> Array:
        """Stay causal."""
        return super().by_position(rules, j, t) & self.is_causal_pair(j, t)


@exhibit(
    as_if="excluded pairs were soft-capped after they were masked",
    fault="F19 position or mask",
    seen_in=("onnx/onnx#7865", "microsoft/onnxruntime#28379"),
    breaks=("KV-ATTN-027",),
    may_also_break=("KV-ATTN-040",),
    features=("softcap", "window", "prefill"),
)
class MaskBeforeSoftcap(Tiled):
    """The mask comes before the cap, and minus infinity becomes -cap.

    A finite logit has a finite weight. In a long context with few excluded pairs nobody sees it.
    """

    def shaped(self, logits: Array, work: Work, at: Array, seen: Array) -> Array:
        """Mask, then cap."""
        return super().shaped(self.exclude(logits, seen), work, at, np.ones_like(seen))

    def exclude(self, logits: Array, seen: Array) -> Array:
        """Exclude nothing the second time."""
        return super().exclude(logits, seen)


@exhibit(
    as_if="a chunk of queries did not see the context before it",
    fault="F21 one path only",
    breaks=("KV-ATTN-028",),
    may_also_break=EVERY_OUTPUT,
    features=("prefill",),
)
class ChunkForgetsThePast(Tiled):
    """A chunk is attended as if it were the whole prompt.

    A plant: the kernel for prompts is taken whenever there is more than one query, and it knows no past.
    Whole prompts are right and so is decoding.
    """

    def visible(self, work: Work, at: Array) -> Array:
        """Begin with the chunk's first token."""
        seen = super().visible(work, at)
        return seen if len(work.t) == 1 else seen & (at >= work.t[0])


@exhibit(
    as_if="a window of more than 32 tokens held 32",
    fault="F01 boundary",
    breaks=("KV-ATTN-021",),
    features=("window",),
)
class WideWindowCut(Tiled):
    """The window is applied within one tile of 32, and a wider one is cut.

    A plant: tests have small windows, and models have 4096.
    """

    def in_window(self, j: Array, t: Array, window: int) -> Array:
        """Admit no more than a tile."""
        return super().in_window(j, t, min(window, 32))


@exhibit(
    as_if="queries of the second tile and later stood one position early",
    fault="F21 one path only",
    breaks=("KV-ATTN-020",),
    may_also_break=("KV-ATTN-001",),
    features=("prefill",),
)
class SecondQueryTileStandsEarly(Tiled):
    """The first row of a tile of queries is computed from the tile before it.

    A plant: prompts that fit one tile of 64 queries are right.
    """

    def visible(self, work: Work, at: Array) -> Array:
        """Move the later rows."""
        late = np.arange(len(work.t)) >= 64
        return super().visible(replace(work, t=np.where(late, work.t - 1, work.t)), at)

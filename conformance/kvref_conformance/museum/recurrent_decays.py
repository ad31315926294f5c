"""Faults at both ends of a decay: none at all, and more than a format can hold."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import EVERY_SCAN, exhibit
from kvref_conformance.subjects.scanned import Scanned
from kvref_conformance.subjects.scanned.ragged import below

_GDN = ("gated_delta_rule",)
_SSD = ("ssd_scan",)


@exhibit(
    as_if="a log decay of 0 was taken for a masked one",
    fault="F01 boundary",
    seen_in=("fla-org/flash-linear-attention#104", "fla-org/flash-linear-attention#389"),
    breaks=("KV-RNN-027",),
    may_also_break=EVERY_SCAN,
    verbs=_GDN,
)
class ZeroDecayMasked(Scanned):
    """A guard against positive exponents asks for less than 0.

    Between tokens whose gates are open the exponent is 0, and the guard makes it minus infinity. Gates made
    by a log-sigmoid never reach it.
    """

    def apart(self, decay: Array) -> Array:
        """Mask what is not below 0, but for a token and itself."""
        own = super().apart(decay)
        itself = np.eye(decay.shape[1], dtype=np.bool_)[:, :, None]
        return np.where((own < 1) | itself, own, 0)


@exhibit(
    as_if="exponentials of running sums were divided by each other",
    fault="F10 NaN spread",
    seen_in=("pytorch/executorch#21417", "tenstorrent/tt-metal#56550"),
    breaks=("KV-RNN-026",),
    may_also_break=EVERY_SCAN,
    verbs=_GDN,
)
class DecaysDivided(Scanned):
    """The decay between two tokens is exp(G_i) · exp(−G_j).

    After a strong decay the one is 0 and the other infinite. Factored so, a decay for each channel becomes a
    matrix product, which is why it is tempting.
    """

    def apart(self, decay: Array) -> Array:
        """Multiply two exponentials."""
        total = self.running(decay)
        seen = below(decay.shape[1], diagonal=True)[:, :, None]
        return np.where(seen, np.exp(total)[:, :, None] * np.exp(-total)[:, None], 0)


@exhibit(
    as_if="the difference of two running sums of decays came out positive",
    fault="F10 NaN spread",
    seen_in=("vllm-project/vllm#37501", "sgl-project/sglang#23128", "state-spaces/mamba#713"),
    breaks=("KV-RNN-022",),
    may_also_break=("KV-RNN-007", "KV-RNN-026"),
    verbs=_SSD,
)
class RunningSumLosesDecays(Scanned):
    """A running sum of thousands has no bits left for a decay of one token.

    Sums in parallel round differently, and a difference that cannot be positive was. Its exponential was
    infinite, and the state is no number from then on.
    """

    def apart_by_head(self, decay: Array) -> Array:
        """Take differences of a sum whose order is a tree's."""
        total = np.cumsum(decay.astype(np.float16), axis=1, dtype=np.float16).astype(decay.dtype)
        seen = below(decay.shape[1], diagonal=True)
        return np.where(seen, np.exp(total[:, :, None] - total[:, None]), 0)

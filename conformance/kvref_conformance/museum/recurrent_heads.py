"""Faults of heads that share keys, or groups of B and C: right in the ratios that are tried first."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import EVERY_SCAN, exhibit
from kvref_conformance.subjects.scanned import Scanned

_GDN = ("gated_delta_rule",)
_SSD = ("ssd_scan",)


@exhibit(
    as_if="value heads that share keys read one of the first two key heads",
    fault="F12 layout",
    breaks=("KV-RNN-013",),
    may_also_break=("KV-RNN-032",),
    verbs=_GDN,
)
class TwoKeyHeads(Scanned):
    """A third key head is never read.

    A plant: the number of key heads of a test's model was compiled in.
    """

    def key_heads(self, num_v_heads: int, num_k_heads: int) -> Array:
        """Stop at the second key head, where one is shared."""
        own = super().key_heads(num_v_heads, num_k_heads)
        return np.minimum(own, 1) if num_v_heads > num_k_heads else own


@exhibit(
    as_if="value head h read key head h divided by their number",
    fault="F12 layout",
    breaks=("KV-RNN-013",),
    may_also_break=EVERY_SCAN,
    verbs=_GDN,
)
class KeyHeadsByTheirNumber(Scanned):
    """Head h reads key head h // num_k_heads, where h // (num_v_heads // num_k_heads) is meant.

    A plant: with as many key heads as heads that share one the two are the same.
    """

    def key_heads(self, num_v_heads: int, num_k_heads: int) -> Array:
        """Divide by the other number."""
        return np.minimum(np.arange(num_v_heads) // num_k_heads, num_k_heads - 1)


@exhibit(
    as_if="heads that share a group of B and C read one of the first two",
    fault="F12 layout",
    breaks=("KV-RNN-019",),
    may_also_break=("KV-RNN-032",),
    verbs=_SSD,
)
class TwoGroups(Scanned):
    """A third group is never read.

    A plant: the number of groups of a test's model was compiled in.
    """

    def group_of_heads(self, num_heads: int, num_groups: int) -> Array:
        """Stop at the second group, where one is shared."""
        own = super().group_of_heads(num_heads, num_groups)
        return np.minimum(own, 1) if num_heads > num_groups else own

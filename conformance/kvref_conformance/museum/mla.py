"""Faults of latent attention: the record and its scale."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.tiled import Tiled

_MLA = ("mla_attention",)


@exhibit(
    as_if="only the latent was scored, without the rotated part",
    fault="F02 unit",
    breaks=("KV-ATTN-060", "KV-ATTN-061"),
    may_also_break=("KV-ATTN-062",),
    verbs=_MLA,
)
class RotatedPartNotScored(Tiled):
    """Scores stop at latent_dim.

    A plant: the record's front is both key and value, and its back is forgotten. Without positions in the
    scores a model reads as from a bag of words.
    """

    def record_keys(self, kv_cache: Array, latent_dim: int) -> Array:
        """Return records whose back is zero."""
        keys = kv_cache.copy()
        keys[..., latent_dim:] = 0
        return keys


@exhibit(
    as_if="the values were the last latent_dim numbers of the record",
    fault="F12 layout",
    breaks=("KV-ATTN-061",),
    may_also_break=("KV-ATTN-060", "KV-ATTN-062"),
    verbs=_MLA,
)
class RecordHasRotatedPartFirst(Tiled):
    """The record is taken to be rope | latent.

    A plant: the writer and the reader of a record disagree about which part comes first.
    """

    def record_values(self, kv_cache: Array, latent_dim: int) -> Array:
        """Return the back of each record."""
        return kv_cache[..., kv_cache.shape[-1] - latent_dim :]


@exhibit(
    as_if="the scale that was passed was replaced by the record's width ** -0.5",
    fault="F13 scale or encoding",
    breaks=("KV-ATTN-062",),
    may_also_break=("KV-ATTN-060",),
    verbs=_MLA,
)
class ScaleOfTheRecord(Tiled):
    """The kernel scales by the width of what it reads.

    The keys that the model was trained with are narrower than a record: 192 against 576. The default of a
    kernel that never sees them is wrong by the square root of 3.
    """

    def latent_scale(self, scale: float, latent_dim: int, width: int) -> float:
        """Return the record's own scale."""
        return float(np.float32(width) ** -0.5)

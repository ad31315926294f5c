"""Faults of the lengths that queries and keys are divided by, and of the scale behind them."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import EVERY_SCAN, exhibit
from kvref_conformance.subjects.scanned import Scanned
from kvref_conformance.subjects.scanned.ragged import WORK

_GDN = ("gated_delta_rule",)


@exhibit(
    as_if="queries and keys were divided by the root of their mean square",
    fault="F13 scale or encoding",
    seen_in=("ml-explore/mlx-lm#1624", "osaurus-ai/vmlx-swift#434"),
    breaks=("KV-RNN-029",),
    may_also_break=("KV-RNN-007", "KV-RNN-022"),
    verbs=_GDN,
    features=("qk_l2norm",),
)
class EpsilonOnTheMean(Scanned):
    """A root-mean-square norm stands in for the length, and its epsilon is added to the mean.

    Times the root of the width the two are alike for long vectors. For short ones the epsilon is head_dim
    times too large.
    """

    def unit_length(self, x: Array) -> Array:
        """Add the epsilon to the mean."""
        mean = (x * x).mean(axis=-1, keepdims=True)
        return np.asarray(x / np.sqrt(mean + WORK(1e-6)) * WORK(x.shape[-1] ** -0.5))


@exhibit(
    as_if="queries and keys were divided by the root of their mean square, which is not 1",
    fault="F13 scale or encoding",
    seen_in=("1bit-MONSTER/1bit-MONSTER#2134",),
    breaks=("KV-RNN-029",),
    may_also_break=("KV-RNN-007", "KV-RNN-022"),
    verbs=_GDN,
    features=("qk_l2norm",),
)
class KeysOfRootMeanSquareOne(Scanned):
    """Keys come out as long as the root of their width.

    A delta rule with such keys overshoots, and its state is infinite after some twenty tokens.
    """

    def unit_length(self, x: Array) -> Array:
        """Divide by the root of the mean."""
        return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + WORK(1e-6)))


@exhibit(
    as_if="queries and keys were not divided by their length",
    fault="F21 one path only",
    seen_in=("flashinfer-ai/flashinfer#5255",),
    breaks=("KV-RNN-029",),
    may_also_break=("KV-RNN-007", "KV-RNN-022"),
    verbs=_GDN,
    features=("qk_l2norm",),
)
class LengthNotDivided(Scanned):
    """The flag is taken and not looked at.

    Other paths of the same function honour it.
    """

    def unit_length(self, x: Array) -> Array:
        """Return the vectors as they are."""
        return x


@exhibit(
    as_if="the epsilon of the length stood outside the root",
    fault="F13 scale or encoding",
    breaks=("KV-RNN-029",),
    may_also_break=("KV-RNN-007", "KV-RNN-022"),
    verbs=_GDN,
    features=("qk_l2norm",),
)
class EpsilonOutsideTheRoot(Scanned):
    """The small number is added to the length, not to its square.

    A plant: a thousandth of a length of 1 becomes a millionth.
    """

    def unit_length(self, x: Array) -> Array:
        """Add it to the length."""
        return np.asarray(x / (np.sqrt((x * x).sum(axis=-1, keepdims=True)) + WORK(1e-6)))


@exhibit(
    as_if="next to no epsilon stood beside the sum of squares",
    fault="F13 scale or encoding",
    seen_in=("microsoft/onnxruntime-genai#2127",),
    breaks=("KV-RNN-029",),
    may_also_break=("KV-RNN-007", "KV-RNN-022"),
    verbs=_GDN,
    features=("qk_l2norm",),
)
class EpsilonLeftOut(Scanned):
    """Vectors are divided by their length, however short they are.

    A ready operator for it has no epsilon, or the square of one. A key of length 0.001 comes out 1.4 times as
    long as in training, and one of 0.0001 ten times.
    """

    def unit_length(self, x: Array) -> Array:
        """Take 1e-12 instead of 1e-6."""
        return np.asarray(x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + WORK(1e-12)))


@exhibit(
    as_if="no scale was taken for a scale of 1",
    fault="F13 scale or encoding",
    breaks=("KV-RNN-012",),
    may_also_break=EVERY_SCAN,
    verbs=_GDN,
    features=("delta_scale",),
)
class NoScaleIsOne(Scanned):
    """Where a scale is passed it is used, and where none is, queries stay as they are.

    A plant: the root of the width is the caller's affair in one library and the kernel's in another.
    """

    def scaled(self, q: Array, scale: float | None) -> Array:
        """Leave queries alone."""
        return super().scaled(q, 1.0 if scale is None else scale)

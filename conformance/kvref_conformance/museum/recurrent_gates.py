"""Faults of decay gates and step sizes: which formula, which rate, what large and small inputs do to it."""

import numpy as np

from kvref.arrays import Array, dtype_of
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.scanned import Scanned
from kvref_conformance.subjects.scanned.ragged import WORK
from kvref_conformance.subjects.scanned.steps import Extras

_GATE = ("decay_gate",)
_SSD = ("ssd_scan",)


@exhibit(
    as_if="the bounded gate was the unbounded one, clamped",
    fault="F16 recurrence",
    seen_in=("lightseekorg/tokenspeed#847",),
    breaks=("KV-RNN-016",),
    verbs=_GATE,
    features=("lower_bound",),
)
class BoundedGateClamps(Scanned):
    """A softplus that is cut off at the lower bound, where a sigmoid times the bound is meant.

    Both lie between the bound and 0, and one is no approximation of the other.
    """

    def bounded_gate(self, rate: Array, pre: Array, lower_bound: float) -> Array:
        """Clamp the other gate."""
        return np.asarray(np.maximum(self.free_gate(rate, pre), WORK(lower_bound)))


@exhibit(
    as_if="the lower bound was not looked at",
    fault="F21 one path only",
    seen_in=("MoonshotAI/FlashKDA#3",),
    breaks=("KV-RNN-016",),
    verbs=_GATE,
    features=("lower_bound",),
)
class BoundIgnored(Scanned):
    """A model trained under one gate is run under the other.

    Nothing in a checkpoint of weights says which one it was.
    """

    def bounded_gate(self, rate: Array, pre: Array, lower_bound: float) -> Array:
        """Take the other gate."""
        return self.free_gate(rate, pre)


@exhibit(
    as_if="the rate was multiplied outside the sigmoid",
    fault="F16 recurrence",
    breaks=("KV-RNN-016",),
    verbs=_GATE,
    features=("lower_bound",),
)
class RateOutsideSigmoid(Scanned):
    """The rate scales the decay, not what the sigmoid is taken of.

    A plant: this is where the rate stands in the gate without a bound, and here it breaks the bound.
    """

    def bounded_gate(self, rate: Array, pre: Array, lower_bound: float) -> Array:
        """Multiply the sigmoid."""
        return np.asarray(rate * super().bounded_gate(np.ones_like(rate), pre, lower_bound))


@exhibit(
    as_if="the rate of a gate was exponentiated twice",
    fault="F13 scale or encoding",
    seen_in=("NeuraLegion/shainet#204",),
    breaks=("KV-RNN-014",),
    may_also_break=("KV-RNN-016",),
    verbs=_GATE,
)
class RateExponentiatedTwice(Scanned):
    """What is loaded is a rate already, and the gate takes the exponential of it.

    One file format stores A_log and another stores the rate. The decay was 24 times too strong, and the first
    token of a request looked right, for there is nothing yet to decay.
    """

    def rate(self, A_log: Array, ndim: int) -> Array:
        """Take the exponential of a rate."""
        return np.exp(super().rate(A_log, ndim))


@exhibit(
    as_if="dt_bias was not added",
    fault="F21 one path only",
    breaks=("KV-RNN-014",),
    may_also_break=("KV-RNN-016",),
    verbs=_GATE,
)
class GateWithoutBias(Scanned):
    """The gate is taken of its input alone.

    A plant: the bias sets how long a head remembers.
    """

    def pre_gate(self, a: Array, dt_bias: Array) -> Array:
        """Leave out the bias."""
        return a.astype(WORK)


@exhibit(
    as_if="softplus overflowed",
    fault="F13 scale or encoding",
    seen_in=("tracel-ai/burn#5374", "1bit-MONSTER/1bit-MONSTER#628"),
    breaks=("KV-RNN-014",),
    may_also_break=("KV-ATTN-102",),
    verbs=_GATE,
)
class SoftplusOverflows(Scanned):
    """The exponential is taken before the logarithm, and beyond 88 it is infinite.

    A decay of minus infinity is 0, as it nearly should be; times a rate of 0 it is no number.
    """

    def free_gate(self, rate: Array, pre: Array) -> Array:
        """Write the formula down."""
        return np.asarray(-rate * np.log(1 + np.exp(pre)), WORK)


@exhibit(
    as_if="softplus was 0 below -17",
    fault="F13 scale or encoding",
    seen_in=("meta-pytorch/attention-gym#351",),
    breaks=("KV-RNN-014",),
    may_also_break=("KV-ATTN-102",),
    verbs=_GATE,
)
class SoftplusLosesItsTail(Scanned):
    """1 + exp(x) rounds to 1, so a small decay becomes none.

    With a large rate this is a real decay. The large end has a threshold here, the small one has not.
    """

    def free_gate(self, rate: Array, pre: Array) -> Array:
        """Round the sum before the logarithm."""
        return np.asarray(-rate * np.where(pre > 20, pre, np.log(1 + np.exp(np.minimum(pre, 20)))), WORK)


@exhibit(
    as_if="softplus was the identity from 1 on",
    fault="F01 boundary",
    breaks=("KV-RNN-014",),
    verbs=_GATE,
)
class SoftplusThresholdLow(Scanned):
    """The threshold above which softplus is its argument stands at 1, not at 20.

    A plant of two arguments that were swapped: beta is 1 and the threshold is 20.
    """

    def free_gate(self, rate: Array, pre: Array) -> Array:
        """Use the wrong threshold."""
        return np.where(pre > 1, -rate * pre, super().free_gate(rate, pre))


@exhibit(
    as_if="all heads had the gate of the first one",
    fault="F12 layout",
    seen_in=("golang-design/accel#27",),
    breaks=("KV-RNN-014",),
    may_also_break=("KV-RNN-016",),
    verbs=_GATE,
)
class OneGateForAllHeads(Scanned):
    """A decay has no axis of heads.

    A layer's heads forget at different rates; with one rate for all of them every other head is wrong.
    """

    def pre_gate(self, a: Array, dt_bias: Array) -> Array:
        """Repeat the first head."""
        own = super().pre_gate(a, dt_bias)
        return np.repeat(own[:, :1], own.shape[1], axis=1)

    def rate(self, A_log: Array, ndim: int) -> Array:
        """Repeat the first head."""
        own = super().rate(A_log, ndim)
        return np.repeat(own[:1], len(own), axis=0)


@exhibit(
    as_if="the gate was rounded to bfloat16",
    fault="F13 scale or encoding",
    breaks=("KV-RNN-014",),
    may_also_break=("KV-RNN-016",),
    verbs=_GATE,
)
class GateInBfloat16(Scanned):
    """The logarithm of a decay has the dtype of the model.

    A plant: an error of 1 in 256 of a log decay of 100 moves the decay by a third of itself.
    """

    def free_gate(self, rate: Array, pre: Array) -> Array:
        """Round the result."""
        return super().free_gate(rate, pre).astype(dtype_of("bfloat16")).astype(WORK)

    def bounded_gate(self, rate: Array, pre: Array, lower_bound: float) -> Array:
        """Round the result."""
        return super().bounded_gate(rate, pre, lower_bound).astype(dtype_of("bfloat16")).astype(WORK)


@exhibit(
    as_if="softplus was the identity from 10 on",
    fault="F01 boundary",
    breaks=("KV-RNN-014",),
    verbs=_GATE,
)
class SoftplusThresholdTen(Scanned):
    """The threshold above which softplus is its argument stands at 10.

    A plant: at 20 nothing is lost in float32, and at 10 the last seven bits are.
    """

    def free_gate(self, rate: Array, pre: Array) -> Array:
        """Use a threshold of 10."""
        return np.where(pre > 10, -rate * pre, super().free_gate(rate, pre))


@exhibit(
    as_if="softplus of a step size was the identity from 7 on",
    fault="F01 boundary",
    breaks=("KV-RNN-020",),
    may_also_break=("KV-RNN-007", "KV-RNN-022"),
    verbs=_SSD,
    features=("dt_softplus",),
)
class StepSizeThresholdSeven(Scanned):
    """A step size of 7 is 7, and should be 7.0009.

    A plant: step sizes of a model are small, so nothing shows until one is not.
    """

    def step_size(self, dt: Array, extras: Extras) -> Array:
        """Use a threshold of 7."""
        return np.where(extras.dt_softplus & (dt > 7), dt, super().step_size(dt, extras)).astype(WORK)


@exhibit(
    as_if="the softplus of a step size lost small ones",
    fault="F13 scale or encoding",
    breaks=("KV-RNN-020",),
    may_also_break=("KV-RNN-007", "KV-RNN-022"),
    verbs=_SSD,
    features=("dt_softplus",),
)
class StepSizeLosesItsTail(Scanned):
    """The formula is written down: a step size of 0.00005 has three digits, and one of 0.00000001 is 0.

    A plant: beside a state of ordinary numbers such a step writes nothing that shows.
    """

    def step_size(self, dt: Array, extras: Extras) -> Array:
        """Take the logarithm of a sum."""
        if not extras.dt_softplus:
            return super().step_size(dt, extras)
        pre = dt.astype(WORK)
        return np.where(pre > 20, pre, np.log(1 + np.exp(np.minimum(pre, 20)))).astype(WORK)

"""Faults of Mamba: step sizes, what is added, what is read, skip and gate, and groups of heads."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import EVERY_SCAN, exhibit
from kvref_conformance.subjects.scanned import Scanned
from kvref_conformance.subjects.scanned.ragged import WORK, silu
from kvref_conformance.subjects.scanned.steps import Extras

_SCAN = ("selective_scan",)
_SSD = ("ssd_scan",)
_SSD_BOTH = ("ssd_scan", "ssd_update")
_STEP = ("selective_state_update",)


@exhibit(
    as_if="an output was read from the state before its token",
    fault="F16 recurrence",
    breaks=("KV-RNN-017",),
    may_also_break=EVERY_SCAN,
    verbs=_SCAN,
)
class ReadsOldState(Scanned):
    """Each output reads the state that its token found.

    A plant: the lines of a step in the order read, write.
    """

    def selective_read(self, states: Array, before: Array, C: Array) -> Array:
        """Shift the states by one token."""
        return super().selective_read(np.concatenate([before[None], states[:-1]]), before, C)


@exhibit(
    as_if="inputs were not multiplied by their step size",
    fault="F16 recurrence",
    breaks=("KV-RNN-017",),
    may_also_break=EVERY_SCAN,
    verbs=_SCAN,
)
class InputWithoutStepSize(Scanned):
    """What a token adds does not depend on dt.

    A plant: half of the discretisation.
    """

    def added(self, x: Array, size: Array, B: Array) -> Array:
        """Use a step size of 1."""
        return super().added(x, np.ones_like(size), B)


@exhibit(
    as_if="tokens decayed as if their step size were 1",
    fault="F13 scale or encoding",
    breaks=("KV-RNN-017",),
    may_also_break=EVERY_SCAN,
    verbs=_SSD,
)
class DecayWithoutStepSize(Scanned):
    """Every token decays as if its step were 1.

    A plant: a step size of 0 should leave the state alone.
    """

    def log_decay(self, size: Array, A: Array) -> Array:
        """Leave out the step size."""
        return super().log_decay(np.ones_like(size), A)


@exhibit(
    as_if="all channels had the step size, the decay and the D of the first",
    fault="F12 layout",
    breaks=("KV-RNN-017",),
    may_also_break=("KV-RNN-025", *EVERY_SCAN),
    verbs=_STEP,
)
class FirstChannelForAll(Scanned):
    """What a head of Mamba-2 shares among its channels is taken from its first one, for Mamba-1 too.

    A plant: a kernel made for both Mambas takes Mamba-1 for a model of one head.
    """

    def step_size(self, dt: Array, extras: Extras) -> Array:
        """Repeat the first channel."""
        size = super().step_size(dt, extras)
        return np.broadcast_to(size[:, :1], size.shape)

    def kept_share(self, size: Array, A: Array) -> Array:
        """Repeat the first channel's first entry."""
        return super().kept_share(size, np.broadcast_to(A[:1, :1], A.shape))

    def with_skip(self, y: Array, x: Array, factor: Array) -> Array:
        """Repeat the first channel."""
        return super().with_skip(y, x, np.broadcast_to(factor[:1], factor.shape))


@exhibit(
    as_if="the input times D was left out",
    fault="F21 one path only",
    breaks=("KV-RNN-018",),
    may_also_break=EVERY_SCAN,
    verbs=_SSD,
    features=("skip",),
)
class SkipForgotten(Scanned):
    """The input is not added to the output.

    A plant: a fused kernel leaves it to a caller who does not know.
    """

    def with_skip(self, y: Array, x: Array, factor: Array) -> Array:
        """Return what was read."""
        return y


@exhibit(
    as_if="the output gate was applied before D",
    fault="F16 recurrence",
    breaks=("KV-RNN-018",),
    may_also_break=("KV-RNN-007", "KV-RNN-022"),
    verbs=_SSD,
    features=("skip", "output_gate"),
)
class GateBeforeSkip(Scanned):
    """What was read is gated, and the input is added ungated.

    A plant: two fused epilogues in the wrong order.
    """

    def finished(self, y: Array, x: Array, factor: Array | None, z: Array | None) -> Array:
        """Swap the two."""
        return super().finished(super().finished(y, x, None, z), x, factor, None)


@exhibit(
    as_if="the output gate was a sigmoid",
    fault="F16 recurrence",
    breaks=("KV-RNN-018",),
    may_also_break=("KV-RNN-007", "KV-RNN-022"),
    verbs=_SSD,
    features=("output_gate",),
)
class GateIsSigmoid(Scanned):
    """The output is multiplied by sigmoid of z, not by SiLU.

    A plant: KDA gates so, and Mamba does not.
    """

    def gated(self, y: Array, z: Array) -> Array:
        """Leave out the factor z."""
        return np.asarray(y / (1 + np.exp(-z)))


@exhibit(
    as_if="heads read the groups of B and C in turns",
    fault="F12 layout",
    breaks=("KV-RNN-019",),
    may_also_break=EVERY_SCAN,
    verbs=_SSD,
)
class GroupsTiled(Scanned):
    """Head h reads group h modulo their number.

    A plant: tensors repeated as a whole, where each group is repeated for its own heads.
    """

    def group_of_heads(self, num_heads: int, num_groups: int) -> Array:
        """Return groups in turns."""
        return np.arange(num_heads) % num_groups


@exhibit(
    as_if="dt_bias was added behind softplus",
    fault="F16 recurrence",
    breaks=("KV-RNN-020",),
    may_also_break=("KV-RNN-007", "KV-RNN-022"),
    verbs=_SSD,
    features=("dt_bias", "dt_softplus"),
)
class BiasBehindSoftplus(Scanned):
    """The step size is softplus(dt) + bias.

    A plant: it may be negative then, and a state grows.
    """

    def step_size(self, dt: Array, extras: Extras) -> Array:
        """Add the bias last."""
        size = super().step_size(dt, Extras(dt_softplus=extras.dt_softplus, dt_limit=extras.dt_limit))
        return size if extras.dt_bias is None else size + extras.dt_bias.astype(WORK)


@exhibit(
    as_if="dt was clipped before softplus",
    fault="F16 recurrence",
    breaks=("KV-RNN-020",),
    may_also_break=("KV-RNN-007", "KV-RNN-022"),
    verbs=_SSD,
    features=("dt_softplus", "dt_limit"),
)
class LimitBeforeSoftplus(Scanned):
    """The limits are applied to what softplus is taken of.

    A plant: limits of 0.001 and 0.1 then give step sizes around 0.7.
    """

    def step_size(self, dt: Array, extras: Extras) -> Array:
        """Clip first."""
        limited = (
            dt.astype(WORK) if extras.dt_limit is None else self.limited(dt.astype(WORK), extras.dt_limit)
        )
        return super().step_size(limited, Extras(dt_bias=extras.dt_bias, dt_softplus=extras.dt_softplus))


@exhibit(
    as_if="an update did not clip dt",
    fault="F21 one path only",
    breaks=("KV-RNN-020",),
    may_also_break=("KV-RNN-022", "KV-RNN-030"),
    verbs=_SSD_BOTH,
    features=("dt_softplus", "dt_limit"),
)
class UpdateWithoutLimit(Scanned):
    """Scans clip the step size and single steps do not.

    A plant of what transformers 5.24 does: the limit is an argument of the chunked scan only, so a prompt
    read at once and one read token by token end in different states.
    """

    def step_size_of_update(self, dt: Array, extras: Extras) -> Array:
        """Leave out the limits."""
        return self.step_size(dt, Extras(dt_bias=extras.dt_bias, dt_softplus=extras.dt_softplus))


@exhibit(
    as_if="the input was gated instead of the output",
    fault="F16 recurrence",
    breaks=("KV-RNN-018",),
    may_also_break=("KV-RNN-007", "KV-RNN-022"),
    verbs=_SSD,
    features=("output_gate",),
)
class GateOnInput(Scanned):
    """SiLU is taken of the output and multiplied by z.

    A plant: the two factors of a gate trade places.
    """

    def gated(self, y: Array, z: Array) -> Array:
        """Swap the factors."""
        return np.asarray(silu(y) * z)

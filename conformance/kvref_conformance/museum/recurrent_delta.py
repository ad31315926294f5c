"""Faults of the delta rule: the order of decay, read and write, and which head, row and column they touch."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import EVERY_SCAN, exhibit
from kvref_conformance.subjects.scanned import Scanned
from kvref_conformance.subjects.scanned.ragged import WORK, below

_GDN = ("gated_delta_rule",)
_KDA = ("gated_delta_rule", "kimi_delta_attention")


@exhibit(
    as_if="the correction was read from the state before its decay",
    fault="F16 recurrence",
    breaks=("KV-RNN-010",),
    may_also_break=EVERY_SCAN,
    verbs=_GDN,
)
class ReadsBeforeDecay(Scanned):
    """What a key holds is read first, and then the state decays.

    A plant: RWKV-7 does it so, and readers of Gated DeltaNet have asked which way is meant.
    """

    stepwise = True

    def delta_step(
        self, q: Array, k: Array, v: Array, decay: Array, beta: Array, state: Array
    ) -> tuple[Array, Array]:
        """Read, decay, write."""
        new = beta[..., None] * (v - self.read(k, state))
        state = self.written(self.decayed(state, decay[:, 0]), k, new)
        return self.read(q, state), state


@exhibit(
    as_if="the state decayed after the write",
    fault="F16 recurrence",
    breaks=("KV-RNN-010",),
    may_also_break=EVERY_SCAN,
    verbs=_GDN,
)
class DecaysAfterWrite(Scanned):
    """A token's own write decays with the rest.

    A plant: the decay of a token is moved to the end of its step.
    """

    stepwise = True

    def delta_step(
        self, q: Array, k: Array, v: Array, decay: Array, beta: Array, state: Array
    ) -> tuple[Array, Array]:
        """Read, write, decay."""
        new = beta[..., None] * (v - self.read(k, state))
        state = self.decayed(self.written(state, k, new), decay[:, 0])
        return self.read(q, state), state


@exhibit(
    as_if="a token's decay took effect one token later",
    fault="F01 boundary",
    breaks=("KV-RNN-010",),
    may_also_break=EVERY_SCAN,
    verbs=_GDN,
)
class DecayOneTokenLate(Scanned):
    """The running sum of decays leaves out the token's own.

    A plant of an exclusive sum where an inclusive one is meant.
    """

    def delta_chunk(
        self, q: Array, k: Array, v: Array, decay: Array, beta: Array, state: Array
    ) -> tuple[Array, Array]:
        """Shift decays by one token; the last one of a chunk is lost."""
        return super().delta_chunk(q, k, v, np.roll(decay, 1, axis=1) * _later(decay), beta, state)


def _later(decay: Array) -> Array:
    """Return 0 for the first token of a chunk and 1 for the others."""
    return np.asarray(np.arange(decay.shape[1]) > 0, WORK)[:, None]


@exhibit(
    as_if="values were added without reading what the key held",
    fault="F16 recurrence",
    breaks=("KV-RNN-011",),
    may_also_break=EVERY_SCAN,
    verbs=_GDN,
)
class AddsInsteadOfReplacing(Scanned):
    """Linear attention under the name of the delta rule.

    A plant: keys that occur once are answered right.
    """

    def delta_chunk(
        self, q: Array, k: Array, v: Array, decay: Array, beta: Array, state: Array
    ) -> tuple[Array, Array]:
        """Leave out the correction."""
        apart = self.apart(decay)
        seen = self.overlaps(q, k, apart) * below(k.shape[1], diagonal=True)
        total, new = self.running(decay), beta[..., None] * v
        y = self.read(q * np.exp(total), state) + seen @ new
        return y, self.written(self.decayed(state, total[:, -1]), k * apart[:, -1], new)


@exhibit(
    as_if="beta weighed the value and not what was read",
    fault="F16 recurrence",
    breaks=("KV-RNN-011",),
    may_also_break=EVERY_SCAN,
    verbs=_GDN,
)
class BetaOnValueOnly(Scanned):
    """The old value is removed entirely and a part of the new one is written.

    A plant: with a beta of 1 nothing shows.
    """

    stepwise = True

    def delta_step(
        self, q: Array, k: Array, v: Array, decay: Array, beta: Array, state: Array
    ) -> tuple[Array, Array]:
        """Weigh the value alone."""
        state = self.decayed(state, decay[:, 0])
        state = self.written(state, k, beta[..., None] * v - self.read(k, state))
        return self.read(q, state), state


@exhibit(
    as_if="the output was read before the token's write",
    fault="F16 recurrence",
    breaks=("KV-RNN-012",),
    may_also_break=EVERY_SCAN,
    verbs=_GDN,
)
class OutputBeforeWrite(Scanned):
    """A token does not see itself.

    A plant: the mask inside a chunk leaves out the diagonal, as the mask of the corrections rightly does.
    """

    def delta_chunk(
        self, q: Array, k: Array, v: Array, decay: Array, beta: Array, state: Array
    ) -> tuple[Array, Array]:
        """Take away what a token reads of its own."""
        y, after = super().delta_chunk(q, k, v, decay, beta, state)
        shared = self.overlaps(k, k, self.apart(decay)) * below(k.shape[1], diagonal=False)
        held = self.read(k * np.exp(self.running(decay)), state)
        new = self.solved(beta[..., None] * shared, beta[..., None] * (v - held))
        return y - (q * k).sum(axis=-1, keepdims=True) * new, after


@exhibit(
    as_if="the mask inside a chunk had no decay",
    fault="F16 recurrence",
    seen_in=("NVlabs/GatedDeltaNet#15", "NeuraLegion/shainet#170"),
    breaks=("KV-RNN-010",),
    may_also_break=EVERY_SCAN,
    verbs=_GDN,
)
class ChunkMaskWithoutDecay(Scanned):
    """Tokens of one chunk read each other undecayed.

    A printed formula has a plain causal mask in the outputs of a chunk. The states are right, so the fault
    ends where the chunk ends, and a chunk of one token does not show it.
    """

    def delta_chunk(
        self, q: Array, k: Array, v: Array, decay: Array, beta: Array, state: Array
    ) -> tuple[Array, Array]:
        """Replace the decay in the outputs."""
        y, after = super().delta_chunk(q, k, v, decay, beta, state)
        apart = self.apart(decay)
        shared = self.overlaps(k, k, apart) * below(k.shape[1], diagonal=False)
        held = self.read(k * np.exp(self.running(decay)), state)
        new = self.solved(beta[..., None] * shared, beta[..., None] * (v - held))
        more = self.overlaps(q, k, np.ones_like(apart) - apart) * below(k.shape[1], diagonal=True)
        return y + more @ new, after


@exhibit(
    as_if="value heads read key heads in turns",
    fault="F12 layout",
    seen_in=("NeuraLegion/shainet#204",),
    breaks=("KV-RNN-013",),
    may_also_break=EVERY_SCAN,
    verbs=_GDN,
)
class KeyHeadsTiled(Scanned):
    """Value head h reads key head h modulo their number.

    One file format orders value heads so and another in groups; the map is a property of the weights. With
    one key head, or one for each value head, the two are the same.
    """

    def key_heads(self, num_v_heads: int, num_k_heads: int) -> Array:
        """Return key heads in turns."""
        return np.arange(num_v_heads) % num_k_heads


@exhibit(
    as_if="the decays of a key's channels were summed outside the product",
    fault="F16 recurrence",
    breaks=("KV-RNN-015",),
    may_also_break=EVERY_SCAN,
    verbs=_KDA,
)
class ChannelDecaySummed(Scanned):
    """All channels of a head decay by the sum of their logarithms.

    A plant: the kernel of Gated DeltaNet is given a gate with one more axis.
    """

    def channel_decay(self, g: Array) -> Array:
        """Replace each channel's decay by the sum."""
        return np.broadcast_to(g.sum(axis=-1, keepdims=True), g.shape)


@exhibit(
    as_if="all channels of a key decayed like the first",
    fault="F12 layout",
    breaks=("KV-RNN-015",),
    may_also_break=EVERY_SCAN,
    verbs=_KDA,
)
class FirstChannelDecays(Scanned):
    """The axis of channels is not walked.

    A plant of a stride of 0.
    """

    def channel_decay(self, g: Array) -> Array:
        """Repeat the first channel."""
        return np.broadcast_to(g[..., :1], g.shape)


@exhibit(
    as_if="all heads decayed like the first",
    fault="F12 layout",
    seen_in=("golang-design/accel#27",),
    breaks=("KV-RNN-010",),
    may_also_break=EVERY_SCAN,
    verbs=_GDN,
)
class FirstHeadDecays(Scanned):
    """A decay has no axis of heads.

    A layer's heads forget at different rates; with one rate for all of them every other head is wrong.
    """

    def prepared(self, *tensors: Any) -> tuple[Array, Array, Array, Array, Array]:
        """Repeat the first head's decay."""
        q, k, v, decay, beta = super().prepared(*tensors)
        return q, k, v, np.broadcast_to(decay[:1], decay.shape), beta


@exhibit(
    as_if="a state was read in the other layout",
    fault="F12 layout",
    seen_in=("vllm-project/vllm#41292",),
    breaks=("KV-RNN-021",),
    may_also_break=("KV-RNN-024", *EVERY_SCAN),
    verbs=_GDN,
)
class StateReadTransposed(Scanned):
    """What lies values first is taken for keys first.

    Prefill and decode had kernels of two families. Where both widths are 128 no shape check notices, and what
    one kernel wrote the other reads as nonsense.
    """

    def loaded(self, state: Array) -> Array:
        """Read the rows as columns."""
        state = super().loaded(state)
        return state.reshape(state.shape[0], state.shape[2], state.shape[1]).swapaxes(1, 2)

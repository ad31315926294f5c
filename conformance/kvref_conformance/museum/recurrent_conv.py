"""Faults of short convolutions: what the window holds, in which order, and what happens behind it."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import EVERY_SCAN, exhibit
from kvref_conformance.subjects.scanned import Scanned
from kvref_conformance.subjects.scanned.ragged import silu

_SCAN = ("causal_conv",)
_STEP = ("causal_conv_update",)
_BOTH = (*_SCAN, *_STEP)

#: Checks that hold windows, and what comes of them, to the right ones.
EVERY_WINDOW = ("KV-RNN-001", "KV-RNN-002", "KV-RNN-003", *EVERY_SCAN)


@exhibit(
    as_if="a convolution saw one input ahead",
    fault="F01 boundary",
    breaks=("KV-RNN-001",),
    may_also_break=EVERY_WINDOW,
    verbs=_SCAN,
)
class WindowReachesAhead(Scanned):
    """Outputs are those of the next token: the padding in front is one input short.

    A plant of a padding on both sides whose surplus is cut off at the wrong end.
    """

    def window(self, state: Array, x: Array) -> Array:
        """Leave out the oldest input, and put a zero behind the newest."""
        window = super().window(state, x)
        return np.concatenate([window[1:], np.zeros_like(window[:1])])

    def kept_inputs(self, window: Array, x: Array, width: int) -> Array:
        """Keep what would be kept without the zero."""
        return window[len(window) - width : len(window) - 1].T


@exhibit(
    as_if="the weights of a convolution were read backwards",
    fault="F12 layout",
    seen_in=("vllm-project/vllm-ascend#8544",),
    breaks=("KV-RNN-001",),
    may_also_break=EVERY_WINDOW,
    verbs=_SCAN,
)
class WeightsReversed(Scanned):
    """The newest input meets the weight of the oldest.

    A loop over the window multiplied its columns, oldest first, with weights counted from the newest. A
    convolution in the sense of mathematics, where every framework means a correlation.
    """

    def weight_of(self, j: int, width: int) -> int:
        """Count from the other end."""
        return width - 1 - j


@exhibit(
    as_if="a convolution started from an empty window in every call",
    fault="F16 recurrence",
    seen_in=("fla-org/flash-linear-attention#90",),
    breaks=("KV-RNN-007",),
    may_also_break=EVERY_WINDOW,
    verbs=_SCAN,
)
class WindowDroppedBetweenParts(Scanned):
    """The window that is handed in is not looked at.

    A prompt that is taken in parts has a seam of three tokens at every cut. The recurrent state is carried
    over, so answers look almost right.
    """

    def window(self, state: Array, x: Array) -> Array:
        """Put zeros before the new inputs."""
        return super().window(np.zeros_like(state), x)


@exhibit(
    as_if="a request with fewer tokens than the window holds forgot the inputs before them",
    fault="F01 boundary",
    seen_in=("state-spaces/mamba#56", "vllm-project/vllm-ascend#8561"),
    breaks=("KV-RNN-003",),
    may_also_break=EVERY_WINDOW,
    verbs=_SCAN,
)
class ShortPartOverwrites(Scanned):
    """The last columns of the new inputs are copied, of which there are too few.

    Where the shapes do not raise, what is missing is filled with zeros, and the window has lost what it held.
    """

    def kept_inputs(self, window: Array, x: Array, width: int) -> Array:
        """Take new inputs only, zeros before them."""
        kept = np.zeros_like(window[: width - 1])
        new = x[max(len(x) - (width - 1), 0) :]
        kept[len(kept) - len(new) :] = new
        return kept.T


@exhibit(
    as_if="the window kept what the convolution returned",
    fault="F15 state",
    seen_in=("state-spaces/mamba#1027",),
    breaks=("KV-RNN-002",),
    may_also_break=EVERY_WINDOW,
    verbs=_SCAN,
)
class WindowOfOutputs(Scanned):
    """Outputs are kept where inputs are meant.

    They are what the rest of the layer goes on with. Prefill kept them and decode kept inputs, so the first
    tokens of an answer looked back at numbers of another kind.
    """

    def conv_rows(
        self, x: Array, weight: Array, state: Array, bias: Array | None, activation: str | None
    ) -> tuple[Array, Array]:
        """Keep the outputs."""
        y, _ = super().conv_rows(x, weight, state, bias, activation)
        return y, super().kept_inputs(np.concatenate([state.T, y]), y, weight.shape[1])


@exhibit(
    as_if="the window was kept newest first",
    fault="F12 layout",
    breaks=("KV-RNN-002",),
    may_also_break=EVERY_WINDOW,
    verbs=_SCAN,
)
class WindowNewestFirst(Scanned):
    """The columns of the state run backwards.

    A plant: whoever writes it reads it right, and whoever is handed it does not.
    """

    def kept_inputs(self, window: Array, x: Array, width: int) -> Array:
        """Reverse the columns."""
        return super().kept_inputs(window, x, width)[:, ::-1]


@exhibit(
    as_if="the window kept one input too old",
    fault="F01 boundary",
    breaks=("KV-RNN-002",),
    may_also_break=EVERY_WINDOW,
    verbs=_SCAN,
)
class WindowOneTokenLate(Scanned):
    """The last input is not in the window that is kept.

    A plant of a copy that starts where the last window started.
    """

    def kept_inputs(self, window: Array, x: Array, width: int) -> Array:
        """Leave out the last input, if there was a new one."""
        end = len(window) - min(len(x), 1)
        return window[end - (width - 1) : end].T


@exhibit(
    as_if="the bias was added behind the activation",
    fault="F19 position or mask",
    breaks=("KV-RNN-004",),
    may_also_break=EVERY_WINDOW,
    verbs=_SCAN,
    features=("conv_bias", "silu"),
)
class BiasBehindActivation(Scanned):
    """SiLU comes first, then the bias.

    A plant of two fused epilogues in the wrong order.
    """

    def with_bias(self, y: Array, bias: Array | None) -> Array:
        """Apply SiLU first."""
        return super().with_bias(silu(y), bias)

    def activated(self, y: Array, activation: str | None) -> Array:
        """Leave what has been activated."""
        return y


@exhibit(
    as_if="the bias was not added",
    fault="F21 one path only",
    seen_in=("tile-ai/tilelang-ascend#926",),
    breaks=("KV-RNN-004",),
    may_also_break=("KV-RNN-007", "KV-RNN-022"),
    verbs=_SCAN,
    features=("conv_bias",),
)
class BiasForgotten(Scanned):
    """The kernel takes a bias and does not use it.

    Delta rules have none in their convolutions, Mamba has.
    """

    def with_bias(self, y: Array, bias: Array | None) -> Array:
        """Return the sum as it is."""
        return y


@exhibit(
    as_if="the window was not shifted by an update",
    fault="F01 boundary",
    breaks=("KV-RNN-031",),
    may_also_break=("KV-RNN-022", "KV-RNN-025", "KV-RNN-030", "KV-RNN-032"),
    verbs=_STEP,
)
class WindowNotShifted(Scanned):
    """The new input takes the place of the newest one.

    A plant: one token later the window has a hole where the last but one was.
    """

    def kept_inputs(self, window: Array, x: Array, width: int) -> Array:
        """Overwrite the last column."""
        kept = window[: width - 1].copy()
        kept[-1] = window[-1]
        return kept.T


@exhibit(
    as_if="an update convolved without the bias that the scan adds",
    fault="F21 one path only",
    breaks=("KV-RNN-030",),
    may_also_break=("KV-RNN-004", "KV-RNN-022"),
    verbs=_BOTH,
    features=("conv_bias",),
)
class UpdateWithoutBias(Scanned):
    """Prompts have the bias and decoded tokens have not.

    A plant: the two paths are two kernels.
    """

    def conv_step(
        self, x: Array, weight: Array, state: Array, bias: Array | None, activation: str | None
    ) -> tuple[Array, Array]:
        """Forget the bias."""
        return super().conv_step(x, weight, state, None, activation)

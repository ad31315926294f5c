"""Faults of applying a float32 scale: left out, the wrong way, twice, or in the wrong precision."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.beside_formats import ANY_READ, ANY_WRITE, less
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.bitwise import Bitwise

_WRITE, _READ = ("quantize_kv",), ("dequantize_kv",)
_GIVEN = ("fp8_e4m3",)


@exhibit(
    as_if="numbers were stored without dividing by the scale",
    fault="F13 scale or encoding",
    seen_in=("sgl-project/sglang#18818",),
    breaks=("KV-FMT-020",),
    may_also_break=less(ANY_WRITE, "KV-FMT-020"),
    verbs=_WRITE,
    formats=_GIVEN,
)
class ScaleIgnoredOnWrite(Bitwise):
    """The writer is never given the scale that the reader multiplies by.

    Scales were loaded from a file and passed as far as the pool, whose caller left them out. With a scale of
    0.04 most numbers lose four bits, and what is read is 25 times too small.
    """

    def divided(self, x: Array, scales: Array) -> Array:
        """Return the numbers themselves."""
        return x.astype(np.float32)


@exhibit(
    as_if="codes were read without multiplying by the scale",
    fault="F13 scale or encoding",
    seen_in=(
        *("sgl-project/sglang#20705", "vllm-project/vllm#42580", "flashinfer-ai/flashinfer#1023"),
        *("vllm-project/vllm#51363", "FlashML-org/FreeToken#309"),
    ),
    breaks=("KV-FMT-020",),
    may_also_break=less(ANY_READ, "KV-FMT-020"),
    verbs=_READ,
    formats=_GIVEN,
)
class ScaleIgnoredOnRead(Bitwise):
    """The reader has a scale of its own, which is 1.

    It was stored under one name and read under another; or a fast path returned before the line that
    multiplies; or a wrapper passed it as the wrong positional argument. Where scales are 1 nothing is wrong.
    """

    def product(self, numbers: Array, scales: Array, dtype: np.dtype[Any]) -> Array:
        """Return the numbers of the codes."""
        return numbers.astype(dtype)


@exhibit(
    as_if="codes were divided by the scale",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-020",),
    may_also_break=less(ANY_READ, "KV-FMT-020"),
    verbs=_READ,
    formats=_GIVEN,
)
class DividedOnRead(Bitwise):
    """The reader takes the scale for the one that encodes.

    A plant: both directions are called `scale` in one library or another.
    """

    def product(self, numbers: Array, scales: Array, dtype: np.dtype[Any]) -> Array:
        """Divide."""
        return np.asarray((numbers / scales).astype(dtype))


@exhibit(
    as_if="numbers were multiplied by the scale and not divided by it",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-020",),
    may_also_break=less(ANY_WRITE, "KV-FMT-020"),
    verbs=_WRITE,
    formats=_GIVEN,
)
class MultipliedOnWrite(Bitwise):
    """The writer takes the scale for the one that encodes.

    A plant, of `DividedOnRead` on the other side: some libraries pass the factor that leads to codes, and
    some its inverse, under one name. Where scales are 1 the two agree.
    """

    def divided(self, x: Array, scales: Array) -> Array:
        """Multiply."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(x.astype(np.float32) * scales)


@exhibit(
    as_if="the scale was applied twice",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-020",),
    may_also_break=less(ANY_READ, "KV-FMT-020"),
    verbs=_READ,
    formats=_GIVEN,
)
class ScaleTwiceOnRead(Bitwise):
    """The reader multiplies, and so does what it hands its numbers to.

    A plant: a scale that is folded into the logits as well as applied to the keys.
    """

    def product(self, numbers: Array, scales: Array, dtype: np.dtype[Any]) -> Array:
        """Multiply twice."""
        return super().product(numbers * scales, scales, dtype)


@exhibit(
    as_if="numbers were divided in the dtype of the input",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-021",),
    may_also_break=("KV-FMT-009", "KV-FMT-022", "KV-FMT-073", "KV-FMT-100"),
    verbs=_WRITE,
    formats=_GIVEN,
    dtypes=("bfloat16",),
)
class DividedInInputDtype(Bitwise):
    """The quotient is rounded to bfloat16 before it is rounded to the element.

    A plant, of a path that is somebody's declared choice: in place, in the model's own dtype. Whoever
    declares a division in float32 and has this is off by one in three codes of a hundred.
    """

    def divided(self, x: Array, scales: Array) -> Array:
        """Round the quotient to the input's dtype."""
        return super().divided(x, scales).astype(x.dtype).astype(np.float32)


@exhibit(
    as_if="numbers were multiplied by the reciprocal of the scale",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-021",),
    may_also_break=("KV-FMT-009", "KV-FMT-022"),
    verbs=_WRITE,
    formats=_GIVEN,
    dtypes=("float32", "bfloat16"),
)
class MultipliedByReciprocal(Bitwise):
    """One division for a row, and a multiplication for each number.

    A plant, again of a choice that was not declared. It is faster and rounds twice.
    """

    def divided(self, x: Array, scales: Array) -> Array:
        """Multiply by 1 / scale."""
        return np.asarray(x.astype(np.float32) * (np.float32(1) / scales))


@exhibit(
    as_if="the range was applied before the number was divided by its scale",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-024",),
    may_also_break=("KV-FMT-003", "KV-FMT-009", "KV-FMT-020", "KV-FMT-021", "KV-FMT-022"),
    verbs=_WRITE,
    formats=_GIVEN,
)
class ClampedBeforeScaling(Bitwise):
    """The number is clamped to ±448, then divided.

    A plant of a clamp in the wrong line. Under a scale above 1 the top of the range is never reached; a scale
    below 1 leaves the clamp without effect.
    """

    def divided(self, x: Array, scales: Array) -> Array:
        """Clamp, then divide."""
        top = self.largest_number("e4m3fn")
        return super().divided(np.clip(x.astype(np.float32), -top, top), scales)

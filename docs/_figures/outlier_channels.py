"""Keys with a few large channels: the error of each channel, by what shares a scale."""

from pathlib import Path

import numpy as np
from palette import canvas

from kvref.arrays import Array
from kvref.formats.scaled import dequantize, quantize

NUM_TOKENS, HEAD_DIM = 256, 64
#: Channels that stand out, as those of keys do, and by how much.
OUTLIERS = {9: 6.0, 30: -12.0, 47: 9.0}
SHOWN = {"int4_token_head": "blue", "kivi_v4": "orange", "kivi_k4": "green"}
LABELS = {
    "int4_token_head": "one scale a token",
    "kivi_v4": "32 channels of a token",
    "kivi_k4": "32 tokens of a channel",
}


def keys() -> Array:
    """Return keys of one head: normal numbers, and channels far from zero."""
    x = np.random.default_rng(0).normal(size=(NUM_TOKENS, 1, HEAD_DIM))
    for channel, offset in OUTLIERS.items():
        x[..., channel] += offset
    return x.astype(np.float32)


def errors(name: str) -> Array:
    """Return the RMS error of each channel, in units of the deviation of a channel."""
    x = keys()
    back = dequantize(quantize(x, name), name)
    return np.sqrt(((back - x) ** 2).mean(axis=(0, 1)))


def draw(mode: str, path: Path) -> None:
    """Draw one curve for each grouping."""
    with canvas(mode, path, (7.6, 3.0)) as (figure, palette):
        axes = figure.subplots()
        for name, colour in SHOWN.items():
            axes.plot(errors(name), color=getattr(palette, colour), drawstyle="steps-mid", label=LABELS[name])
        for channel in OUTLIERS:
            axes.axvline(channel, color=palette.quiet, linewidth=0.8, linestyle="--")
        axes.set_xlabel("channel; dashed: those far from zero")
        axes.set_ylabel("RMS error")
        axes.set_ylim(0)
        axes.grid(visible=True, axis="y")
        figure.legend(loc="outside upper right", ncols=3, frameon=False)

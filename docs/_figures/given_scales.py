"""What a scale that is too large or too small costs: the error of formats with given scales, by the scale."""

from pathlib import Path

import numpy as np
from palette import canvas

from kvref.arrays import Array
from kvref.formats.elements import largest
from kvref.formats.format import FORMATS
from kvref.formats.scaled import dequantize, quantize

#: Formats shown, and in which colour.
SHOWN = {"fp8_e4m3": "blue", "fp8_e5m2": "orange", "int8": "green"}
#: Powers of two between a scale and the one that fits the largest number.
POWERS = tuple(range(-8, 17))


def errors(name: str) -> Array:
    """Return the root mean square error relative to that of the numbers, at each power of `POWERS`."""
    x = np.random.default_rng(0).normal(size=(512, 1, 128)).astype(np.float32)
    fitting = np.abs(x).max() / largest(FORMATS[name].element)
    found = []
    for power in POWERS:
        scales = np.array([fitting * 2.0**power], np.float32)
        back = dequantize(quantize(x, name, scales=scales), name)
        found.append(np.sqrt(((back - x) ** 2).mean() / (x.astype(np.float64) ** 2).mean()))
    return np.array(found)


def draw(mode: str, path: Path) -> None:
    """Draw one curve for each format."""
    with canvas(mode, path, (7.6, 3.0)) as (figure, palette):
        axes = figure.subplots()
        for name, colour in SHOWN.items():
            axes.semilogy(
                POWERS, errors(name), color=getattr(palette, colour), marker="o", markersize=3, label=name
            )
        axes.axvline(0, color=palette.ink, linewidth=0.8, linestyle="--")
        axes.set_xlabel("log₂ of the scale over amax / largest")
        axes.set_ylabel("error, relative RMS")
        axes.grid(visible=True, axis="y")
        figure.legend(loc="outside upper right", ncols=3, frameon=False)

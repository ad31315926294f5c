"""What the global scale of NVFP4 costs where it does not fit: the error over thirty powers of two."""

from pathlib import Path

import numpy as np
from palette import canvas

from kvref.arrays import Array
from kvref.formats.paths import CANONICAL
from kvref.formats.paths import Path as FormatPath
from kvref.formats.scaled import dequantize, quantize

PATHS = {
    "largest number on 6": (CANONICAL, "blue"),
    "on 6 or 4": (FormatPath(nvfp4_largest="four_over_six"), "green"),
    "least scale 2⁻⁶": (FormatPath(nvfp4_scale_floor="smallest_normal"), "orange"),
}
POWERS = tuple(range(-8, 19))


def errors(path: FormatPath) -> Array:
    """Return the relative RMS error with g at each power of two times amax / 2688."""
    x = np.random.default_rng(0).normal(size=(512, 1, 128)).astype(np.float32)
    fitting = np.abs(x).max() / 2688
    found = []
    for power in POWERS:
        g = np.array([fitting * 2.0**power], np.float32)
        back = dequantize(quantize(x, "nvfp4", global_scale=g, path=path), "nvfp4", path=path)
        found.append(np.sqrt(((back - x) ** 2).mean() / (x.astype(np.float64) ** 2).mean()))
    return np.array(found)


def draw(mode: str, path: Path) -> None:
    """Draw one curve for each path, and where the two usual rules stand."""
    with canvas(mode, path, (7.6, 3.0)) as (figure, palette):
        axes = figure.subplots()
        for name, (which, colour) in PATHS.items():
            axes.semilogy(
                POWERS, errors(which), color=getattr(palette, colour), marker="o", markersize=3, label=name
            )
        for rule, place in (("amax/2688", 0.0), ("amax/448", float(np.log2(6)))):
            axes.axvline(place, color=palette.ink, linewidth=0.8, linestyle="--")
            axes.annotate(
                rule,
                (place, 0.9),
                xytext=(4, 0),
                textcoords="offset points",
                fontsize=7.5,
                rotation=90,
                va="top",
            )
        axes.set_xlabel("log₂ of the global scale over amax / 2688")
        axes.set_ylabel("error, relative RMS")
        axes.grid(visible=True, axis="y")
        figure.legend(loc="outside upper right", ncols=3, frameon=False)

"""Every format in one picture: what it takes, and what it loses of normally distributed keys."""

from functools import cache
from pathlib import Path

import numpy as np
from palette import canvas

from kvref.formats.elements import largest
from kvref.formats.footprints import bits_per_value
from kvref.formats.format import FORMATS
from kvref.formats.scaled import dequantize, quantize

HEAD_DIM = 128
COLOURS = {"amax": "blue", "mx": "orange", "nvfp4": "green", "affine": "red", "ggml": "ink"}


@cache
def losses() -> dict[str, tuple[float, float]]:
    """Return bits a number and relative RMS error of every format."""
    x = np.random.default_rng(0).normal(size=(256, 4, HEAD_DIM)).astype(np.float32)
    amax = np.abs(x).max()
    found = {}
    for name, kind in FORMATS.items():
        given = {}
        if kind.group == "given":
            given["scales"] = np.array([amax / largest(kind.element)], np.float32)
        if kind.global_scale == "given":
            given["global_scale"] = np.array([amax / 2688], np.float32)
        back = dequantize(quantize(x, name, **given), name)
        error = float(np.sqrt(((back - x) ** 2).mean() / (x.astype(np.float64) ** 2).mean()))
        found[name] = (float(bits_per_value(name, HEAD_DIM)), error)
    return found


def draw(mode: str, path: Path) -> None:
    """Draw a row for each format, the widest ones first."""
    rows = sorted(losses().items(), key=lambda item: (-item[1][0], item[1][1]))
    with canvas(mode, path, (7.6, 5.0)) as (figure, palette):
        axes = figure.subplots()
        for at, (name, (bits, error)) in enumerate(rows):
            colour = getattr(palette, COLOURS[FORMATS[name].family])
            axes.hlines(at, 2.0**-8, error, color=palette.quiet, linewidth=0.8)
            axes.plot(error, at, marker="o", markersize=5, color=colour, linestyle="none")
            axes.annotate(
                f"{bits:g}", (2.0**-8, at), xytext=(-4, 0), textcoords="offset points",
                fontsize=8, ha="right", va="center",
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xlim(2.0**-8.6, 1)
        axes.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=8)
        axes.set_ylim(len(rows) - 0.4, -0.9)
        axes.tick_params(length=0)
        axes.set_xlabel("bits a number, then the relative RMS error on normally distributed numbers")
        axes.grid(visible=True, axis="x")

"""What the rule of a shared exponent costs: the error of MX groups over an octave of their largest number."""

from pathlib import Path

import numpy as np
from palette import canvas

from kvref.arrays import Array
from kvref.formats.paths import Path as FormatPath
from kvref.formats.scaled import dequantize, quantize

RULES = {"floor": "blue", "ceil": "orange", "even": "green", "rceil": "red"}
STEPS = 48


def octave() -> Array:
    """Return largest magnitudes from 4 to 8."""
    return 4 * 2.0 ** (np.arange(STEPS) / STEPS)


def errors(name: str, rule: str) -> Array:
    """Return the relative RMS error of groups at each largest magnitude of the octave."""
    rng = np.random.default_rng(0)
    groups = rng.normal(size=(512, 1, 32))
    groups /= np.abs(groups).max(axis=-1, keepdims=True)
    path = FormatPath(mx_scale=rule)
    found = []
    for amax in octave():
        x = (groups * amax).astype(np.float32)
        back = dequantize(quantize(x, name, path=path), name, path=path)
        found.append(np.sqrt(((back - x) ** 2).mean() / (x.astype(np.float64) ** 2).mean()))
    return np.array(found)


def draw(mode: str, path: Path, name: str = "mxfp4") -> None:
    """Draw one curve for each rule."""
    with canvas(mode, path, (7.6, 2.9)) as (figure, palette):
        axes = figure.subplots()
        for rule, colour in RULES.items():
            axes.plot(
                octave(),
                errors(name, rule),
                color=getattr(palette, colour),
                drawstyle="steps-post",
                label=rule,
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks([4, 5, 6, 7, 8], ["4", "5", "6", "7", "8"])
        axes.minorticks_off()
        axes.set_xlabel("largest magnitude of the group, in units that repeat with every power of two")
        axes.set_ylabel("error, relative RMS")
        axes.set_ylim(0)
        axes.grid(visible=True, axis="y")
        figure.legend(loc="outside upper right", ncols=len(RULES), frameon=False)

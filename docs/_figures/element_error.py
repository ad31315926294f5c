"""The relative error of elements over the size of a number, from their subnormals to where they overflow."""

from pathlib import Path

import numpy as np
from palette import canvas

from kvref.arrays import Array
from kvref.formats.casts import encode
from kvref.formats.elements import FloatElement, decode, element_of, largest

#: Numbers to each power of two.
POINTS = 257


def errors(element: str) -> tuple[Array, Array]:
    """Return numbers, as shares of the largest of the element, and the relative error of each."""
    top = largest(element)
    kind = element_of(element)
    least = _smallest(element) / top
    low, high = np.floor(np.log2(least)) - 2, 1.0
    shares = 2.0 ** np.linspace(low, high, int((high - low) * POINTS))
    x = (shares * top).astype(np.float32)
    back = decode(encode(x, element), element)
    if not isinstance(kind, FloatElement):
        back = np.where(x > top, top, back)
    return shares, np.abs(back.astype(np.float64) - x) / x


def unit(element: str) -> float | None:
    """Return the largest relative error among normal numbers; integers have none."""
    kind = element_of(element)
    return 2.0 ** -(kind.mantissa_bits + 1) if isinstance(kind, FloatElement) else None


def draw(mode: str, path: Path, *elements: str) -> None:
    """Draw one field for each element."""
    with canvas(mode, path, (7.6, 0.8 + 1.9 * len(elements))) as (figure, palette):
        fields = figure.subplots(len(elements), 1, sharex=True, squeeze=False)[:, 0]
        for axes, element in zip(fields, elements, strict=True):
            shares, found = errors(element)
            axes.loglog(shares, np.maximum(found, 1e-4), color=palette.blue, linewidth=0.7, base=2)
            if (bound := unit(element)) is not None:
                axes.axhline(bound, color=palette.red, linewidth=0.8, linestyle="--")
            axes.set_ylim(2.0**-9, 1.5)
            axes.set_ylabel("relative error")
            axes.set_title(element, fontsize=9, loc="left")
            axes.grid(visible=True, axis="y")
            axes.minorticks_off()
        fields[-1].set_xlabel("size of the number, as a share of the largest that the element has")


def _smallest(element: str) -> float:
    """Return the smallest number above zero."""
    kind = element_of(element)
    return float(decode(np.array([1], np.uint8), element)[0]) if isinstance(kind, FloatElement) else 1.0

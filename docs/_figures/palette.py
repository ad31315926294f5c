"""Colours and letters of the figures, for light pages and for dark ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure


@dataclass(frozen=True)
class Palette:
    """Ink, quiet lines, and colours that stay apart for readers who see fewer of them."""

    ink: str
    quiet: str
    ground: str
    blue: str
    orange: str
    green: str
    red: str


PALETTES = {
    "light": Palette("#1a1a1a", "#b8b8b8", "#f2f2f2", "#0072b2", "#d55e00", "#009e73", "#c2314b"),
    "dark": Palette("#dddddd", "#5a5a5a", "#262626", "#56b4e9", "#e69f00", "#3ec79b", "#f0728a"),
}


@contextmanager
def canvas(mode: str, path: Path, size: tuple[float, float]) -> Iterator[tuple[Figure, Palette]]:
    """Give a figure of `size` inches to draw on, and save it as SVG without a background."""
    palette = PALETTES[mode]
    style = {
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "text.color": palette.ink,
        "axes.edgecolor": palette.quiet,
        "axes.labelcolor": palette.ink,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": palette.ink,
        "ytick.color": palette.ink,
        "grid.color": palette.quiet,
        "grid.linewidth": 0.5,
        "svg.hashsalt": "kvref",
        "svg.fonttype": "path",
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        yield figure, palette
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})

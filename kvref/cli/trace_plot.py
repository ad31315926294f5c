"""The hit curve as an SVG file: no library, one line for each weight, light and dark."""

import math
from html import escape
from pathlib import Path
from typing import Any

from kvref.errors import ArgumentError

WIDTH, HEIGHT = 760, 360
LEFT, RIGHT, TOP, BOTTOM = 62, 42, 68, 48
#: No more places of the curve are drawn than this.
PLACES = 600

_STYLE = """
text { font: 12px sans-serif; fill: #1a1a1a } .grid { stroke: #d0d0d0 } path { fill: none; stroke-width: 2 }
.blocks { stroke: #0072b2 } .tokens { stroke: #d55e00 } text.blocks { fill: #0072b2; stroke: none }
text.tokens { fill: #d55e00; stroke: none }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .grid { stroke: #444 } .blocks { stroke: #56b4e9 }
.tokens { stroke: #e69f00 } text.blocks { fill: #56b4e9 } text.tokens { fill: #e69f00 } }
"""


def check_plot_file(path: Path) -> None:
    """Check before any work that a plot can be written after it.

    Raises: ArgumentError if it is no .svg, or there is no such folder.
    """
    if path.suffix != ".svg":
        raise ArgumentError(f"plot file {str(path)!r}, expected a name that ends in .svg")
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise ArgumentError(
            f"plot file {str(path)!r} cannot be written, expected a file in a folder that exists"
        )


def write_plot(path: Path, picture: str) -> None:
    """Write a picture.

    Raises: ArgumentError if the place does not take it.
    """
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(
            f"plot file {str(path)!r} cannot be written: {error.strerror}, expected a place for it"
        ) from None


def svg_of(curve: dict[str, Any], title: str, rule: str, block_size: int) -> str:
    """Return the picture of a curve: `capacities`, with `of_blocks` and `of_input_tokens` under each."""
    capacities = curve["capacities"]
    low = math.floor(math.log10(capacities[0])) if capacities else 0
    high = max(math.ceil(math.log10(capacities[-1])) if capacities else 1, low + 1)
    highest = max([*curve["of_blocks"], *curve["of_input_tokens"], 0.01])
    step = next(s for s in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2) if highest / s <= 6 or s == 0.2)
    top: float = math.ceil(highest / step) * step

    def x(capacity: float) -> float:
        return LEFT + (math.log10(capacity) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(share: float) -> float:
        return HEIGHT - BOTTOM - share / top * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<text x="{LEFT}" y="{16 + 18 * at}">{escape(line)}</text>' for at, line in enumerate((title, rule))
    ]
    for exponent in range(low, high + 1):
        at = x(10**exponent)
        parts += [
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>',
            f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{10**exponent:,}</text>',
        ]
    for tick in range(round(top / step) + 1):
        at = y(tick * step)
        parts += [
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>',
            f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{100 * tick * step:.3g} %</text>',
        ]
    for number, (name, label) in enumerate(
        (("of_blocks", "of blocks"), ("of_input_tokens", "of input tokens"))
    ):
        kind = ("blocks", "tokens")[number]
        parts += [
            f'<path class="{kind}" d="{_steps(capacities, curve[name], x, y, 10**high)}"/>',
            f'<text class="{kind}" x="{LEFT + 110 * number}" y="{TOP - 12}">{label}</text>',
        ]
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"capacity in blocks of {block_size} tokens</text>"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title><style>{_STYLE}</style>", *parts, "</svg>", ""])


def _steps(capacities: list[int], shares: list[float], x: Any, y: Any, end: int) -> str:
    """Return the path of a curve that stays level from one capacity to the next."""
    if not capacities:
        return ""
    every = max(1, len(capacities) // PLACES)
    kept = [*range(0, len(capacities) - 1, every), len(capacities) - 1]
    words = [f"M{x(capacities[0]):.1f} {y(0):.1f}"]
    words += [f"H{x(capacities[at]):.1f}V{y(shares[at]):.1f}" for at in kept]
    return "".join([*words, f"H{x(end):.1f}"])

"""Two requests, their block tables, and the slots of the pool: which slot holds which position."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from palette import Palette, canvas

from kvref.attention.paged import locate

BLOCK_SIZE, NUM_BLOCKS = 16, 12
#: The first block is shared: both requests begin with the same 16 tokens.
TABLES = ((9, 4, 11), (9, 2))
SEQ_LENS = (41, 23)
#: The example of the chapter: position 37 of the first request.
POSITION = 37


def draw(mode: str, path: Path) -> None:
    """Draw the tables on the left and the pool on the right."""
    with canvas(mode, path, (7.6, 3.5)) as (figure, palette):
        left, right = figure.subplots(1, 2, width_ratios=(1, 2.6))
        _draw_tables(left, palette)
        _draw_pool(right, palette)


def _draw_tables(axes: Axes, palette: Palette) -> None:
    axes.set_xlim(-0.2, 3.4)
    axes.set_ylim(6.2, -0.6)
    axes.axis("off")
    for request, (table, length) in enumerate(zip(TABLES, SEQ_LENS, strict=True)):
        top = 3.7 * request
        axes.text(0, top, f"request {request}, {length} tokens", weight="bold")
        axes.text(0, top + 0.55, f"block_tables[{request}]")
        for entry, block in enumerate(table):
            live = entry == POSITION // BLOCK_SIZE and request == 0
            colour = palette.red if live else palette.ink
            box = Rectangle(
                (entry, top + 0.8), 0.9, 0.8, fill=False, edgecolor=colour, linewidth=1.8 if live else 1
            )
            axes.add_patch(box)
            axes.text(entry + 0.45, top + 1.2, str(block), ha="center", va="center")
    block, offset = locate(np.array(TABLES[0]), np.array(POSITION), BLOCK_SIZE)
    slot = block * BLOCK_SIZE + offset
    axes.text(
        0,
        2.3,
        f"position {POSITION} = entry {POSITION // BLOCK_SIZE}, offset {offset}\n"
        f"slot {block} · {BLOCK_SIZE} + {offset} = {slot}",
        color=palette.red,
        va="center",
    )


def _draw_pool(axes: Axes, palette: Palette) -> None:
    owner = np.full((NUM_BLOCKS, BLOCK_SIZE), -1)
    for request, (table, length) in enumerate(zip(TABLES, SEQ_LENS, strict=True)):
        blocks, offsets = locate(np.array(table), np.arange(length), BLOCK_SIZE)
        owner[blocks, offsets] = np.where(owner[blocks, offsets] < 0, request, 2)
    colours = {0: palette.blue, 1: palette.orange, 2: palette.green}
    names = {0: "request 0", 1: "request 1", 2: "both"}
    used = {block for table in TABLES for block in table}
    for block in range(NUM_BLOCKS):
        for offset in range(BLOCK_SIZE):
            at = int(owner[block, offset])
            dead = at < 0 and block in used
            face = colours.get(at, "none")
            axes.add_patch(
                Rectangle(
                    (offset, block),
                    0.92,
                    0.86,
                    facecolor=face,
                    edgecolor=palette.quiet,
                    linewidth=0.5,
                    hatch="////" if dead else None,
                )
            )
    spot = locate(np.array(TABLES[0]), np.array(POSITION), BLOCK_SIZE)
    axes.add_patch(
        Rectangle(
            (float(spot[1]), float(spot[0])), 0.92, 0.86, fill=False, edgecolor=palette.red, linewidth=2.4
        )
    )
    axes.set_xlim(-0.1, BLOCK_SIZE + 0.1)
    axes.set_ylim(NUM_BLOCKS + 0.1, -0.1)
    axes.set_yticks(np.arange(NUM_BLOCKS) + 0.43, [str(block) for block in range(NUM_BLOCKS)])
    axes.set_xticks(np.arange(0, BLOCK_SIZE, 5) + 0.46, [str(offset) for offset in range(0, BLOCK_SIZE, 5)])
    axes.set_xlabel("offset in the block")
    axes.set_ylabel("block of the pool")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    handles = [Rectangle((0, 0), 1, 1, facecolor=colours[key]) for key in (0, 1, 2)]
    labels = [names[key] for key in (0, 1, 2)]
    handles.append(Rectangle((0, 0), 1, 1, facecolor="none", edgecolor=palette.quiet, hatch="////"))
    labels.append("dead: must not show")
    figure = axes.get_figure()
    assert figure is not None
    figure.legend(handles, labels, loc="outside upper right", ncols=4, frameon=False, handlelength=1.2)

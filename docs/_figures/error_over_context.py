"""Error of a right kernel and of faulty ones as a share of the bound, over the length of the context."""

from functools import cache
from pathlib import Path

import numpy as np
from faults import KERNELS, Fault, needles, random_inputs, truth
from palette import canvas

from kvref.attention.bounds import margin

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
#: Which kernels are shown, and in which colour.
SHOWN = {
    "correct: weights in bfloat16, 8 splits": "green",
    "the last token is dropped": "blue",
    "the scale is 1 % too large": "orange",
    "base-2 lse merged as natural": "red",
}
FAMILIES = {"random inputs": random_inputs, "needles": needles}


@cache
def shares() -> dict[tuple[str, str], tuple[float, ...]]:
    """(family, kernel) -> the largest error over bound at each length."""
    by_name = {fault.name: fault for fault in KERNELS}
    inputs = {(name, n): make(n) for name, make in FAMILIES.items() for n in LENGTHS}

    def share(fault: Fault, family: str, n: int) -> float:
        x = inputs[family, n]
        expected, bound = truth(x, fault.arithmetic)
        return margin(fault.answer(x), expected, bound.out)

    return {
        (family, name): tuple(share(by_name[name], family, n) for n in LENGTHS)
        for family in FAMILIES
        for name in SHOWN
    }


def draw(mode: str, path: Path) -> None:
    """Draw one field for each family of inputs, both on one scale."""
    found = shares()
    with canvas(mode, path, (7.6, 3.4)) as (figure, palette):
        both = figure.subplots(1, 2, sharey=True)
        for axes, family in zip(both, FAMILIES, strict=True):
            for name, colour in SHOWN.items():
                values = np.maximum(found[family, name], 1e-3)
                axes.loglog(
                    LENGTHS, values, color=getattr(palette, colour), marker="o", markersize=3.5, label=name
                )
            axes.axhline(1, color=palette.ink, linewidth=1, linestyle="--")
            axes.set_title(family, fontsize=9.5, weight="bold")
            axes.set_xlabel("tokens of context")
            axes.set_xticks(LENGTHS, [str(n) for n in LENGTHS])
            axes.minorticks_off()
            axes.grid(visible=True, axis="y")
        both[0].set_ylabel("largest error / bound")
        both[0].annotate(
            "bound", (LENGTHS[-1], 1), xytext=(0, 3), textcoords="offset points", fontsize=8, ha="right"
        )
        handles, labels = both[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)

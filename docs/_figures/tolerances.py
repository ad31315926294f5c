"""Which rule lets which fault pass: every kernel of `faults`, judged by usual tolerances and by the bound."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from faults import KERNELS, Fault, Inputs, all_negative, needles, random_inputs, truth
from matplotlib.patches import Rectangle
from palette import canvas

from kvref.arrays import Array
from kvref.attention.bounds import exceeds

TOKENS = 8192
#: Rule by name: (answer, expected, bound) -> whether it accepts the answer.
RULES: dict[str, Callable[[Array, Array, Array], bool]] = {
    "allclose\n1e-2": lambda a, e, bound: np.allclose(a, e, atol=1e-2, rtol=1e-2),
    "allclose\n1e-3": lambda a, e, bound: np.allclose(a, e, atol=1e-3, rtol=1e-3),
    "cosine\n> 0.99": lambda a, e, bound: float(np.vdot(a, e) / np.linalg.norm(a) / np.linalg.norm(e)) > 0.99,
    "derived\nbound": lambda a, e, bound: not exceeds(a, e, bound).any(),
}


def accepts(fault: Fault, inputs: tuple[Inputs, ...], rule: str) -> bool:
    """Whether a kernel passes a rule on every one of some inputs."""
    for x in inputs:
        expected, bound = truth(x, fault.arithmetic)
        if not RULES[rule](_answer(fault, x), expected, bound.out):
            return False
    return True


@cache
def judgements(tokens: int = TOKENS) -> dict[tuple[str, str, str], bool]:
    """(kernel, inputs, rule) -> accepted, for a context of so many tokens."""
    families = {
        "random inputs": (random_inputs(tokens),),
        "the suite's inputs": (needles(tokens), all_negative(tokens)),
    }
    return {
        (fault.name, family, rule): accepts(fault, inputs, rule)
        for fault in KERNELS
        for family, inputs in families.items()
        for rule in RULES
    }


def errors(family: str, rule: str, tokens: int = TOKENS) -> list[str]:
    """Kernels that a rule judges wrongly on one family of inputs."""
    found = judgements(tokens)
    return [fault.name for fault in KERNELS if found[fault.name, family, rule] != fault.correct]


def draw(mode: str, path: Path) -> None:
    """Draw a field of judgements; the wrong ones stand out."""
    found = judgements()
    columns = list(dict.fromkeys((family, rule) for _, family, rule in found))
    with canvas(mode, path, (7.6, 5.4)) as (figure, palette):
        axes = figure.subplots()
        for row, fault in enumerate(KERNELS):
            for column, (family, rule) in enumerate(columns):
                accepted = found[fault.name, family, rule]
                wrong = accepted != fault.correct
                left = column + 0.3 * (column >= len(RULES))
                face = palette.red if wrong else palette.ground
                axes.add_patch(Rectangle((left, row), 0.94, 0.86, facecolor=face, edgecolor="none"))
                word = ("passes" if accepted else "rejected") if wrong else "✓"
                ink = "white" if wrong and mode == "light" else "black" if wrong else palette.green
                axes.text(left + 0.47, row + 0.45, word, ha="center", va="center", color=ink, fontsize=7.5)
        for column, (family, rule) in enumerate(columns):
            left = column + 0.3 * (column >= len(RULES))
            axes.text(left + 0.47, -0.25, rule, ha="center", va="bottom", fontsize=8)
            count = len(errors(family, rule))
            axes.text(left + 0.47, len(KERNELS) + 0.35, str(count), ha="center", va="center", weight="bold")
        axes.text(2, -1.75, "random inputs", ha="center", weight="bold")
        axes.text(6.3, -1.75, "the suite's inputs", ha="center", weight="bold")
        axes.set_xlim(-0.05, 8.3)
        axes.set_ylim(len(KERNELS) + 0.8, -2.2)
        names = [fault.name for fault in KERNELS]
        axes.set_yticks(np.arange(len(names) + 1) + 0.43, [*names, "wrong judgements"])
        axes.set_xticks([])
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)


@cache
def _answer(fault: Fault, x: Inputs) -> Array:
    return fault.answer(x)

"""Drawn programs for geometry: models of every claimed family, small and of odd sizes, then questions."""

import random
from collections.abc import Callable

from kvref_conformance.claims import Claims
from kvref_conformance.programs.models import FAMILIES, Family
from kvref_conformance.programs.models_of_attention import DRAFTING
from kvref_conformance.programs.odd_models import ABSURD, UNDECIDED

#: Layers of a model at most, and numbers that sizes are drawn from beside those within their bounds.
LAYERS, SIZES = 9, (1, 2, 3, 5, 8, 12, 16, 24, 40, 64, 72, 128)
#: Contexts, around what windows and compressed layers turn on.
CONTEXTS = (1, 2, 3, 4, 5, 15, 16, 17, 127, 128, 129, 1000, 4096, 100_000)


def draw(rng: random.Random, claims: Claims, length: int) -> str:
    """Return a program of about so many steps."""
    known = {n: f for n, f in FAMILIES.items() if set(f.features) <= set(claims.features)}
    steps: list[str] = []
    while len(steps) < length:
        name = rng.choice(list(known))
        steps.append(f"{name} {' '.join(map(str, _numbers(rng, known[name])))}")
        if rng.random() < 0.3 and DRAFTING:
            steps.append(f"drafts {rng.randint(1, 3)}")
        steps += [_asking(rng) for _ in range(rng.randint(1, 3))]
    return "; ".join(steps)


def _numbers(rng: random.Random, family: Family) -> list[int]:
    """Return numbers that make a model of a family, most of the time."""
    for _ in range(40):
        found = [rng.choice([n for n in SIZES if low <= n <= high] or [low]) for low, high in family.takes]
        found = [
            low if low == 0 and rng.random() < 0.3 else n
            for n, (low, _) in zip(found, family.takes, strict=True)
        ]
        if family.layers:
            found += [rng.choice(family.layers) for _ in range(rng.randint(1, LAYERS))]
        if family.model(found) is not None:
            return found
    return found


def _asking(rng: random.Random) -> str:
    """Return one question about the model that was drawn last."""
    ways: dict[str, Callable[[], str]] = {
        "size": lambda: f"{rng.choice(CONTEXTS)} {rng.choice((1, 2, 4))}",
        "ranks": lambda: f"{rng.choice((2, 3, 4, 8))} {rng.choice(CONTEXTS)} {rng.choice((1, 2))}",
        "grouped": lambda: (
            f"{rng.choice((2, 4, 6, 8))} {rng.choice((1, 2, 4))} {rng.choice(CONTEXTS)} {rng.choice((1, 2))}"
        ),
        "stage": lambda: (
            f"{rng.randrange(4)} {rng.randint(1, 5)} {rng.choice(CONTEXTS)} {rng.choice((1, 2))}"
        ),
        "snapshot": lambda: str(rng.choice((1, 2))),
        "joint": lambda: f"{rng.choice((1, 2))} {rng.choice((1, 2))} {rng.choice((1, 16, 128))}",
        "odd": lambda: str(rng.randrange(len(UNDECIDED))),
        "absurd": lambda: str(rng.randrange(len(ABSURD))),
    }
    name = rng.choices(list(ways), (8, 2, 2, 2, 1, 1, 1, 1))[0]
    return f"{name} {ways[name]()}"

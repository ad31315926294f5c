"""The families of models that a program for geometry can name: what numbers each takes, and of which bounds.

Numbers outside their bounds, or lists of layers without one, make no model: the step is passed over.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvref_conformance.programs import models_of_attention as attention
from kvref_conformance.programs import models_of_states as recurrent
from kvref_conformance.programs.model_sizes import Model

#: Bounds of a number, by what it counts.
Bounds = tuple[int, int]
LAYERS: Bounds = (1, 128)
HEADS: Bounds = (1, 64)
WIDTH: Bounds = (8, 512)
WINDOW: Bounds = (1, 2**20)
FEW: Bounds = (1, 8)
SOME: Bounds = (2, 8)
#: As many numbers as fit a program.
MANY = 4096


@dataclass(frozen=True)
class Family:
    """One way to write a config."""

    make: Callable[..., Model]
    takes: tuple[Bounds, ...]
    layers: tuple[int, ...] = ()
    """Where a number a layer follows: what it may be; the first of them must be there."""
    features: tuple[str, ...] = ()
    """What a subject claims that knows such models, all of it."""
    fit: Callable[[Sequence[int]], bool] = lambda numbers: True
    """Whether numbers that are within their bounds go together."""

    @property
    def numbers(self) -> int | tuple[int, int]:
        """How many numbers there are."""
        return (len(self.takes) + 1, MANY) if self.layers else len(self.takes)

    def model(self, numbers: Sequence[int]) -> Model | None:
        """Return the model of some numbers; None if they make none."""
        fixed, kinds = numbers[: len(self.takes)], numbers[len(self.takes) :]
        if len(fixed) < len(self.takes) or bool(kinds) != bool(self.layers):
            return None
        if not all(low <= n <= high for n, (low, high) in zip(fixed, self.takes, strict=True)):
            return None
        if kinds and (len(kinds) > LAYERS[1] or not set(kinds) <= set(self.layers)):
            return None
        if kinds and self.layers[0] not in kinds:
            return None
        return self.make(*numbers) if self.fit(numbers) else None


_LATENT, _RECURRENT = ("latent_layers",), ("recurrent_layers",)
#: Indexers stand beside latent vectors, and beside entries that four tokens share.
_INDEXED, _COMPRESSED = ("indexed_layers", *_LATENT), ("compressed_layers", "indexed_layers")
_MAMBA: tuple[Bounds, ...] = (HEADS, WIDTH, FEW, WIDTH)
_DELTA: tuple[Bounds, ...] = (HEADS, FEW, WIDTH, WIDTH)


def _read_what_is_there(numbers: Sequence[int]) -> bool:
    """Say whether there are layers of both kinds, and those that share find one of theirs that stores."""
    shared, kinds = numbers[0], numbers[4:]
    return shared < len(kinds) and set(kinds[: len(kinds) - shared]) == {0, 1}


FAMILIES: dict[str, Family] = {
    "llama": Family(attention.llama, (LAYERS, HEADS, WIDTH)),
    "undivided": Family(
        attention.undivided, (LAYERS, HEADS, (0, 64), WIDTH), fit=lambda n: n[1] % (n[2] or 1) == 0
    ),
    "nested": Family(attention.nested, ((0, 3), LAYERS, HEADS, WIDTH)),
    "types": Family(attention.types, (WINDOW, HEADS, WIDTH), (0, 1)),
    "pattern": Family(attention.pattern, (FEW, LAYERS, WINDOW, HEADS, WIDTH)),
    "gemma": Family(attention.gemma, (LAYERS, WINDOW, HEADS, WIDTH)),
    "upper": Family(attention.upper, ((0, 128), LAYERS, WINDOW, HEADS, WIDTH), fit=lambda n: n[0] < n[1]),
    "silent": Family(attention.silent, ((0, 3), LAYERS, FEW, WIDTH), features=("class_defaults",)),
    "chunks": Family(attention.chunks, (LAYERS, WINDOW, HEADS, WIDTH), features=("chunked_layers",)),
    "uneven": Family(attention.uneven, (WINDOW, HEADS, WIDTH, WIDTH), (0, 1), features=("uneven_layers",)),
    "globally": Family(
        attention.globally, ((0, 64), WINDOW, HEADS, WIDTH), (0, 1), ("uneven_layers",), _read_what_is_there
    ),
    "skipped": Family(attention.skipped, (HEADS, WIDTH), (1, 0), ("skipped_layers",)),
    "latent": Family(attention.latent, (LAYERS, WIDTH, (0, 128)), features=_LATENT),
    "selecting": Family(attention.selecting, (LAYERS, WIDTH, (0, 128), WIDTH), features=_INDEXED),
    "indexed": Family(attention.indexed, (WIDTH, (0, 128), WIDTH), (1, 0), _INDEXED),
    "compressed": Family(attention.compressed, ((64, 512), WINDOW, WIDTH), (4, 0, 128), _COMPRESSED),
    "interval": Family(recurrent.interval, (SOME, LAYERS, HEADS, WIDTH, *_DELTA), features=_RECURRENT),
    "linear": Family(recurrent.linear, ((0, 1), HEADS, WIDTH, *_DELTA), (1, 0), _RECURRENT),
    "kimi": Family(
        recurrent.kimi, (WIDTH, (0, 128), HEADS, WIDTH), (1, 0), (*_LATENT, *_RECURRENT), lambda n: 0 in n[4:]
    ),
    "letters": Family(
        recurrent.letters,
        (HEADS, WIDTH, *_MAMBA),
        (1, 0, 2, 3),
        _RECURRENT,
        lambda n: n[2] % n[4] == 0,
    ),
    "blocks": Family(
        recurrent.blocks,
        (HEADS, WIDTH, *_MAMBA),
        (1, 0, 2, 3),
        _RECURRENT,
        lambda n: n[2] % n[4] == 0,
    ),
    "jamba": Family(
        recurrent.jamba,
        (SOME, (0, 7), LAYERS, HEADS, WIDTH, (64, 8192), (1, 256)),
        features=_RECURRENT,
        fit=lambda n: n[1] < n[0] <= n[2],
    ),
    "parallel": Family(
        recurrent.parallel,
        (LAYERS, HEADS, WIDTH, *_MAMBA),
        features=_RECURRENT,
        fit=lambda n: n[3] % n[5] == 0,
    ),
    "attentionless": Family(
        recurrent.attentionless,
        (LAYERS, *_MAMBA),
        features=_RECURRENT,
        fit=lambda n: n[1] % n[3] == 0,
    ),
    "lightning": Family(recurrent.lightning, (HEADS, WIDTH), (0, 1), _RECURRENT),
}


def model_of(name: str, numbers: Sequence[int]) -> Model | None:
    """Return the model that a step names; None if it names none."""
    family = FAMILIES.get(name)
    return None if family is None else family.model(numbers)

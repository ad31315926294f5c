"""One verb of the contract: its arguments, and what comes back."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Argument:
    """One argument of a verb."""

    name: str
    shape: tuple[str, ...] = ()
    """Axis names of a tensor; empty for a scalar."""
    feature: str | None = None
    """The feature whose claim makes this argument possible; None if it is always passed."""
    some_formats: bool = False
    """Whether only some formats have this argument: it is passed exactly with those."""
    in_place: bool = False
    """Whether the verb may write this tensor."""
    positional: bool = False


@dataclass(frozen=True)
class Verb:
    """One method of the contract."""

    name: str
    arguments: tuple[Argument, ...]
    returns: tuple[str, ...]
    """Names of what comes back, in order; `lse` comes only where `return_lse` is passed."""
    summary: str
    some_formats: tuple[str, ...] = ()
    """Of what comes back, what only some formats have: what a format is given does not come back."""


def tensors(shapes: str, **options: Any) -> tuple[Argument, ...]:
    """Parse `name[axis axis]` items into tensor arguments."""
    parts = [item.split("[") for item in shapes.replace("]", "").split("; ")]
    return tuple(Argument(name, tuple(axes.split()), **options) for name, axes in parts)

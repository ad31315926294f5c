"""KV-cache events in one form, whichever engine told them: what was stored, removed, cleared, and looked up.

For porters: three kinds of events and a lookup are all that a mirror needs.
Source: BlockStored, BlockRemoved and AllBlocksCleared of vLLM and SGLang; stored, removed, cleared of Dynamo.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from kvref.sanitizer.kv_event_fields import Extra, Key, Name

#: The medium of events that name none: the cache of the device.
DEVICE = "GPU"


class Source(NamedTuple):
    """Who publishes: a worker by name, and which of its ranks."""

    worker: Name = ""
    rank: int | None = None

    def __str__(self) -> str:
        parts = [f"worker {self.worker}"] if self.worker != "" else []
        parts += [f"rank {self.rank}"] if self.rank is not None else []
        return ", ".join(parts)


class Where(NamedTuple):
    """Where in a worker blocks lie: the medium, and the group of layers."""

    medium: str = DEVICE
    group: int = 0


class Place(NamedTuple):
    """Where blocks lie, and whose they are."""

    source: Source
    where: Where


@dataclass(slots=True)
class Stored:
    """Blocks that are there from now on, each behind the one before it."""

    where: Where
    keys: list[Key]
    parent: Key | None
    size: int
    """Tokens of a block."""
    tokens: list[int]
    """Integers, `width` a token."""
    width: int = 1
    adapter: Name | None = None
    salt: str | None = None
    extras: list[Extra | None] | None = None
    hashes: list[Key] | None = None
    """What names the tokens of each block, where an engine does not tell them."""
    sparse: bool = False
    """Whether the group of layers keeps only some blocks of a prefix: a window, or recurrent states."""

    @property
    def opaque(self) -> bool:
        """Whether nothing is told but the keys, as by a tier that does not know what it holds."""
        return not self.tokens and not self.size and self.hashes is None

    @property
    def fits(self) -> bool:
        """Whether it has as many tokens as its blocks."""
        if self.hashes is not None:
            return len(self.hashes) == len(self.keys)
        return len(self.tokens) == len(self.keys) * self.size * self.width


@dataclass(slots=True)
class Removed:
    """Blocks that are gone."""

    where: Where
    keys: list[Key]


@dataclass(slots=True)
class Cleared:
    """Everything of a worker's rank is gone."""


@dataclass(slots=True)
class Lookup:
    """What the cache answered when it was asked for a prefix: by tokens, by their hashes, or by keys."""

    medium: str
    group: int | None
    """The group that was asked; None for all of them."""
    answer: int
    """Tokens that are cached; blocks where hashes or keys were asked for."""
    tokens: list[int] | None = None
    width: int = 1
    keys: list[Key] | None = None
    hashes: list[Key] | None = None
    adapter: Name | None = None
    salt: str | None = None
    extras: list[Extra | None] | None = None
    limit: int | None = None
    """The most tokens that the answer may be; None for all but the last."""


Event: TypeAlias = Stored | Removed | Cleared | Lookup

"""Requests of a prefix cache that have been admitted and have not ended."""

from dataclasses import dataclass, field

from kvref_conformance.programs.prompts import Prompt


@dataclass
class Live:
    """A request that has been admitted and has not ended."""

    prompt: Prompt
    hit: int
    slots: list[int] = field(default_factory=list)
    """Of all tokens that are cached or scheduled, as the subject last said."""
    pending: list[int] = field(default_factory=list)
    """Those of them that a step in flight will write."""
    copying: bool = False
    """Whether the last block of its hit is being copied from another's."""

    @property
    def is_in_flight(self) -> bool:
        """Whether a step is under way."""
        return bool(self.pending)

    @property
    def computed(self) -> int:
        """Tokens that are cached or computed."""
        return len(self.slots) - len(self.pending)

    @property
    def is_whole(self) -> bool:
        """Whether every token is computed."""
        return self.computed == len(self.prompt.tokens)


@dataclass
class Told:
    """What has happened since the last reset that a missing or a wrong hit may come from."""

    refused_admission: bool = False
    refused_reset: bool = False
    far: bool = False
    """Whether the number of the request that is being admitted may be too large for the subject."""
    never: set[int] = field(default_factory=set)
    """Labels of tokens whose extension was refused, so that they were never computed."""

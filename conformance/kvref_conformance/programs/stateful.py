"""A request of a watched snapshot cache: its tokens and slots, its step, and where its states lie.

For porters: what a subject said last, and what follows from the steps that were computed.
"""

from dataclasses import dataclass, field

from kvref_conformance.programs.prompts import Prompt
from kvref_conformance.programs.state_cells import StepTold


@dataclass
class Stateful:
    """A request that has been admitted and has not ended."""

    prompt: Prompt
    hit: int
    junction: int
    slots: list[int] = field(default_factory=list)
    """Of all tokens that are cached or scheduled, as the subject last said; −1 below a window."""
    loose: set[int] = field(default_factory=set)
    """Blocks of rejected tokens, which may be its own still."""
    step: StepTold | None = None
    """The step in flight."""
    computed: int = 0
    places: set[int] = field(default_factory=set)
    """State slots in which the state after the computed tokens lies."""
    saved: set[int] = field(default_factory=set)
    """Positions that it has saved, or found saved."""
    spared: set[int] = field(default_factory=set)
    """Positions of the step in flight that were due and not saved, for there was a snapshot already."""
    was_cut: bool = False
    """Whether drafts of its last step were rejected."""

    @property
    def is_in_flight(self) -> bool:
        """Whether a step is under way."""
        return self.step is not None

    @property
    def is_whole(self) -> bool:
        """Whether every token is computed."""
        return self.step is None and self.computed == len(self.prompt.tokens)

    @property
    def first(self) -> int:
        """The next token to be scheduled."""
        return len(self.slots)

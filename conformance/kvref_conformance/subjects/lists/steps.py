"""What the naive snapshot cache knows of a request's states: where they lie, and its step in flight."""

from dataclasses import dataclass, field

ZEROS, NULL = -1, -1


@dataclass
class Step:
    """What a request does until its next commit."""

    start: int
    stop: int
    source: int
    state: int
    saves: list[tuple[int, int]] = field(default_factory=list)
    """Positions, rising, and the slots that the states after them are saved in."""
    num_drafts: int = 0


@dataclass
class Running:
    """The states of one request."""

    slot: int = ZEROS
    """Where its state is between two steps."""
    step: Step | None = None
    junction: int = 0
    """Where its blocks were hit to, if its state was not."""

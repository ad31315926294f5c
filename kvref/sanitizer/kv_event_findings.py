"""What is found in a stream of KV-cache events, and what the whole of it showed.

For porters: the line, the event in it, and the earlier line that it contradicts are the finding.
Source: the requirements of the chapter on memory, events and indexes.
"""

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kvref.sanitizer.findings import Finding
from kvref.sanitizer.kv_event_kinds import Source

#: The requirements that events can break, by id.
RULES = MappingProxyType(
    {
        "KV-PREFIX-030": "keys-chained",
        "KV-PREFIX-033": "key-scheme",
        "KV-PREFIX-040": "event-parent-present",
        "KV-PREFIX-041": "event-stored-once",
        "KV-PREFIX-042": "event-removed-was-stored",
        "KV-PREFIX-043": "event-span-fits",
        "KV-PREFIX-044": "event-one-meaning",
        "KV-PREFIX-045": "event-after-clear",
        "KV-PREFIX-046": "mirror-equals",
    }
)


@dataclass(frozen=True)
class EventFinding(Finding):
    """One breach of a requirement by an event."""

    event: int = 0
    """The event in its line, from 1."""
    unit: str = "line"
    """What lines are: lines of JSON, or messages of msgpack."""

    @property
    def slug(self) -> str:
        """The slug of the requirement."""
        return RULES[self.requirement]

    def told(self) -> str:
        """Return the finding as a report shows it: one line, and one more for each line of the excerpt."""
        where = f"{self.unit} {self.line}, event {self.event}"
        head = f"FAIL  {self.requirement} {self.slug:<24} {where}: {self.message}"
        return "\n".join([head, *(f"      {self.unit} {line:<6} {text}" for line, text in self.excerpt)])

    def as_json(self) -> dict[str, Any]:
        """Return the finding for a program."""
        return super().as_json() | {"event": self.event, "unit": self.unit}


@dataclass(frozen=True)
class Hole:
    """Batches that a source numbered and that did not come."""

    line: int
    """Where their lack shows."""
    source: Source
    first: int
    last: int

    def told(self) -> str:
        """Return what is missing, in words."""
        batches = (
            f"batch {self.first} is"
            if self.first == self.last
            else f"batches {self.first} to {self.last} are"
        )
        return f"{batches} missing{f' of {self.source}' if str(self.source) else ''}"


@dataclass
class KVEventReport:
    """What a stream showed."""

    name: str
    unit: str = "line"
    copies: str = "once"
    messages: int = 0
    events: int = 0
    lookups: int = 0
    findings: list[EventFinding] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    repeated: int = 0
    """Batches that came again, and were passed over."""
    unjudged: dict[str, int] = field(default_factory=dict)
    """Requirement -> how often it could not be judged: behind a hole, or for want of what is not told."""
    complete: bool = True
    """Whether all of it was read; it is not where as many findings as asked for came first."""

    def as_json(self) -> dict[str, Any]:
        """Return the report for a program."""
        holes = [
            {
                "line": hole.line,
                "worker": hole.source.worker,
                "rank": hole.source.rank,
                "first": hole.first,
                "last": hole.last,
            }
            for hole in self.holes
        ]
        return vars(self) | {"findings": [found.as_json() for found in self.findings], "holes": holes}

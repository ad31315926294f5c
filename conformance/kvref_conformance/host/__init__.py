"""How a subject runs: in a process of its own, or (for debugging and the museum) in this one.

`Host` is what the suite sees. `process.ProcessHost` starts an interpreter or a program and speaks
`kvref-wire/1` with it, so that a crash, a hang or a conflicting dependency costs one case;
`inprocess.InProcessHost` calls the object directly.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvref_conformance.contracts import Answer, Call


@dataclass(frozen=True)
class Hello:
    """What a subject says about itself when it is first spoken to."""

    name: str
    version: str
    verbs: tuple[str, ...]
    claims: Mapping[str, Any]
    """The declaration as JSON values; `Claims.from_dict` reads it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Interpreter, platform and library versions the subject runs under."""


class Host(Protocol):
    """Where a subject lives."""

    def hello(self) -> Hello:
        """Start the subject if need be and return what it says about itself.

        Raises: Failed.
        """
        ...

    def call(self, call: Call) -> Answer:
        """Run one call of one verb.

        Raises: Failed, after which the next call finds a working subject again where that is possible.
        """
        ...

    def close(self) -> None:
        """End the subject and remove what it left behind."""
        ...

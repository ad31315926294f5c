"""How a subject runs: in a process of its own, or (for debugging and the museum) in this one.

`Host` is what the suite sees. `process.ProcessHost` starts an interpreter or a program and speaks
`kvref-wire/1` with it, so that a crash, a hang or a conflicting dependency costs one case;
`inprocess.InProcessHost` calls the object directly.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvref_conformance.contracts import Answer, Call
from kvref_conformance.managers import Value


@dataclass(frozen=True)
class Hello:
    """What a subject says about itself when it is first spoken to."""

    name: str
    version: str
    verbs: tuple[str, ...]
    """Verbs, managers, and operations of managers as `prefix_cache.admit`."""
    claims: Mapping[str, Any]
    """The declaration as JSON values; `Claims.from_dict` reads it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Interpreter, platform and library versions the subject runs under."""


class Session(Protocol):
    """One open manager: its state lasts from operation to operation."""

    manager: str

    def do(self, operation: str, /, **arguments: Value) -> dict[str, Any]:
        """Do one operation and return what it gives, by name.

        Raises: Failed; after a crash, a hang or a broken reply the session is gone, and `gone` is true.
        """
        ...

    @property
    def gone(self) -> bool:
        """Whether the program that held the state has ended."""
        ...

    def close(self) -> None:
        """Let the state go."""
        ...


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

    def open(self, manager: str, /, **params: Value) -> Session:
        """Open a manager in a state of its own, beside all others that are open.

        Raises: Failed.
        """
        ...

    def restart(self) -> None:
        """End the program, so that the next call or manager finds a fresh one."""
        ...

    def close(self) -> None:
        """End the subject and remove what it left behind."""
        ...

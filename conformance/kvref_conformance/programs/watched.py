"""What every watched cache does: ask what must succeed, ask what must be refused, and stop at a breach.

For porters: after a refusal everything is looked at again, as after any operation.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from kvref_conformance.contracts import Failed
from kvref_conformance.programs.breach import Log, Stop
from kvref_conformance.programs.running import Session, attempt, is_refused


class Watched:
    """One session, and where its breaches are written down."""

    session: Session
    log: Log
    counted: str
    """The requirement that a wrong count breaches."""
    _unseen = False

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Look at nothing until all of something is done."""
        self._unseen = True
        yield
        self._unseen = False
        self.look(self.counted)

    def look(self, requirement: str) -> None:
        """Look at everything that can be looked at; `requirement` is what is breached if it is wrong."""
        raise NotImplementedError

    def stop(self, message: str, *requirements: str) -> NoReturn:
        """Write down a breach after which nothing can be judged."""
        self.log.breach(message, *requirements)
        raise Stop

    def must(self, requirement: str, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """Do what must succeed. Raises: Stop if it does not."""
        answer = attempt(self.session, operation, **arguments)
        if isinstance(answer, Failed):
            self.stop(f"{operation}({_shown(arguments)}): {answer}", requirement)
        return answer

    def must_not(self, requirement: str, operation: str, **arguments: Any) -> None:
        """Do what must be refused and change nothing, if it is offered. Raises: Stop if it is not refused."""
        try:
            refused = is_refused(self.session, operation, **arguments)
        except Failed as failed:
            if failed.kind != "unsupported":
                raise
            return
        if not refused:
            self.stop(f"{operation}({_shown(arguments)}) was not refused", requirement)
        self.look(requirement)


def _shown(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_brief(str(value))}" for name, value in arguments.items())


def _brief(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:24]} … {text[-24:]}"

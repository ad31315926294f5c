"""Runs a program on a session: one loop for every manager.

The interpreter of a manager performs a step, or passes it over. It writes breaches and the trace down as it
goes, and follows the subject where the two differ, as far as there is anything to follow.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Failed
from kvref_conformance.programs.breach import Breach, Log, Stop
from kvref_conformance.programs.step import Step, parse

#: Manager -> module of its interpreter, in this package. Each has a function `interpreter` with the
#: arguments (session, case, claims, log).
INTERPRETERS = {
    "block_allocator": "allocator",
    "block_tables": "tables",
    "prefix_cache": "prefix",
    "snapshot_cache": "snapshots",
    "block_keys": "keys",
    "block_index": "index",
    "cache_geometry": "geometry",
}
#: Failures that are no refusal: the subject is gone, or gave something, in a form that cannot be read.
NO_REFUSAL = ("crash", "timeout", "protocol", "unsupported", "shape", "dtype")


class Session(Protocol):
    """An open manager of a subject."""

    def do(self, operation: str, /, **arguments: Any) -> Mapping[str, Any]:
        """Perform an operation and return what it gives by name.

        Raises: Failed if it gives no answer.
        """


class Interpreter(Protocol):
    """Performs the steps of a program on one session."""

    def perform(self, step: Step) -> bool:
        """Perform a step and write down what it breaches; return False if it makes no sense now.

        Raises: Failed if the subject is gone; Stop if nothing after it can be judged.
        """

    def finish(self) -> None:
        """Look once more when the program has ended. Raises: as `perform`."""


@dataclass(frozen=True)
class Run:
    """What a program showed."""

    breaches: tuple[Breach, ...]
    """The first of each requirement, in the order of the steps."""
    trace: tuple[str, ...]
    """What every right implementation has in common, one line a step."""
    performed: int
    """Steps that were not passed over."""

    def of(self, requirement: str) -> Breach | None:
        """Return the breach of a requirement, if there is one."""
        return next((breach for breach in self.breaches if breach.requirement == requirement), None)


def run(program: str, session: Session, case: Case, claims: Claims) -> Run:
    """Perform a program on a session that was opened for this case.

    Raises: Failed if the subject is gone; ArgumentError if the text is no program.
    """
    return run_beside(program, [session], case, claims)[0]


def run_beside(program: str, sessions: Sequence[Session], case: Case, claims: Claims) -> list[Run]:
    """Perform a program on several sessions of one subject in turn, each a step behind the one before.

    Raises: as `run`.
    """
    running = [_Running(session, case, claims) for session in sessions]
    steps = parse(program)
    for at in range(len(steps) + len(running) - 1):
        for behind, one in enumerate(running):
            if 0 <= at - behind < len(steps):
                one.perform(steps[at - behind])
    return [one.finish() for one in running]


class _Running:
    """A program that runs on one session, until a breach ends it."""

    def __init__(self, session: Session, case: Case, claims: Claims) -> None:
        self._log, self._performed, self._over = Log(), 0, False
        module = import_module(f"{__package__}.{INTERPRETERS[case.verb]}")
        make: Callable[..., Interpreter] = module.interpreter
        try:
            self._interpreter = make(session, case, claims, self._log)
        except Stop:
            self._over = True

    def perform(self, step: Step) -> None:
        """Perform one step."""
        if self._over:
            return
        try:
            self._performed += self._interpreter.perform(step)
            self._log.step += 1
        except Stop:
            self._over = True

    def finish(self) -> Run:
        """Look once more, and return what was shown."""
        if not self._over:
            with suppress(Stop):
                self._interpreter.finish()
        return Run(tuple(self._log.breaches), tuple(self._log.trace), self._performed)


def attempt(session: Session, operation: str, /, **arguments: Any) -> Mapping[str, Any] | Failed:
    """Perform an operation, and return what it gives, or the failure if it was refused or raised anything.

    Raises: Failed if the subject is gone, or what it gives cannot be read.
    """
    try:
        return session.do(operation, **arguments)
    except Failed as failed:
        if failed.kind in NO_REFUSAL:
            raise
        return failed


def is_refused(session: Session, operation: str, /, **arguments: Any) -> bool:
    """Ask for what must be refused, and say whether it was: anything raised will do but a crash.

    Raises: Failed if the subject is gone.
    """
    return isinstance(attempt(session, operation, **arguments), Failed)


def ask_if_offered(session: Session, operation: str, gives: str, /, **arguments: Any) -> Any:
    """Return one thing that an operation gives; None if the subject does not offer the operation.

    Raises: Failed if it gives no answer for another reason.
    """
    try:
        return session.do(operation, **arguments)[gives]
    except Failed as failed:
        if failed.kind == "unsupported":
            return None
        raise

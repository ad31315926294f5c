"""Where a subject is: what the command line says, as a record that a worker process can be given.

A subject is named by one of the suite's own names, `module:attr`, or `file.py:attr`; or it is a program.
"""

import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvref.errors import ArgumentError
from kvref_conformance.contracts import Failed
from kvref_conformance.host import Host
from kvref_conformance.host.inprocess import ENDINGS, InProcessHost
from kvref_conformance.host.process import (
    CALL_TIMEOUT,
    ProcessHost,
    Trace,
    program_command,
    python_command,
)
from kvref_conformance.host.subject import failure_of, load_subject
from kvref_conformance.nearest import meant
from kvref_conformance.subjects import BUILT_IN


@dataclass(frozen=True, kw_only=True)
class Target:
    """One subject and how to run it."""

    subject: str = "tiled"
    python: str | None = None
    """Interpreter to run it in; None: this one."""
    program: str | None = None
    """Command line of a program that speaks the wire, instead of a Python subject."""
    in_process: bool = False
    timeout: float = CALL_TIMEOUT
    """Seconds one call may take."""

    def __post_init__(self) -> None:
        if self.program is not None and (self.python is not None or self.in_process):
            raise ArgumentError("--exec runs a program of its own, expected no --python and no --in-process")
        if self.in_process and self.python is not None:
            raise ArgumentError("--in-process runs in this interpreter, expected no --python")
        if self.program is not None:
            program_command(self.program)
        else:
            _check_name(self.subject)
        if self.python == "":
            raise ArgumentError("--python is empty, expected an interpreter")
        if not self.timeout > 0:
            raise ArgumentError(f"--timeout {self.timeout}, expected seconds > 0")

    @property
    def where(self) -> str:
        """The subject as `module:attr` or `file.py:attr`."""
        return BUILT_IN.get(self.subject, self.subject)

    def open(self, *, trace: Trace | None = None) -> Host:
        """Return a host of the subject, not started yet where it is a process.

        `trace` sees every line that crosses the wire.
        Raises: ArgumentError if an in-process subject is not there; Failed (error) if it cannot be made.
        """
        if self.in_process:
            return self._load()
        if self.program is not None:
            command = program_command(self.program)
        else:
            command = python_command(sys.executable if self.python is None else self.python, self.where)
        return ProcessHost(command, timeout=self.timeout, trace=trace)

    def _load(self) -> Host:
        try:
            return InProcessHost(load_subject(self.where))
        except ArgumentError:
            raise
        except (Exception, *ENDINGS) as error:
            _, line, frames = failure_of(error)
            raise Failed("error", f"{line}\n{frames}".strip()) from error

    def command(self) -> str:
        """Return the words of the command line that name the subject, without paths of this machine.

        A path from where the command was given is kept.
        """
        if self.program is not None:
            parts = shlex.split(self.program)
            here = any(Path(part).is_absolute() for part in parts)
            return f"--exec {_quoted(shlex.join(map(_placeless, parts)) if here else self.program)}"
        place, colon, attr = self.subject.partition(":")
        words = shlex.quote(_placeless(place) + colon + attr) if place.endswith(".py") else self.subject
        words += " --in-process" if self.in_process else ""
        return words + (" --python PYTHON" if self.python is not None else "")

    def to_dict(self) -> dict[str, Any]:
        """Return the target as JSON values."""
        return asdict(self)


def _check_name(subject: str) -> None:
    place = subject.partition(":")[0]
    if subject in BUILT_IN:
        return
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise ArgumentError(f"subject file {place!r} does not exist")
        return
    if ":" not in subject and "." not in subject:
        raise ArgumentError(
            f"SUBJECT = {subject!r}{meant(subject, BUILT_IN)}, expected one of {', '.join(BUILT_IN)}, "
            "or module:attr, or file.py:attr"
        )


def _placeless(word: str) -> str:
    return Path(word).name if Path(word).is_absolute() else word


def _quoted(program: str) -> str:
    return "'" + program.replace("'", "'\\''") + "'"

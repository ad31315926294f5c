"""Where a subject is: what the command line says, as a record that a worker process can be given.

A subject is named by one of the suite's own names, `module:attr`, or `file.py:attr`; or it is a program.
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvref.errors import ArgumentError
from kvref_conformance.host import Host
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.host.process import (
    CALL_TIMEOUT,
    ProcessHost,
    Trace,
    program_command,
    python_command,
)
from kvref_conformance.host.subject import load_subject
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
        if self.program is None:
            _check_name(self.subject)

    @property
    def where(self) -> str:
        """The subject as `module:attr` or `file.py:attr`."""
        return BUILT_IN.get(self.subject, self.subject)

    def open(self, *, trace: Trace | None = None) -> Host:
        """Return a host of the subject, not started yet where it is a process.

        `trace` sees every line that crosses the wire.
        Raises: ArgumentError if an in-process subject is not there; whatever its code raises.
        """
        if self.in_process:
            return InProcessHost(load_subject(self.where))
        if self.program is not None:
            command = program_command(self.program)
        else:
            command = python_command(self.python or sys.executable, self.where)
        return ProcessHost(command, timeout=self.timeout, trace=trace)

    def command(self) -> str:
        """Return the words of the command line that name the subject, without paths of this machine."""
        if self.program is not None:
            return f"--exec {_quoted(self.program)}"
        place, colon, attr = self.subject.partition(":")
        words = Path(place).name + colon + attr if place.endswith(".py") else self.subject
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
            f"SUBJECT = {subject!r}, expected one of {', '.join(BUILT_IN)}, or module:attr, or file.py:attr"
        )


def _quoted(program: str) -> str:
    return "'" + program.replace("'", "'\\''") + "'"

"""A subject in a process of its own: another interpreter, another environment, another language.

A crash, a hang or nonsense on stdout costs the call it happened in; the program is started again for the next
one. After three starts in a row without a hello the host gives up and says so at once.

Realises: KV-CONF-010 wire-messages, KV-CONF-015 one-case-only.
"""

import contextlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import kvref
from kvref.errors import ArgumentError
from kvref_conformance.contracts import Answer, Call, Failed
from kvref_conformance.foreign_text import one_line, read_text
from kvref_conformance.host import Hello, Session
from kvref_conformance.host.managed import check_arguments
from kvref_conformance.host.messages import WIRE, CallRequest, call_message, check_reply
from kvref_conformance.host.pipe import GRACE, Pipe
from kvref_conformance.host.remote import RemoteSession
from kvref_conformance.host.scratch import Scratch
from kvref_conformance.host.session_messages import open_message
from kvref_conformance.host.tensors import collect, lay, misfit
from kvref_conformance.host.wire import Message, ProtocolError, decode, encode, integers, names, text
from kvref_conformance.managers import MANAGERS, Value

CALL_TIMEOUT = 60.0
HELLO_TIMEOUT = 180.0
"""Seconds; importing a framework on a cold disk takes most of a minute."""
STARTS = 3
"""Failed starts in a row before the host gives up."""
MAX_CLAIMS = 2**20
"""Bytes of a claims file."""

#: Called with "->" or "<-" and the line, for every line that crosses the wire.
Trace = Callable[[str, bytes], None]


def python_command(python: str, subject: str) -> list[str]:
    """Return the command that serves `module:attr` or `file.py:attr` in an interpreter of the user's."""
    child = Path(__file__).with_name("child.py")
    return [python, str(child), str(Path(kvref.__file__).parent), subject]


def program_command(line: str) -> list[str]:
    """Return the command of a program that speaks the wire, split as a shell would, run without one.

    Raises: ArgumentError if there is no program in it, or a quotation has no end.
    """
    try:
        command = shlex.split(line)
    except ValueError as error:
        raise ArgumentError(f"--exec {line!r}: {error}, expected a command line") from None
    if not command:
        raise ArgumentError(f"--exec {line!r}, expected a command line")
    return command


class ProcessHost:
    """Runs a subject as a program and speaks `kvref-wire/1` with it; a context manager."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = CALL_TIMEOUT,
        hello_timeout: float = HELLO_TIMEOUT,
        trace: Trace | None = None,
    ) -> None:
        self._command = list(command)
        self._cwd, self._env = cwd, env
        self._timeout, self._hello_timeout = timeout, hello_timeout
        self._trace = trace
        self._scratch = Scratch()
        self._pipe: Pipe | None = None
        self._hello: Hello | None = None
        self._count = 0
        self._failed_starts: list[Failed] = []
        self.stderr = ""
        """The tail of stderr of the last program that ended."""

    def hello(self) -> Hello:
        """Start the program if need be and return what it says about itself.

        Raises: Failed.
        """
        if self._pipe is None or self._hello is None:
            self._start()
        assert self._hello is not None
        return self._hello

    def call(self, call: Call) -> Answer:
        """Run one call of one verb.

        Raises: Failed; where the program is at fault it is ended, and started again for the next call.
        """
        self.hello()
        laid = lay(call, self._scratch.allocate)
        inputs = {name: laid[name][0] for name in call.tensors}
        outputs = {name: laid[name][0] for name in call.outputs}
        request = CallRequest(self._next_id(), call.verb, inputs, outputs, call.in_place, call.params)
        message = call_message(request)
        reply = self._exchange(message, self._timeout)
        try:
            self._check_forms(call, reply)
            self._scratch.check()
        except Failed as failure:
            if failure.kind == "protocol":
                self._stop()
            raise
        finally:
            self._scratch.sweep()
        return collect(call, laid)

    def open(self, manager: str, /, **params: Value) -> Session:
        """Open a manager.

        Raises: Failed.
        """
        checked = check_arguments(MANAGERS[manager], params)
        self.hello()
        session, pipe = self._next_id(), self._pipe
        self._ask(lambda identity: open_message(identity, session, manager, checked))
        return RemoteSession(manager, session, self._ask, lambda: self._pipe is not pipe)

    def restart(self) -> None:
        """Say bye and end the program; the next call starts it again."""
        if self._pipe is not None:
            with contextlib.suppress(Failed):
                self._exchange({"id": self._next_id(), "op": "bye"}, GRACE)
            self._stop(wait=True)

    def close(self) -> None:
        """Say bye, end the program and remove its files."""
        self.restart()
        self._scratch.close()

    def __enter__(self) -> "ProcessHost":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        if len(self._failed_starts) >= STARTS:
            last = self._failed_starts[-1]
            raise Failed(last.kind, f"{last.detail}\ngiven up after {STARTS} starts")
        try:
            self._pipe = Pipe(self._command, self._cwd, self._env)
            scratch = str(self._scratch.root)
            reply = self._exchange(
                {"id": self._next_id(), "op": "hello", "wire": WIRE, "scratch": scratch}, self._hello_timeout
            )
            self._hello = self._read_hello(reply)
        except Failed as failure:
            self._stop()
            self._failed_starts.append(failure)
            raise
        self._failed_starts.clear()

    def _exchange(self, message: Message, timeout: float) -> Message:
        """Send a request, check the reply, and return it if its outcome is ok."""
        assert self._pipe is not None
        line = encode(message)
        try:
            self._note("->", line)
            answer = self._pipe.exchange(line, timeout)
            self._note("<-", answer)
            reply = decode(answer)
            outcome = check_reply(reply, message)
        except ProtocolError as error:
            self._stop()
            raise Failed("protocol", str(error)) from error
        except BaseException:  # interrupted, it may still be at work on this request
            self._stop()
            raise
        if outcome != "ok":
            frames = f"\n{reply['trace']}" if reply.get("trace") else ""
            raise Failed(outcome, f"{reply[outcome]}{frames}")  # type: ignore[arg-type]
        return reply

    def _check_forms(self, call: Call, reply: Message) -> None:
        for name, spec in call.outputs.items():
            try:
                shape = integers(reply, f"{name}.shape") if f"{name}.shape" in reply else spec.shape
            except ProtocolError as error:
                raise Failed("protocol", str(error)) from error
            dtype = str(reply.get(f"{name}.dtype", spec.dtype))
            if (dtype, shape) != (spec.dtype, spec.shape):
                raise misfit(call, name, dtype, shape)

    def _read_hello(self, reply: Message) -> Hello:
        try:
            claims = self._read_claims(reply)
        except (ValueError, OSError, RecursionError) as error:
            raise Failed("protocol", f"claims: {error}") from error
        environment = {
            key[4:]: one_line(str(found)) for key, found in reply.items() if key.startswith("env.")
        }
        name, version = one_line(text(reply, "name")), one_line(text(reply, "version"))
        return Hello(name, version, names(reply, "verbs", dotted=True), claims, environment)

    def _read_claims(self, reply: Message) -> dict[str, Any]:
        found = reply.get("claims", "{}")
        if "claims_file" in reply:
            path = Path(text(reply, "claims_file")).resolve()
            if not path.is_relative_to(self._scratch.root.resolve()):
                raise ValueError(f"file {str(path)!r} lies outside the scratch directory")
            if not path.is_file():
                raise ValueError(f"{path.name!r} is no file that can be read to its end")
            found = read_text(path, MAX_CLAIMS)
        claims = json.loads(str(found))
        if not isinstance(claims, dict):
            raise ValueError(f"found {type(claims).__name__}, expected a JSON object")
        return claims

    def _ask(self, make: Callable[[str], Message]) -> Message:
        """Send a message of a session and return the reply.

        Raises: Failed; where the program is at fault it is ended, and all its sessions are gone.
        """
        try:
            return self._exchange(make(self._next_id()), self._timeout)
        except ProtocolError as error:  # a message too long for a line: the case is at fault
            raise TypeError(str(error)) from error

    def _next_id(self) -> str:
        self._count += 1
        return str(self._count)

    def _note(self, direction: str, line: bytes) -> None:
        if self._trace is not None:
            self._trace(direction, line)

    def _stop(self, *, wait: bool = False) -> None:
        if self._pipe is not None:
            self._pipe.close(wait=wait)
            self.stderr = self._pipe.stderr
            self._pipe = None

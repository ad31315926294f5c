"""One running program at the other end of three pipes: a line goes in, a line comes out, within a deadline.

The reader holds at most one line of allowed length, stderr keeps its tail, and everything the program has
started in its own process group ends with it; what has left the group (`setsid`) is its own to end. Nothing
here knows what a line means.

Realises: KV-CONF-026 stderr-is-text.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO

from kvref_conformance.contracts import Failed
from kvref_conformance.host.wire import MAX_LINE

TAIL = 16 * 1024
"""Bytes of stderr that are kept."""
CHUNK = 64 * 1024
LOOK_AGAIN = 0.2
"""Seconds between looks at whether the program still runs, in case somebody else holds its stdout open."""
GRACE = 5.0
"""Seconds a program has to end on its own after its last line."""
LOADING = "KVREF_SUBJECT_IS_LOADING"
"""Set in the environment of a subject while it is imported: a subject that starts a suite would never end."""


class Pipe:
    """A program started in a process group of its own.

    Raises: Failed (crash) if it cannot be started; Failed (error) inside the import of another subject.
    """

    def __init__(self, command: Sequence[str], cwd: str | None, env: Mapping[str, str] | None) -> None:
        if LOADING in os.environ:
            raise Failed("error", "a subject starts a subject while it is imported; guard that with __main__")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        try:
            self._program = subprocess.Popen(  # type: ignore[call-overload]
                list(command), cwd=cwd, env=env, bufsize=0, start_new_session=True, **pipes
            )
        except OSError as error:
            raise Failed("crash", f"cannot start {command[0]}: {error.strerror}") from error
        self._selector = selectors.DefaultSelector()
        for stream in (self._program.stdin, self._program.stdout, self._program.stderr):
            os.set_blocking(stream.fileno(), False)
        self._selector.register(self._program.stdout, selectors.EVENT_READ)
        self._selector.register(self._program.stderr, selectors.EVENT_READ)
        self._received = b""
        self._errors = b""
        self._unsent = memoryview(b"")
        self._status: int | None = None

    def exchange(self, line: bytes, timeout: float) -> bytes:
        """Write a line and return the next line that comes back, its newline included.

        Raises: Failed (crash, timeout, protocol), after which the program must be ended.
        """
        deadline = time.monotonic() + timeout
        self._unsent = memoryview(line)
        self._send()  # as a rule the pipe takes a line at once
        if len(self._unsent):
            self._selector.register(self._program.stdin, selectors.EVENT_WRITE)
        while b"\n" not in self._received:
            if len(self._received) > MAX_LINE:
                raise Failed("protocol", f"stdout has a line of more than {MAX_LINE} bytes")
            left = deadline - time.monotonic()
            if left <= 0:
                raise Failed("timeout", f"no reply within {timeout:g} s{self._last_words()}")
            if not self._step(min(left, LOOK_AGAIN)):
                raise self._crash()
        self._stop_sending()
        reply, _, self._received = self._received.partition(b"\n")
        return reply + b"\n"

    @property
    def stderr(self) -> str:
        """The tail of what the program wrote to stderr."""
        return self._errors.decode("utf-8", "backslashreplace")

    def close(self, *, wait: bool = False) -> int:
        """End the program and its process group; with `wait`, give it a moment to end by itself.

        Returns the exit status, negative for a signal.
        """
        if self._status is not None:
            return self._status
        self._program.stdin.close()
        if wait:
            self._await_end()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._program.pid, signal.SIGKILL)
        self._status = int(self._program.wait())
        self._drain()
        self._selector.close()
        self._program.stdout.close()
        self._program.stderr.close()
        return self._status

    def _step(self, wait: float) -> bool:
        """Let some bytes pass; False once stdout has ended, or the program has and its stdout is empty."""
        # asked before the pipes are read: what an ended program wrote is all there by then
        ended = self._ended()
        arrived = False
        for key, _ in self._selector.select(0 if ended else wait):
            if key.fileobj is self._program.stdin:
                self._send()
            elif not self._receive(key.fileobj):  # type: ignore[arg-type]
                self._selector.unregister(key.fileobj)
                ended = ended or key.fileobj is self._program.stdout
            else:
                arrived = arrived or key.fileobj is self._program.stdout
        return arrived or not ended

    def _send(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._program.stdin.fileno(), self._unsent) :]
        except BrokenPipeError:  # it no longer listens; what it says last, or its end, tells why
            self._unsent = memoryview(b"")
        except BlockingIOError:
            return
        if not len(self._unsent):
            self._stop_sending()

    def _stop_sending(self) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._program.stdin)

    def _receive(self, stream: IO[bytes]) -> bool:
        """Take what has arrived on a stream; False at its end."""
        try:
            data = os.read(stream.fileno(), CHUNK)
        except BlockingIOError:
            return True
        if stream is self._program.stdout:
            self._received += data
        else:
            self._errors = (self._errors + data)[-TAIL:]
        return bool(data)

    def _drain(self) -> None:
        """Read the rest of stderr, as far as it has arrived."""
        while True:
            try:
                data = os.read(self._program.stderr.fileno(), CHUNK)
            except (BlockingIOError, ValueError):
                return
            if not data:
                return
            self._errors = (self._errors + data)[-TAIL:]

    def _await_end(self) -> None:
        deadline = time.monotonic() + GRACE
        while not self._ended() and time.monotonic() < deadline:
            time.sleep(0.005)

    def _ended(self) -> bool:
        """Say whether the program has ended, if possible without reaping it: its group keeps its number."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return self._program.poll() is not None
        return os.waitid(os.P_PID, self._program.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def _crash(self) -> Failed:
        """End a program whose stdout has ended, and say why it has."""
        self._await_end()
        ended = self._ended()
        status = self.close()
        if not ended:
            return Failed("protocol", f"closed its stdout without a reply, and runs on{self._last_words()}")
        if status >= 0:
            how = f"exited with status {status} before it answered"
        else:
            known = -status in {number.value for number in signal.Signals}
            name = signal.Signals(-status).name if known else f"signal {-status}"
            how = f"killed by {name} ({signal.strsignal(-status)})"
        return Failed("crash", how + self._last_words())

    def _last_words(self) -> str:
        lines = [line for line in self.stderr.splitlines() if line.strip()][-8:]
        return "".join("\nstderr: " + line[:400] for line in lines)

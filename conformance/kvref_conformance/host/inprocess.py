"""A subject in the suite's own process: for debugging, and for the museum's many small runs.

Tensors lie in guarded memory as they would on the wire, so poison, guards and changed inputs are seen alike.
What is lost is isolation: a crash ends the run, and a hang is not cut short.
"""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.contracts import Answer, Call, Failed
from kvref_conformance.host import Hello
from kvref_conformance.host.managed import apply, check_arguments, open_manager
from kvref_conformance.host.subject import describe, failure_of, make_subject, run, session_failure
from kvref_conformance.host.tensors import Store, collect, lay, misfit, view
from kvref_conformance.managers import MANAGERS, Value
from kvref_conformance.untouched import untouched

#: What a subject may raise to end its process, which is the suite's here. Ctrl-C is the user's.
ENDINGS = (SystemExit, GeneratorExit)


class MemoryStore:
    """Bytes of this process."""

    def __init__(self, size: int) -> None:
        self.bytes: Array = untouched(size)

    def read(self, offset: int, count: int) -> bytes:
        """Return `count` bytes from `offset` on."""
        return self.bytes[offset : offset + count].tobytes()

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write bytes from `offset` on."""
        self.bytes[offset : offset + len(data)] = np.frombuffer(data, np.uint8)


class InProcessSession:
    """A manager of this process."""

    def __init__(self, manager: str, made: Any) -> None:
        self.manager = manager
        self._made = made

    @property
    def gone(self) -> bool:
        """A crash would have ended the suite: never."""
        return False

    def do(self, operation: str, /, **arguments: Value) -> dict[str, Any]:
        """Do one operation.

        Raises: Failed (error, refused, unsupported, shape).
        """
        contract = MANAGERS[self.manager].operations[operation]
        checked = check_arguments(contract, arguments)
        try:
            return apply(self._made, self.manager, operation, checked)
        except (Exception, *ENDINGS) as error:
            raise _failed(error) from error

    def close(self) -> None:
        """Let the manager go."""
        self._made = None


class InProcessHost:
    """Calls a Python object directly. `subject` is an instance, a class, a module or a factory."""

    def __init__(self, subject: Any) -> None:
        self._given = subject
        self._subject = make_subject(subject)
        self._hello: Hello | None = None
        self._memory: dict[str, MemoryStore] = {}

    def hello(self) -> Hello:
        """Return what the subject says about itself.

        Raises: Failed (error) if it cannot be described.
        """
        if self._hello is None:
            try:
                self._hello = describe(self._subject)
            except (Exception, *ENDINGS) as error:
                raise Failed("error", failure_of(error)[1]) from error
        return self._hello

    def call(self, call: Call) -> Answer:
        """Run one call of one verb.

        Raises: Failed (error, refused, unsupported, shape, dtype).
        """
        laid = lay(call, self._allocate)
        tensors = {name: view(self._memory[name].bytes, ref) for name, (ref, _) in laid.items()}
        inputs = {name: tensors[name] for name in call.tensors}
        outputs = {name: tensors[name] for name in call.outputs}
        try:
            misfits = run(self._subject, call.verb, inputs, call.params, outputs, call.in_place)
        except (Exception, *ENDINGS) as error:
            kind, line, frames = failure_of(error)
            raise Failed(kind, f"{line}\n{frames}".strip()) from error
        for name, found in misfits.items():
            raise misfit(call, name, found.dtype, found.shape)
        return collect(call, laid)

    def open(self, manager: str, /, **params: Value) -> InProcessSession:
        """Open a manager.

        Raises: Failed (error, refused, unsupported).
        """
        checked = check_arguments(MANAGERS[manager], params)
        try:
            return InProcessSession(manager, open_manager(self._subject, manager, checked))
        except (Exception, *ENDINGS) as error:
            raise _failed(error) from error

    def restart(self) -> None:
        """Make the subject anew where it can be made; this process goes on."""
        self._subject = make_subject(self._given)

    def close(self) -> None:
        """Let the memory go."""
        self._memory.clear()

    def _allocate(self, name: str, size: int) -> tuple[str, Store]:
        if name not in self._memory or len(self._memory[name].bytes) != size:
            self._memory[name] = MemoryStore(size)
        return name, self._memory[name]


def _failed(error: BaseException) -> Failed:
    kind, line, frames = session_failure(error)
    return Failed(kind, f"{line}\n{frames}".strip())

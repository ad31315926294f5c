"""A manager at the other end of the wire: one open session of a program."""

from collections.abc import Callable, Mapping
from typing import Any

from kvref_conformance.contracts import Failed
from kvref_conformance.host.managed import MisfitError, check_arguments, check_given
from kvref_conformance.host.session_messages import (
    MISFIT,
    apply_message,
    close_message,
    read_given,
)
from kvref_conformance.host.wire import Message, ProtocolError
from kvref_conformance.managers import MANAGERS, Value

#: Takes the function that makes a message of an id, sends it, and returns the reply.
Ask = Callable[[Callable[[str], Message]], Message]


class RemoteSession:
    """An open manager of a program. When the program ends, what it held is gone."""

    def __init__(self, manager: str, session: str, ask: Ask, ended: Callable[[], bool]) -> None:
        self.manager = manager
        self._session = session
        self._ask = ask
        self._ended = ended

    @property
    def gone(self) -> bool:
        """Whether the program that held the state has ended."""
        return self._ended()

    def do(self, operation: str, /, **arguments: Value) -> dict[str, Any]:
        """Do one operation.

        Raises: Failed; after a crash, a timeout or a broken reply the session is gone.
        """
        contract = MANAGERS[self.manager].operations[operation]
        checked = check_arguments(contract, arguments)
        self._check_there()
        reply = self._ask(lambda identity: self._message(identity, operation, checked))
        if MISFIT in reply:
            raise Failed("shape", str(reply[MISFIT]))
        try:
            return check_given(contract, read_given(reply, contract))
        except (MisfitError, ProtocolError) as error:
            raise Failed("shape", str(error)) from error

    def close(self) -> None:
        """Let the state go, where it is not gone already.

        Raises: Failed.
        """
        if not self.gone:
            self._ask(lambda identity: close_message(identity, self._session))

    def _message(self, identity: str, operation: str, arguments: Mapping[str, Value]) -> Message:
        return apply_message(identity, self._session, self.manager, operation, arguments)

    def _check_there(self) -> None:
        if self.gone:
            raise Failed("crash", "the program that held this state has ended")

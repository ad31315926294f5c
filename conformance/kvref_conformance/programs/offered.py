"""A session held to what its subject offers: an operation that is there is not answered with `unsupported`.

A program is written for every operation there is, and passes over the steps whose operations a subject does
not have. One that says so of an operation it offers has failed.

Realises: KV-CONF-020 claimed-means-supported.
"""

from collections.abc import Collection
from typing import Any

from kvref_conformance.contracts import Failed
from kvref_conformance.host import Session


class Offered:
    """A session of a manager that offers these operations."""

    def __init__(self, session: Session, operations: Collection[str]) -> None:
        self._session, self._operations = session, operations

    def do(self, operation: str, /, **arguments: Any) -> dict[str, Any]:
        """Do one operation. Raises: Failed, of the kind `error` where what is offered is not supported."""
        try:
            return self._session.do(operation, **arguments)
        except Failed as failed:
            if failed.kind != "unsupported" or operation not in self._operations:
                raise
            told = failed.detail.partition("\n")[0]
            said = f"{operation} is offered, and answered with unsupported: {told}"
            raise Failed("error", said) from failed

"""`kvref-wire/1`, the messages that hold state: open, apply, close.

    {"id":"4","op":"open","session":"1","verb":"block_allocator","params":"num_blocks","num_blocks":8}
    {"id":"4","ok":true}
    {"id":"5","op":"apply","session":"1","verb":"block_allocator.free","params":"blocks","blocks":"3,1"}
    {"id":"5","ok":true}
    {"id":"6","op":"close","session":"1"}

The suite names the session. `params` lists the arguments, and each stands under its own name: a number as an
integer, a text as a string, a list as a string with commas between its entries; an empty list is empty. What
an operation gives stands in the reply in the same way. No file is involved, so lists are short: a line holds
all of them.

Realises: KV-CONF-032 wire-sessions, KV-CONF-011 wire-limits.
For porters: keep one object for each open session; look the operation up by the second half of `verb`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvref_conformance.host.wire import Message, ProtocolError, names, text
from kvref_conformance.host.wire import Value as Field
from kvref_conformance.managers import MANAGERS, Manager, Operation, Parameter, Value

SESSION_OPS = ("open", "apply", "close")
#: In the reply to `apply`, in place of what the operation gives: what is wrong with it.
MISFIT = "misfit"

_NUMBERS = re.compile(r"-?[0-9]{1,16}(?:,-?[0-9]{1,16})*", re.ASCII)


@dataclass(frozen=True)
class SessionRequest:
    """An `open`, `apply` or `close` message, read."""

    op: str
    session: str
    manager: str = ""
    operation: str = ""
    arguments: Mapping[str, Value] = field(default_factory=dict)


def open_message(identity: str, session: str, manager: str, params: Mapping[str, Value]) -> Message:
    """Return the message that opens a manager."""
    return {"id": identity, "op": "open", "session": session, "verb": manager, **_fields(params)}


def apply_message(
    identity: str, session: str, manager: str, operation: str, arguments: Mapping[str, Value]
) -> Message:
    """Return the message that does one operation."""
    verb = f"{manager}.{operation}"
    return {"id": identity, "op": "apply", "session": session, "verb": verb, **_fields(arguments)}


def close_message(identity: str, session: str) -> Message:
    """Return the message that lets a session go."""
    return {"id": identity, "op": "close", "session": session}


def read_session(message: Message) -> SessionRequest:
    """Return what an `open`, `apply` or `close` message says, every key accounted for.

    Raises: ProtocolError naming the key, what was found and what was expected.
    """
    op, session = text(message, "op"), text(message, "session")
    if op == "close":
        _check_known(message, ("id", "op", "session"))
        return SessionRequest(op, session)
    verb, params = text(message, "verb"), names(message, "params")
    _check_known(message, ("id", "op", "session", "verb", "params", *params))
    manager, _, operation = verb.partition(".")
    takes = _takes(manager, operation, op)
    known = {parameter.name: parameter for parameter in takes}
    for name in params:
        if name not in known:
            raise ProtocolError(f"params names {name!r}, expected arguments of {verb}: {', '.join(known)}")
    return SessionRequest(op, session, manager, operation, {n: read_value(message, known[n]) for n in params})


def given_fields(given: Mapping[str, Value]) -> dict[str, Field]:
    """Return what an operation gave as the fields of a reply."""
    return {name: _field(value) for name, value in given.items()}


def read_given(message: Message, operation: Operation) -> dict[str, Any]:
    """Return what a reply says that an operation gave: what is missing is left out.

    Raises: ProtocolError if a list is none.
    """
    return {p.name: read_value(message, p) for p in operation.returns if p.name in message}


def read_value(message: Message, parameter: Parameter) -> Any:
    """Return an argument, or an answer, in the type of its kind; another type is left as it is.

    Raises: ProtocolError if it is missing, or a list is no list.
    """
    name, kind = parameter.name, parameter.kind
    if name not in message:
        raise ProtocolError(f"key {name!r} is missing")
    found = message[name]
    if kind in ("int", "text") or not isinstance(found, str):
        return found
    if kind == "texts":
        return found.split(",") if found else []
    if found and not _NUMBERS.fullmatch(found):
        raise ProtocolError(f"{name} = {found!r:.80}, expected integers separated by commas")
    return [int(part) for part in found.split(",")] if found else []


def allowed_in_reply(request: Message) -> set[str]:
    """Return the keys that the reply to a request of a session may have beside its outcome."""
    if request["op"] != "apply":
        return set()
    manager, _, operation = str(request["verb"]).partition(".")
    known = MANAGERS[manager].operations.get(operation) if manager in MANAGERS else None
    return {MISFIT, *(parameter.name for parameter in known.returns)} if known else {MISFIT}


def _fields(values: Mapping[str, Value]) -> dict[str, Field]:
    return {"params": ",".join(values), **given_fields(values)}


def _field(value: Value) -> Field:
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _takes(manager: str, operation: str, op: str) -> tuple[Parameter, ...]:
    contract: Manager | None = MANAGERS.get(manager)
    if contract is None or (op == "open") == bool(operation):
        raise ProtocolError(f"verb = {manager}.{operation}, expected a manager and, to apply, its operation")
    if op == "open":
        return contract.opens
    if operation not in contract.operations:
        raise ProtocolError(f"{manager} has no operation {operation!r}")
    return contract.operations[operation].arguments


def _check_known(message: Message, known: tuple[str, ...]) -> None:
    unknown = sorted(set(message) - set(known))
    if unknown:
        raise ProtocolError(f"unknown key {unknown[0]!r} in the message to {message['op']}")

"""A Python subject's managers: opened by name, driven by operation, held to the kinds of the contract.

Both hosts use this. What comes back is made plain: whole numbers of any library become int, arrays of one
axis become lists; anything else is a misfit, named with what was expected.

Realises: KV-CONF-001 presence-is-claim, KV-CONF-014 answers-as-asked.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvref_conformance.managers import (
    MANAGERS,
    MAX_LIST,
    MAX_NUMBER,
    MAX_TEXTS,
    Manager,
    Operation,
    Parameter,
    Value,
)

#: What a manager is opened with to see which operations it has.
SMALLEST: Mapping[str, Value] = {
    "num_blocks": 4,
    "block_size": 1,
    "block_sizes": [1],
    "num_states": 4,
    "snapshot_interval": 1,
}


class MisfitError(TypeError):
    """What an operation gave is not what the contract says it gives."""


def offered_by(subject: Any) -> tuple[str, ...]:
    """Return the managers of a subject and their operations, as `prefix_cache` and `prefix_cache.admit`.

    Each manager is opened once, with the smallest arguments: some operations are there only then. A class
    whose objects do not open so tells by its methods.
    Raises: what the call of a function raises.
    """
    found: list[str] = []
    for manager in managers_of(subject):
        own = getattr(subject, manager)
        opens = [parameter.name for parameter in MANAGERS[manager].opens if parameter.feature is None]
        try:
            made = own(**{name: SMALLEST[name] for name in opens})
        except Exception:
            if not isinstance(own, type):
                raise
            made = own
        methods = [
            name
            for name in MANAGERS[manager].operations
            if callable(getattr(own, name, None)) or callable(getattr(made, name, None))
        ]
        found += [manager, *(f"{manager}.{name}" for name in methods)] if methods else []
    return tuple(found)


def managers_of(subject: Any) -> tuple[str, ...]:
    """Return the managers that a subject has an attribute for, in the order of the contract."""
    return tuple(name for name in MANAGERS if callable(getattr(subject, name, None)))


def open_manager(subject: Any, manager: str, params: Mapping[str, Value]) -> Any:
    """Return a new manager.

    Raises: NotImplementedError if it is not offered; whatever the subject raises.
    """
    if manager not in managers_of(subject):
        raise NotImplementedError(f"{manager} is not offered")
    return getattr(subject, manager)(**params)


def apply(made: Any, manager: str, operation: str, arguments: Mapping[str, Value]) -> dict[str, Value]:
    """Do one operation on an open manager and return what it gives, by name.

    Raises: NotImplementedError if it is not offered; MisfitError if what it gives is not what the contract
    says; whatever the subject raises.
    """
    contract = MANAGERS[manager].operations.get(operation)
    method = getattr(made, operation, None) if contract is not None else None
    if contract is None or not callable(method):
        raise NotImplementedError(f"{manager}.{operation} is not offered")
    first = [p.name for p in contract.arguments if p.feature is None and p.name in arguments]
    named = {name: value for name, value in arguments.items() if name not in first}
    return given(contract, method(*(arguments[name] for name in first), **named))


def given(operation: Operation, returned: Any) -> dict[str, Value]:
    """Return what an operation gave, by name and in plain types.

    Raises: MisfitError naming what was found and what was expected.
    """
    parts = _parts(operation, returned)
    return {p.name: _plain(f"{operation.name} gave {p.name}", p, parts[p.name]) for p in operation.returns}


def check_given(operation: Operation, parts: Mapping[str, Any]) -> dict[str, Value]:
    """Hold what a program sent by name to the contract, as `given` does.

    Raises: MisfitError.
    """
    for parameter in operation.returns:
        if parameter.name not in parts:
            raise MisfitError(f"{operation.name} gave no {parameter.name}")
    return {p.name: _plain(f"{operation.name} gave {p.name}", p, parts[p.name]) for p in operation.returns}


def check_arguments(owner: Manager | Operation, arguments: Mapping[str, Value]) -> dict[str, Value]:
    """Hold what a check passes to the contract: its names, kinds and limits.

    Raises: TypeError, for the fault is the suite's.
    """
    takes = owner.opens if isinstance(owner, Manager) else owner.arguments
    known = {parameter.name: parameter for parameter in takes}
    missing = [p.name for p in takes if p.feature is None and p.name not in arguments]
    unknown = [name for name in arguments if name not in known]
    if missing or unknown:
        raise TypeError(
            f"{owner.name} is given {unknown or 'not enough'}, expected {', '.join(map(str, takes))}"
        )
    return {
        name: _plain(f"{owner.name} is given {name}", known[name], value) for name, value in arguments.items()
    }


def _parts(operation: Operation, returned: Any) -> Mapping[str, Any]:
    names = tuple(parameter.name for parameter in operation.returns)
    if not names:
        if returned is not None:
            raise MisfitError(f"{operation.name} gave {_shown(returned)}, expected None; a refusal is raised")
        return {}
    if isinstance(returned, Mapping):
        if set(returned) != set(names):
            found = ", ".join(map(str, returned))
            raise MisfitError(f"{operation.name} gave a mapping of {found:.80}, expected {', '.join(names)}")
        return returned
    if all(hasattr(returned, name) for name in names):
        return {name: getattr(returned, name) for name in names}
    if len(names) == 1:
        return {names[0]: returned}
    if not isinstance(returned, tuple | list) or len(returned) != len(names):
        raise MisfitError(f"{operation.name} gave {_shown(returned)}, expected {', '.join(names)}")
    return dict(zip(names, returned, strict=True))


def _plain(what: str, parameter: Parameter, value: Any) -> Value:
    """Return a value in the plain type of its kind.

    Raises: MisfitError.
    """
    kind = parameter.kind
    if kind == "int":
        return _integer(what, value)
    if kind == "text":
        return _text(what, value)
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
        raise MisfitError(f"{what} = {_shown(value)}, expected a list")
    if len(value) > MAX_LIST:
        raise MisfitError(f"{what} has {len(value)} entries, expected at most {MAX_LIST}")
    if kind == "ints":
        if type(value) is list and all(type(x) is int and -MAX_NUMBER < x < MAX_NUMBER for x in value):
            return list(value)
        if isinstance(value, np.ndarray):
            if value.ndim != 1:
                raise MisfitError(f"{what} has shape {list(value.shape)}, expected one axis")
            value = value.tolist() if value.dtype.kind in "iu" else list(value)
        return [_integer(f"{what}[{at}]", x) for at, x in enumerate(value)]
    texts = [_text(f"{what}[{at}]", x) for at, x in enumerate(value)]
    for at, x in enumerate(texts):
        if not x or "," in x:
            raise MisfitError(f"{what}[{at}] = {x!r:.80}, expected text without commas, not empty")
    if sum(map(len, texts)) > MAX_TEXTS:
        raise MisfitError(f"{what} has {sum(map(len, texts))} characters, expected at most {MAX_TEXTS}")
    return texts


def _integer(what: str, value: Any) -> int:
    if isinstance(value, bool | np.bool_) or not hasattr(type(value), "__index__"):
        raise MisfitError(f"{what} = {_shown(value)}, expected an integer")
    number = int(value.__index__())
    if not -MAX_NUMBER < number < MAX_NUMBER:
        raise MisfitError(f"{what} = {number}, expected a number of at most 53 bits")
    return number


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise MisfitError(f"{what} = {_shown(value)}, expected text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise MisfitError(f"{what} holds half a surrogate pair, expected UTF-8 text") from None
    if size > MAX_TEXTS:
        raise MisfitError(f"{what} has {size} bytes, expected at most {MAX_TEXTS}")
    return value


def _shown(value: Any) -> str:
    """Return a value as a message shows it; a subject's own object may fail at that too."""
    try:
        return f"{value!r:.80} ({type(value).__name__})"
    except Exception:
        return f"a {type(value).__name__}"

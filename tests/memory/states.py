"""The whole state of an object, to be compared: a call that raises must leave it as it was."""

from collections.abc import Mapping
from typing import Any

PLAIN = frozenset({int, bool, str, bytes, float})


def state_of(x: Any) -> Any:
    """Return everything an object holds as nested tuples, the order of a mapping included."""
    if x is None or type(x) in PLAIN:  # which most are
        return x
    if type(x) in (list, tuple) and all(type(value) in PLAIN for value in x):
        return tuple(x)
    if isinstance(x, Mapping):
        return tuple((state_of(key), state_of(value)) for key, value in x.items())
    if isinstance(x, set | frozenset):
        return tuple(sorted(x, key=repr))
    if isinstance(x, list | tuple):
        return tuple(state_of(value) for value in x)
    if hasattr(x, "__dict__"):
        return state_of(vars(x))
    if hasattr(x, "__slots__"):
        return tuple((name, state_of(getattr(x, name))) for name in x.__slots__)
    return x

"""The whole state of an object whose parts refer to each other, to be compared before and after a call."""

from array import array
from collections.abc import Mapping
from typing import Any


def graph_of(x: Any) -> Any:
    """Return everything an object holds as nested tuples; a part met again is its number.

    The order of mappings and lists counts, that of sets does not.
    """
    return _graph(x, {})


def _graph(x: Any, met: dict[int, int]) -> Any:
    if x is None or callable(x) or isinstance(x, bool | int | str | bytes | bytearray | range):
        return bytes(x) if isinstance(x, bytearray) else x
    if id(x) in met:
        return "met", met[id(x)]
    met[id(x)] = len(met)
    if isinstance(x, Mapping):
        return tuple((_graph(key, met), _graph(value, met)) for key, value in x.items())
    if isinstance(x, set | frozenset):
        return tuple(sorted(x))
    if isinstance(x, list | tuple | array):
        return tuple(_graph(value, met) for value in x)
    names = x.__slots__ if hasattr(x, "__slots__") else vars(x)
    return tuple((name, _graph(getattr(x, name), met)) for name in names)

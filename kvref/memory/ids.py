"""Integers at the public edge of memory: lists of block ids, and names of requests.

A truth value or a float is refused, NumPy's integers become Python's: an id that compares equal but is of
another kind would be a key of its own in somebody's table.

For porters: a typed language has nothing to build here.
Source: the definition of an id, an integer from 0.
"""

from collections.abc import Iterable

from kvref.arrays import is_integer
from kvref.errors import ArgumentError, shown

_INT = frozenset({int})


def as_ids(name: str, ids: Iterable[int]) -> list[int]:
    """Return integers in their order as a list of Python ints.

    Raises: ArgumentError if it has no order of its own, or one is no integer.
    """
    if type(ids) is list and _INT.issuperset(map(type, ids)):
        return ids.copy()
    if isinstance(ids, str | bytes | bytearray | set | frozenset | dict):
        raise ArgumentError(f"{name} is a {type(ids).__name__}, expected a list of integers")
    try:
        listed = list(ids)
    except TypeError:
        raise ArgumentError(f"{name} = {shown(ids)}, expected a list of integers") from None
    for at, value in enumerate(listed):
        if not is_integer(value):
            raise ArgumentError(f"{name}[{at}] = {shown(value)}, expected an integer")
    return [int(value) for value in listed]

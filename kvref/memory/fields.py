"""What a field of a history may hold: kinds, each with words for it and a test.

Everything comes from JSON, so a value is of one of its types, and a truth value is none of the integers.

Realises: KV-BLOCK-042 history-wellformed.
For porters: a typed language parses instead of testing.
Source: JSON; the bounds are those of 32-bit block ids and positions.
"""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kvref.memory.namespace import KINDS as SPAN_KINDS

SCHEMA = "kvref-history/1"

Test = Callable[[Any], bool]

#: The largest token id and block id; the largest count, position and slot; the largest name.
_ID, _COUNT, _NAME = (1 << 31) - 1, (1 << 32) - 1, (1 << 64) - 1
_TEXT = 256
_INT, _NAMES = frozenset({int}), frozenset({int, str})


@dataclass(frozen=True)
class Kind:
    """What a field may hold: how errors and the spec say it, and the test."""

    expected: str
    holds: Test


def _integer(low: int, high: int) -> Test:
    return lambda value: type(value) is int and low <= value <= high


def _integers(code: str, low: int, high: int) -> Test:
    """Return the test of a list of integers that an array of this code holds, which is quick to ask."""
    bits = array(code).itemsize * 8 - code.islower()
    lowest, highest = low == -(code.islower() << bits), high == (1 << bits) - 1

    def holds(value: Any) -> bool:
        if type(value) is not list or not _INT.issuperset(map(type, value)):
            return False
        try:
            array(code, value)
        except OverflowError:
            return False
        return not value or ((lowest or low <= min(value)) and (highest or max(value) <= high))

    return holds


def _named(*names: str) -> Test:
    return lambda value: type(value) is str and value in names


def _text(value: Any) -> bool:
    if type(value) is not str or len(value) > _TEXT:
        return False
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


def _name(value: Any) -> bool:
    return 0 <= value <= _NAME if type(value) is int else (value != "" and _text(value))


def _names(value: Any) -> bool:
    if _naturals(value):
        return True
    return type(value) is list and _NAMES.issuperset(map(type, value)) and all(map(_name, value))


def _runs(value: Any) -> bool:
    if type(value) is not list:
        return False
    if len(value) == 1 and type(value[0]) is int:
        return -1 <= value[0] <= _COUNT
    return _ids(value) or all(map(_id_or_run, value))


def _id_or_run(item: Any) -> bool:
    if type(item) is int:
        return -1 <= item <= _COUNT
    return _counts(item) and len(item) == 2 and item[1] > 0 and sum(item) - 1 <= _COUNT


def _windows(value: Any) -> bool:
    return type(value) is list and all(item is None or _size(item) for item in value)


def _tiers(value: Any) -> bool:
    return type(value) is dict and all(_text(name) and _size(size) for name, size in value.items())


def _spans(value: Any) -> bool:
    return type(value) is list and all(map(_span, value))


def _span(item: Any) -> bool:
    if type(item) is not dict or item.keys() != {"kind", "digest", "offset", "length"}:
        return False
    named = _named(*SPAN_KINDS)(item["kind"]) and _text(item["digest"]) and item["digest"] != ""
    return named and _count(item["offset"]) and _size(item["length"])


_count, _size = _integer(0, _COUNT), _integer(1, _COUNT)
_counts, _sizes = _integers("I", 0, _COUNT), _integers("I", 1, _COUNT)
_tokens, _ids = _integers("I", 0, _ID), _integers("q", -1, _COUNT)
_naturals = _integers("Q", 0, _NAME)

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "count": Kind("an integer from 0 to 2^32 - 1", _count),
        "size": Kind("an integer from 1 to 2^32 - 1", _size),
        "counts": Kind("a list of integers from 0 to 2^32 - 1", _counts),
        "sizes": Kind("a list of integers from 1 to 2^32 - 1", _sizes),
        "tokens": Kind("a list of integers from 0 to 2^31 - 1", _tokens),
        "ids": Kind("a list of integers from 0 to 2^32 - 1, runs [first, count], and -1 for none", _runs),
        "name": Kind("an integer from 0 to 2^64 - 1, or a text of 1 to 256 characters", _name),
        "names": Kind("a list of integers from 0 to 2^64 - 1 and texts of 1 to 256 characters", _names),
        "text": Kind("a text of at most 256 characters", _text),
        "flag": Kind("true or false", lambda value: type(value) is bool),
        "windows": Kind("a list of integers from 1 to 2^32 - 1 and nulls", _windows),
        "tiers": Kind("an object of names and integers from 1 to 2^32 - 1", _tiers),
        "spans": Kind("a list of objects with kind, digest, offset and length", _spans),
        "schema": Kind(f'"{SCHEMA}"', _named(SCHEMA)),
        "publish": Kind('"computed" or "scheduled"', _named("computed", "scheduled")),
        "transfer": Kind('"send" or "receive"', _named("send", "receive")),
    }
)

"""Fields of KV-cache events: the kinds of values that engines put there, read into one form each.

A key of a block comes as an integer, as bytes, or as text where JSON has no bytes: hex or base64, which are
read back into bytes. A token is an integer, or a pair of them where the engine keys pairs. Extra keys are
what a block depends on besides tokens, one list a block.

For porters: compare what was read, not what was written; one stream may spell a key in two ways.
Source: vLLM, vllm/distributed/kv_events.py; SGLang, sglang/srt/disaggregation/kv_events.py; msgspec's JSON.
"""

import re
from base64 import b64decode
from typing import Any, TypeAlias

from kvref.errors import HistoryError, shown

Key: TypeAlias = int | str | bytes
Name: TypeAlias = int | str
#: Integers, texts, bytes, and tuples of them.
Extra: TypeAlias = tuple[Any, ...]

#: Longest text or key.
_LONGEST = 256
#: Largest count, position, rank and group.
LARGEST = (1 << 31) - 1
_LOW, _HIGH = -(1 << 63), 1 << 64
_INT, _STR, _BYTES, _LIST = frozenset({int}), frozenset({str}), frozenset({bytes}), frozenset({list})
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})+")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_KEY = f"an integer from -2^63 to 2^64 - 1, or text or bytes, 1 to {_LONGEST} of them"
#: Most items of the extra keys of one block.
_MOST_EXTRA = 1024


def wrong(field: str, value: Any, expected: str) -> HistoryError:
    """Return the error of a field."""
    return HistoryError(f"{field} = {shown(value)}, expected {expected}")


def key_of(field: str, value: Any) -> Key:
    """Read one key of a block.

    Raises: HistoryError.
    """
    kind = type(value)
    if kind is int and _LOW <= value < _HIGH:
        return int(value)
    if kind is bytes and 0 < len(value) <= _LONGEST:
        return bytes(value)
    if kind is str and 0 < len(value) <= _LONGEST and _sound(value):
        return _from_text(value)
    raise wrong(field, value, _KEY)


def keys_of(field: str, value: Any) -> list[Key]:
    """Read a list of keys.

    Raises: HistoryError.
    """
    if type(value) is not list:
        raise wrong(field, value, "a list of keys")
    if value and _INT.issuperset(map(type, value)) and min(value) >= _LOW and max(value) < _HIGH:
        return value
    return [key_of(field, each) for each in value]


def spelled(key: Key | None) -> str:
    """Return a key as messages show it."""
    if isinstance(key, bytes):
        text = key.hex()
        return text if len(text) <= 20 else f"{text[:16]}…"
    return "none" if key is None else shown(key)


def tokens_of(field: str, value: Any) -> tuple[list[int], int]:
    """Read tokens into a flat list, and how many integers each is.

    Raises: HistoryError.
    """
    if type(value) is list:
        flat, width = value, 1
        if value and type(value[0]) is list and _LIST.issuperset(map(type, value)):
            flat, width = [number for pair in value for number in pair], 2
        fits = width == 1 or all(len(pair) == 2 for pair in value)
        fits = fits and _INT.issuperset(map(type, flat))
        if fits and (not flat or (min(flat) >= _LOW and max(flat) < 1 << 63)):
            return flat, width
    raise wrong(field, value, "a list of integers from -2^63 to 2^63 - 1, or of pairs of them")


def extras_of(field: str, value: Any) -> list[Extra | None] | None:
    """Read the extra keys of each block; None if they are left out.

    Raises: HistoryError.
    """
    if value is None:
        return None
    if type(value) is not list:
        raise wrong(field, value, "a list with null or a list for each block")
    return [None if each is None else _extra(field, each, 2) for each in value]


def number_of(field: str, value: Any, low: int = 0, high: int = (1 << 63) - 1) -> int:
    """Read an integer.

    Raises: HistoryError.
    """
    if type(value) is not int or not low <= value <= high:
        raise wrong(field, value, f"an integer from {low} to {high}")
    return int(value)


def text_of(field: str, value: Any) -> str:
    """Read a text.

    Raises: HistoryError.
    """
    if type(value) is not str or len(value) > _LONGEST or not _sound(value):
        raise wrong(field, value, f"a text of at most {_LONGEST} characters")
    return str(value)


def name_of(field: str, value: Any) -> Name:
    """Read a name: a text, or an integer.

    Raises: HistoryError.
    """
    if type(value) is int and _LOW <= value < _HIGH:
        return int(value)
    return text_of(field, value)


def _from_text(text: str) -> Key:
    if _HEX.fullmatch(text):
        return bytes.fromhex(text)
    return b64decode(text) if _BASE64.fullmatch(text) else text


def _sound(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _extra(field: str, value: Any, depth: int) -> Extra:
    if type(value) is not list or len(value) > _MOST_EXTRA:
        raise wrong(field, value, f"null, or at most {_MOST_EXTRA} texts, integers and pairs, a block")
    return tuple(
        _extra(field, each, depth - 1) if type(each) is list and depth > 1 else _atom(field, each)
        for each in value
    )


def _atom(field: str, value: Any) -> int | str | bytes:
    if type(value) is bytes and len(value) <= _LONGEST:
        return bytes(value)
    return name_of(field, value)

"""`kvref-wire/1`, the line: one flat JSON object, and the few types its fields may have.

A message has no nesting, so a C program reads it with a string search; numbers that are not integers travel
as hex-float strings, so no digit is lost; tensors never travel in JSON. Whatever the bytes of a line are,
reading it gives a message or a ProtocolError. Imports nothing outside the standard library.

Realises: KV-CONF-010 wire-messages, KV-CONF-011 wire-limits.
For porters: this module and the keys of one call (`messages`) are the whole protocol.
Source: Bowtie (lines over pipes, replies echo the id), toml-test (exact numbers as strings).
"""

import json
import re
from collections.abc import Iterable, Mapping

Value = str | int | bool
Message = dict[str, Value]
Scalar = str | int | float | bool

MAX_LINE = 64 * 1024
"""Bytes of one line, its newline included."""

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)?", re.ASCII)
_INTEGERS = re.compile(r"(?:[0-9]{1,16}(?:,[0-9]{1,16})*)?", re.ASCII)
_FLOAT = re.compile(r"-?0x[01](?:\.[0-9a-f]{1,13})?p[+-][0-9]{1,4}|-?inf|nan", re.ASCII)


class ProtocolError(Exception):
    """A line or message that `kvref-wire/1` does not allow."""


def encode(message: Mapping[str, Value]) -> bytes:
    """Return a message as one line.

    Raises: ProtocolError if it is not flat, holds a float, or is longer than `MAX_LINE`.
    """
    for key, value in message.items():
        _check_pair(key, value)
    line = json.dumps(dict(message), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    if len(line) > MAX_LINE:
        raise ProtocolError(f"a message has {len(line)} bytes, expected at most {MAX_LINE}")
    return line


def decode(line: bytes) -> Message:
    """Return the message in one line, with or without its newline.

    Raises: ProtocolError, whatever the bytes are.
    """
    if len(line) > MAX_LINE:
        raise ProtocolError(f"a line has more than {MAX_LINE} bytes: {_show(line)}")
    try:
        found = json.loads(
            line.decode("utf-8"), object_pairs_hook=_flat, parse_float=_no_float, parse_constant=_no_float
        )
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a line is not UTF-8 at byte {error.start}: {_show(line)}") from None
    except (ValueError, RecursionError):
        raise ProtocolError(f"a line is not JSON: {_show(line)}") from None
    if not isinstance(found, dict):
        raise ProtocolError(f"a line holds no JSON object: {_show(line)}")
    for key, value in found.items():
        _check_pair(key, value)
    return found


def put_scalar(name: str, value: Scalar) -> Value:
    """Return a parameter as a field: a float as hexadecimal text, as C's `%a` and `strtod` have it.

    Raises: ProtocolError if a string reads as a number, so that the two could not be told apart.
    """
    if isinstance(value, str) and _FLOAT.fullmatch(value):
        raise ProtocolError(f"{name} = {value!r} reads as a number, expected text or a float")
    return value.hex() if isinstance(value, float) else value


def get_scalar(message: Message, name: str) -> Scalar:
    """Return a parameter of a message; hexadecimal text is a float.

    Raises: ProtocolError if it is missing.
    """
    if name not in message:
        raise ProtocolError(f"key {name!r} is missing, though params names it")
    value = message[name]
    return float.fromhex(value) if isinstance(value, str) and _FLOAT.fullmatch(value) else value


def names(message: Message, key: str, *, dotted: bool = False) -> tuple[str, ...]:
    """Return a comma-separated list of distinct identifiers; `dotted` ones may be two with a dot between.

    Raises: ProtocolError.
    """
    parts = tuple(part for part in text(message, key).split(",") if part)
    form = _DOTTED if dotted else _NAME
    if len(set(parts)) != len(parts) or not all(form.fullmatch(part) for part in parts):
        raise ProtocolError(f"{key} = {message[key]!r}, expected distinct names separated by commas")
    return parts


def integers(message: Message, key: str) -> tuple[int, ...]:
    """Return a comma-separated list of non-negative integers; a scalar's shape is the empty string.

    Raises: ProtocolError.
    """
    found = text(message, key)
    if not _INTEGERS.fullmatch(found):
        raise ProtocolError(f"{key} = {found!r:.80}, expected integers >= 0 separated by commas")
    return tuple(int(part) for part in found.split(",") if part)


def join(values: Iterable[int]) -> str:
    """Return integers separated by commas."""
    return ",".join(str(int(value)) for value in values)


def text(message: Message, key: str) -> str:
    """Return the string under a key.

    Raises: ProtocolError if the key is missing or holds another type.
    """
    if key not in message:
        raise ProtocolError(f"key {key!r} is missing")
    value = message[key]
    if not isinstance(value, str):
        raise ProtocolError(f"{key} = {value!r}, expected a string")
    return value


def is_name(text: str) -> bool:
    """Say whether a string can name a tensor, a parameter or a verb."""
    return _NAME.fullmatch(text) is not None


def _check_pair(key: object, value: object) -> None:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ProtocolError(f"key {key!r:.80} is not a plain name")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ProtocolError(f"{key} holds half a surrogate pair, expected UTF-8 text") from None
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ProtocolError(f"{key} holds an integer outside 64 bits")
    else:
        raise ProtocolError(f"{key} holds {type(value).__name__}, expected a string, an integer or a boolean")


def _flat(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ProtocolError("a line gives one key twice")
    return found


def _no_float(found: str) -> float:
    raise ProtocolError(f"a line holds the number {found:.40}, expected floats as hex-float strings")


def _show(line: bytes) -> str:
    """Return the beginning of a line as something that can be printed."""
    start = line[:80].decode("utf-8", "backslashreplace")
    return repr(start) + ("…" if len(line) > 80 else "")

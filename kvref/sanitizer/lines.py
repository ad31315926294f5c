"""Lines of a history: from a file or a pipe, plain or gzip, each line one event, in bounded memory.

A file comes from elsewhere, so nothing in it is taken on trust: a line has at most `MAX_LINE` bytes, objects
name each field once, numbers are finite, and what is wrong is told with the name of the file and the line.

Realises: KV-BLOCK-042 history-wellformed.
For porters: read in chunks, and bound a line before it is in memory.
Source: JSON Lines; RFC 8259, which leaves open what becomes of a name that comes twice.
"""

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

from kvref.errors import HistoryError, shown
from kvref.memory.history import Event, check

#: Longest line in bytes; two million tokens fit.
MAX_LINE = 16 << 20
_CHUNK = 1 << 18
_INT = frozenset({int})
_SPACE = " \t\r\n"

Loads = Callable[[bytes], Any]


def events(stream: BinaryIO, name: str, loads: Loads | None = None) -> Iterator[tuple[int, Event]]:
    """Read the events of a stream with the number of the line each stands on; empty lines are left out.

    Raises: HistoryError naming file, line and field.
    """
    parse = loads or fastest()
    number = 0
    try:
        for first, some in _lines(unpacked(stream)):
            for number, raw in enumerate(some, first):
                if len(raw) < 3 and not raw.strip():
                    continue
                try:
                    event = parse(raw)
                    check(event)
                except (ValueError, RecursionError):
                    if not raw.strip():
                        continue
                    event = standard(raw)  # what is wrong is said by one parser, whichever reads
                    check(event)
                if raw.count(b'"') != 2 * len(event) + 2:  # texts besides the names and the kind
                    check_names(raw, event)
                yield number, event
    except HistoryError as error:
        raise HistoryError(f"{name}:{number}: {error}") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise HistoryError(f"{name}:{number + 1}: the gzip stream is broken: {error}") from None
    except (ValueError, RecursionError) as error:
        raise HistoryError(f"{name}:{number}: no JSON: {str(error)[:160]}") from None


def fastest() -> Loads:
    """Return orjson's parser if it is installed (`pip install kvref[fast]`), else that of Python."""
    try:
        import orjson
    except ImportError:
        return standard
    found: Loads = orjson.loads
    return found


def standard(raw: bytes) -> Any:
    """Parse one line with Python's own parser, strictly.

    Raises: ValueError, RecursionError.
    """
    text = raw.decode()
    if text[:1] in _SPACE:
        text = text.lstrip(_SPACE)
    value, end = _DECODER.raw_decode(text)
    if end != len(text) and text[end:].strip(_SPACE):
        raise ValueError(f"{text[end : end + 20]!r} after the object")
    return value


def unpacked(stream: BinaryIO) -> io.BufferedIOBase:
    """Return the bytes of a stream, unpacked if it begins like gzip."""
    plain = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, stream))
    return gzip.GzipFile(fileobj=plain) if plain.peek(2)[:2] == b"\x1f\x8b" else plain


def numbered_lines(stream: io.BufferedIOBase) -> Iterator[tuple[int, bytes]]:
    """Split a stream into numbered lines."""
    for number, some in _lines(stream):
        yield from enumerate(some, number)


def _lines(stream: io.BufferedIOBase) -> Iterator[tuple[int, list[bytes]]]:
    """Split a stream into lines, several at a time, with the number of the first."""
    number, pieces, size = 1, [b""], 0
    while chunk := stream.read1(_CHUNK):
        first, *others = chunk.split(b"\n")
        pieces.append(first)
        size += len(first)
        if size > MAX_LINE:
            raise HistoryError(f"a line of more than {MAX_LINE} bytes after this one, expected at most that")
        if others:
            last = others.pop()
            yield number, [b"".join(pieces), *others]
            number += 1 + len(others)
            pieces, size = [last], len(last)
    if size:
        yield number, [b"".join(pieces)]


def check_names(raw: bytes, event: Event) -> None:
    """Check that no object of a line has a name twice: the parser would have kept one of the two."""
    if raw.count(b'"') != 2 * _texts(event):
        json.loads(raw, object_pairs_hook=_apart)


def _texts(value: Any) -> int:
    """Count the texts in a value, names of fields included."""
    kind = type(value)
    if kind is str:
        return 1
    if kind is list:
        return 0 if _INT.issuperset(map(type, value)) else sum(map(_texts, value))
    return len(value) + sum(map(_texts, value.values())) if kind is dict else 0


def _apart(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        twice = next(name for at, (name, _) in enumerate(pairs) if name in dict(pairs[:at]))
        raise HistoryError(f"the field {shown(twice)} comes twice, expected once")
    return names


def _refused(text: str) -> Any:
    raise ValueError(f"{text} is no number")


_DECODER = json.JSONDecoder(parse_constant=_refused)

"""Files of KV-cache events: lines of JSON, or msgpack messages one after another, plain or gzip.

JSON begins with a bracket, a brace or a space, and msgpack's arrays and maps with a byte that ASCII does not
have, so the first byte tells which it is. A message is bounded before all of it is in memory.

For porters: JSON lines are enough to begin with; msgpack is what engines send, and wants a parser of its own.
Source: JSON Lines; the msgpack format; vLLM and SGLang, which send one msgpack array a message.
"""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from kvref.errors import HistoryError, shown
from kvref.sanitizer.lines import (
    MAX_LINE,
    Loads,
    check_names,
    fastest,
    numbered_lines,
    standard,
    unpacked,
)

#: Longest msgpack message in bytes, half of a line of JSON: a number takes half as much.
MAX_MESSAGE = MAX_LINE // 2
#: Most items of one list or map of a message, so that an announced length allocates little.
_MAX_ITEMS = MAX_MESSAGE // 8
_CHUNK = 1 << 16
#: What is read at the end of a file: nil, which stands alone only if nothing before it is cut short.
_NIL = b"\xc0"


@dataclass
class Reading:
    """How far a reader has come: the name of the file, what it counts, and how far it has come."""

    name: str
    unit: str = "line"
    """`line` of a file of JSON, `message` of one of msgpack."""
    number: int = 0
    raw: bytes = b""
    """The line that was read last, if it was one."""

    def told(self, error: object) -> HistoryError:
        """Return an error that says where it is."""
        number = self.number if self.unit == "line" else f"message {self.number}"
        return HistoryError(f"{self.name}:{number}: {error}")


def messages(stream: BinaryIO, at: Reading, loads: Loads | None = None) -> Iterator[Any]:
    """Read the objects of a stream; `at` says which of them was read last.

    Raises: HistoryError naming the file and the line.
    """
    try:
        plain = cast(gzip.GzipFile, unpacked(stream))
        if plain.peek(1)[:1] >= b"\x80":
            at.unit = "message"
            yield from _packed(plain, at)
        else:
            yield from _spelled(plain, at, loads or fastest())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        at.number += 1
        raise at.told(f"the gzip stream is broken: {error}") from None
    except (ValueError, RecursionError) as error:
        at.number += at.unit == "message"  # that of the message that could not be read
        what = "JSON" if at.unit == "line" else "msgpack"
        known = isinstance(error, HistoryError)
        raise at.told(error if known else f"no {what}: {str(error)[:160] or type(error).__name__}") from None


def _spelled(stream: gzip.GzipFile, at: Reading, loads: Loads) -> Iterator[Any]:
    """Read lines of JSON; empty ones are left out."""
    for number, raw in numbered_lines(stream):
        at.number = number
        if raw and not raw.isspace():
            at.raw = raw
            try:
                value = loads(raw)
            except (ValueError, RecursionError):
                value = standard(raw)  # what is wrong is said by one parser, whichever reads
            check_names(raw, value)
            yield value


def _packed(stream: gzip.GzipFile, at: Reading) -> Iterator[Any]:
    """Read msgpack messages.

    Raises: HistoryError if the package is missing, or the file ends inside a message; ValueError.
    """
    try:
        import msgpack
    except ImportError:
        raise HistoryError("this is msgpack, whose reader is extra: pip install kvref[msgpack]") from None
    unpacker = msgpack.Unpacker(
        object_pairs_hook=_apart,
        max_buffer_size=MAX_MESSAGE + 2 * _CHUNK,
        max_array_len=_MAX_ITEMS,
        max_map_len=_MAX_ITEMS,
    )
    size = 0
    while chunk := stream.read1(_CHUNK):
        size += len(chunk)
        unpacker.feed(chunk)
        for value in unpacker:
            at.number += 1
            yield value
            size = 0
        if size > MAX_MESSAGE:
            raise HistoryError(f"more than {MAX_MESSAGE} bytes in one message, expected at most that")
    unpacker.feed(_NIL)
    if list(unpacker) != [None]:
        raise HistoryError("the file ends inside the message, expected all of it")


def _apart(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a map whose names are apart."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise HistoryError(f"a name comes twice among {shown([name for name, _ in pairs])}, expected once")
    return found

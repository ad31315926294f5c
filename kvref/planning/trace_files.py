"""The lines of a trace file: gzip or plain, one at a time, and never more of it than one line in memory.

A file is read as it is needed. What is wrong with it is named with the file, and with the line after which
it went wrong: a download that broke off, an archive of another kind, a line without end, bytes that are no
text.

For porters: any reader of lines will do. Bound the length of a line before it is read, since a small
compressed file may hold a line of many gigabytes.
Source: RFC 1952 (gzip); the magic numbers are those of the formats.
"""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from kvref.errors import ArgumentError, TraceError, shown

#: The longest line that is read, in bytes: a context of ten million tokens in blocks of 16 fits.
MAX_LINE = 2**24

_GZIP = b"\x1f\x8b"
_OTHERS = {b"PK\x03\x04": "a zip archive", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2"}
_BYTE_ORDER_MARK = "\ufeff"


def as_path(path: Path | str) -> Path:
    """Return the place of a file.

    Raises: ArgumentError if it can be none.
    """
    if not isinstance(path, str | Path) or "\0" in str(path):
        raise ArgumentError(f"path = {shown(path)}, expected the name of a file")
    return Path(path)


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without the line's end) for each line that is not blank.

    Raises: TraceError if the file cannot be read, is compressed otherwise than by gzip, breaks off, or has a
    line longer than `MAX_LINE` or one that is not UTF-8.
    """
    number = 0
    try:
        with _opened(path) as file:
            while line := file.readline(MAX_LINE + 1):
                number += 1
                text = _decoded(path, number, line)
                if text:
                    yield number, text
    except EOFError:
        raise TraceError(
            f"{path}: the gzip stream is truncated after {number} lines, expected its end marker"
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"{path}: after line {number}: {error}, expected intact gzip") from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}, expected a file to read") from None


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file once: what was read of a pipe cannot be read again."""
    with path.open("rb") as file:
        head = file.peek(6)
        for magic, kind in _OTHERS.items():
            if head.startswith(magic):
                raise TraceError(f"{path} is {kind}, expected gzip or plain text")
        if head.startswith(_GZIP):
            with gzip.open(file) as unpacked:
                yield cast("IO[bytes]", unpacked)
        else:
            yield file


def _decoded(path: Path, number: int, line: bytes) -> str:
    if len(line) > MAX_LINE:
        raise TraceError(f"{path}:{number}: the line is longer than {MAX_LINE} bytes, expected one request")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}:{number}: byte {error.start} of the line is not UTF-8") from None
    return (text.removeprefix(_BYTE_ORDER_MARK) if number == 1 else text).strip()

"""Text that others have written: never more of it than is allowed, and nothing in it but what can be read.

A size that a file states proves nothing (a device states 0 and never ends), so reading itself is limited. A
name or a message may hold what moves a terminal's cursor, or what XML and UTF-8 cannot carry; it is spelled.
"""

from pathlib import Path

from kvref.errors import ArgumentError

LONGEST_LINE = 400
"""Characters of one line that a report shows."""


def printable(text: str) -> str:
    """Return text with every character that does not print spelled out; tabs and line ends are kept."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def one_line(text: str, limit: int = LONGEST_LINE) -> str:
    """Return the first line of a text, printable and cut to `limit` characters."""
    first = printable(text.strip().partition("\n")[0])
    return first if len(first) <= limit else first[: limit - 1] + "…"


def read_text(path: Path, limit: int) -> str:
    """Return the UTF-8 text of a file of at most `limit` bytes.

    Raises: ArgumentError naming the file, what was found and what was expected.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) > limit:
        raise ArgumentError(f"{path} has more than {limit} bytes, expected at most {limit}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path} is not UTF-8 at byte {error.start}") from None

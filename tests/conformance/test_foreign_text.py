"""Text of others: limited when it is read, harmless when it is shown."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.errors import ArgumentError
from kvref_conformance.contracts import Failed
from kvref_conformance.foreign_text import one_line, printable, read_text


@given(st.text(st.characters(), max_size=40))
def test_whatever_was_said_can_be_printed(text: str) -> None:
    """No character moves a cursor, and every one can be written as UTF-8."""
    shown = printable(text)
    shown.encode()
    assert all(c.isprintable() or c in "\n\t" for c in shown)
    assert one_line(text).isprintable() or "\t" in text


def test_a_failure_cannot_write_to_the_terminal() -> None:
    """The title of a window, a colour, half a surrogate pair: spelled, so that a reader sees them."""
    assert str(Failed("error", "a\x1b]0;b\x07\ud800")) == "error: a\\x1b]0;b\\x07\\ud800"


def test_a_line_is_cut_where_nobody_reads_on() -> None:
    """The first line, and the beginning of that."""
    assert one_line("first\nsecond") == "first"
    assert one_line("x" * 1000, 10) == "x" * 9 + "…"


def test_a_file_without_end_is_read_to_the_limit(tmp_path: Path) -> None:
    """A device states the size 0."""
    with pytest.raises(ArgumentError, match="more than 100 bytes"):
        read_text(Path("/dev/zero"), 100)
    (tmp_path / "latin").write_bytes(b"ab\xff")
    with pytest.raises(ArgumentError, match="not UTF-8 at byte 2"):
        read_text(tmp_path / "latin", 100)

"""What names a prefix in the naive caches: all of it, written out.

A name is the namespace and one item a position: the token, or the token with the row that stands in its
place. Nothing is hashed, and two prefixes are one if their names are equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvref.errors import ArgumentError

#: Arguments that are texts, in the order of a name, and those that come as three lists.
TEXTS = ("adapter", "adapter_version", "salt")
PARTS = ("media", "embeddings")

Item = tuple[Any, ...]
Name = tuple[tuple[str, ...], tuple[Item, ...]]


@dataclass
class Content:
    """A request's tokens, and everything else that its values depend on."""

    tokens: list[int]
    texts: tuple[str, ...]
    rows: dict[int, tuple[str, str, int]]
    """Position -> kind, digest and row of what stands there in place of a token."""

    def item(self, at: int) -> Item:
        """Return what stands at a position."""
        row = self.rows.get(at)
        return (self.tokens[at],) if row is None else (self.tokens[at], *row)

    def items(self, start: int, stop: int) -> tuple[Item, ...]:
        """Return what stands at positions from `start` to below `stop`."""
        return tuple(self.item(at) for at in range(start, stop))


def content_of(tokens: Sequence[int], given: dict[str, Any]) -> Content:
    """Read what an admission is given.

    Raises: ArgumentError if there is no token, one is no integer or negative, or a part lies outside them.
    """
    check_tokens(tokens)
    if not tokens:
        raise ArgumentError("tokens is empty, expected at least one")
    texts = tuple(given.pop(name, "") for name in TEXTS)
    rows: dict[int, tuple[str, str, int]] = {}
    for kind in PARTS:
        parts = [given.pop(f"{kind}_{what}", ()) for what in ("digests", "offsets", "lengths")]
        for digest, offset, length in zip(*parts, strict=True):
            for row in range(length):
                if offset + row in rows or not 0 <= offset + row < len(tokens):
                    raise ArgumentError(f"{kind} has rows at position {offset + row}, expected free tokens")
                rows[offset + row] = (kind, digest, row)
    if given:
        raise ArgumentError(f"arguments hold {', '.join(given)}, expected none of these")
    return Content(list(tokens), texts, rows)


def check_tokens(tokens: Sequence[int]) -> None:
    """Check tokens that join a request.

    Raises: ArgumentError.
    """
    for token in tokens:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise ArgumentError(f"tokens holds {token!r:.80}, expected integers from 0")

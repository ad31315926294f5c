"""Prompts made of small numbers: documents, and everything but tokens that a cached value depends on.

A program names documents. Token j of document d is the same in every request, and no two documents have a
token in common, but for document 0, which is one placeholder over and over: the rows of an image have no
tokens of their own. Document d + 65536 agrees with document d in the lowest 16 bits of every token.

Texts are named by numbers as well. 0 is the empty text, which is passed all the same; 1 to 3 are `a`, `A` and
`b`, 4 is `aa`, and so on, so that two texts may run together to the same letters in two ways, or differ in
the case of a letter, or in the last of many. Digests are 64 digits; digests d and d + 100 differ in the first
8 alone, d and d + 5000 in the last 8. A content has as many rows as it has: d with another number of rows is
another content, and has another digest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from kvref_conformance.programs.shadow import label, root

#: Tokens of one document, and the token that document 0 repeats.
DOCUMENT = 10_000
PLACEHOLDER = 0
_LETTERS = "aAb"

#: What differs between two namespaces -> the requirement that keeps them apart; the first that applies.
APART = (
    ({"adapter", "salt"}, "KV-PREFIX-013"),
    ({"adapter", "adapter_version"}, "KV-PREFIX-013"),
    ({"adapter_version", "salt"}, "KV-PREFIX-013"),
    ({"adapter"}, "KV-PREFIX-007"),
    ({"adapter_version"}, "KV-PREFIX-008"),
    ({"salt"}, "KV-PREFIX-009"),
    ({"media"}, "KV-PREFIX-010"),
    ({"media_offsets"}, "KV-PREFIX-011"),
    ({"embeddings"}, "KV-PREFIX-012"),
)


def tokens_of(pairs: Sequence[int]) -> list[int]:
    """Return the tokens of documents, given as document, number of tokens, document, …"""
    found: list[int] = []
    for document, count in zip(pairs[::2], pairs[1::2], strict=True):
        first = PLACEHOLDER if document == 0 else document * DOCUMENT + 1
        found += [first + (at if document else 0) for at in range(count)]
    return found


def are_pairs(pairs: Sequence[int]) -> bool:
    """Say whether numbers are documents and lengths."""
    fine = all(0 <= count < DOCUMENT for count in pairs[1::2]) and all(d >= 0 for d in pairs[::2])
    return len(pairs) % 2 == 0 and fine and sum(pairs[1::2]) > 0


def text_of(number: int) -> str:
    """Return the text a number names."""
    text = ""
    while number > 0:
        number, letter = divmod(number - 1, len(_LETTERS))
        text = _LETTERS[letter] + text
    return text


def digest_of(number: int, num_rows: int) -> str:
    """Return the digest of a content of so many rows that a number names."""
    tail, rest = divmod(number, 5000)
    head, own = divmod(rest, 100)
    digits = sha256(b"content %d of %d rows" % (own, num_rows)).hexdigest()
    return f"{_moved(digits[:8], head)}{digits[8:-8]}{_moved(digits[-8:], tail)}"


def _moved(digits: str, by: int) -> str:
    return f"{int(digits, 16) ^ by:08x}"


@dataclass(frozen=True)
class Part:
    """Rows of some content in place of token ids: which, from which position, how many."""

    digest: int
    offset: int
    length: int


@dataclass(frozen=True)
class Given:
    """What a request is admitted with besides tokens; a text that is None is not passed."""

    texts: Mapping[str, int] = field(default_factory=dict)
    """adapter, adapter_version, salt -> number of the text."""
    media: tuple[Part, ...] = ()
    embeddings: tuple[Part, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether nothing is passed."""
        return not (self.texts or self.media or self.embeddings)

    def fits(self, num_tokens: int) -> bool:
        """Say whether all parts lie inside the tokens, none on another."""
        taken = [at for p in (*self.media, *self.embeddings) for at in range(p.offset, p.offset + p.length)]
        return len(taken) == len(set(taken)) and all(at < num_tokens for at in taken)

    def arguments(self) -> dict[str, Any]:
        """Return what is passed, by name."""
        found: dict[str, Any] = {name: text_of(number) for name, number in self.texts.items()}
        for name in ("media", "embeddings"):
            if parts := getattr(self, name):
                found[f"{name}_digests"] = [digest_of(part.digest, part.length) for part in parts]
                found[f"{name}_offsets"] = [part.offset for part in parts]
                found[f"{name}_lengths"] = [part.length for part in parts]
        return found

    def row(self, at: int) -> tuple[str, tuple[int, int], int] | None:
        """Return what stands at a position in place of a token: kind, digest and number of rows, row."""
        for name in ("media", "embeddings"):
            for part in getattr(self, name):
                if part.offset <= at < part.offset + part.length:
                    return name, (part.digest, part.length), at - part.offset
        return None


class Prompt:
    """Tokens of a request and, for every position, the label of what belongs there.

    Where a row stands in place of a token, the token is a placeholder: no value depends on it.
    """

    def __init__(self, given: Given, tokens: Iterable[int]) -> None:
        self.given = given
        self.tokens: list[int] = []
        self.labels: list[int] = []
        self._root = root(*(text_of(given.texts.get(name, 0)) for name in _TEXTS))
        self.add(tokens)
        self.prompt_len = len(self.tokens)

    def add(self, tokens: Iterable[int]) -> None:
        """Let tokens join, decoded ones later on."""
        for token in tokens:
            before = self.labels[-1] if self.labels else self._root
            row = self.given.row(len(self.tokens))
            self.labels.append(label(before, token if row is None else row))
            self.tokens.append(token if row is None else PLACEHOLDER)

    def continued(self, tokens: Iterable[int]) -> list[int]:
        """Return the labels that tokens would have if they joined."""
        return Prompt(self.given, [*self.tokens, *tokens]).labels[len(self.tokens) :]


_TEXTS = ("adapter", "adapter_version", "salt")


def what_differs(one: Prompt, other: Prompt, length: int) -> set[str]:
    """Say in what two requests differ over their first `length` positions."""
    if one.tokens[:length] != other.tokens[:length]:
        return {"tokens"}
    texts = {name for name in _TEXTS if one.given.texts.get(name, 0) != other.given.texts.get(name, 0)}
    return texts | _parts_differ(one, other, length)


def _parts_differ(one: Prompt, other: Prompt, length: int) -> set[str]:
    mine, theirs = ([p.given.row(at) for at in range(length)] for p in (one, other))
    if mine == theirs:
        return set()
    kinds = {row[0] for a, b in zip(mine, theirs, strict=True) if a != b for row in (a, b) if row}
    if "embeddings" in kinds:
        return {"embeddings"}
    a, b = ([row[1] for row in rows if row and row[2] == 0] for rows in (mine, theirs))
    moved = a and b and all(x == y for x, y in zip(a, b, strict=False))
    return {"media_offsets"} if moved else {"media"}


def kept_apart(one: Prompt, other: Prompt, length: int) -> str | None:
    """Return the requirement that keeps two requests of equal tokens apart; None if the tokens differ."""
    differing = what_differs(one, other, length)
    return next((requirement for names, requirement in APART if names <= differing), None)

"""Everything but tokens that a cached value depends on: model, adapter, salt, and content in place of tokens.

Two requests may share a block only if their namespaces agree there. Model, adapter and salt concern every
block; a span (the rows of an image, or of prompt embeddings) concerns the blocks it lies in, and through them
every later one. So a block depends on a span only through the rows that lie in the block: which content,
from which of its rows, at which place in the block, how many. An image met one slot later is another block.

An empty text means absent, and each text is written with its length, so that no two namespaces are written
alike: adapter "x" without a salt is not salt "x" without an adapter, and ("ab", "c") is not ("a", "bc").

Realises: KV-PREFIX-007 adapter-apart, KV-PREFIX-008 adapter-version-apart, KV-PREFIX-009 salt-apart,
KV-PREFIX-010 media-apart, KV-PREFIX-011 media-offset-apart, KV-PREFIX-012 embeddings-apart, KV-PREFIX-013
namespace-injective, KV-PREFIX-014 namespace-same-hits.
For porters: `written` decides what a key can tell apart; write every length, and a tag for what follows.
Source: the extra keys of vLLM's block hashes (tagged lora, mm, cache_salt, prompt_embeds) and SGLang's
extra_key and cache_salt; the rows of a span in a block follow from the definition.
"""

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from kvref.arrays import check_count, check_word
from kvref.errors import ArgumentError, shown

#: What can stand in place of token ids.
KINDS = ("media", "embeddings")


@dataclass(frozen=True, kw_only=True)
class Span:
    """Rows of some content that stand in place of token ids.

    Raises: ArgumentError if the kind is not one of `KINDS`, the digest is empty, or no position is covered.
    """

    kind: str
    digest: str
    """Identifies the content."""
    offset: int
    """Position of its first row in the request."""
    length: int
    """Rows, one a position."""

    def __post_init__(self) -> None:
        check_word("kind", self.kind, KINDS)
        if not check_text("digest", self.digest):
            raise ArgumentError("digest = '', expected what identifies the content")
        object.__setattr__(self, "offset", check_count("offset", self.offset, minimum=0))
        object.__setattr__(self, "length", check_count("length", self.length))

    @property
    def stop(self) -> int:
        """The position behind its last row."""
        return self.offset + self.length


@dataclass(frozen=True, kw_only=True)
class Namespace:
    """What the values in a cache depend on besides tokens; spans are kept in the order of their offsets.

    Raises: ArgumentError if a field is no text, a span is no `Span`, or two spans lie on one position.
    """

    model: str = ""
    """Model, revision and whatever of its format the values depend on."""
    adapter: str = ""
    adapter_version: str = ""
    salt: str = ""
    """Requests with unequal salts share nothing, whatever else agrees."""
    spans: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        for name in ("model", "adapter", "adapter_version", "salt"):
            check_text(name, getattr(self, name))
        if not isinstance(self.spans, tuple | list) or not all(isinstance(s, Span) for s in self.spans):
            raise ArgumentError(f"spans = {shown(self.spans)}, expected a tuple of Span")
        spans = tuple(sorted(self.spans, key=lambda span: span.offset))
        for a, b in pairwise(spans):
            if b.offset < a.stop:
                raise ArgumentError(
                    f"spans has rows of {shown(b.digest)} at position {b.offset}, "
                    f"expected none before {a.stop}, the end of {shown(a.digest)}"
                )
        object.__setattr__(self, "spans", spans)


class Rows(NamedTuple):
    """The rows of one span that lie in one block."""

    kind: str
    digest: str
    first: int
    """The first of them, counted in the content."""
    at: int
    """Its position in the block."""
    length: int


def rows_between(namespace: Namespace, start: int, stop: int) -> tuple[Rows, ...]:
    """List the rows of spans at positions start to stop − 1, the block that begins at `start`."""
    return tuple(
        Rows(s.kind, s.digest, low - s.offset, low - start, min(stop, s.stop) - low)
        for s in namespace.spans
        if (low := max(start, s.offset)) < min(stop, s.stop)
    )


def written(namespace: Namespace) -> bytes:
    """Write what concerns every block, spans left out: equal bytes, equal model, adapter and salt."""
    fields = (namespace.model, namespace.adapter, namespace.adapter_version, namespace.salt)
    return b"kvref namespace 1" + b"".join(map(_text, fields))


def written_rows(rows: tuple[Rows, ...]) -> bytes:
    """Write the rows of spans in a block; none are written as nothing."""
    numbers = struct.Struct("<QQQ")
    return b"".join(_text(r.kind) + _text(r.digest) + numbers.pack(r.first, r.at, r.length) for r in rows)


def check_text(name: str, value: Any) -> str:
    """Return a text that UTF-8 can write.

    Raises: ArgumentError.
    """
    if not isinstance(value, str):
        raise ArgumentError(f"{name} = {shown(value)}, expected text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ArgumentError(f"{name} = {shown(value)}, expected text that UTF-8 can write") from None
    return value


def check_namespace(namespace: Any) -> Namespace:
    """Return a namespace.

    Raises: ArgumentError if it is anything else.
    """
    if not isinstance(namespace, Namespace):
        raise ArgumentError(f"namespace = {shown(namespace)}, expected a Namespace")
    return namespace


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<I", len(raw)) + raw


#: Nothing but tokens: the namespace of a request that names none.
COMMON = Namespace()

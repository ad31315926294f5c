"""What a block of an event stands for: its tokens and what else it depends on, given the block before it.

Two blocks behind the same block hold the same values if their contents are equal. Tokens are kept as a
digest, so that a mirror of a large cache holds 16 bytes a block whatever its size.

For porters: compare tokens, adapter and extra keys together, or two tenants share a block.
Source: the inputs of vLLM's block hash (hash_block_tokens) and the fields of BlockStored.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from kvref.sanitizer.kv_event_fields import Extra, Key, Name
from kvref.sanitizer.kv_event_kinds import Lookup, Stored

_DIGEST = 16


class Content(NamedTuple):
    """The contents of one block, apart from what lies before it."""

    size: int
    """Tokens of the block; 0 if they are not told."""
    tokens: bytes | Key
    """A digest of the tokens, or the engine's own."""
    adapter: Name | None
    extra: Extra | None
    """What else it depends on: salt, media, embeddings."""


def contents_of(event: Stored) -> list[Content | None]:
    """Return the contents of the blocks of an event; None for each if they cannot be told apart."""
    count = len(event.keys)
    extras_fit = event.extras is None or len(event.extras) == count
    if not event.fits or not extras_fit or event.opaque:
        return [None] * count
    if event.hashes is not None:
        return [Content(0, tokens, event.adapter, None) for tokens in event.hashes]
    raw = written(event.tokens)
    step = event.size * event.width * 8
    first = event.parent is None
    return [
        Content(
            event.size,
            digest(raw[at * step : at * step + step]),
            event.adapter,
            _extra(event, at, first and not at),
        )
        for at in range(count)
    ]


def asked_of(lookup: Lookup, raw: bytes, start: int, size: int) -> Content | None:
    """Return the contents of the block of a lookup that begins at a token; None if it is not full."""
    step = lookup.width * 8
    piece = raw[start * step : (start + size) * step]
    if len(piece) < size * step:
        return None
    return Content(size, digest(piece), lookup.adapter, _extra(lookup, start // size, not start))


def written(tokens: Sequence[int]) -> bytes:
    """Write tokens, 8 bytes an integer."""
    return array("q", tokens).tobytes()


def digest(raw: bytes) -> bytes:
    """Return a digest that nobody makes collide by accident."""
    return blake2b(raw, digest_size=_DIGEST).digest()


def _extra(told: Stored | Lookup, at: int, first: bool) -> Extra | None:
    """Return what a block depends on besides tokens and adapter.

    vLLM tells it for each block, the adapter's name in front. SGLang tells the salt of an event, which its
    first block carries for all that follow.
    """
    listed = told.extras[at] if told.extras is not None and at < len(told.extras) else None
    if listed and listed[0] == told.adapter:
        listed = listed[1:]
    if told.salt is not None and first and told.salt not in (listed or ()):
        listed = (told.salt, *(listed or ()))
    return listed or None

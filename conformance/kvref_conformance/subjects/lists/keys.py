"""Naive keys of blocks: what names a prefix, written out and digested."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from kvref_conformance.subjects.lists.naming import Content, Name, content_of


class KeyLists:
    """One key for each full block."""

    def __init__(self, block_size: int, hash_bits: int = 0) -> None:
        self.block_size, self.hash_bits = block_size, hash_bits

    def keys(self, tokens: Sequence[int], **given: Any) -> list[str]:
        """Return one key for each full block."""
        content = content_of(tokens, given)
        return [self.key(self.name(content, stop)) for stop in self.ends(len(content.tokens))]

    def ends(self, num_tokens: int) -> range:
        """Return the positions behind full blocks."""
        return range(self.block_size, num_tokens + 1, self.block_size)

    def name(self, content: Content, stop: int) -> Name:
        """Return the name of the first `stop` tokens of a request."""
        return content.texts, content.items(0, stop)

    def key(self, name: Name) -> str:
        """Return the digest of a name in hexadecimal, cut short where the subject was opened so."""
        digest = sha256(repr(name).encode()).digest()
        if not self.hash_bits:
            return digest.hex()
        return f"{int.from_bytes(digest, 'big') % 2**self.hash_bits:02x}"

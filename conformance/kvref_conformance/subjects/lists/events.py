"""What a naive prefix cache tells of itself: blocks stored and removed, by name.

A name is told once while any block holds it. Its hash is a short digest of all of it, so that a hash means
the same for ever.
"""

import json
from hashlib import sha256
from typing import Any

from kvref_conformance.subjects.lists.naming import Name


class Events:
    """What has been told and not taken yet."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.waiting: list[dict[str, Any]] = []

    def hash_of(self, name: Name) -> str:
        """Return the hash of a name."""
        return sha256(repr(name).encode()).hexdigest()[:16]

    def stored(self, name: Name) -> None:
        """Tell that a name is held from now on."""
        texts, items = name
        parent = items[: -self.block_size]
        self.waiting.append(
            {
                "type": "BlockStored",
                "block_hashes": [self.hash_of(name)],
                "parent_block_hash": self.hash_of((texts, parent)) if parent else None,
                "token_ids": [item[0] for item in items[-self.block_size :]],
                "block_size": self.block_size,
            }
        )

    def removed(self, name: Name) -> None:
        """Tell that a name is held no more."""
        self.waiting.append({"type": "BlockRemoved", "block_hashes": [self.hash_of(name)]})

    def cleared(self) -> None:
        """Tell that nothing is held any more."""
        self.waiting.append({"type": "AllBlocksCleared"})

    def take(self) -> str:
        """Return what was told since the last time, as JSON text."""
        text = json.dumps(self.waiting)
        self.waiting.clear()
        return text

"""Which blocks hold what a key names: usually one, more where requests computed the same block at once.

The oldest copy answers for its key; when it goes, the next oldest does. A block has one key.

Realises: KV-PREFIX-004 hit-contiguous, KV-PREFIX-017 evicted-not-hit.
For porters: a map from key to block, and a second one for the few keys that have more blocks, cost less than
a list for every key. Any hashable is a key: digests of tokens, or the ids that a trace comes with.
Source: vLLM's map of cached block hashes (one block, or several by id).
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Copies(Generic[Key]):
    """Keys, each with the blocks that are its copies."""

    def __init__(self) -> None:
        self._first: dict[Key, int] = {}
        self._more: dict[Key, list[int]] = {}  # the oldest first
        self._keys: dict[int, Key] = {}

    def __len__(self) -> int:
        return len(self._first)

    def run(self, keys: Iterable[Key]) -> list[int]:
        """List the blocks of the first keys, up to the first that has none."""
        return list(iter(map(self._first.get, keys).__next__, None))

    def first(self, key: Key) -> int | None:
        """Return the oldest copy, or None."""
        return self._first.get(key)

    def every(self, key: Key) -> list[int]:
        """List the copies, the oldest first."""
        return [self._first[key], *self._more.get(key, ())] if key in self._first else []

    def key(self, block: int) -> Key | None:
        """Return the key of a block, or None."""
        return self._keys.get(block)

    def keys(self) -> set[Key]:
        """Return the keys that have blocks."""
        return set(self._first)

    def blocks(self) -> list[int]:
        """List the blocks that have keys."""
        return list(self._keys)

    def add(self, key: Key, block: int) -> None:
        """Let a block without a key be a copy."""
        self._keys[block] = key
        if self._first.setdefault(key, block) != block:
            self._more.setdefault(key, []).append(block)

    def add_new(self, keys: Sequence[Key], blocks: Sequence[int]) -> bool:
        """Let blocks without a key be copies, one a key, if no key has one yet; say whether they are."""
        new = dict(zip(keys, blocks, strict=True))
        if len(new) < len(keys) or not self._first.keys().isdisjoint(new):
            return False
        self._first.update(new)
        self._keys.update(zip(blocks, keys, strict=True))
        return True

    def drop(self, blocks: Iterable[int]) -> list[Key]:
        """Let blocks have no key, one that has none included; return the keys that no block has any more."""
        first, more, pop = self._first, self._more, self._keys.pop
        lost = []
        for block in blocks:
            key = pop(block, None)
            if key in more:
                self._drop_copy(key, block)
            elif key is not None:
                del first[key]
                lost.append(key)
        return lost

    def check_invariants(self) -> None:
        """Assert that keys and blocks name each other."""
        named = {block: key for key in self._first for block in self.every(key)}
        assert named == self._keys, "a key names a block that does not name it"
        assert len(named) == len(self._first) + sum(map(len, self._more.values())), "a block is a copy twice"
        assert all(self._more.values()), "a key has an empty list of further copies"
        assert self._more.keys() <= self._first.keys(), "a key has copies, but no oldest one"

    def _drop_copy(self, key: Key, block: int) -> None:
        copies = self._more[key]
        if self._first[key] == block:
            self._first[key] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._more[key]

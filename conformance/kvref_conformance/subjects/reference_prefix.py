"""The reference's prefix caches, keys and mirror behind the suite's contract: what arguments are called here.

Two caches stand under one contract: over keys of full blocks, canonical, and over a radix tree that evicts
whole nodes. `ReferenceRadix` is a subject of its own, for it declares that order.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvref.memory.cache_events import Event, Removed, Stored
from kvref.memory.keys import Digest, block_keys, sha256
from kvref.memory.namespace import Namespace, Span
from kvref.memory.prefix_cache import PrefixCache
from kvref.memory.profiles import PROFILES
from kvref.memory.radix_cache import RadixCache
from kvref.memory.snapshot_cache import SnapshotCache
from kvref.sanitizer import kv_event_kinds as kinds
from kvref.sanitizer.mirror import Mirror
from kvref_conformance.claims import Claims

#: Of everything but tokens, what the reference tells apart.
NAMESPACES = ("adapter", "adapter_version", "salt", "media", "embeddings")
#: SGLang's tree, but that a node is used only as far as a request hits it.
NODES = replace(PROFILES["sglang"], name="nodes", split="keeps")
#: Declared orders in which nodes go whole: a split leaves its second half as old as it was, or makes it new.
BY_NODE = {"lru_node": NODES, "lru_node_renewed": PROFILES["sglang"]}


class RequestsOfReference:
    """What all caches of the reference have under the names of the contract."""

    _cache: PrefixCache | RadixCache | SnapshotCache

    def slots(self, request: int) -> list[int]:
        """Return the slots of all scheduled tokens."""
        return self._cache.slots(request)

    def finish(self, request: int) -> None:
        """End a request."""
        self._cache.finish(request)

    def abort(self, request: int) -> None:
        """End a request in the middle."""
        self._cache.abort(request)

    def num_free(self) -> int:
        """Count the blocks that can be had."""
        return self._cache.num_free

    def reset(self) -> None:
        """Forget everything."""
        self._cache.reset()


class CacheOfReference(RequestsOfReference):
    """Either prefix cache under the names of the contract."""

    _cache: PrefixCache | RadixCache

    def __init__(self, cache: PrefixCache | RadixCache) -> None:
        self._cache = cache

    def admit(
        self, request: int, tokens: Sequence[int], max_new_tokens: int, **given: Any
    ) -> tuple[int, list[int]]:
        """Begin a request."""
        admission = self._cache.admit(
            request, tokens, namespace=namespace_of(given), max_new_tokens=max_new_tokens
        )
        return admission.num_cached_tokens, admission.slots

    def extend(self, request: int, tokens: Sequence[int], max_new_tokens: int) -> list[int]:
        """Let tokens join a request."""
        return self._cache.extend(request, tokens, max_new_tokens=max_new_tokens)

    def commit(self, request: int) -> None:
        """Let what is scheduled be computed."""
        self._cache.commit(request)


class ReferencePrefixCache(CacheOfReference):
    """`PrefixCache`, canonical."""

    _cache: PrefixCache

    def __init__(self, num_blocks: int, block_size: int, hash_bits: int = 0) -> None:
        digest = cut_to(hash_bits) if hash_bits else sha256
        super().__init__(PrefixCache(num_blocks, "kvref", block_size, digest=digest, events=True))

    def take_events(self) -> str:
        """Return what was stored and removed since the last time, in vLLM's words."""
        return json.dumps([spelled(event) for event in self._cache.take_events()])


class ReferenceRadixCache(CacheOfReference):
    """`RadixCache`; it makes no keys, so none can collide."""

    def __init__(self, num_blocks: int, block_size: int, hash_bits: int = 0) -> None:
        super().__init__(RadixCache(num_blocks, NODES, block_size))


class ReferenceKeys:
    """`block_keys`."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    def keys(self, tokens: Sequence[int], **given: Any) -> list[str]:
        """Return one key a full block, in hexadecimal."""
        return [key.hex() for key in block_keys(tokens, self._block_size, namespace_of(given))]


class ReferenceIndex:
    """`Mirror`, told which worker stores and removes what."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._mirror = Mirror()

    def store(self, worker: int, parent: str, keys: Sequence[str]) -> None:
        """Let a worker hold blocks behind another; of their tokens nothing is told."""
        stored = kinds.Stored(kinds.Where(), list(keys), parent or None, 0, [])
        self._mirror.apply(kinds.Source(worker), stored)

    def remove(self, worker: int, keys: Sequence[str]) -> None:
        """Let a worker hold blocks no longer."""
        self._mirror.apply(kinds.Source(worker), kinds.Removed(kinds.Where(), list(keys)))

    def clear(self, worker: int) -> None:
        """Let a worker hold nothing."""
        self._mirror.apply(kinds.Source(worker), kinds.Cleared())

    def match(self, keys: Sequence[str]) -> tuple[list[int], list[int]]:
        """Return the workers that hold the first block or more, and how many each."""
        found = self._mirror.match(keys)
        return [int(source.worker) for source in found], list(found.values())


class ReferenceRadix:
    """The reference's cache over a radix tree."""

    claims = Claims(
        name="kvref radix",
        block_sizes=(4, 1, 3, 16),
        features=(*NAMESPACES, "weak_hash"),
        choices={"eviction-order": "lru_node"},
    )
    prefix_cache = ReferenceRadixCache


def under(eviction_order: str, num_blocks: int, block_size: int) -> CacheOfReference:
    """Return the reference's cache that evicts in a declared order."""
    if eviction_order in BY_NODE:
        return CacheOfReference(RadixCache(num_blocks, BY_NODE[eviction_order], block_size))
    release = "head_first" if eviction_order == "lru_head_first" else "tail_first"
    profile = replace(PROFILES["kvref"], release=release)
    return CacheOfReference(PrefixCache(num_blocks, profile, block_size))


def spelled(event: Event) -> dict[str, Any]:
    """Return an event as vLLM publishes it, its keys in hexadecimal."""
    if isinstance(event, Stored):
        return {
            "type": "BlockStored",
            "block_hashes": [key.hex() for key in event.keys],
            "parent_block_hash": event.parent.hex() if event.parent else None,
            "token_ids": event.tokens,
            "block_size": event.block_size,
        }
    if isinstance(event, Removed):
        return {"type": "BlockRemoved", "block_hashes": [key.hex() for key in event.keys]}
    return {"type": "AllBlocksCleared"}


def namespace_of(given: dict[str, Any]) -> Namespace:
    """Return the namespace that the arguments of an admission name."""
    spans: list[Span] = []
    for kind in ("media", "embeddings"):
        parts = (given.pop(f"{kind}_{name}", ()) for name in ("digests", "offsets", "lengths"))
        spans += [
            Span(kind=kind, digest=digest, offset=offset, length=length)
            for digest, offset, length in zip(*parts, strict=True)
        ]
    return Namespace(spans=tuple(spans), **given)


def cut_to(bits: int) -> Digest:
    """Return a digest of so many bits: one that collides."""

    def digest(message: bytes) -> bytes:
        return bytes([int.from_bytes(sha256(message), "big") % 2**bits])

    return digest

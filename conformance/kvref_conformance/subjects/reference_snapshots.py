"""The reference's snapshot cache behind the suite's contract: what arguments are called here."""

from collections.abc import Sequence
from typing import Any

from kvref.memory.snapshot_cache import SnapshotCache
from kvref_conformance.subjects.reference_prefix import RequestsOfReference, namespace_of


class ReferenceSnapshotCache(RequestsOfReference):
    """`SnapshotCache`, canonical."""

    _cache: SnapshotCache

    def __init__(
        self, num_blocks: int, block_size: int, num_states: int, snapshot_interval: int, window: int = 0
    ) -> None:
        self._cache = SnapshotCache(
            num_blocks, num_states, "kvref", block_size, snapshot_interval, window=window or None
        )

    def admit(self, request: int, tokens: Sequence[int], max_new_tokens: int, **given: Any) -> Any:
        """Begin a request."""
        own = namespace_of(given)
        return self._cache.admit(request, tokens, namespace=own, max_new_tokens=max_new_tokens)

    def extend(self, request: int, tokens: Sequence[int], max_new_tokens: int, num_drafts: int = 0) -> Any:
        """Let tokens join a request."""
        return self._cache.extend(request, tokens, max_new_tokens=max_new_tokens, num_drafts=num_drafts)

    def commit(self, request: int, num_accepted: int | None = None) -> None:
        """Let a step be computed."""
        self._cache.commit(request, num_accepted=num_accepted)

    def num_free_states(self) -> int:
        """Count the state slots that can be had."""
        return self._cache.num_free_states

"""Dynamo's index over the blocks of workers: its RadixTree in Rust, fed with events.

Each block carries two hashes, that of its prefix and that of its own tokens, by which paths are matched. A
key of the contract names a whole prefix, so it stands for both. Keys are up to 64 bits.

Source: ai-dynamo-runtime 1.6.1, `dynamo._core.RadixTree`; its events are those of lib/kv-router.
"""

import json
from collections.abc import Sequence
from importlib.metadata import version
from itertools import count
from typing import Any

from kvref_conformance.claims import Claims

try:
    from dynamo._core import RadixTree
except ImportError as error:
    raise ImportError(
        "the subject dynamo_index needs Dynamo: pip install --no-deps ai-dynamo-runtime==1.6.1"
    ) from error


class Index:
    """One `RadixTree`."""

    def __init__(self, block_size: int) -> None:
        self._tree = RadixTree()
        self._ids = count()

    def store(self, worker: int, parent: str, keys: Sequence[str]) -> None:
        """`apply_event` with "stored"."""
        blocks = [{"block_hash": int(key, 16), "tokens_hash": int(key, 16)} for key in keys]
        self._apply(
            worker, {"stored": {"parent_hash": int(parent, 16) if parent else None, "blocks": blocks}}
        )

    def remove(self, worker: int, keys: Sequence[str]) -> None:
        """`apply_event` with "removed"."""
        self._apply(worker, {"removed": {"block_hashes": [int(key, 16) for key in keys]}})

    def clear(self, worker: int) -> None:
        """`clear_all_blocks`."""
        self._tree.clear_all_blocks(worker)

    def match(self, keys: Sequence[str]) -> tuple[list[int], list[int]]:
        """`find_matches`; the scores of workers, whatever their rank."""
        scores = self._tree.find_matches([int(key, 16) for key in keys]).scores
        return [worker for worker, _ in scores], list(scores.values())

    def _apply(self, worker: int, data: dict[str, Any]) -> None:
        event = {"event_id": next(self._ids), "data": data}
        self._tree.apply_event(worker, json.dumps(event).encode())


class DynamoIndex:
    """`block_index` by RadixTree."""

    claims = Claims(name="Dynamo RadixTree", version=version("ai-dynamo-runtime"))
    block_index = Index

"""Lines of KV-cache events for tests, as engines write them, and what is found in them."""

import io
import json
from typing import Any

from kvref.sanitizer.kv_event_findings import EventFinding, KVEventReport
from kvref.sanitizer.kv_event_stream import sanitize_kv_events

CLEARED = {"type": "AllBlocksCleared"}
SIZE = 2


def stored(keys: list[Any], parent: Any, tokens: list[Any], size: int = SIZE, **more: Any) -> dict[str, Any]:
    """Blocks are stored."""
    event = {"block_hashes": keys, "parent_block_hash": parent, "token_ids": tokens, "block_size": size}
    return {"type": "BlockStored", **event, "lora_id": None, "medium": "GPU", "lora_name": None, **more}


def removed(*keys: Any, **more: Any) -> dict[str, Any]:
    """Blocks are removed."""
    return {"type": "BlockRemoved", "block_hashes": list(keys), "medium": "GPU", **more}


def lookup(tokens: list[int], answer: int, **more: Any) -> dict[str, Any]:
    """The cache answered."""
    return {"lookup": {"token_ids": tokens, "num_cached_tokens": answer, **more}}


def batch(*events: Any, rank: int | None = 0) -> list[Any]:
    """A batch of events."""
    return [0.5, list(events), rank]


def numbered(seq: int, *events: Any, ts: float = 0.5, **more: Any) -> dict[str, Any]:
    """A batch with its number."""
    return {"seq": seq, "batch": [ts, list(events), 0], **more}


def dynamo(data: Any, worker: int = 1, rank: int = 0) -> dict[str, Any]:
    """An event as Dynamo's router has it."""
    return {"worker_id": worker, "event": {"event_id": 0, "data": data, "dp_rank": rank}}


def blocks(parent: int | None, *pairs: tuple[int, int]) -> dict[str, Any]:
    """Blocks are stored, as Dynamo says it: the key of each, and the hash of its tokens."""
    listed = [{"block_hash": key, "tokens_hash": tokens} for key, tokens in pairs]
    return {"stored": {"parent_hash": parent, "blocks": listed}}


def lines(*messages: Any) -> bytes:
    """Messages as lines of JSON."""
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


def judged(*messages: Any, **given: Any) -> KVEventReport:
    """What a stream shows."""
    return sanitize_kv_events(io.BytesIO(lines(*messages)), name="events.jsonl", **given)


def found(*messages: Any, **given: Any) -> list[tuple[str, int, int]]:
    """Requirement, line and event of everything that is found in a stream."""
    return [place(finding) for finding in judged(*messages, **given).findings]


def place(finding: EventFinding) -> tuple[str, int, int]:
    """Requirement, line and event of a finding."""
    return finding.requirement, finding.line, finding.event

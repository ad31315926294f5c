"""Forms of KV-cache events: what vLLM, SGLang and Dynamo write for one event, read into one kind.

An event of vLLM or SGLang is a map with its `type`, or a list of the type and of the values in the order of
`ARRAY`. One of Dynamo has its `data`. Fields that are not known are passed over, for engines add them.

Realises: KV-PREFIX-043 event-span-fits.
For porters: the named form of the three kinds is enough for today's engines.
Source: vLLM 0.32.0, vllm/distributed/kv_events.py; SGLang 0.5.23, srt/disaggregation/kv_events.py;
ai-dynamo-runtime 1.6.1.
"""

from typing import Any

from kvref.errors import HistoryError, shown
from kvref.sanitizer.kv_event_fields import (
    LARGEST,
    Name,
    extras_of,
    key_of,
    keys_of,
    name_of,
    number_of,
    text_of,
    tokens_of,
    wrong,
)
from kvref.sanitizer.kv_event_kinds import DEVICE, Cleared, Event, Lookup, Removed, Stored, Where

#: Type of an event -> the fields it has, in the order of a list.
ARRAY = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
        "locality",
        "ownership",
        "session_id",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx", "locality", "ownership"),
    "AllBlocksCleared": (),
}
#: Kinds of groups that keep only some blocks of a prefix.
SPARSE = ("sliding_window", "sliding_window_mla", "chunked_local_attention", "mamba")
#: What Dynamo calls the medium that others name or leave out.
_TIERS = {"device": DEVICE, "Device": DEVICE}
_ASKED = ("token_ids", "tokens_hashes", "block_hashes")


def event_of(raw: Any) -> Event:
    """Read an event.

    Raises: HistoryError naming the field, what was found, what was expected.
    """
    if type(raw) is list and raw and type(raw[0]) is str and raw[0] in ARRAY:
        raw = {"type": raw[0], **dict(zip(ARRAY[raw[0]], raw[1:], strict=False))}
    if type(raw) is not dict:
        raise HistoryError(f"{shown(raw)}, expected an object with its type, or a list that begins with it")
    if "lookup" in raw:
        return _lookup(_object("lookup", raw["lookup"]))
    if "data" in raw:
        return _of_dynamo(raw["data"], _optional(raw, "storage_tier"))
    kind = raw.get("type")
    if kind == "BlockStored":
        return _stored(raw)
    if kind == "BlockRemoved":
        return Removed(_where(raw), keys_of("block_hashes", _needed(raw, "block_hashes")))
    if kind == "AllBlocksCleared":
        return Cleared()
    raise HistoryError(f"type = {shown(kind)}, expected one of {', '.join(ARRAY)}")


def _stored(raw: dict[str, Any]) -> Stored:
    parent = _needed(raw, "parent_block_hash")
    tokens, width = tokens_of("token_ids", _needed(raw, "token_ids"))
    return Stored(
        where=_where(raw),
        keys=keys_of("block_hashes", _needed(raw, "block_hashes")),
        parent=None if parent is None else key_of("parent_block_hash", parent),
        size=number_of("block_size", _needed(raw, "block_size"), 0, LARGEST),
        tokens=tokens,
        width=width,
        adapter=_adapter(raw),
        salt=_optional(raw, "cache_salt"),
        extras=extras_of("extra_keys", raw.get("extra_keys")),
        sparse=_optional(raw, "kv_cache_spec_kind") in SPARSE,
    )


def _of_dynamo(data: Any, tier: str | None) -> Event:
    """Read an event of Dynamo, which tells a hash of the tokens of each block, and not the tokens."""
    if data == "cleared" or (type(data) is dict and "cleared" in data):
        return Cleared()
    where = Where(DEVICE if tier is None else _TIERS.get(tier, tier))
    if type(data) is dict and "removed" in data:
        removed = _object("removed", data["removed"])
        return Removed(where, keys_of("removed.block_hashes", _needed(removed, "block_hashes")))
    if type(data) is not dict or "stored" not in data:
        raise wrong("data", data, 'an object with stored or removed, or "cleared"')
    stored = _object("stored", data["stored"])
    parent, blocks = stored.get("parent_hash"), _needed(stored, "blocks")
    if type(blocks) is not list or not all(type(each) is dict for each in blocks):
        raise wrong("stored.blocks", blocks, "a list of objects")
    return Stored(
        where=where,
        keys=keys_of("block_hash", [_needed(each, "block_hash") for each in blocks]),
        parent=None if parent is None else key_of("stored.parent_hash", parent),
        size=0,
        tokens=[],
        hashes=keys_of("tokens_hash", [_needed(each, "tokens_hash") for each in blocks]),
    )


def _lookup(raw: dict[str, Any]) -> Lookup:
    """Read what the cache answered, the form of which is ours."""
    asked = [name for name in _ASKED if raw.get(name) is not None]
    if len(asked) != 1:
        raise HistoryError(f"a lookup of {asked}, expected one of {', '.join(_ASKED)}")
    by_tokens = asked == ["token_ids"]
    answer = "num_cached_tokens" if by_tokens else "num_cached_blocks"
    where, limit = _where(raw), raw.get("limit")
    lookup = Lookup(
        medium=where.medium,
        group=None if raw.get("group_idx") is None else where.group,
        answer=number_of(answer, _needed(raw, answer)),
        adapter=_adapter(raw),
        salt=_optional(raw, "cache_salt"),
        extras=extras_of("extra_keys", raw.get("extra_keys")),
        limit=None if limit is None else number_of("limit", limit),
    )
    if by_tokens:
        lookup.tokens, lookup.width = tokens_of("token_ids", raw["token_ids"])
    elif asked == ["block_hashes"]:
        lookup.keys = keys_of("block_hashes", raw["block_hashes"])
    else:
        lookup.hashes = keys_of("tokens_hashes", raw["tokens_hashes"])
    return lookup


def _where(raw: dict[str, Any]) -> Where:
    """Return where the blocks of an event lie; a tier that is named more closely is a medium of its own."""
    group = raw.get("group_idx")
    number = 0 if group is None else number_of("group_idx", group, 0, LARGEST)
    if raw.get("medium") == DEVICE and "locality" not in raw and "ownership" not in raw:
        return Where(DEVICE, number)
    medium, *closer = (_optional(raw, field) for field in ("medium", "locality", "ownership"))
    return Where("/".join([medium or DEVICE, *filter(None, closer)]), number)


def _adapter(raw: dict[str, Any]) -> Name | None:
    for field in ("lora_name", "lora_id"):
        if raw.get(field) is not None:
            return name_of(field, raw[field])
    return None


def _optional(raw: dict[str, Any], field: str) -> str | None:
    value = raw.get(field)
    return None if value is None or value == "" else text_of(field, value)


def _needed(raw: dict[str, Any], field: str) -> Any:
    if field not in raw:
        raise HistoryError(f"no field {field} in {shown(raw.get('type', sorted(map(str, raw))))}")
    return raw[field]


def _object(field: str, value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise wrong(field, value, "an object")
    return value

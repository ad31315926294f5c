"""KV-cache events: what vLLM, SGLang and Dynamo publish about their caches, read into one form.

A message is one of

    [ts, [event, …], rank]                          a batch of vLLM or SGLang, as msgspec writes it
    {"events": [event, …], "data_parallel_rank": n} the same with names
    {"batch": …, "worker": name, "seq": n}          a batch that whoever recorded it has numbered
    {"type": "BlockStored", …}                      an event alone
    {"event_id": n, "data": {…}, "dp_rank": n}      an event of Dynamo
    {"worker_id": n, "event": {"event_id": …}}      the same as its router has it
    {"lookup": {…}}                                 what the cache answered, for the mirror to be held to

and an event is a map with its `type`, or a list of the type and the values in the order of `ARRAY`. Fields
that are not known are passed over, for engines add them.

Realises: KV-PREFIX-043 event-span-fits, KV-PREFIX-046 mirror-equals.
For porters: read `BlockStored`, `BlockRemoved` and `AllBlocksCleared` in their named form first.
Source: vLLM, vllm/distributed/kv_events.py; SGLang, srt/disaggregation/kv_events.py; ai-dynamo-runtime 1.6.1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvref.errors import HistoryError
from kvref.memory.history import shown
from kvref.sanitizer.kv_event_fields import (
    Extra,
    Key,
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

#: Fields of an event that is written as a list: its type, then these.
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
#: The medium of events that name none: the cache of the device.
DEVICE = "GPU"
#: Kinds of groups in which every block before a hit must be there; others keep only some.
WHOLE = ("full_attention", "mla_attention", "mla")
_LARGEST = 1 << 31


class Source(NamedTuple):
    """Who publishes: a worker by name, and which of its ranks."""

    worker: Name = ""
    rank: int | None = None


class Where(NamedTuple):
    """Where in a worker blocks lie: the medium, and the group of layers."""

    medium: str = DEVICE
    group: int = 0


@dataclass(slots=True)
class Stored:
    """Blocks that are there from now on, each behind the one before it."""

    where: Where
    keys: list[Key]
    parent: Key | None
    size: int
    tokens: list[int]
    """Integers, `width` a token."""
    width: int = 1
    adapter: Name | None = None
    salt: str | None = None
    extras: list[Extra | None] | None = None
    hashes: list[Key] | None = None
    """What names the tokens of each block, where an engine does not tell them."""
    window: bool = False
    """Whether the group keeps only some of the blocks of a prefix."""


@dataclass(slots=True)
class Removed:
    """Blocks that are gone."""

    where: Where
    keys: list[Key]


@dataclass(slots=True)
class Cleared:
    """Everything is gone."""


@dataclass(slots=True)
class Lookup:
    """What the cache answered when it was asked for a prefix."""

    medium: str
    group: int | None
    """The group that was asked, None for all of them."""
    answer: int
    """Tokens, or blocks where keys were asked for."""
    tokens: list[int] | None = None
    width: int = 1
    keys: list[Key] | None = None
    hashes: list[Key] | None = None
    adapter: Name | None = None
    salt: str | None = None
    extras: list[Extra | None] | None = None
    limit: int | None = None
    """The most tokens that the answer may be; None for all but the last."""


Event = Stored | Removed | Cleared | Lookup


@dataclass(slots=True)
class Message:
    """One message: who sent it, its number among theirs, and what it tells."""

    source: Source
    seq: int | None
    time: float | None
    events: list[Any]

    def read(self) -> Iterator[tuple[int, Event]]:
        """Read its events, each with its number from 1.

        Raises: HistoryError.
        """
        for number, raw in enumerate(self.events, 1):
            try:
                yield number, event_of(raw)
            except HistoryError as error:
                raise HistoryError(f"event {number}: {error}") from None


def message_of(raw: Any) -> Message:
    """Read a message; its events are read one by one, later.

    Raises: HistoryError.
    """
    if type(raw) is list:
        return _batch(raw, "", None)
    if type(raw) is not dict:
        raise HistoryError(f"the line holds {shown(raw)}, expected a batch of events, or a lookup")
    worker = name_of("worker", raw.get("worker", ""))
    if "batch" in raw:
        seq = raw.get("seq")
        return _batch(raw["batch"], worker, None if seq is None else number_of("seq", seq))
    if "events" in raw:
        seq = raw.get("seq")
        return _batch(raw, worker, None if seq is None else number_of("seq", seq))
    if "worker_id" in raw:
        return _of_dynamo(raw.get("event"), name_of("worker_id", raw["worker_id"]), raw.get("storage_tier"))
    if "data" in raw:
        return _of_dynamo(raw, worker, None)
    if "lookup" in raw or "type" in raw:
        return Message(Source(worker, _rank(raw)), None, None, [raw])
    names = shown([name for name in raw if isinstance(name, str)])
    raise HistoryError(f"an object with {names}, expected one with batch, events, type, data or lookup")


def event_of(raw: Any) -> Event:
    """Read an event.

    Raises: HistoryError naming the field, what was found, what was expected.
    """
    if isinstance(raw, Stored | Removed | Cleared):  # Dynamo's, which are read with their message
        return raw
    if type(raw) is list and raw and type(raw[0]) is str and raw[0] in ARRAY:
        raw = {"type": raw[0], **dict(zip(ARRAY[raw[0]], raw[1:], strict=False))}
    if type(raw) is not dict:
        raise HistoryError(f"{shown(raw)}, expected an object with its type, or a list that begins with it")
    if "lookup" in raw:
        return _lookup(raw["lookup"])
    kind = raw.get("type")
    if kind == "BlockStored":
        return _stored(raw)
    if kind == "BlockRemoved":
        return Removed(_where(raw), keys_of("block_hashes", _needed(raw, "block_hashes")))
    if kind == "AllBlocksCleared":
        return Cleared()
    raise HistoryError(f"type = {shown(kind)}, expected one of {', '.join(ARRAY)}")


def _batch(raw: Any, worker: Name, seq: int | None) -> Message:
    if type(raw) is dict:
        time, events, rank = raw.get("ts"), raw.get("events"), _rank(raw)
    elif type(raw) is list and len(raw) >= 2:
        time, events, rank = raw[0], raw[1], _rank({"rank": raw[2] if len(raw) > 2 else None})
    else:
        raise HistoryError(f"a batch of {shown(raw)}, expected [ts, events, rank]")
    if time is not None and type(time) not in (int, float):
        raise wrong("ts", time, "a number of seconds")
    if type(events) is not list:
        raise wrong("events", events, "a list of events")
    return Message(Source(worker, rank), seq, time, events)


def _rank(raw: dict[str, Any]) -> int | None:
    for name in ("data_parallel_rank", "attn_dp_rank", "dp_rank", "rank"):
        if raw.get(name) is not None:
            return number_of(name, raw[name], 0, _LARGEST)
    return None


def _needed(raw: dict[str, Any], field: str) -> Any:
    if field not in raw:
        raise HistoryError(f"no field {field}, expected it in {shown(raw.get('type', 'data'))}")
    return raw[field]


def _where(raw: dict[str, Any]) -> Where:
    """Return where the blocks of an event lie; a tier that is named more closely is a medium of its own."""
    named = [text_of(f, raw[f]) for f in ("medium", "locality", "ownership") if raw.get(f) is not None]
    group = raw.get("group_idx")
    if raw.get("medium") is None:
        named.insert(0, DEVICE)
    return Where("/".join(named), 0 if group is None else number_of("group_idx", group, 0, _LARGEST))


def _adapter(raw: dict[str, Any]) -> Name | None:
    for field in ("lora_name", "lora_id"):
        if raw.get(field) is not None:
            return name_of(field, raw[field])
    return None


def _optional_text(raw: dict[str, Any], field: str) -> str | None:
    value = raw.get(field)
    return text_of(field, value) if value not in (None, "") else None


def _stored(raw: dict[str, Any]) -> Stored:
    parent, kind = _needed(raw, "parent_block_hash"), _optional_text(raw, "kv_cache_spec_kind")
    tokens, width = tokens_of("token_ids", _needed(raw, "token_ids"))
    return Stored(
        where=_where(raw),
        keys=keys_of("block_hashes", _needed(raw, "block_hashes")),
        parent=None if parent is None else key_of("parent_block_hash", parent),
        size=number_of("block_size", _needed(raw, "block_size"), 0, _LARGEST),
        tokens=tokens,
        width=width,
        adapter=_adapter(raw),
        salt=_optional_text(raw, "cache_salt"),
        extras=extras_of("extra_keys", raw.get("extra_keys")),
        window=kind is not None and kind not in WHOLE,
    )

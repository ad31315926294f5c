"""The events of a history and their fields, as data: what a line may say.

Every field has one kind wherever it stands. `KINDS` says what a kind may hold and tests it, `FIELDS` what a
field says, `EVENTS` which fields an event has. The chapter on memory has the last two, in the same words.

Realises: KV-BLOCK-042 history-wellformed.
For porters: a writer of histories needs the names alone; a reader tests before it acts.
Source: the operations of vLLM's and SGLang's block managers, reduced to what decides who owns which slot.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kvref.memory.namespace import KINDS as SPAN_KINDS

SCHEMA = "kvref-history/1"

Test = Callable[[Any], bool]

#: The largest count, position, token id and block id.
LARGEST = (1 << 31) - 1
_TEXT = 256
_INT, _NAMES = frozenset({int}), frozenset({int, str})


@dataclass(frozen=True)
class Kind:
    """What a field may hold: how errors and the spec say it, and the test."""

    expected: str
    holds: Test


@dataclass(frozen=True)
class Fields:
    """The fields of one event; lists named in `parallel` have one item for each request or key."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    summary: str
    parallel: tuple[str, ...] = ()


def _integers(low: int, high: int) -> Test:
    def holds(value: Any) -> bool:
        if type(value) is not list:
            return False
        return not value or (_INT.issuperset(map(type, value)) and low <= min(value) and max(value) <= high)

    return holds


def _integer(low: int, high: int) -> Test:
    return lambda value: type(value) is int and low <= value <= high


def _named(*names: str) -> Test:
    return lambda value: type(value) is str and value in names


def _text(value: Any) -> bool:
    if type(value) is not str or len(value) > _TEXT:
        return False
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


def _name(value: Any) -> bool:
    return 0 <= value < 1 << 63 if type(value) is int else (value != "" and _text(value))


def _names(value: Any) -> bool:
    if type(value) is not list or not _NAMES.issuperset(map(type, value)):
        return False
    return _NATURAL(value) if _INT.issuperset(map(type, value)) else all(map(_name, value))


def _runs(value: Any) -> bool:
    if type(value) is not list:
        return False
    return _BLOCKS(value) or all(map(_id_or_run, value))


def _id_or_run(item: Any) -> bool:
    if type(item) is int:
        return -1 <= item <= LARGEST
    return _COUNTS(item) and len(item) == 2 and item[1] > 0 and sum(item) - 1 <= LARGEST


def _windows(value: Any) -> bool:
    return type(value) is list and all(item is None or _SIZE(item) for item in value)


def _tiers(value: Any) -> bool:
    return type(value) is dict and all(_text(name) and _SIZE(size) for name, size in value.items())


def _spans(value: Any) -> bool:
    return type(value) is list and all(map(_span, value))


def _span(item: Any) -> bool:
    if type(item) is not dict or item.keys() != {"kind", "digest", "offset", "length"}:
        return False
    named = _named(*SPAN_KINDS)(item["kind"]) and _text(item["digest"]) and item["digest"] != ""
    return named and _COUNT(item["offset"]) and _SIZE(item["length"])


_COUNT, _SIZE = _integer(0, LARGEST), _integer(1, LARGEST)
_COUNTS, _BLOCKS, _NATURAL = _integers(0, LARGEST), _integers(-1, LARGEST), _integers(0, (1 << 63) - 1)

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "count": Kind("an integer from 0 to 2^31 - 1", _COUNT),
        "size": Kind("an integer from 1 to 2^31 - 1", _SIZE),
        "counts": Kind("a list of integers from 0 to 2^31 - 1", _COUNTS),
        "sizes": Kind("a list of integers from 1 to 2^31 - 1", _integers(1, LARGEST)),
        "blocks": Kind("a list of ids from 0 to 2^31 - 1, runs [first, count], and -1 for none", _runs),
        "name": Kind("an integer from 0 to 2^63 - 1, or a text of 1 to 256 characters", _name),
        "names": Kind("a list of integers from 0 to 2^63 - 1 and texts of 1 to 256 characters", _names),
        "text": Kind("a text of at most 256 characters", _text),
        "flag": Kind("true or false", lambda value: type(value) is bool),
        "windows": Kind("a list of integers from 1 to 2^31 - 1 and nulls", _windows),
        "tiers": Kind("an object of names and integers from 1 to 2^31 - 1", _tiers),
        "spans": Kind("a list of objects with kind, digest, offset and length", _spans),
        "schema": Kind(f'"{SCHEMA}"', _named(SCHEMA)),
        "publish": Kind('"computed" or "scheduled"', _named("computed", "scheduled")),
        "transfer": Kind('"send" or "receive"', _named("send", "receive")),
    }
)

#: Field -> its kind and what it says.
FIELDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "schema": ("schema", "names this format"),
        "num_blocks": ("size", "blocks of the pool; ids are 0 to num_blocks - 1"),
        "block_size": ("size", "tokens of a block"),
        "block_sizes": ("sizes", "tokens of a block for each group, instead of block_size"),
        "windows": (
            "windows",
            "for each group, how many tokens a token attends to, its own counted; null: all",
        ),
        "null_block": ("flag", "whether block 0 is set aside; false if left out"),
        "publish": ("publish", "when blocks become findable; computed if left out"),
        "ahead": ("count", "tokens that a step may compute before the history names them; 0 if left out"),
        "max_wait": ("size", "steps a request may wait while others compute; not held if left out"),
        "tiers": ("tiers", "for each tier, how many blocks it holds"),
        "writer": ("text", "who wrote the history"),
        "request": ("name", "a request"),
        "parent": ("name", "the request that is forked"),
        "requests": ("names", "the requests of a batch"),
        "tokens": ("counts", "token ids, in order; one a request where there are requests"),
        "model": ("text", "model and revision; empty if left out"),
        "adapter": ("text", "the adapter's name; empty if left out"),
        "adapter_version": ("text", "its version; empty if left out"),
        "salt": ("text", "the tenant's salt; empty if left out"),
        "spans": ("spans", "rows of other content that stand in place of tokens; none if left out"),
        "count": ("count", "tokens, or slots of one block; never blocks"),
        "counts": ("counts", "tokens, one number a request"),
        "start": ("count", "the position of the first token; 0 if left out"),
        "starts": ("counts", "the positions of the first tokens, one a request"),
        "blocks": ("blocks", "block ids, in the order of the table"),
        "slots": ("blocks", "slots, block id x block size + offset, one a token"),
        "group": ("count", "the group of a table; 0 if left out"),
        "index": ("count", "the first entry of a table that changes, counted in blocks"),
        "source": ("count", "the block that is copied"),
        "target": ("count", "the block that is written"),
        "snapshot": ("name", "a place for one recurrent state"),
        "snapshots": ("names", "places for recurrent states"),
        "tier": ("text", "the name of a tier"),
        "keys": ("names", "places in a tier, one a block"),
        "step": ("name", "a step of the engine"),
        "transfer": ("name", "a transfer of blocks"),
        "kind": ("transfer", "which way a transfer goes"),
        "failed": ("flag", "whether a transfer failed; false if left out"),
        "num_free": ("count", "blocks the engine counts as free, cached ones included"),
    }
)

_SPACE = ("model", "adapter", "adapter_version", "salt", "spans")

#: Event -> its fields and what it says.
EVENTS: Mapping[str, Fields] = MappingProxyType(
    {
        "open": Fields(
            ("schema", "num_blocks"),
            (
                "block_size",
                "block_sizes",
                "windows",
                "null_block",
                "publish",
                "ahead",
                "max_wait",
                "tiers",
                "writer",
            ),
            "the first line: a pool of blocks, all free",
        ),
        "request": Fields(("request", "tokens"), _SPACE, "a request arrives with its prompt and namespace"),
        "tokens": Fields(
            ("request", "tokens"), (), "tokens join a request: decoded, drafted, or more of its prompt"
        ),
        "decode": Fields(("requests", "tokens"), (), "one token joins each request", ("requests", "tokens")),
        "truncate": Fields(
            ("request", "count"), (), "a request keeps its first tokens: drafts were rejected"
        ),
        "fork": Fields(
            ("request", "parent"), (), "a request begins with the tokens and all blocks of another"
        ),
        "preempt": Fields(
            ("request",), (), "a request goes back to waiting; what it computed counts no more"
        ),
        "finish": Fields(
            ("request",), (), "a request has all its tokens; it keeps its blocks until they are freed"
        ),
        "abort": Fields(
            ("request",), (), "a request ends before that; it keeps its blocks until they are freed"
        ),
        "allocate": Fields(("request", "blocks"), ("group",), "free blocks join the end of a table"),
        "free": Fields(("request",), ("blocks",), "a request lets go of blocks: those named, or all it has"),
        "pin": Fields(("blocks",), (), "blocks are kept from being free, whoever lets go of them"),
        "unpin": Fields(("blocks",), (), "one pin of each block is taken back"),
        "copy": Fields(
            ("source", "target", "count"),
            ("request", "group"),
            "the first slots of a block are copied; in the request's table the target replaces the source",
        ),
        "replace": Fields(
            ("request", "index", "blocks"),
            ("group",),
            "entries of a table become other blocks; the old are let go",
        ),
        "compute": Fields(
            ("requests", "starts", "counts"),
            ("step",),
            "a step writes tokens of each request, then reads all that they attend to",
            ("requests", "starts", "counts"),
        ),
        "write": Fields(
            ("request", "start", "count"),
            ("blocks", "slots", "step"),
            "tokens are computed and written; into the blocks or slots that are named, if not by the table",
        ),
        "read": Fields(
            ("request", "start", "count"),
            ("blocks",),
            "tokens are read by attention; from the blocks that are named, if not by the table",
        ),
        "publish": Fields(("blocks",), ("request", "count"), "blocks can be found by others from now on"),
        "evict": Fields((), ("blocks", "snapshots"), "blocks and states can no longer be found"),
        "hit": Fields(
            ("request", "count", "blocks"),
            ("start", "group"),
            "published blocks join a table and count as computed",
        ),
        "reset": Fields((), (), "nothing that was published can be found any more"),
        "discard": Fields(
            (), ("blocks",), "what blocks hold is lost: zeroed, or all of the pool put to sleep"
        ),
        "snapshot": Fields(("request", "snapshot", "count"), (), "the state after the first tokens is kept"),
        "restore": Fields(
            ("request", "snapshot"), (), "a state that was kept becomes the state of a request"
        ),
        "store": Fields(("tier", "keys", "blocks"), (), "what blocks hold is kept in a tier"),
        "load": Fields(
            ("tier", "keys", "blocks"),
            ("request", "count"),
            "blocks hold what was stored; the request's first tokens count as computed",
        ),
        "drop": Fields(("tier", "keys"), (), "places of a tier are given up"),
        "begin": Fields(
            (),
            ("step", "transfer", "kind", "request", "start", "count", "blocks"),
            "a step begins, or a transfer of blocks, of a request's tokens where they are named",
        ),
        "end": Fields((), ("step", "transfer", "failed", "num_free"), "a step ends, or a transfer"),
        "close": Fields((), ("num_free",), "the last line: whatever nobody needs has been let go"),
    }
)

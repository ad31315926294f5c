"""Streams of KV-cache events as they are written: every form, JSON or msgpack, plain or gzip; bad ones."""

import base64
import builtins
import gzip
import io
import json
from typing import Any

import pytest
from histories import stubborn
from kv_event_lines import CLEARED, batch, blocks, dynamo, judged, lines, removed, stored

from kvref.errors import HistoryError
from kvref.sanitizer.kv_event_files import MAX_MESSAGE, Reading
from kvref.sanitizer.kv_event_forms import event_of
from kvref.sanitizer.kv_event_kinds import Cleared, Event, Removed, Source, Stored, Where
from kvref.sanitizer.kv_event_stream import sanitize_kv_events
from kvref.sanitizer.kv_events import message_of, read_messages
from kvref.sanitizer.lines import MAX_LINE, fastest, standard

STORED = stored([1, 2], None, [5, 6, 7, 8])
PARSERS = list(dict.fromkeys([standard, fastest()]))


def read(data: bytes) -> list[tuple[Source, Event]]:
    """Every event of some bytes, with whoever published it."""
    messages = read_messages(io.BytesIO(data), Reading("events.jsonl"))
    return [(message.source, event) for message in messages for _, event in message.read()]


def refusal(data: bytes, **given: Any) -> str:
    """What is said of bytes that are no stream of events."""
    with pytest.raises(HistoryError) as error:
        sanitize_kv_events(io.BytesIO(data), name="events.jsonl", **given)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400
    return str(error.value)


# --- forms


@pytest.mark.parametrize(
    "message",
    [
        [1.5, [STORED], 0],
        [1.5, [STORED], 0, "whatever comes later"],
        {"ts": 1.5, "events": [STORED], "data_parallel_rank": 0},
        {"events": [STORED], "attn_dp_rank": 0},
        {"batch": [1, [STORED], 0]},
        {"batch": {"events": [STORED], "rank": 0}, "seq": 0},
        {"worker": "", "seq": 0, "ts": 1, "events": [STORED], "data_parallel_rank": 0},
        {**STORED, "data_parallel_rank": 0},
        [1.5, [["BlockStored", [1, 2], None, [5, 6, 7, 8], 2, None, "GPU"]], 0],
        [1.5, [["BlockStored", [1, 2], None, [5, 6, 7, 8], 2]], 0],
        [1.5, [{**STORED, "some_new_field": {"of": ["the", "engine"]}}], 0],
    ],
)
def test_every_form_says_the_same(message: Any) -> None:
    """Batches and events with names or without are one thing."""
    [(source, event)] = read(lines(message))
    assert source == Source("", 0)
    assert event == Stored(Where("GPU", 0), [1, 2], None, 2, [5, 6, 7, 8])


def test_fields_of_the_engines_are_read() -> None:
    """What vLLM and SGLang tell beside tokens."""
    vllm = stored([1], 7, [5, 6], lora_name="a", lora_id=3, extra_keys=[["a", ["image", -1]]], group_idx=2)
    event = event_of({**vllm, "kv_cache_spec_kind": "sliding_window", "medium": "CPU", "locality": "LOCAL"})
    assert isinstance(event, Stored)
    assert (event.where, event.parent, event.adapter) == (Where("CPU/LOCAL", 2), 7, "a")
    assert (event.extras, event.sparse) == ([("a", ("image", -1))], True)
    sglang = event_of(stored([-1], None, [[5, 6], [6, 7]], cache_salt="t", lora_id=3))
    assert isinstance(sglang, Stored)
    assert (sglang.tokens, sglang.width, sglang.salt, sglang.adapter) == ([5, 6, 6, 7], 2, "t", 3)
    assert event_of(removed(1, medium=None)) == Removed(Where(), [1])
    assert event_of(["BlockRemoved", [1], "CPU", 1]) == Removed(Where("CPU", 1), [1])
    assert event_of(["AllBlocksCleared"]) == Cleared()


def test_events_of_dynamo_are_read() -> None:
    """By themselves, and as its router has them, which names worker and tier."""
    alone = {"event_id": 3, "data": blocks(None, (1, 7), (2, 8)), "dp_rank": 1}
    expected = Stored(Where(), [1, 2], None, 0, [], hashes=[7, 8])
    assert read(lines(alone)) == [(Source("", 1), expected)]
    assert read(lines(dynamo(blocks(None, (1, 7), (2, 8)), 5, 1))) == [(Source(5, 1), expected)]
    tiers = [
        {**dynamo({"removed": {"block_hashes": [1]}}), "storage_tier": t} for t in ("device", "host_pinned")
    ]
    assert [event for _, event in read(lines(*tiers))] == [
        Removed(Where(), [1]),
        Removed(Where("host_pinned"), [1]),
    ]
    assert [event for _, event in read(lines(dynamo("cleared"), dynamo({"cleared": None})))] == [
        Cleared()
    ] * 2


@pytest.mark.parametrize("spell", [bytes.hex, lambda raw: base64.b64encode(raw).decode(), str.upper])
def test_hashes_are_the_same_however_they_are_spelled(spell: Any) -> None:
    """Hex, of either case, and base64 are bytes; one stream may have both."""
    raw = bytes(range(200, 232))
    text = spell(raw.hex()) if spell is str.upper else spell(raw)
    event = event_of(removed(text))
    assert isinstance(event, Removed)
    assert event.keys == [raw]
    assert judged(stored([raw.hex()], None, [1, 2]), removed(text)).findings == []


def test_text_that_is_neither_is_a_key_too() -> None:
    """Whatever engines call their blocks."""
    event = event_of(removed("block-1", "über", -(1 << 63), (1 << 64) - 1))
    assert isinstance(event, Removed)
    assert event.keys == ["block-1", "über", -(1 << 63), (1 << 64) - 1]


# --- files


def packed(*messages: Any) -> bytes:
    """Messages in msgpack."""
    msgpack = pytest.importorskip("msgpack")
    return b"".join(msgpack.packb(message) for message in messages)


MESSAGES = [batch(STORED), {"seq": 0, "batch": batch(stored([3], 2, [9, 9]), rank=1)}, CLEARED]


def test_msgpack_and_gzip_say_the_same() -> None:
    """A stream may be packed, zipped, or both; empty lines are left out."""
    plain, dense = lines(*MESSAGES), packed(*MESSAGES)
    expected = read(plain)
    assert len(expected) == 3
    for data in (b"\n \r\n" + plain.replace(b"\n", b"\r\n"), plain[:-1], dense):
        assert read(data) == expected
        assert read(gzip.compress(data)) == expected
        assert read(gzip.compress(data[:9]) + gzip.compress(data[9:])) == expected
    assert read(b"") == []


def test_msgpack_has_bytes() -> None:
    """The keys of vLLM come as they are, and messages count instead of lines."""
    raw = bytes(range(32))
    report = sanitize_kv_events(
        io.BytesIO(packed(batch(stored([raw], None, [1, 2])), batch(removed(raw, raw))))
    )
    assert [(f.requirement, f.line, f.event, f.unit) for f in report.findings] == [
        ("KV-PREFIX-042", 2, 1, "message")
    ]
    assert "message 2, event 1: rank 0: key 0001020304050607… is removed" in report.findings[0].told()


def test_a_wrapper_needs_no_library() -> None:
    """A subscriber numbers a batch with a few bytes in front of what it received."""
    payload = packed(batch(STORED))
    head = b"\x82\xa3seq\xcf" + (5).to_bytes(8, "big") + b"\xa5batch"
    [message] = read_messages(io.BytesIO(head + payload), Reading("events"))
    assert (message.seq, message.source) == (5, Source("", 0))


def test_msgpack_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON needs nothing, and whoever has msgpack learns what to install."""
    data, original = packed(batch(STORED)), builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name == "msgpack":
            raise ImportError(name)
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert refusal(data).endswith(
        "message 1: this is msgpack, whose reader is extra: pip install kvref[msgpack]"
    )


# --- bad input

#: A line -> what is said of it after "events.jsonl:2: ".
BAD_LINES: dict[bytes, str] = {
    b"nonsense": "no JSON: ",
    b"{": "no JSON: ",
    b"{} x": "no JSON: ",
    b'{"type": NaN}': "no JSON: ",
    b"\xef\xbb\xbf[]": "no JSON: ",
    b'{"worker":"\xff"}': "no JSON: ",
    b"[" * 100_000: "no JSON: ",
    b'{"batch":' * 100_000: "no JSON: ",
    b"[1" + b"0" * 5000 + b",[],0]": "",
    b"7": "7, expected a batch of events, an event or a lookup",
    b"null": "None, expected a batch of events, an event or a lookup",
    b"[]": "a batch of [], expected [ts, events, rank]",
    b"{}": "an object with [], expected one with batch, events, type, data or lookup",
    b'{"event":"reset"}': "an object with ['event'], expected one with batch, events, type, data or lookup",
    b'["now",[],0]': "ts = 'now', expected a number of seconds",
    b"[1,{},0]": "events = {}, expected a list of events",
    b"[1,[],-1]": "rank = -1, expected an integer from 0 to 2147483647",
    b'[1,[],"0"]': "rank = '0', expected an integer from 0 to 2147483647",
    b'{"batch":7}': "a batch of 7, expected [ts, events, rank]",
    b'{"seq":-1,"batch":[1,[]]}': "seq = -1, expected an integer from 0 to",
    b'{"seq":true,"batch":[1,[]]}': "seq = True, expected an integer from 0 to",
    b'{"worker":[],"events":[]}': "worker = [], expected a text of at most 256 characters",
    b'{"worker_id":1,"event":[]}': "event = [], expected an object with event_id and data",
    b'{"type":"BlockStored","type":"BlockStored"}': "the field 'type' comes twice, expected once",
    b"[1,[7],0]": "event 1: 7, expected an object with its type, or a list that begins with it",
    b"[1,[[]],0]": "event 1: [], expected an object with its type",
    b'[1,[["BlockMoved"]],0]': "event 1: ['BlockMoved'], expected an object with its type",
    b'[1,[["AllBlocksCleared"],{"type":"BlockMoved"}],0]': "event 2: type = 'BlockMoved', expected",
    b'[1,[["BlockStored",[1]]],0]': "event 1: no field parent_block_hash in 'BlockStored'",
    b'{"type":"BlockRemoved"}': "event 1: no field block_hashes in 'BlockRemoved'",
    b'{"type":"BlockRemoved","block_hashes":7}': "event 1: block_hashes = 7, expected a list of keys",
    b'{"data":7}': "event 1: data = 7, expected an object with stored or removed, or \"cleared\"",
    b'{"data":{"stored":[]}}': "event 1: stored = [], expected an object",
    b'{"data":{"stored":{}}}': "event 1: no field blocks in ",
    b'{"data":{"stored":{"blocks":[7]}}}': "event 1: stored.blocks = [7], expected a list of objects",
    b'{"data":{"stored":{"blocks":[{"block_hash":1}]}}}': "event 1: no field tokens_hash in ",
    b'{"data":{"removed":{}}}': "event 1: no field block_hashes in ",
    b'{"lookup":7}': "event 1: lookup = 7, expected an object",
    b'{"lookup":{}}': "event 1: a lookup of [], expected one of token_ids, tokens_hashes, block_hashes",
    b'{"lookup":{"token_ids":[1]}}': "event 1: no field num_cached_tokens in ",
    b'{"lookup":{"token_ids":[1],"num_cached_tokens":-1}}': "event 1: num_cached_tokens = -1, expected",
    b'{"lookup":{"block_hashes":[1],"num_cached_tokens":1}}': "event 1: no field num_cached_blocks in ",
    b'{"lookup":{"block_hashes":[1],"token_ids":[1]}}': "event 1: a lookup of ['token_ids', 'block",
}  # fmt: skip


@pytest.mark.parametrize("loads", PARSERS)
@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:40].decode("latin-1"))
def test_malformed_line_is_named(line: bytes, loads: Any) -> None:
    """By file, line, event and field, with what was expected."""
    said = refusal(lines(CLEARED) + line, loads=loads)
    assert said.startswith("events.jsonl:2: " + BAD_LINES[line])
    assert refusal(lines(CLEARED) + b"  \n" + line, loads=stubborn) == said.replace(":2:", ":3:", 1)


KEYS = "an integer from -2^63 to 2^64 - 1, or text or bytes, 1 to 256 of them"
#: A field of a stored event, a value it may not have -> what is expected of it.
BAD_FIELDS: list[tuple[str, Any, str]] = [
    ("block_hashes", [1.5], KEYS),
    ("block_hashes", [True], KEYS),
    ("block_hashes", [None], KEYS),
    ("block_hashes", [1, 1 << 64], KEYS),
    ("block_hashes", [-(1 << 63) - 1], KEYS),
    ("block_hashes", [""], KEYS),
    ("block_hashes", ["x" * 257], KEYS),
    ("block_hashes", ["\ud800"], KEYS),
    ("block_hashes", {"1": 2}, "a list of keys"),
    ("parent_block_hash", [], KEYS),
    ("parent_block_hash", 1 << 70, KEYS),
    ("token_ids", None, "a list of integers"),
    ("token_ids", "5678", "a list of integers"),
    ("token_ids", [1, 2.0], "a list of integers"),
    ("token_ids", [1, False], "a list of integers"),
    ("token_ids", [1 << 63], "a list of integers"),
    ("token_ids", [[1, 2], 3], "a list of integers"),
    ("token_ids", [[1, 2], [3]], "a list of integers"),
    ("token_ids", [[[1]], [[2]]], "a list of integers"),
    ("block_size", -1, "an integer from 0 to 2147483647"),
    ("block_size", 1 << 40, "an integer from 0 to 2147483647"),
    ("block_size", 2.0, "an integer from 0 to 2147483647"),
    ("group_idx", -1, "an integer from 0 to 2147483647"),
    ("medium", 7, "a text of at most 256 characters"),
    ("lora_name", {}, "a text of at most 256 characters"),
    ("cache_salt", 7, "a text of at most 256 characters"),
    ("extra_keys", 7, "a list with null or a list for each block"),
    ("extra_keys", [7], "null, or at most 1024 texts, integers and pairs, a block"),
    ("extra_keys", [[[[1]]]], "a text of at most 256 characters"),
    ("extra_keys", [[1.5]], "a text of at most 256 characters"),
    ("extra_keys", [[0] * 1025], "null, or at most 1024 texts, integers and pairs, a block"),
]


@pytest.mark.parametrize(("field", "value", "expected"), BAD_FIELDS)
def test_malformed_field_is_named(field: str, value: Any, expected: str) -> None:
    """With what was found, however large it is."""
    said = refusal(lines(CLEARED, batch(CLEARED, {**STORED, field: value})), loads=standard)
    assert said.startswith(f"events.jsonl:2: event 2: {field} = ")
    assert f", expected {expected}" in said
    spelled = lines(CLEARED, batch(CLEARED, {**STORED, field: value}))
    assert {refusal(spelled, loads=loads) for loads in (*PARSERS, stubborn)} == {said}


@pytest.mark.parametrize("data", [b"", b"\n \n", gzip.compress(b"")], ids=["empty", "blank", "packed"])
def test_a_stream_of_nothing_is_no_stream(data: bytes) -> None:
    """A recorder that heard nothing has shown nothing."""
    assert refusal(data) == "events.jsonl:1: no message, expected a batch of events, an event or a lookup"


def test_broken_files_are_named() -> None:
    """A stream that ends inside a message or a gzip member, and one that is longer than memory should be."""
    zipped = gzip.compress(lines(*(stored([n], None, [n, n * n]) for n in range(500))))
    assert "the gzip stream is broken" in refusal(zipped[:-20])
    assert "the gzip stream is broken" in refusal(zipped[:40] + b"\0\0\0" + zipped[43:])
    assert "the gzip stream is broken" in refusal(b"\x1f\x8b nonsense")
    assert "a line of more than" in refusal(b"[" + b" " * (MAX_LINE + 1))
    dense = packed(batch(STORED))
    assert refusal(dense + dense[:-1]) == (
        "events.jsonl:message 2: the file ends inside the message, expected all of it"
    )
    assert "message 2: no msgpack" in refusal(dense + b"\xc1")
    assert "message 2: 7, expected a batch" in refusal(dense + b"\x07" + dense)
    assert "message 1: no msgpack" in refusal(b"\x91" * 10_000)
    assert "message 1: no msgpack" in refusal(b"\xdd\xff\xff\xff\xff")
    assert "message 1: no msgpack" in refusal(b"\x91\xa1\xff" + dense)
    assert "comes twice among" in refusal(b"\x82\xa1a\x01\xa1a\x02")
    long = b"\xdc\xff\xff" + (b"\xda\x7f\xff" + b"x" * 0x7FFF) * (MAX_MESSAGE // 0x7FFF + 20)
    assert "bytes in one message" in refusal(long)


def test_json_report_can_be_written() -> None:
    """Whatever keys a stream has, its report is JSON."""
    raw = bytes(range(32)).hex()
    report = judged(
        removed(raw), removed("é"), removed(1 << 63), {"worker": "a", "events": [removed(1)], "seq": 2}
    )
    read = json.loads(json.dumps(report.as_json()))
    assert [finding["requirement"] for finding in read["findings"]] == ["KV-PREFIX-042"] * 3
    assert read["holes"] == [{"line": 4, "worker": "a", "rank": None, "first": 0, "last": 1}]


def test_message_of_reads_one_message() -> None:
    """Who has messages already needs no file."""
    message = message_of([0.5, [CLEARED], 3])
    assert (message.source, message.time, list(message.read())) == (Source("", 3), 0.5, [(1, Cleared())])

"""No bytes, no values and no order of events crash the reader, the mirror or the rules."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_event_lines import CLEARED, batch, blocks, dynamo, judged, lines, lookup, numbered, removed, stored

from kvref.errors import HistoryError
from kvref.sanitizer.kv_event_findings import KVEventReport
from kvref.sanitizer.kv_event_scheme import VllmScheme
from kvref.sanitizer.kv_event_stream import sanitize_kv_events
from kvref.sanitizer.lines import fastest, standard

DATA = Path(__file__).parents[1] / "data" / "kv_events"
PARSERS = list(dict.fromkeys([standard, fastest()]))
SCHEME = VllmScheme(adapters={"a": "/a"})


def survives(data: bytes, **given: Any) -> KVEventReport | None:
    """Judge some bytes: a report that can be written, or an error that says where."""
    refused = ""
    try:
        report = sanitize_kv_events(io.BytesIO(data), name="events", **given)
    except HistoryError as error:
        refused = str(error)
    if refused:
        assert refused.startswith("events:")
        assert "\n" not in refused
        return None
    json.dumps(report.as_json())
    assert all(finding.told().encode() for finding in report.findings)
    return report


TYPES = ["BlockStored", "BlockRemoved", "AllBlocksCleared", "GPU", "cleared", "stored", "ab" * 32]
NAMES = [
    *(
        "type",
        "batch",
        "events",
        "lookup",
        "data",
        "worker_id",
        "event",
        "seq",
        "stored",
        "removed",
        "blocks",
    ),
    *("block_hashes", "parent_block_hash", "token_ids", "block_size", "extra_keys", "num_cached_tokens"),
]
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 70), 1 << 70),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(TYPES),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(NAMES), inner, max_size=6),
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("loads", PARSERS)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(loads: Any, data: bytes) -> None:
    """Whatever a pipe delivers: text, msgpack or gzip by its first byte, and none of them."""
    survives(data, loads=loads)
    survives(b"\x92" + data)
    survives(gzip.compress(data), loads=loads)


@given(st.lists(values, max_size=4))
def test_any_values_are_refused_or_judged(messages: list[Any]) -> None:
    """JSON of any shape, and the same as events of a batch, in JSON and in msgpack."""
    survives(lines(*messages))
    survives(lines(*(batch(message) for message in messages)), scheme=SCHEME)
    msgpack = pytest.importorskip("msgpack")
    try:
        packed = b"".join(msgpack.packb(batch(message)) for message in messages)
    except OverflowError:
        return
    survives(packed, scheme=SCHEME)


@given(st.sampled_from(list(stored([1], None, []))), values)
def test_any_value_of_a_field_is_refused_or_judged(field: str, value: Any) -> None:
    """One field of an event that is otherwise as it should be."""
    survives(
        lines(stored([1, 2], None, [1, 2, 3, 4]), {**stored([3], 2, [5, 6]), field: value}), scheme=SCHEME
    )
    survives(lines(stored([1], None, [1, 2]), {"lookup": {**lookup([1, 2, 3], 2)["lookup"], field: value}}))


@pytest.mark.parametrize("name", ["vllm-int.msgpack.gz", "vllm-whole.jsonl.gz"])
@given(
    changes=st.lists(st.tuples(st.integers(0, 19_999), st.integers(0, 255)), min_size=1, max_size=3),
    cut=st.booleans(),
)
def test_damaged_recordings_are_refused_or_judged(
    name: str, changes: list[tuple[int, int]], cut: bool
) -> None:
    """Bytes of a real stream are changed, and its end is missing."""
    if "msgpack" in name:
        pytest.importorskip("msgpack")
    data = bytearray(START[name])
    for at, byte in changes:
        data[at] = byte
    survives(bytes(data[: changes[0][0]] if cut else data), copies="each", scheme=SCHEME)


START = {path.name: gzip.decompress(path.read_bytes())[:20_000] for path in DATA.glob("vllm-*.gz")}

keys = st.integers(1, 4)
places = st.fixed_dictionaries(
    {}, optional={"medium": st.sampled_from(["GPU", "CPU"]), "group_idx": st.sampled_from([0, 1])}
)
spaces = st.fixed_dictionaries(
    {},
    optional={
        "lora_name": st.sampled_from(["a", "b"]),
        "cache_salt": st.just("t"),
        "extra_keys": st.lists(st.one_of(st.none(), st.just(["a", ["image", 0]])), max_size=3),
        "kv_cache_spec_kind": st.sampled_from(["full_attention", "mamba"]),
    },
)
events = st.one_of(
    st.builds(
        lambda ks, parent, tokens, size, place, space: stored(ks, parent, tokens, size, **place, **space),
        st.lists(keys, max_size=3),
        st.one_of(st.none(), keys),
        st.lists(st.integers(1, 2), max_size=6),
        st.sampled_from([0, 1, 2, 2]),
        places,
        spaces,
    ),
    st.builds(lambda ks, place: removed(*ks, **place), st.lists(keys, max_size=3), places),
    st.just(CLEARED),
)
few = st.lists(keys, max_size=3)
pairs = st.lists(st.tuples(keys, keys), max_size=3)
prompts = st.lists(st.integers(1, 2), max_size=6)
count, ranks, times = st.integers(0, 6), st.sampled_from([0, 1]), st.sampled_from([0.5, 1.5])
messages = st.one_of(
    st.builds(lambda told, rank: batch(*told, rank=rank), st.lists(events, max_size=3), ranks),
    st.builds(lambda n, ts, told: numbered(n, *told, ts=ts), count, times, st.lists(events, max_size=2)),
    st.builds(lambda asked, n, limit: lookup(asked, n, limit=limit), prompts, count, st.none() | count),
    st.builds(lambda of, parent: dynamo(blocks(parent, *of)), pairs, st.none() | keys),
    st.builds(lambda asked: {"lookup": {"block_hashes": asked, "num_cached_blocks": 1}}, few),
)


@given(st.lists(messages, min_size=1, max_size=12), st.sampled_from(["once", "each"]))
def test_any_order_of_events_is_judged(told: list[Any], copies: str) -> None:
    """Well-formed events that make no sense together: each is judged, and none is refused."""
    report = survives(lines(*told), copies=copies, scheme=SCHEME, max_findings=10_000)
    assert report is not None
    assert report.messages == len(told)
    assert all(1 <= finding.line <= len(told) for finding in report.findings)


@given(st.lists(messages, min_size=1, max_size=8))
def test_findings_do_not_depend_on_how_many_are_asked_for(told: list[Any]) -> None:
    """A search that ends early has found the first of what a whole search finds."""
    whole = judged(*told, max_findings=10_000).findings
    for count in (1, 2):
        assert judged(*told, max_findings=count).findings == whole[:count]

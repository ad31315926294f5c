"""Traces are read one line at a time, and whatever is wrong is named by file, line and field."""

import contextlib
import gzip
import itertools
import json
import os
import tempfile
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning.requests import BLOCK, lists_of, traces

from kvref.errors import ArgumentError, TraceError
from kvref.planning import trace_files
from kvref.planning import traces as traces_module
from kvref.planning.trace_lines import LENGTHS_FIELDS, TraceRequest
from kvref.planning.traces import Trace, read_requests

GOOD = {"timestamp": 5, "input_length": 9, "output_length": 2, "hash_ids": [1, 2, 3]}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def line(**changed: Any) -> str:
    """A good line with some fields changed; ... leaves a field out."""
    return json.dumps({name: value for name, value in {**GOOD, **changed}.items() if value is not ...})


def written(folder: Path, *lines: str, name: str = "t.jsonl") -> Path:
    """A file of lines, compressed if its name ends in gz."""
    path, text = folder / name, "\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    return path


def refused(path: Path, **options: Any) -> str:
    """What reading a file fails with, without the folder."""
    with pytest.raises(TraceError) as caught:
        Trace.read(path, **{"block_size": 4, **options})
    return str(caught.value).replace(f"{path.parent}/", "")


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "without_ending"])
def test_a_request_is_read_as_it_stands(tmp_path: Path, name: str) -> None:
    """Plain or gzip by content; blank lines, further fields and a byte order mark are no matter."""
    lines = ["\ufeff" + line(), "", line(timestamp=7, hash_ids=[1, 2, 9], chat_id=4)]
    found = list(read_requests(written(tmp_path, *lines, name=name), block_size=4))
    assert found == [TraceRequest(1, 5.0, 9, 2, (1, 2, 3)), TraceRequest(3, 7.0, 9, 2, (1, 2, 9))]


def test_ids_are_numbered_as_they_appear(tmp_path: Path) -> None:
    """Ids of 64 bits index no array; their numbers do."""
    path = written(tmp_path, line(hash_ids=[2**64 - 1, 5, 0]), line(hash_ids=[2**64 - 1, 5, 7]))
    trace = Trace.read(path, block_size=4)
    assert lists_of(trace) == [[0, 1, 2], [0, 1, 3]]
    assert trace.tokens_of_blocks().tolist() == [4, 4, 1, 4, 4, 1]
    assert (trace.tail, trace.num_distinct) == ("keyed", 4)


@given(traces())
def test_full_blocks_drop_partial_tails_alone(trace: Trace) -> None:
    """What is left is whole blocks, numbered from 0, and as many as the lengths say."""
    full = trace.full_blocks()
    assert full.tail == "full_blocks"
    assert (np.diff(full.starts) == trace.input_lengths // BLOCK).all()
    assert (full.tokens_of_blocks() == BLOCK).all()
    seen = list(dict.fromkeys(full.blocks.tolist()))
    assert seen == list(range(full.num_distinct))


def test_seconds_become_milliseconds(tmp_path: Path) -> None:
    """A trace that counts seconds says so."""
    path = written(tmp_path, line(timestamp=1.25), line(timestamp=2))
    assert Trace.read(path, block_size=4, unit="s").timestamps.tolist() == [1250.0, 2000.0]


def test_lengths_alone_are_read_from_both_forms(tmp_path: Path) -> None:
    """Dates with seven digits of a second, with a zone or without; time counts from the first request."""
    rows = [("2023-11-16 18:15:46.6805900", 374, 44), ("2023-11-16 18:15:50.9951690+00:00", 396, 109)]
    names = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    objects = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    commas = [",".join(names), *(",".join(map(str, row)) for row in rows)]
    for name, lines in (("a.jsonl.gz", objects), ("a.csv", commas)):
        trace = Trace.read(written(tmp_path, *lines, name=name))
        assert trace.input_lengths.tolist() == [374, 396]
        assert trace.output_lengths.tolist() == [44, 109]
        assert trace.timestamps.round(3).tolist() == [0.0, 4314.579]
        assert not trace.has_blocks


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ((9, [1, 2, 3]), (10, [1, 2, 3]), "hash_ids[2] = 3 is a block of 2 tokens, and was one of 1"),
        ((9, [1, 2, 3]), (12, [1, 2, 3]), "hash_ids[2] = 3 is a block of 4 tokens, and was one of 1"),
        ((9, [1, 2, 3]), (13, [1, 2, 3, 4]), "hash_ids[2] = 3 is a block of 4 tokens, and was one of 1"),
        ((12, [1, 2, 3]), (9, [1, 2, 3]), "hash_ids[2] = 3 is a block of 1 tokens, and was one of 4"),
    ],
)
def test_an_id_stands_for_as_many_tokens_wherever_it_is(
    tmp_path: Path, first: tuple[int, list[int]], then: tuple[int, list[int]], message: str
) -> None:
    """A padded tail is another prefix, and would hit more than there is."""
    lines = [line(input_length=length, hash_ids=ids) for length, ids in (first, then)]
    assert refused(written(tmp_path, *lines)).startswith(f"t.jsonl:2: {message}")
    lines[1] = line(input_length=then[0], hash_ids=[*then[1][:2], 8, 9][: len(then[1])])
    assert Trace.read(written(tmp_path, *lines), block_size=4).num_requests == 2


def test_a_trace_of_lengths_may_begin_in_1970(tmp_path: Path) -> None:
    """Time counts from the first request, whenever that was."""
    rows = [f"{day} 00:00:{second},1,1" for day, second in (("1970-01-01", "00"), ("1970-01-01", "10"))]
    assert Trace.read(written(tmp_path, ",".join(LENGTHS_FIELDS), *rows)).timestamps.tolist() == [0, 10_000]


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """What was looked at to know a gzip file from a plain one is read as well; a path may be text."""
    for name in ("t.jsonl", "t.jsonl.gz"):
        content = written(tmp_path, line(), line(timestamp=7), name=name).read_bytes()
        fifo = tmp_path / f"fifo-{name}"
        os.mkfifo(fifo)
        writer = threading.Thread(target=fifo.write_bytes, args=(content,))
        writer.start()
        assert Trace.read(str(fifo), block_size=4).timestamps.tolist() == [5, 7]
        writer.join()


@given(st.integers(1, 60), st.integers(2, 12))
def test_block_sizes_that_fit_are_those_named(tokens: int, ids: int) -> None:
    """Every size under which a length has so many ids, with its tail or without, and no other."""
    fits = [size for size in range(1, 100) if ids in (tokens // size, -(-tokens // size))]
    said = f"; they fit block sizes {fits[0]} to {fits[-1]}" if fits and ids != tokens else ""
    with tempfile.TemporaryDirectory() as folder:
        found = refused(
            written(Path(folder), line(input_length=tokens, hash_ids=list(range(ids)))), block_size=100
        )
    assert said in found
    assert ("they fit" in found) == bool(said)
    assert len(fits) in (0, fits[-1] - fits[0] + 1 if fits else 0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hash_ids": ...}, 'hash_ids is missing; the line has "timestamp", "input_length"'),
        ({"timestamp": ...}, "timestamp is missing"),
        ({"timestamp": "82"}, 'timestamp = "82" is text, expected a number of ms'),
        ({"timestamp": None}, "timestamp = null, expected a number of ms"),
        ({"timestamp": True}, "timestamp = true, expected"),
        ({"timestamp": -1}, "timestamp = -1, expected"),
        ({"timestamp": float("nan")}, "timestamp = NaN, expected"),
        ({"timestamp": 1e300}, "timestamp = 1e+300, expected"),
        ({"timestamp": 10**400}, "timestamp = an integer of 1329 bits, expected"),
        ({"timestamp": 12.5}, "timestamp = 12.5 has a fraction, expected whole milliseconds: if"),
        ({"timestamp": 4}, "timestamp 4 ms is before 5 ms of the line above"),
        ({"input_length": ...}, "input_length is missing"),
        ({"input_length": 9.0}, "input_length = 9.0, expected whole tokens from 1 to 2147483647"),
        ({"input_length": "9"}, 'input_length = "9", expected whole tokens'),
        ({"input_length": 0}, "input_length = 0, expected whole tokens from 1"),
        ({"input_length": 2**31}, "input_length = 2147483648, expected whole tokens"),
        ({"output_length": -1}, "output_length = -1, expected whole tokens from 0"),
        ({"output_length": False}, "output_length = false, expected whole tokens"),
        ({"input_length": 3}, "input_length = 3 and 3 hash_ids, expected 1 ids (or 0 of full blocks)"
            " of 4 tokens; input_length seems to count blocks, expected tokens"),
        ({"input_length": 48}, "input_length = 48 and 3 hash_ids, expected 12 ids of 4 tokens"
            "; they fit block sizes 13 to 23, such as 16"),
        ({"input_length": 2}, "input_length = 2 and 3 hash_ids, expected 1 ids (or 0 of full blocks)"),
        ({"input_length": 8, "hash_ids": [1]}, "input_length = 8 and 1 hash_ids, expected 2 ids of 4 tokens"),
        ({"hash_ids": []}, "input_length = 9 and 0 hash_ids, expected 3 ids (or 2 of full blocks)"),
        ({"hash_ids": [1, 2]}, "2 hash_ids for 9 tokens: the partial last block has no id here, unlike"),
        ({"hash_ids": [1, 3, 2]}, "hash_ids[1] = 3 follows another id than where it first appeared"),
        ({"hash_ids": [1, 2, 1]}, "hash_ids[2] = 1 follows another id"),
        ({"hash_ids": [1, -2, 3]}, "hash_ids[1] = -2, expected an integer from 0 to 2^64 - 1"),
        ({"hash_ids": [1, 2, 2**64]}, "hash_ids[2] = 18446744073709551616, expected"),
        ({"hash_ids": [1, 2.0, 3]}, "hash_ids[1] = 2.0, expected an integer"),
        ({"hash_ids": [1, True, 3]}, "hash_ids[1] = true, expected an integer"),
        ({"hash_ids": "1,2,3"}, 'hash_ids = "1,2,3", expected a list'),
        ({"hash_ids": {"system": [1]}}, "hash_ids is an object, of chunks wherever they stand"),
    ],
)  # fmt: skip
def test_a_malformed_field_is_named(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    """File, line and field, what was found, what was expected."""
    found = refused(written(tmp_path, line(), line(**changed)))
    assert found.startswith(f"t.jsonl:2: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "column 2: Expecting property name"),
        ('{"timestamp": 5} {}', "column 18: Extra data"),
        ("[1, 2]", "the line is [1, 2], expected one JSON object"),
        ('{"a": 1, "a": 2}', 'field "a" stands twice'),
        ("[" * 100_000, "the JSON is nested too deeply"),
        ('{"timestamp": ' + "9" * 5_000 + "}", "the JSON holds a number that cannot be read"),
        ('{"a": "\x00"}', "column 8: Invalid control character"),
    ],
)
def test_a_line_that_is_no_object_is_named(tmp_path: Path, text: str, message: str) -> None:
    """Neither a stack nor a converter of numbers is exhausted."""
    assert refused(written(tmp_path, line(), text)).startswith(f"t.jsonl:2: {message}")


def test_a_first_line_of_another_kind_is_named(tmp_path: Path) -> None:
    """The first line decides what is read."""
    found = refused(written(tmp_path, '{"prompt": "x"}'))
    assert found == 't.jsonl:1: hash_ids or ContextTokens is missing; the line has "prompt"'


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2023-11-16 18:15:46,374", "the line has 2 columns, expected TIMESTAMP, ContextTokens, Gener"),
        ("yesterday,374,44", 'TIMESTAMP = "yesterday", expected a date and a time'),
        ("2023-11-16 18:15:46,many,44", 'ContextTokens = "many", expected whole tokens'),
        ("2023-11-16 18:15:46,374,-1", 'GeneratedTokens = "-1", expected whole tokens'),
        ("2023-11-16 18:15:40,374,1", "timestamp -5000 ms is before 0 ms"),
    ],
)  # fmt: skip
def test_a_malformed_row_is_named(tmp_path: Path, row: str, message: str) -> None:
    """Comma-separated text has the same errors."""
    head = "TIMESTAMP,ContextTokens,GeneratedTokens"
    path = written(tmp_path, head, "2023-11-16 18:15:45,1,1", row, name="a.csv")
    assert refused(path).startswith(f"a.csv:3: {message}")


def test_broken_files_are_named(tmp_path: Path) -> None:
    """A broken download, a flipped bit, another archive, a folder, nothing at all."""
    whole = gzip.compress("".join(line(timestamp=5 + i) + "\n" for i in range(500)).encode())
    files = {
        "cut.gz": (whole[:-20], "cut.gz: the gzip stream is truncated after"),
        "flipped.gz": (whole[:-6] + b"\0\0" + whole[-4:], "flipped.gz: after line 500: CRC check failed"),
        "noise.gz": (whole[:40] + bytes(200), "noise.gz: after line"),
        "tail.gz": (whole + b"junk", "tail.gz: after line 500: Not a gzipped file"),
        "t.zip": (b"PK\x03\x04....", "t.zip is a zip archive, expected gzip or plain text"),
        "t.zst": (b"\x28\xb5\x2f\xfd....", "t.zst is zstd, expected gzip"),
        "latin.jsonl": (b'{"a": "\xe4"}', "latin.jsonl:1: byte 7 of the line is not UTF-8"),
        "empty.jsonl": (b"\n \n", "empty.jsonl holds no request, expected at least one"),
        "header.csv": (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "header.csv holds no request"),
    }
    for name, (content, message) in files.items():
        (tmp_path / name).write_bytes(content)
        assert refused(tmp_path / name).startswith(message)
    assert refused(tmp_path / "missing") == "missing: No such file or directory, expected a file to read"
    (tmp_path / "folder").mkdir()
    assert refused(tmp_path / "folder") == "folder: Is a directory, expected a file to read"


def test_a_line_without_end_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file may unpack to a line of any length; no more than the limit of it is held."""
    monkeypatch.setattr(trace_files, "MAX_LINE", 2**16)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"[" * 2**24))
    tracemalloc.start()
    assert (
        refused(tmp_path / "bomb.gz")
        == "bomb.gz:1: the line is longer than 65536 bytes, expected one request"
    )
    assert tracemalloc.get_traced_memory()[1] < 2**21
    tracemalloc.stop()


def test_more_than_is_gathered_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace without end is refused before memory is."""
    monkeypatch.setattr(traces_module, "MAX_BLOCKS", 100)
    endless = (TraceRequest(at, 0.0, 9, 2, (1, 2, 3)) for at in itertools.count(1))
    with pytest.raises(TraceError, match="t:34: more than 100 blocks or requests, expected fewer"):
        Trace.of(endless, name="t", block_size=4)


def test_reading_holds_one_line_at_a_time(tmp_path: Path) -> None:
    """Requests come as they are read: the first before a fault further down."""
    requests = read_requests(written(tmp_path, line(), "{"), block_size=4)
    assert next(requests).line == 1
    with pytest.raises(TraceError, match=r":2: "):
        next(requests)


@pytest.mark.parametrize("levels", [100, 900, 940, 960, 980, 990, 1_000, 5_000])
def test_nesting_up_to_the_limit_is_refused(tmp_path: Path, levels: int) -> None:
    """Just below the depth that cannot be read stands one that can, and cannot be spelled."""
    deep = line().replace('"timestamp": 5', f'"timestamp": {"[" * levels}{"]" * levels}')
    found = refused(written(tmp_path, deep))
    assert found.startswith(("t.jsonl:1: timestamp = ", "t.jsonl:1: the JSON is nested too deeply"))


@given(st.binary(max_size=200), st.booleans(), st.integers(0, 400), st.integers(0, 400))
def test_no_bytes_crash_the_reader(noise: bytes, packed: bool, at: int, end: int) -> None:
    """Noise in the middle of a trace, plain or compressed: requests, or a TraceError."""
    whole = "\n".join(line(timestamp=5 + i) for i in range(9)).encode()
    whole = gzip.compress(whole) if packed else whole
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(TraceError):
        path = Path(folder, "t")
        path.write_bytes(whole[:at] + noise + whole[end:])
        assert Trace.read(path, block_size=4).num_requests > 0


@given(st.dictionaries(st.sampled_from([*GOOD, *LENGTHS_FIELDS]), JSON_VALUES, max_size=5))
def test_no_values_crash_the_reader(changed: dict[str, Any]) -> None:
    """Any JSON in any field: a request, or a TraceError."""
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(TraceError):
        Trace.read(written(Path(folder), line(), line(**changed)), block_size=4)


@pytest.mark.parametrize("wrong", [{"block_size": 0}, {"block_size": 1.5}, {"unit": "minutes"}])
def test_options_are_checked(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """A block size counts tokens, and time is in seconds or thousandths."""
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        list(read_requests(written(tmp_path, line()), **wrong))


@pytest.mark.parametrize("path", [None, 5, b"t.jsonl", "a\0b"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    """Before anything is opened."""
    with pytest.raises(ArgumentError, match="path"):
        Trace.read(path)


def test_requests_are_gathered_in_blocks_of_some_size() -> None:
    """Tails are told from full blocks by it."""
    with pytest.raises(ArgumentError, match="block_size"):
        Trace.of([TraceRequest(1, 0.0, 9, 2, (1,))], name="t", block_size=0)

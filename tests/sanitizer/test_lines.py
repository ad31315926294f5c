"""Bad input: named by file, line and field, and never a crash, whichever parser reads it."""

import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from histories import LINES, allocate, arrive, cached, compute, opened, say, stubborn
from hypothesis import given
from hypothesis import strategies as st

from kvref.cli import main
from kvref.errors import HistoryError
from kvref.memory.events import EVENTS
from kvref.sanitizer import lines
from kvref.sanitizer.lines import MAX_LINE, Loads, events, fastest, standard
from kvref.sanitizer.sanitizer import EnoughFound, Limits, Report, Sanitizer, sanitize

HISTORIES = sorted((Path(__file__).parents[1] / "data" / "histories").glob("*.jsonl"))
#: Python's parser, and orjson's where it is installed.
PARSERS = list(dict.fromkeys([standard, fastest()]))
OPEN = json.dumps(opened()).encode()


def read(data: bytes, loads: Loads = standard) -> list[tuple[int, dict[str, Any]]]:
    """Every event of some bytes."""
    return list(events(io.BytesIO(data), "log.jsonl", loads))


def refusal(data: bytes, loads: Loads = standard) -> str:
    """What is said of bytes that are no history."""
    with pytest.raises(HistoryError) as error:
        sanitize(io.BytesIO(data), name="log.jsonl", loads=loads)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400
    return str(error.value)


#: Second line -> what is said of it after "log.jsonl:2: ".
BAD_LINES: dict[bytes, str] = {
    b"{": "no JSON: ",
    b"nonsense": "no JSON: ",
    b"{'event': 'reset'}": "no JSON: ",
    b'{"event":"reset"} {"event":"reset"}': "no JSON: ",
    b'{"event":"reset"}x': "no JSON: ",
    b'\xef\xbb\xbf{"event":"reset"}': "no JSON: ",
    b'{"event":"reset\xff"}': "no JSON: ",
    b'{"event":"truncate","request":1,"count":NaN}': "no JSON: ",
    b'{"event":"truncate","request":1,"count":-Infinity}': "no JSON: ",
    b'{"event":"truncate","request":1,"count":' + b"9" * 5000 + b"}": "",
    b'{"event":"truncate","request":1,"count":1e999}': "",
    b"[" * 100_000: "no JSON: ",
    b'{"event":' * 100_000: "no JSON: ",
    b"[]": "the line holds [], expected an object",
    b"null": "the line holds None, expected an object",
    b"{}": "no field event, expected one of open, request",
    b'{"event":null}': "event = None, expected one of open, request",
    b'{"event":"reset","event":"reset"}': "the field 'event' comes twice, expected once",
    b'{"event":"truncate","request":1,"count":2,"count":3}': "the field 'count' comes twice",
    b'{"event":"truncate","request":1,"count":2,"coun\\u0074":3}': "the field 'count' comes twice",
    b'{"event":"truncate","request":1}': "truncate has no field count, expected an integer",
    b'{"event":"truncate","request":1,"count":2.0}': "truncate.count = 2.0, expected an integer from 0",
    b'{"event":"truncate","request":true,"count":2}': "truncate.request = True, expected an integer",
    b'{"event":"truncate","request":"","count":2}': "truncate.request = '', expected an integer",
    b'{"event":"truncate","request":1,"count":99999999999}': "truncate.count = 99999999999, expected",
    b'{"event":"open","schema":"kvref-history/1","num_blocks":8,"block_size":4}': "open comes again",
    b'{"event":"publish","blocks":[0],"group":1}': "publish.group = 1, expected 0 to 0",
    b'{"event":"begin"}': "begin has both or none of step and transfer",
    b'{"event":"begin","transfer":1}': "begin has no field kind",
    b'{"event":"begin","transfer":1,"kind":"receive","blocks":[1]}': "begin has no field request",
    b'{"event":"end","step":1,"transfer":1}': "end has both or none of step and transfer",
    b'{"event":"store","tier":"host","keys":[1,2],"blocks":[1]}': "store.keys has 2 items, ",
    b'{"event":"publish","blocks":[1,2],"count":2}': "publish.count = 2, which fill 1 blocks of 4, ",
}


@pytest.mark.parametrize("loads", PARSERS)
@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:60].decode(errors="replace"))
def test_a_bad_line_is_named(line: bytes, loads: Loads) -> None:
    """By file and line, then event and field, what was found, what was expected."""
    arrived = json.dumps(arrive(1)).encode()
    said = refusal(OPEN + b"\n" + line + b"\n" + arrived, loads)
    assert said.startswith(f"log.jsonl:2: {BAD_LINES[line]}"), said


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:60].decode(errors="replace"))
def test_all_parsers_lead_to_the_same_words(line: bytes) -> None:
    """What is wrong with a line does not depend on what is installed."""
    arrived = json.dumps(arrive(1)).encode()
    data = OPEN + b"\n" + line + b"\n" + arrived
    assert len({refusal(data, loads) for loads in (*PARSERS, stubborn)}) == 1


@pytest.mark.parametrize("loads", PARSERS)
def test_a_hit_in_blocks_is_a_wrong_unit(loads: Loads) -> None:
    """Three blocks and a count of 3: the message says that counts are in tokens."""
    line = b'{"event":"hit","request":1,"count":3,"blocks":[0,1,2]}'
    data = b"\n".join([OPEN, json.dumps(arrive(1)).encode(), line])
    assert refusal(data, loads) == (
        "log.jsonl:3: hit.count = 3, which fill 1 blocks of 4, but hit.blocks names 3; a count is in tokens"
    )


FIRST_LINES: dict[str, dict[str, Any]] = {
    "open has no field num_blocks": opened(num_blocks=None),
    "open.num_blocks = 0, expected an integer from 1": opened(num_blocks=0),
    "open.num_blocks = 1, expected one besides": opened(num_blocks=1, null_block=True),
    "open has both or none of block_size and block_sizes": opened(block_size=None),
    "open has both or none of block_size and": opened(block_sizes=[4]),
    "open has block sizes [], expected 1 to 64": opened(block_size=None, block_sizes=[]),
    "open has block sizes [70000], expected 1 to 64, each at most 65536": opened(block_size=70000),
    "open.windows has 2 items, expected 1, one a group": opened(windows=[4, None]),
    "open.ahead = 70000, expected at most 65536": opened(ahead=70000),
    "open.schema = 'kvref-history/2', expected \"kvref-history/1\"": opened(schema="kvref-history/2"),
    "the first event is reset, expected open": say("reset"),
}


@pytest.mark.parametrize("words", FIRST_LINES)
def test_a_bad_first_line_is_named(words: str) -> None:
    """Sizes that no pool has, and anything that is no first line."""
    assert refusal(json.dumps(FIRST_LINES[words]).encode()).startswith(f"log.jsonl:1: {words}")


def test_a_file_without_events_is_no_history() -> None:
    """An engine that logged nothing is not clean."""
    for data in (b"", b"\n\n", gzip.compress(b"")):
        assert refusal(data) == "log.jsonl:1: no event, expected open"


def test_nothing_comes_after_the_close() -> None:
    """Two histories in one file are two histories."""
    data = b"\n".join([OPEN, b'{"event":"close"}', b'{"event":"reset"}'])
    assert refusal(data) == "log.jsonl:3: reset comes after close, expected nothing"


@pytest.mark.parametrize("loads", PARSERS)
def test_lines_end_as_they_like(loads: Loads) -> None:
    """With line feeds, carriage returns before them, empty lines between, and nothing at the end."""
    last = b'{"event":"reset"}'
    spaced = b"    \r\n\t  " + OPEN + b" \t\r\n" + b" " * 40 + b"\n \t" + last + b"  "
    for data in (
        OPEN + b"\n" + last + b"\n",
        OPEN + b"\r\n\r\n\n \n" + last,
        b"\n" + OPEN + b"\n" + last,
        spaced,
    ):
        assert [event["event"] for _, event in read(data, loads)] == ["open", "reset"]
    assert [number for number, _ in read(b"\n" + OPEN + b"\n\n" + OPEN)] == [2, 4]


@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_lines_are_the_same_in_chunks_of_any_size(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe delivers what it has."""
    data = HISTORIES[0].read_bytes()
    expected = read(data)
    monkeypatch.setattr(lines, "_CHUNK", chunk)
    assert read(data) == expected
    assert read(gzip.compress(data)) == expected


def test_gzip_is_known_by_its_first_bytes() -> None:
    """Whatever the file is called, also in several members."""
    data = HISTORIES[0].read_bytes()
    head, tail = data[:100], data[100:]
    assert read(gzip.compress(data)) == read(data) == read(gzip.compress(head) + gzip.compress(tail))


def test_a_broken_gzip_stream_is_named() -> None:
    """Cut off, or with other bytes in it."""
    packed = gzip.compress(HISTORIES[0].read_bytes(), mtime=0)
    spoilt = (
        packed[:-9],
        packed[:40],
        packed[:12],
        packed[:-5] + b"12345",
        packed[:15] + b"\0\0" + packed[17:],
    )
    for data in spoilt:
        assert "the gzip stream is broken: " in refusal(data)


def test_a_line_has_an_end() -> None:
    """A file of one endless line is refused before it is in memory, also if it is small on disk."""
    line = OPEN + b"\n" + b" " * (MAX_LINE + 1)
    for data in (line, gzip.compress(line)):
        said = refusal(data)
        assert (
            said == f"log.jsonl:1: a line of more than {MAX_LINE} bytes after this one, expected at most that"
        )


def test_a_long_prompt_fits_a_line() -> None:
    """A million tokens in one event."""
    data = OPEN + b"\n" + json.dumps(arrive(1, list(range(1_000_000)))).encode()
    assert sanitize(io.BytesIO(data)).events == 2


def test_a_history_has_limits() -> None:
    """Each thing that is kept has a most, and the message says which was passed."""
    small = Limits(blocks=3, requests=2, tokens=20, entries=4, places=1, flights=2)

    def refused(*more: dict[str, Any]) -> str:
        sanitizer = Sanitizer(limits=small)
        with pytest.raises(HistoryError) as error:
            sanitizer.feed_all(enumerate((opened(), *more), 1))
        return str(error.value)

    tokens = [1, 2, 3]
    assert refused(*(arrive(i, tokens) for i in range(3))).startswith("more than 2 requests are live")
    assert refused(arrive(1, [1] * 21)).startswith("live requests have more than 20 tokens")
    assert refused(arrive(1, tokens), say("tokens", request=1, tokens=[1] * 18)).startswith("live requests")
    assert refused(arrive(1, [1] * 20), say("decode", requests=[1], tokens=[1])).startswith("live requests")
    grown = (arrive(1, [1] * 11), say("fork", request=2, parent=1))
    assert refused(*grown).startswith("live requests have more than 20 tokens")
    held = (arrive(1, tokens), say("allocate", request=1, blocks=[[0, 3]]))
    assert refused(*held, say("allocate", request=1, blocks=[3])).startswith("more than 3 blocks are used")
    stored = say("store", tier="t", keys=[1, 2], blocks=[0, 1])
    assert refused(*held, stored).startswith("tiers hold more than 1")
    again = say("replace", request=1, index=3, blocks=[0, 1])
    assert refused(*held, again).startswith("tables have more than 4 entries")
    assert refused(*held, say("fork", request=2, parent=1)).startswith("tables have more than 4 entries")
    sent = say("begin", transfer=1, kind="send", blocks=[0, 1])
    assert refused(*held, sent).startswith("tables have more than 4 entries")
    assert refused(*(say("begin", step=step) for step in range(3))).startswith("more than 2 flights")
    kept = (say("snapshot", request=1, snapshot=s, count=0) for s in range(2))
    assert refused(*held, *kept).startswith("more than 1 snapshots are kept")


def test_a_run_is_not_spelled_out_before_it_is_counted() -> None:
    """Forty bytes that name four billion blocks."""
    line = b'{"event":"free","request":1,"blocks":[[0,4294967295]]}'
    data = b"\n".join([OPEN, json.dumps(arrive(1)).encode(), line])
    assert "runs of 4294967295 ids, expected at most 1048576" in refusal(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


def outcome(of: Callable[..., Any], *arguments: Any) -> Any:
    """What comes of bytes; None if they are refused, as they should be."""
    try:
        return of(*arguments)
    except HistoryError as refused:
        told = str(refused)
    assert told.startswith("log.jsonl:")
    return None


def same(data: bytes) -> None:
    """Both parsers accept the same bytes and read the same events, or both refuse them."""
    first, *others = [outcome(read, data, loads) for loads in PARSERS]
    assert all(other == first for other in others)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Nothing but a HistoryError comes out."""
    same(data)
    same(b"\x1f\x8b" + data)


@given(st.sampled_from(HISTORIES), st.data())
def test_a_history_with_bytes_changed_is_read_or_refused(path: Path, data: st.DataObject) -> None:
    """Flipped, inserted and removed bytes."""
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    same(bytes(raw))
    outcome(judged, bytes(raw))


SOME = st.sampled_from(["request", "blocks", "count", "tokens", "x"])


@given(st.sampled_from(sorted(EVENTS)), st.dictionaries(SOME, JSON))
def test_any_values_in_any_field_are_read_or_refused(kind: str, fields: dict[str, Any]) -> None:
    """Both parsers agree on what a value is."""
    same(json.dumps({"event": kind, **fields}).encode())


def judged(data: bytes) -> Report:
    """A verdict."""
    return sanitize(io.BytesIO(data), name="log.jsonl")


@given(st.lists(LINES, max_size=40))
def test_any_events_in_any_order_are_judged_or_refused(drawn: list[dict[str, Any]]) -> None:
    """Well-formed nonsense: the shadow follows an engine that does anything at all, and never stumbles."""
    sanitizer = Sanitizer(max_findings=1000, max_wait=3)
    live = [arrive("a", [0, 1, 2, 3, 0, 1]), allocate("a", 3, 4), compute(("a", 0, 6))]
    first = opened(num_blocks=6, tiers={"host": 2}, publish="scheduled", ahead=1)
    for line, event in enumerate([first, *cached(1), *live, *drawn], 1):
        try:
            sanitizer.feed(line, event)
        except (HistoryError, EnoughFound):
            continue
        finally:
            sanitizer.check_invariants()
    for finding in sanitizer.findings:
        assert finding.told()


def test_the_command_ends_with_2(tmp_path: Path) -> None:
    """No verdict where there is no history, and none for a file that is not there."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(OPEN + b"\n{}\n")
    done = CliRunner().invoke(main, ["sanitize", str(path)])
    assert done.exit_code == 2
    assert f"{path}:2: no field event" in done.output
    assert CliRunner().invoke(main, ["sanitize", str(tmp_path / "none.jsonl")]).exit_code == 2
    piped = CliRunner().invoke(main, ["sanitize", "-"], input=OPEN + b"\n[]")
    assert piped.exit_code == 2
    assert "standard input:2: the line holds []" in piped.output


@pytest.mark.parametrize("more", [[], ["--kv-events"]])
def test_a_source_that_cannot_be_read_is_named(more: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that is closed, and a disk that fails, in one sentence and with 2."""
    command = [sys.executable, "-m", "kvref.cli", "sanitize", "-", *more]
    done = subprocess.run(  # the shell closes what a parent cannot
        ["sh", "-c", 'exec "$@" <&-', "sh", *command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "Error: standard input is closed, expected a history\n")

    def fails(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("kvref.sanitizer.lines.unpacked", fails)
    monkeypatch.setattr("kvref.sanitizer.kv_event_files.unpacked", fails)
    broken = CliRunner().invoke(main, ["sanitize", str(HISTORIES[0]), *more])
    assert (broken.exit_code, broken.output) == (2, f"Error: {HISTORIES[0]}: Input/output error\n")


def test_the_command_ends_with_0_if_all_is_well(tmp_path: Path) -> None:
    """And says if the history was cut short."""
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(OPEN))
    done = CliRunner().invoke(main, ["sanitize", str(path)])
    assert (done.exit_code, done.output.splitlines()[0]) == (0, "no faults in 1 events")
    assert "the history has no close" in done.output
    told = json.loads(CliRunner().invoke(main, ["sanitize", str(path), "--json"]).stdout)
    assert told == {"name": str(path), "events": 1, "findings": [], "closed": False, "complete": True}


def test_the_command_ends_after_max_faults() -> None:
    """The rest is not read, and the report says so."""
    path = next(path for path in HISTORIES if path.stem.startswith("M135"))
    done = CliRunner().invoke(main, ["sanitize", str(path), "--max", "1"])
    assert done.exit_code == 1
    assert "1 fault in 9 events\nthe rest was not read: --max faults were found" in done.output

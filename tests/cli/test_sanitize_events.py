"""`kvref sanitize --kv-events`: options, exit codes, and the examples of the page."""

import json
import runpy
import sys
import types
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from documents import EXAMPLES, ROOT
from kv_event_lines import CLEARED, lines, numbered, removed, stored

from kvref.cli import main

TWO_COPIES = str(EXAMPLES / "two_copies.jsonl")
DATA = ROOT / "tests" / "data" / "kv_events"


def run(*words: str, data: bytes | None = None) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["sanitize", *words], input=data)


def test_two_copies_are_shown_as_the_page_says() -> None:
    """A set breaks two rules on the recorded example, a count none, and a hint says which to use."""
    once, each = run("--kv-events", TWO_COPIES), run("--kv-events", TWO_COPIES, "--copies", "each")
    assert (once.exit_code, each.exit_code) == (1, 0)
    assert "FAIL  KV-PREFIX-041 event-stored-once        line 4, event 1: rank 0: key" in once.stdout
    assert (
        "the cache answers 8 of 9 tokens, by the events 4; key 3135538926603026989 was removed" in once.stdout
    )
    assert "keys are stored again while they are there: vLLM tells of each copy, --copies each" in once.stdout
    assert each.stdout == "no faults in 4 events and 4 lookups\n"


def test_scheme_is_that_of_the_recordings() -> None:
    """Under the seed of the run and the paths of its adapters every key is the scheme's."""
    scheme = ["--copies", "each", "--scheme", "vllm-sha256-cbor", "--adapter", "sql=/adapters/sql"]
    whole = [str(DATA / "vllm-whole.jsonl.gz"), "--kv-events", *scheme, "--adapter", "law=/adapters/law"]
    assert run(*whole, "--hash-seed", "7").exit_code == 0
    other = run(*whole)
    assert other.exit_code == 1
    assert "KV-PREFIX-033 key-scheme" in other.stdout
    without = run(str(DATA / "vllm-whole.jsonl.gz"), "--kv-events", *scheme, "--hash-seed", "7")
    assert without.exit_code == 0
    assert "KV-PREFIX-033 was not judged" in without.stdout


def test_pipe_json_and_limit() -> None:
    """A stream comes from a pipe, and a report goes to a program."""
    data = lines(removed(1), removed(2), removed(3))
    done = run("--kv-events", "-", "--json", "--max", "2", data=data)
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert (report["name"], report["complete"], report["unit"]) == ("standard input", False, "line")
    assert [(f["requirement"], f["line"], f["event"]) for f in report["findings"]] == [
        ("KV-PREFIX-042", 1, 1),
        ("KV-PREFIX-042", 2, 1),
    ]
    assert "the rest was not read" in run("--kv-events", "-", "--max", "2", data=data).stdout


def test_holes_and_repeats_are_told() -> None:
    """What could not be judged, and why, stands below the findings."""
    told = [numbered(0, CLEARED), numbered(0, CLEARED), numbered(2, stored([2], 1, [1, 2]))]
    done = run("--kv-events", "-", data=lines(*told))
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "no faults in 2 events",
        "batch 1 is missing of rank 0 at line 3",
        "1 batch came again and was passed over",
        "KV-PREFIX-040 was not judged 1 time: not enough is told",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--copies", "each"], "--copies needs --kv-events"),
        (["--scheme", "vllm-sha256-cbor"], "--scheme needs --kv-events"),
        (["--hash-seed", "7"], "--hash-seed needs --kv-events"),
        (["--adapter", "a=b"], "--adapter needs --kv-events"),
        (["--kv-events", "--hash-seed", "7"], "--hash-seed needs --scheme"),
        (["--kv-events", "--adapter", "a=b"], "--adapter needs --scheme"),
        (["--kv-events", "--max-wait", "3"], "--max-wait is of histories"),
        (["--kv-events", "--scheme", "vllm-sha256-cbor", "--adapter", "ab"], "'ab', expected NAME=PATH"),
        (["--kv-events", "--copies", "twice"], "'twice' is not one of 'once', 'each'"),
    ],
)  # fmt: skip
def test_options_that_would_be_ignored_are_refused(words: list[str], said: str) -> None:
    """Because somebody meant them."""
    done = run(TWO_COPIES, *words)
    assert done.exit_code == 2
    assert said in done.stderr


def test_what_is_no_stream_is_refused(tmp_path: Path) -> None:
    """By name and line, with exit code 2."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(lines(CLEARED) + b"[1, 2, 3]\n")
    done = run("--kv-events", str(path))
    assert done.exit_code == 2
    assert f"{path}:2: events = 2, expected a list of events" in done.stderr


class Socket:
    """Delivers frames, as a socket of ZeroMQ would."""

    def __init__(self, frames: list[list[bytes]]) -> None:
        self.frames, self.sent = frames, list[list[bytes]]()

    def connect(self, address: str) -> None:
        self.address = address

    def setsockopt(self, option: int, value: bytes) -> None:
        assert (option, value) == (6, b"")

    def send_multipart(self, frames: list[bytes]) -> None:
        self.sent.append(frames)

    def recv_multipart(self) -> list[bytes]:
        return self.frames.pop(0)


def test_recorder_of_the_page_writes_what_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Replayed batches first, then live ones; the seam between them may overlap."""
    msgpack = pytest.importorskip("msgpack")

    def frames(*numbers: int) -> list[list[bytes]]:
        batches = [[0.5, [stored([n], n - 1 or None, [n, n])], 0] for n in numbers]
        return [
            [b"topic", (n - 1).to_bytes(8, "big"), msgpack.packb(b)]
            for n, b in zip(numbers, batches, strict=True)
        ]

    end = (-1).to_bytes(8, "big", signed=True)
    live = Socket(frames(3, 4, 5))
    before = Socket([[b"", *frame] for frame in frames(1, 2, 3)] + [[b"", b"", end, b""]])
    sockets = {2: live, 5: before}
    module: Any = types.ModuleType("zmq")
    module.SUB, module.DEALER, module.SUBSCRIBE = 2, 5, 6
    module.Context = lambda: types.SimpleNamespace(socket=lambda kind: sockets[kind])
    monkeypatch.setitem(sys.modules, "zmq", module)
    example = runpy.run_path(str(EXAMPLES / "record_events.py"))
    source = example["received"]("tcp://live", "tcp://before")
    recorded = b"".join(example["numbered"](seq, payload) for seq, payload in islice(source, 6))
    assert (live.address, before.address) == ("tcp://live", "tcp://before")
    assert before.sent == [[b"", bytes(8)]]
    path = tmp_path / "events.msgpack"
    path.write_bytes(recorded)
    done = run("--kv-events", str(path))
    assert done.stdout == "no faults in 5 events\n1 batch came again and was passed over\n"

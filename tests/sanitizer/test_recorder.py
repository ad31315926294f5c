"""The recorder: what an engine in Python logs is a history, whatever integers it counts with."""

import gzip
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvref.errors import HistoryError
from kvref.memory.events import EVENTS
from kvref.memory.fields import SCHEMA
from kvref.memory.history import Event
from kvref.memory.namespace import Namespace, Span
from kvref.sanitizer.lines import events
from kvref.sanitizer.recorder import Recorder
from kvref.sanitizer.sanitizer import sanitize


def logged(path: Path) -> list[Event]:
    """Every event of a file."""
    with path.open("rb") as stream:
        return [event for _, event in events(stream, path.name)]


def test_a_history_of_every_method(tmp_path: Path) -> None:
    """Each method writes its event, with the fields that were given and no others."""
    path = tmp_path / "log.jsonl"
    image = Span(kind="media", digest="cat", offset=0, length=2)
    with Recorder(path, num_blocks=64, block_size=16, publish="scheduled", writer="test") as log:
        log.request(1, range(40), Namespace(salt="s", spans=(image,)))
        log.allocate(1, [3, 4, 5, 9])
        log.begin(0)
        log.compute([1], [0], [40], step=0)
        log.end(0, num_free=60)
        log.decode([1], [7])
        log.compute([1], [40])
        log.tokens(1, [8, 9])
        log.truncate(1, 41)
        log.write(1, 41, 0, slots=[])
        log.read(1, 0, 41)
        log.read(1, 0, 16, blocks=[3])
        log.publish([3, 4], request=1)
        log.fork(1, "b")
        log.copy(5, 11, 9, request="b")
        log.replace(1, 0, [3])
        log.finish(1)
        log.free(1, [9, 5])
        log.free(1)
        log.abort("b")
        log.free("b")
        log.evict([4])
        log.request("c", range(40), Namespace(salt="s", spans=(image,)))
        log.hit("c", 16, [3])
        log.preempt("c")
        log.reset()
        log.log("snapshot", request="c", snapshot=0, count=0)
        log.flush()
        assert len(path.read_text().splitlines()) == 28
    said = logged(path)
    assert said[0] == {
        "event": "open",
        "schema": SCHEMA,
        "num_blocks": 64,
        "block_size": 16,
        "publish": "scheduled",
        "writer": "test",
    }
    assert said[1]["spans"] == [{"kind": "media", "digest": "cat", "offset": 0, "length": 2}]
    assert said[1].keys() == {"event", "request", "tokens", "salt", "spans"}
    assert said[2]["blocks"] == [[3, 3], 9]
    assert said[7] == {"event": "compute", "requests": [1], "starts": [40]}
    assert said[-1] == {"event": "close"}
    methods = {name for name in EVENTS if hasattr(Recorder, name)}
    assert methods - {"close"} <= {event["event"] for event in said}
    assert sanitize(path).findings == ()


def test_a_hit_is_logged_in_tokens(tmp_path: Path) -> None:
    """Whole blocks, from position 0 unless it is said."""
    path = tmp_path / "log.jsonl"
    with Recorder(path, num_blocks=8, block_size=4) as log:
        log.request(1, range(9))
        log.allocate(1, [0, 1, 2])
        log.compute([1], [0], [9])
        log.publish([0, 1])
        log.request(2, range(9))
        log.hit(2, 4, [0])
        log.hit(2, 4, [1], start=4)
        log.close(num_free=5)
    assert [event["count"] for event in logged(path) if event["event"] == "hit"] == [4, 4]
    assert sanitize(path).closed


def test_integers_of_numpy_become_integers(tmp_path: Path) -> None:
    """Block tables are often arrays."""
    path = tmp_path / "log.jsonl"
    table = np.array([3, 4, 6], np.int32)
    with Recorder(path, num_blocks=int(table[0]) + 5, block_size=4) as log:
        log.request(np.int64(1), np.arange(9))
        log.allocate(table[0] - 2, table)
        log.compute(np.array([1]), np.array([0]), [table[0] * 3])
    assert logged(path)[1:4] == [
        {"event": "request", "request": 1, "tokens": list(range(9))},
        {"event": "allocate", "request": 1, "blocks": [3, 4, 6]},
        {"event": "compute", "requests": [1], "starts": [0], "counts": [9]},
    ]


def test_a_file_may_be_packed(tmp_path: Path) -> None:
    """By its name."""
    path = tmp_path / "log.jsonl.gz"
    with Recorder(path, num_blocks=8, block_size=4) as log:
        log.reset()
    assert json.loads(gzip.decompress(path.read_bytes()).splitlines()[1]) == {"event": "reset"}
    assert sanitize(path).closed


def test_an_engine_that_fell_over_has_closed_nothing(tmp_path: Path) -> None:
    """What it logged is there; what it held is not called leaked."""
    path = tmp_path / "log.jsonl"

    def run() -> None:
        with Recorder(path, num_blocks=8, block_size=4) as log:
            log.request(1, range(9))
            log.allocate(1, [0])
            log.abort(1)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        run()
    report = sanitize(path)
    assert (report.events, report.closed, report.findings) == (4, False, ())


@pytest.mark.parametrize(
    ("event", "fields", "words"),
    [
        ("hits", {}, "event = 'hits', expected one of open, request"),
        ("hit", {"request": 1, "count": 4}, "hit has no field blocks"),
        ("free", {"request": 1.5}, "free.request = 1.5, expected an integer"),
        ("free", {"request": 1, "blocks": [None]}, "free.blocks = [None], expected a list of integers"),
        ("free", {"request": object()}, "object in an event, expected texts, integers and lists of them"),
    ],
)
def test_what_is_no_event_is_not_written(
    event: str, fields: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """The engine's own log call says so, where it stands."""
    path = tmp_path / "log.jsonl"
    with Recorder(path, num_blocks=8, block_size=4) as log:
        with pytest.raises(HistoryError) as error:
            log.log(event, **fields)
        assert words in str(error.value)
    assert [said["event"] for said in logged(path)] == ["open", "close"]


def test_a_pool_that_cannot_be_makes_no_file(tmp_path: Path) -> None:
    """Refused before anything is opened."""
    path = tmp_path / "log.jsonl"
    with pytest.raises(HistoryError, match=r"open\.num_blocks = 0"):
        Recorder(path, num_blocks=0, block_size=4)
    assert not path.exists()


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_threads_may_log_at_once(name: str, tmp_path: Path) -> None:
    """Every line is whole."""
    path = tmp_path / name
    with Recorder(path, num_blocks=64, block_size=16) as log, ThreadPoolExecutor(8) as pool:
        for request in range(800):
            pool.submit(log.request, request, [request] * 50)
    assert sorted(event["request"] for event in logged(path)[1:-1]) == list(range(800))


def test_nothing_comes_after_the_close(tmp_path: Path) -> None:
    """To close again does nothing, and an event is refused in our words."""
    path = tmp_path / "log.jsonl"
    with Recorder(path, num_blocks=64, block_size=16) as log:
        log.close()
        log.close()
    assert [event["event"] for event in logged(path)] == ["open", "close"]
    with pytest.raises(HistoryError, match="an event comes after the file was closed"):
        log.reset()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
def test_a_full_disk_is_told_and_ends_the_file() -> None:
    """As the error of the system; what the engine raised itself is not hidden by it."""
    log = Recorder("/dev/full", num_blocks=64, block_size=16)
    with pytest.raises(OSError, match="space"):
        log.request(1, range(100_000))
    with pytest.raises(HistoryError, match="after the file was closed"):
        log.reset()
    log.close()
    with pytest.raises(KeyError), Recorder("/dev/full", num_blocks=64, block_size=16):
        raise KeyError
    with pytest.raises(OSError, match="space"), Recorder("/dev/full", num_blocks=64, block_size=16):
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_a_forked_process_changes_nothing(name: str, tmp_path: Path) -> None:
    """It cannot log, and what was not yet written is written once, by whoever recorded it."""
    path = tmp_path / name
    with Recorder(path, num_blocks=64, block_size=16) as log:
        log.request(1, [1, 2, 3])
        child = os.fork()
        if not child:
            refused = 1
            try:
                log.reset()
            except HistoryError:
                refused = 0
            log.close()
            log.flush()
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        log.abort(1)
    assert [event["event"] for event in logged(path)] == ["open", "request", "abort", "close"]

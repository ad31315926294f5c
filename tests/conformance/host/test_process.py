"""Programs that do wrong: each fault has its kind, costs the call it happened in, and no other."""

import json
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvref_conformance.contracts import Answer, Call, Failed, OutputSpec
from kvref_conformance.host import pipe
from kvref_conformance.host.process import ProcessHost
from kvref_conformance.host.wire import ProtocolError

FAKES = Path(__file__).parents[1] / "fakes"
X = np.arange(15, dtype=np.float32).reshape(3, 5)
HONEST = Call("copy", {"x": X}, {}, {"out": OutputSpec("float32", (3, 5))})
Start = Callable[..., ProcessHost]


def faulty(fault: str = "yes") -> Call:
    """Return a call that makes a fake do wrong."""
    return Call("copy", {"x": X}, {"fault": fault}, HONEST.outputs)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start fakes by name; every one is ended and its files are gone when the test is over."""
    hosts: list[ProcessHost] = []

    def starter(fake: str, *args: str, **options: Any) -> ProcessHost:
        hosts.append(ProcessHost([sys.executable, "-S", str(FAKES / f"{fake}.py"), *args], **options))
        return hosts[-1]

    yield starter
    for host in hosts:
        host.close()


def failure(host: ProcessHost, call: Call) -> Failed:
    """Return how a call failed."""
    with pytest.raises(Failed) as caught:
        host.call(call)
    return caught.value


def assert_honest(answer: Answer) -> None:
    """Check that an answer is the honest copy."""
    np.testing.assert_array_equal(answer.outputs["out"], X)
    assert not answer.mutated
    assert not answer.overrun
    assert not answer.unwritten


@pytest.mark.parametrize(
    ("fake", "kind", "detail"),
    [
        ("garbage", "protocol", "a line is not JSON: '[info] compiling kernels"),
        ("binary_garbage", "protocol", "a line is not UTF-8 at byte 0"),
        ("endless_line", "protocol", "stdout has a line of more than 65536 bytes"),
        ("lies_about_shape", "shape", "out is float32 [1, 5], expected float32 [3, 5]"),
        ("truncates", "protocol", "out: the file has 60 bytes, expected 188; open tensor files for update"),
        ("replaces_file", "protocol", "out: the file was replaced by another"),
        ("crashes", "crash", "killed by SIGSEGV (Segmentation fault)\nstderr: about to read block 4096"),
        ("exits_early", "crash", "exited with status 3 before it answered"),
    ],
)
def test_a_fault_costs_its_own_call(start: Start, fake: str, kind: str, detail: str) -> None:
    """The failure has the right kind and says what was found; the next call has a fresh program."""
    host = start(fake)
    assert_honest(host.call(HONEST))
    found = failure(host, faulty())
    assert found.kind == kind
    assert detail in found.detail
    assert_honest(host.call(HONEST))


def test_a_program_that_closes_its_stdout_is_ended(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot answer any more, though it runs on."""
    monkeypatch.setattr(pipe, "GRACE", 0.2)
    host = start("closes_stdout")
    found = failure(host, faulty())
    assert found.kind == "protocol"
    assert "closed its stdout without a reply, and runs on" in found.detail
    assert_honest(host.call(HONEST))


@pytest.mark.parametrize("fake", ["hangs", "never_flushes"])
def test_a_program_that_does_not_answer_is_ended(start: Start, fake: str) -> None:
    """And so is all it has started; a reply that stays in a buffer is no reply."""
    host = start(fake, timeout=0.5)
    found = failure(host, faulty())
    assert found.kind == "timeout"
    assert "no reply within 0.5 s" in found.detail
    host._timeout = 60.0  # an honest answer may take its time on a busy machine
    assert_honest(host.call(HONEST))


def test_a_partial_write_is_counted(start: Start) -> None:
    """Three elements were left as they were, and the answer says so."""
    answer = start("partial_write").call(faulty())
    assert answer.unwritten == {"out": 3}
    np.testing.assert_array_equal(answer.outputs["out"].ravel()[:12], X.ravel()[:12])


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_write_outside_the_output_is_seen(start: Start, where: str) -> None:
    """One element on either side."""
    answer = start("overrun").call(faulty(where))
    assert answer.overrun == ("out",)
    np.testing.assert_array_equal(answer.outputs["out"], X)


def test_a_changed_input_is_seen_and_restored(start: Start) -> None:
    """The next call gets its inputs as they should be."""
    host = start("mutates_input")
    x = X + 1
    call = Call("copy", {"x": x}, {"fault": "yes"}, HONEST.outputs)
    answer = host.call(call)
    assert answer.mutated == ("x",)
    np.testing.assert_array_equal(answer.outputs["out"], x)
    assert_honest(host.call(HONEST))


def test_stderr_changes_nothing(start: Start) -> None:
    """Two megabytes of warnings and tracebacks, and the answer counts; the tail is kept (KV-CONF-026)."""
    host = start("noisy_stderr")
    assert_honest(host.call(faulty()))
    assert_honest(host.call(HONEST))
    host.close()
    assert "Traceback" in host.stderr
    assert len(host.stderr) <= 16 * 1024


@pytest.mark.parametrize("fake", ["wrong_id", "exits_after_answer"])
def test_a_fault_after_the_answer_fails_the_next_call_and_no_more(start: Start, fake: str) -> None:
    """What comes too late, or an end unasked for, is seen when the next reply is due, however fast it was."""
    host = start(fake)
    assert_honest(host.call(faulty()))
    found = failure(host, HONEST)
    assert found.kind == {"wrong_id": "protocol", "exits_after_answer": "crash"}[fake]
    assert_honest(host.call(HONEST))


def test_an_endless_line_costs_no_memory(start: Start) -> None:
    """A gigabyte without a newline is refused after its first 64 KiB."""
    host = start("endless_line")
    host.hello()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    failure(host, faulty())
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 * 1024  # KiB


REPLIES: list[tuple[dict[str, Any], str, str]] = [
    ({"error": "RuntimeError: no kernel image", "trace": "a.cu:7"}, "error", "no kernel image\na.cu:7"),
    ({"refused": "block_tables[0, 1] = 99"}, "refused", "block_tables[0, 1] = 99"),
    ({"unsupported": "head_dim 80"}, "unsupported", "head_dim 80"),
    ({}, "protocol", "a reply has no outcome"),
    ({"ok": True, "refused": "both"}, "protocol", "a reply has ok and refused"),
    ({"ok": True, "lse.shape": "3"}, "protocol", "unknown key 'lse.shape'"),
    ({"ok": True, "out.shape": "three"}, "protocol", "out.shape = 'three'"),
    ({"ok": True, "out.dtype": "bfloat16"}, "dtype", "out is bfloat16 [3, 5], expected float32 [3, 5]"),
    ({"ok": True, "out": {"nested": 1}}, "protocol", "out holds dict"),
    ({"id": "0", "ok": True}, "protocol", "a reply has id '0'"),
]


@pytest.mark.parametrize(("reply", "kind", "detail"), REPLIES)
def test_each_reply_has_its_kind(start: Start, reply: dict[str, Any], kind: str, detail: str) -> None:
    """What the program says of itself passes through; what it may not say is a fault of the protocol."""
    host = start("odd_reply")
    found = failure(host, faulty(json.dumps(reply)))
    assert found.kind == kind
    assert detail in found.detail
    assert_honest(host.call(HONEST))


@pytest.mark.parametrize(
    ("hello", "detail"),
    [
        ({"wire": "kvref-wire/2"}, "wire = 'kvref-wire/2'"),
        ({"verbs": "copy,copy"}, "distinct names"),
        ({"claims": "not json"}, "claims: "),
        ({"claims": "[1]"}, "claims: found list, expected a JSON object"),
        ({"claims": "[" * 30000}, "claims: "),
        ({"claims_file": "/etc/passwd"}, "outside the scratch directory"),
        ({"claims_file": "/nowhere"}, "outside the scratch directory"),
        ({"ok": False}, "ok = False"),
    ],
)
def test_a_wrong_hello_is_a_fault_of_the_protocol(start: Start, hello: dict[str, Any], detail: str) -> None:
    """Nothing is called before the program has introduced itself properly; no file outside is read."""
    host = start("odd_hello", json.dumps(hello))
    with pytest.raises(Failed) as caught:
        host.hello()
    assert caught.value.kind == "protocol"
    assert detail in caught.value.detail


def test_a_hello_says_who_is_there(start: Start) -> None:
    """Name, version, verbs, claims and environment arrive; it is asked once."""
    fields = {"claims": json.dumps({"dtypes": ["bfloat16"]}), "env.compiler": "g++ 12"}
    host = start("odd_hello", json.dumps(fields))
    hello = host.hello()
    assert (hello.name, hello.version, hello.verbs) == ("fake", "1", ("copy",))
    assert hello.claims == {"dtypes": ["bfloat16"]}
    assert hello.environment == {"compiler": "g++ 12"}
    assert host.hello() is hello


def test_a_host_gives_up_after_three_failed_starts(start: Start) -> None:
    """A thousand cases do not wait a thousand times for a program that cannot start."""
    host = start("odd_hello", json.dumps({"verbs": ""}))
    found = [failure(host, HONEST) for _ in range(5)]
    assert {failed.kind for failed in found} == {"protocol"}
    assert ["given up after 3 starts" in failed.detail for failed in found] == [False] * 3 + [True] * 2


def test_a_program_that_is_not_there_is_named() -> None:
    """The commonest fault of a command line."""
    with ProcessHost(["/nowhere/harness"]) as host:
        found = failure(host, HONEST)
    assert found.kind == "crash"
    assert "cannot start /nowhere/harness: No such file" in found.detail


def test_files_are_swept_after_each_call_and_gone_at_the_end(start: Start) -> None:
    """What a subject leaves behind neither grows nor reaches the next call."""
    host = start("extra_files")
    root = host._scratch.root
    for _ in range(2):
        assert_honest(host.call(faulty()))
        assert sorted(os.listdir(root)) == ["out.bin", "x.bin"]
    host.close()
    assert not root.exists()


def test_one_name_at_one_size_keeps_its_file(start: Start) -> None:
    """A subject that keeps its mapping sees new content at the old address (KV-ATTN-102)."""
    host = start("honest")
    host.call(HONEST)
    before = os.stat(host._scratch.root / "x.bin").st_ino
    host.call(Call("copy", {"x": X + 1}, {}, HONEST.outputs))
    assert os.stat(host._scratch.root / "x.bin").st_ino == before
    answer = host.call(Call("copy", {"x": X[:2]}, {}, {"out": OutputSpec("float32", (2, 5))}))
    np.testing.assert_array_equal(answer.outputs["out"], X[:2])


def test_a_long_call_is_refused_before_it_is_sent(start: Start) -> None:
    """A parameter that does not fit into a line is the suite's own fault, and is said as such."""
    host = start("honest")
    with pytest.raises(ProtocolError, match="expected at most 65536"):
        host.call(Call("copy", {"x": X}, {"style": "y" * 70000}, HONEST.outputs))
    assert_honest(host.call(HONEST))

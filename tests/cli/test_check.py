"""`kvref check` from the outside: exit codes, files, and sentences for people."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvref.cli import main
from kvref.errors import ArgumentError
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import VERBS
from kvref_conformance.requirements import spec_version
from kvref_conformance.runner.casefile import CaseFile, save_case
from kvref_conformance.runner.evaluate import plan
from kvref_conformance.runner.verdict import EXIT_CODES

SUBJECTS = '''\
"""Subjects for the tests of the command line."""

import time

import numpy as np

from kvref.attention.paged import write_kv
from kvref_conformance.claims import Claims


class Good:
    """Writes as the reference does."""

    claims = Claims(name="good", version="1.2", dtypes=("float32",), head_dims=(64,))

    def write_kv(self, k, v, k_cache, v_cache, *, slot_mapping):
        write_kv(k, v, k_cache, v_cache, slot_mapping=slot_mapping)


class WritesNegative(Good):
    """A negative slot wraps around to the end of the cache."""

    def write_kv(self, k, v, k_cache, v_cache, *, slot_mapping):
        slots = np.asarray(slot_mapping) % (k_cache.shape[0] * k_cache.shape[1])
        k_cache[slots // k_cache.shape[1], slots % k_cache.shape[1]] = k
        v_cache[slots // k_cache.shape[1], slots % k_cache.shape[1]] = v


class Misspelt(Good):
    """Claims what the contract has not."""

    claims = {"features": ["windows"]}


class Refused(Good):
    """Is refused its claims while it is asked for them."""

    @property
    def claims(self):
        return Claims(features=("windows",))


class Leaves(Good):
    """Ends its process, which is the suite's where it runs in it, as if all were well."""

    def write_kv(self, *tensors, slot_mapping):
        raise SystemExit(0)


class Hangs(Good):
    """Never answers."""

    def write_kv(self, *tensors, slot_mapping):
        open("hanging", "w").close()
        time.sleep(600)


class Prints(Good):
    """Says hello wherever it can."""

    print("hello from the import")

    def __init__(self):
        print("hello from the making")

    def write_kv(self, k, v, k_cache, v_cache, *, slot_mapping):
        print("hello from a call")
        write_kv(k, v, k_cache, v_cache, slot_mapping=slot_mapping)


class LeavesAtOnce(Good):
    """Ends while it is made."""

    def __init__(self):
        raise SystemExit(0)


class Unstartable:
    """Cannot be made."""

    def __init__(self):
        raise OSError("no device")

    def write_kv(self):
        """Never called."""
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with subjects, which is the working directory."""
    (tmp_path / "subjects.py").write_text(SUBJECTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def kvref(*arguments: str) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def check(subject: str, *arguments: str) -> Result:
    """Check a subject of the file, in this process."""
    return kvref("check", f"subjects.py:{subject}", "--in-process", *arguments)


def test_a_conformant_subject_exits_with_0(folder: Path) -> None:
    """And says so in words."""
    result = check("Good", "--area", "write_kv")
    assert result.exit_code == 0
    assert "conformant" in result.stdout
    assert "good 1.2:" in result.stdout
    assert not (folder / "finds").exists()


def test_a_failing_subject_exits_with_1_and_leaves_what_replays_it(folder: Path) -> None:
    """The printed command, run as it is, brings the failure back."""
    result = check("WritesNegative")
    assert result.exit_code == 1
    line = next(line for line in result.stdout.splitlines() if "replay:" in line)
    command = line.split("replay: kvref ")[1].split()
    assert command[:3] == ["check", "subjects.py:WritesNegative", "--in-process"]
    again = kvref(*command)
    assert again.exit_code == 1
    assert "KV-ATTN-051 negative-slot-skipped" in again.stdout
    assert "slot_mapping: int" in again.stdout
    repaired = kvref("check", "subjects.py:Good", "--in-process", *command[3:])
    assert repaired.exit_code == 0


def test_a_replay_can_keep_its_tensors(folder: Path) -> None:
    """Raw bytes and an index, for a debugger in any language."""
    check("WritesNegative")
    case = next((folder / "finds").glob("KV-ATTN-051-*.json"))
    check("WritesNegative", "--case", str(case), "--keep", "kept")
    index = json.loads((folder / "kept" / "index.json").read_text())
    for name, tensor in index["tensors"].items():
        size = (folder / "kept" / tensor["file"]).stat().st_size
        assert size > 0, name
    assert {"k", "v", "k_cache", "v_cache", "slot_mapping", "k_cache_after"} <= set(index["tensors"])


def test_an_area_that_was_asked_for_and_is_not_claimed_exits_with_1(folder: Path) -> None:
    """0 would say that it is conformant."""
    result = check("Good", "--area", "attention")
    assert result.exit_code == 1
    assert "not claimed" in result.stdout


KNOWN = '[[known_failure]]\nid = "{}"\nkind = "bug"\nreason = "soon"\n'


def test_known_failures_change_the_exit_code_and_no_verdict(folder: Path) -> None:
    """A build stays green, and the report stays honest."""
    failing = {r["requirement"] for r in failures(check("WritesNegative", "--json"))}
    (folder / "known.toml").write_text("".join(KNOWN.format(name) for name in sorted(failing)))
    result = check("WritesNegative", "--known-failures", "known.toml", "--json")
    assert result.exit_code == 0
    areas = {area["area"]: area["verdict"] for area in json.loads(result.stdout)["areas"]}
    assert areas["write_kv"] == "not conformant"


def test_a_known_failure_that_passes_exits_with_4_and_names_the_line(folder: Path) -> None:
    """The file can only shrink."""
    (folder / "known.toml").write_text("# ours\n" + KNOWN.format("KV-ATTN-051"))
    result = check("Good", "--known-failures", "known.toml")
    assert result.exit_code == 4
    assert "line 2: delete the entry of KV-ATTN-051" in result.stdout


def failures(result: Result) -> list[dict[str, Any]]:
    """Return the failing requirements of a JSON report on stdout."""
    return [r for r in json.loads(result.stdout)["requirements"] if r["status"] == "fail"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no_such_name"], "expected one of tiled"),
        (["none.py:Subject"], "does not exist"),
        (["subjects.py:Good", "--area", "attend"], "expected one of attention"),
        (["subjects.py:Good", "--level", "thorough"], "thorough"),
        (["subjects.py:Good", "--exec", "./harness"], "--exec"),
        (["subjects.py:Good", "--report", "report.pdf"], "report.pdf"),
        (["subjects.py:Good", "--known-failures", "none.toml"], "none.toml"),
        (["subjects.py:Good", "--case", "none.json"], "none.json"),
        (["subjects.py:Good", "--in-process", "--python", "python3"], "--in-process"),
        (["subjects.py:Missing", "--in-process"], "Missing"),
        ([""], "SUBJECT = ''"),
        (["subjects.py:Good", "--python", ""], "--python is empty"),
        (["--exec", ""], "expected a command line"),
        (["--exec", "./harness 'x"], "No closing quotation"),
        (["subjects.py:Good", "--timeout", "nan"], "--timeout nan"),
        (["subjects.py:Good", "--fuzz", "nan"], "--fuzz nan"),
        (["subjects.py:Good", "--in-process", "--fuzz", "1", "--area", "attention"], "expected attention"),
        (["subjects.py:Good", "--report", "."], "expected a name ending"),
        (["subjects.py:Good", "--report", "subjects.py/report.json"], "cannot be written"),
        (["subjects.py:Good", "--finds", "subjects.py"], "cannot be written"),
        (["subjects.py:Good", "--case", "/dev/zero"], "has more than"),
        (["subjects.py:Good", "--known-failures", "/dev/zero"], "has more than"),
        (["subjects.py:Good", "--case", "a.json", "--fuzz", "1"], "expected one of them"),
        (["subjects.py:Good", "--case", "a.json", "--report", "a.html"], "--report with --case"),
        (["subjects.py:Good", "--fuzz", "1", "--known-failures", "k.toml"], "--known-failures with --fuzz"),
        (["subjects.py:Good", "--keep", "kept"], "--keep without --case"),
        (["subjects.py:Good", "--seed", "3"], "--seed without --fuzz"),
    ],
)
def test_a_wrong_command_line_exits_with_2(folder: Path, arguments: list[str], said: str) -> None:
    """With a sentence, and no traceback."""
    result = kvref("check", *arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_an_error_before_the_run_costs_no_run(folder: Path) -> None:
    """A misspelt report name is found before minutes are spent."""
    result = kvref("check", "subjects.py:Unstartable", "--report", "report.pdf")
    assert result.exit_code == 2


def test_a_subject_that_does_not_start_exits_with_3(folder: Path) -> None:
    """That is no verdict on its kernels."""
    result = kvref("check", "subjects.py:Unstartable")
    assert result.exit_code == 3
    assert "no device" in result.output


HARNESS = """\
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    reply = {"id": asked["id"], "ok": True}
    if asked["op"] == "hello":
        reply |= {"wire": asked["wire"], "name": "odd", "version": "", "verbs": "generate"}
    print(json.dumps(reply), flush=True)
"""


def test_a_program_without_a_verb_of_the_contract_exits_with_3(folder: Path) -> None:
    """Nothing asked would otherwise be nothing failed."""
    (folder / "harness.py").write_text(HARNESS)
    result = kvref("check", "--exec", f"{sys.executable} harness.py")
    assert result.exit_code == 3
    assert "generate" in result.output


def test_a_program_that_is_not_there_exits_with_3(folder: Path) -> None:
    """The same for `--exec`."""
    result = kvref("check", "--exec", "./no_such_harness --fast")
    assert result.exit_code == 3
    assert "no_such_harness" in result.output


def test_reports_are_written_by_their_names(folder: Path) -> None:
    """Several at once, one run."""
    names = ["report.json", "report.xml", "report.html", "report.md", "badge.json"]
    result = check("Good", *(word for name in names for word in ("--report", f"out/{name}")))
    assert result.exit_code == 0
    assert sorted(path.name for path in (folder / "out").iterdir()) == sorted(names)
    assert json.loads((folder / "out" / "badge.json").read_text())["color"] == "brightgreen"


def test_workers_and_a_process_give_the_same_report(folder: Path) -> None:
    """How a run is spread over processes is nobody's business but the clock's."""
    check("WritesNegative", "--report", "a.json", "--no-finds")
    result = kvref("check", "subjects.py:WritesNegative", "-n", "2", "--no-finds", "--report", "b.json")
    assert result.exit_code == 1
    a, b = (json.loads((folder / name).read_text()) for name in ("a.json", "b.json"))
    for report in (a, b):
        report["command"] = report["environment"] = ""
    assert a == b


def test_an_interpreter_can_be_named(folder: Path) -> None:
    """The subject's environment is its own."""
    result = kvref("check", "subjects.py:Good", "--python", sys.executable, "--json", "--no-finds")
    assert result.exit_code == 0
    assert (
        json.loads(result.stdout)["command"] == "kvref check subjects.py:Good --python PYTHON --level quick"
    )


def test_a_fuzz_run_saves_what_it_finds(folder: Path) -> None:
    """A find can be replayed; it decides no verdict."""
    result = check("WritesNegative", "--fuzz", "3", "--seed", "7", "--out", "found", "--json")
    assert result.exit_code == 1
    saved = json.loads(result.stdout)["saved"]
    assert check("WritesNegative", "--case", f"found/{saved[0]}").exit_code == 1


def test_help_documents_every_exit_code() -> None:
    """They are an interface."""
    text = " ".join(kvref("check", "--help").output.split())
    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in text


def test_a_file_of_finds_is_named_in_the_report(folder: Path) -> None:
    """JSON has the file, the command and the smallest case."""
    (first, *_) = failures(check("WritesNegative", "--json"))
    assert (folder / "finds" / first["failure"]["find"]).is_file()
    assert first["failure"]["replay"].endswith(first["failure"]["find"])
    assert first["area"] in VERBS


@pytest.mark.parametrize("arguments", [(), ("--in-process",)])
@pytest.mark.parametrize("subject", ["Misspelt", "Refused"])
def test_a_declaration_that_says_nothing_exits_with_3(
    folder: Path, subject: str, arguments: tuple[str, ...]
) -> None:
    """Of such a subject nothing can be said, however it is wrong: not 1, which is a verdict."""
    result = kvref("check", f"subjects.py:{subject}", *arguments)
    assert result.exit_code == 3
    (line,) = [line for line in result.output.splitlines() if "hello from the import" not in line]
    assert line.startswith("Error: the subject declares what the contract has not: claims.features holds")


@pytest.mark.parametrize(("subject", "code"), [("Leaves", 1), ("LeavesAtOnce", 3)])
def test_a_subject_cannot_end_the_suite(folder: Path, subject: str, code: int) -> None:
    """sys.exit(0) inside a subject in this process would read as conformant."""
    result = check(subject, "--no-finds")
    assert result.exit_code == code
    assert "SystemExit: 0" in result.output


@pytest.mark.parametrize("arguments", [(), ("--fuzz", "0.1")])
def test_json_on_stdout_is_nothing_but_json(folder: Path, arguments: tuple[str, ...]) -> None:
    """A subject in this process may print at any time."""
    result = check("Prints", "--json", *arguments)
    assert result.exit_code == 0
    assert json.loads(result.stdout)
    assert "hello from a call" in result.stderr


def test_where_the_usual_folder_cannot_be_written_the_run_does_without(folder: Path) -> None:
    """Nobody asked for files: a folder that is read-only costs the replay lines, not the report."""
    (folder / "finds").write_text("a file stands in the way")
    result = check("WritesNegative")
    assert result.exit_code == 1
    assert "KV-ATTN-051" in result.stdout
    assert "replay:" not in result.stdout
    assert "no files that replay failures" in result.stderr


def test_a_report_that_cannot_be_written_is_printed_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fills up during a run must not cost what the run has found."""

    def full(*_: object) -> None:
        raise ArgumentError("report file 'a.json' cannot be written: No space left on device")

    monkeypatch.setattr("kvref_conformance.report.files.write_report", full)
    result = check("Good", "--report", "a.json")
    assert result.exit_code == 2
    assert "conformant" in result.stdout


def test_an_error_of_the_suite_exits_with_3(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 is a verdict about the subject, and Python's own exit code for a traceback."""
    monkeypatch.setattr("kvref_conformance.runner.suite.survey", lambda *_: 1 / 0)
    result = check("Good")
    assert result.exit_code == 3
    assert "the suite itself failed: ZeroDivisionError" in result.output


def test_a_case_that_a_check_was_not_made_for_exits_with_2(folder: Path) -> None:
    """Case files travel and are edited; that is not a failure of the subject."""
    verbs, claims = ("paged_attention",), Claims(features=("window",))
    chosen, case = next((check, case) for check, case in plan(verbs, claims, "quick") if case.options)
    path = save_case(
        folder / "finds",
        CaseFile(
            spec_version=spec_version(),
            requirement=chosen.requirement,
            slug="",
            check=chosen.name,
            case=replace(case, options={}),
            subject="",
            subject_version="",
            message="",
            kind="",
        ),
    )
    result = kvref("check", "tiled", "--in-process", "--case", str(path))
    assert result.exit_code == 2
    assert "was not made for this case" in result.output


#: The command line, with Ctrl-C and a hangup heard even where the tests were started with them ignored.
START = (
    "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    "runpy.run_module('kvref.cli', run_name='__main__', alter_sys=True)"
)


def run_kvref(folder: Path, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    """Start the command line in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", START, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_terminal_without_the_characters_gets_them_spelled(folder: Path) -> None:
    """LC_ALL=C in a container is no reason for a traceback."""
    (folder / "known.toml").write_text(KNOWN.format("KV-ATTN-021").replace("soon", "±"), encoding="utf-8")
    arguments = ["check", "subjects.py:Good", "--in-process", "--known-failures", "known.toml"]
    run = run_kvref(folder, *arguments, PYTHONIOENCODING="ascii")
    out, errors = run.communicate(timeout=900)
    assert run.returncode == 0, errors
    assert "bug: \\xb1" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_ends_at_once_and_leaves_nothing(
    folder: Path, number: signal.Signals, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Not after the call's timeout, and without a subject that runs on."""
    place = tmp_path_factory.mktemp("tmp")
    arguments = ["check", "subjects.py:Hangs", "--timeout", "600", "--no-finds"]
    run = run_kvref(folder, *arguments, TMPDIR=str(place))
    deadline = time.monotonic() + 900
    while not (folder / "hanging").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    run.send_signal(number)
    _, errors = run.communicate(timeout=900)
    assert run.returncode == 130
    assert errors.strip().endswith("Error: interrupted")
    assert re.search(r"^\d+ of \d+ cases ran; 0 requirements failed:$", errors, re.MULTILINE)
    assert not list(place.iterdir())

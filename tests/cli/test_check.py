"""`kvref check` from the outside: exit codes, files, and sentences for people."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvref.cli import main
from kvref_conformance.contracts import VERBS
from kvref_conformance.runner.verdict import EXIT_CODES

SUBJECTS = '''\
"""Subjects for the tests of the command line."""

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

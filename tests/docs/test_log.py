"""The page on logging a history: its writers write histories, and what it shows is so."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from documents import DOCS, ROOT, blocks, kvref, run

from kvref.memory.events import EVENTS
from kvref.sanitizer.lines import MAX_LINE
from kvref.sanitizer.sanitizer import sanitize
from kvref.sanitizer.state import Limits

PAGE = "docs/memory/log.md"


def built(command: list[str], examples: Path) -> Path:
    """Compile a writer, with warnings as errors, and return it; `log_history` is the name of the program."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    program = examples / "log_history"
    done = subprocess.run(command, cwd=examples, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


CPP = ["g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "log_history.cpp", "-o", "log_history"]
RUST = ["rustc", "--edition", "2021", "-D", "warnings", "log_history.rs"]
GO = ["go", "build", "log_history.go"]


@pytest.mark.parametrize("command", [CPP, RUST, GO], ids=["C++", "Rust", "Go"])
def test_a_writer_writes_a_clean_history(command: list[str], examples: Path) -> None:
    """It compiles without a warning, and what its toy engine does is right."""
    subprocess.run([str(built(command, examples)), "history.jsonl"], cwd=examples, check=True)
    report = sanitize(examples / "history.jsonl")
    assert (report.findings, report.closed) == ((), True)


def test_the_fault_in_cpp_is_shown_as_it_is_told(examples: Path) -> None:
    """The page shows what the command prints, word for word."""
    subprocess.run([str(built(CPP, examples)), "history.jsonl", "early"], cwd=examples, check=True)
    done = run(kvref("sanitize", "history.jsonl"), examples)
    assert done.returncode == 1
    (shown,) = [block.text for block in blocks(PAGE) if block.language == "text"]
    assert shown == done.stdout


def test_the_writer_in_python_writes_a_clean_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snippet of the page, as it stands."""
    monkeypatch.chdir(tmp_path)
    (snippet,) = [block.text for block in blocks(PAGE) if block.language == "python"]
    exec(snippet, {})
    assert sanitize("history.jsonl").findings == ()


def test_the_history_that_is_shown_is_the_one_that_is_tested() -> None:
    """A public bug, named by `tests/sanitizer/test_bugs.py`."""
    shown = DOCS / "examples" / "fork_without_reference.jsonl"
    tested = ROOT / "tests" / "data" / "histories" / "M135-fork-without-reference.jsonl"
    assert shown.read_bytes() == tested.read_bytes()


def test_the_page_names_events_and_limits_that_exist() -> None:
    """A reader can look up every word of the table, and the limits are those of the code."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    named = {
        word
        for line in re.findall(r"^\* - (`.*)$", text, re.MULTILINE)
        for word in re.findall(r"`(\w+)`", line)
    }
    assert named - {"num_free"} <= set(EVENTS)
    limits = Limits()
    for number in (limits.blocks, limits.requests, limits.tokens, limits.entries):
        assert f"{number:,}" in text
    assert f"{MAX_LINE >> 20} MiB in one line" in text

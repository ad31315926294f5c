"""The examples run: the kernels conform, the faulty ones do not, the test passes."""

import doctest
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from documents import ROOT, blocks, kvref, run

TRACE = ROOT / "tests" / "data" / "traces" / "mooncake_conversation_trace.jsonl.gz"
WITH_SESSIONS = [p for p in sorted((ROOT / "kvref").rglob("*.py")) if ">>>" in p.read_text(encoding="utf-8")]


def test_example_subject_is_conformant(examples: Path) -> None:
    """What the docs show as a correct kernel passes everything it claims."""
    done = run(kvref("check", "my_subject.py:Subject", "--no-finds"), examples)
    assert done.returncode == 0, done.stdout + done.stderr


def test_faulty_example_breaks_what_the_docs_say(examples: Path) -> None:
    """The window that is one too wide fails its own requirement, and shows a slot that nobody may see."""
    done = run(kvref("check", "off_by_one.py:Subject", "--no-finds"), examples)
    assert done.returncode == 1
    assert set(re.findall(r"^FAIL  (\S+)", done.stdout, re.MULTILINE)) == {"KV-ATTN-012", "KV-ATTN-021"}


def test_example_cache_conforms_to_what_it_declares(examples: Path) -> None:
    """A cast that gives NaN past the largest number breaks the canonical answer and keeps a declared one."""
    undeclared = run(kvref("check", "my_cache.py:Subject", "--no-finds"), examples)
    assert undeclared.returncode == 1, undeclared.stdout + undeclared.stderr
    failing = set(re.findall(r"^FAIL  (\S+)", undeclared.stdout, re.MULTILINE))
    assert failing == {"KV-FMT-003", "KV-FMT-010", "KV-FMT-024"}
    declared = run(kvref("check", "my_cache_declared.py:Subject", "--no-finds"), examples)
    assert declared.returncode == 0, declared.stdout + declared.stderr


@pytest.mark.parametrize(
    ("example", "operations"), [("my_pool", "allocate, free, touch, num_free"), ("my_prefix_cache", "admit")]
)
def test_example_managers_are_conformant(example: str, operations: str, examples: Path) -> None:
    """What the docs show as a correct manager keeps all it offers, and no drawn program breaches anything."""
    done = run(kvref("check", f"{example}.py:Subject", "--no-finds"), examples)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"offers {operations}" in done.stdout
    options = ["--in-process", "--fuzz", "2", "--seed", "5", "--out", "finds"]
    searched = run(kvref("check", f"{example}.py:Subject", *options), examples)
    assert searched.returncode == 0, searched.stdout + searched.stderr


def test_forgetful_pool_is_shown_as_the_docs_say(examples: Path) -> None:
    """Three steps, the third marked, and the fault by its name in the museum."""
    done = run(kvref("check", "forgetful_pool.py:Subject", "--no-finds"), examples)
    assert done.returncode == 1
    assert "KV-BLOCK-005" in re.findall(r"^FAIL  (\S+)", done.stdout, re.MULTILINE)
    steps = r"^ +0  allocate 0 1  .*$\n^ +1  touch 0  .*$\n^ +>   2  free 0  .*$"
    assert re.search(steps, done.stdout, re.MULTILINE)
    assert "as if: a second holder was not counted" in done.stdout


def test_example_of_what_a_format_costs(examples: Path) -> None:
    """Every format is listed, and no error is past its bound, which the example asserts itself."""
    done = run([sys.executable, "format_cost.py"], examples)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [row[0] for row in rows] == ["fp8_e4m3_tensor", "mxfp8_e4m3", "nvfp4_tensor", "mxfp4"]
    for row in rows:
        assert 0 < 10 * float(row[3]) < float(row[2])


def test_example_of_counting_rules(examples: Path) -> None:
    """Seven rules give seven rows, with the published and the golden figures among them."""
    done = run([sys.executable, "counting_rules.py", str(TRACE)], examples)
    assert done.returncode == 0, done.stderr
    rows = {line[:28].strip(): line[28:].split() for line in done.stdout.splitlines()[1:]}
    assert len(rows) == 7
    assert rows["of blocks, head first"] == ["0.3664", "0.3257", "0.2112", "0.0445"]
    assert rows["of input tokens, second half"] == ["0.3981", "0.3438", "0.2195", "0.0467"]
    assert rows["mean of requests"][0] == "0.4094"


def test_example_test_passes(examples: Path) -> None:
    """The test of the docs runs by itself under pytest."""
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(examples)]
    done = run([*command, "-p", "no:cacheprovider", "test_my_kernel.py"], examples)
    assert done.returncode == 0, done.stdout + done.stderr


def test_declared_arithmetic_of_the_docs_is_accepted() -> None:
    """The snippet on declaring more roundings names facts that exist."""
    from kvref.attention.arithmetic import Arithmetic

    snippet = next(b.text for b in blocks("docs/start/testing.md") if b.language == "python")
    declared = next(line for line in snippet.splitlines() if line.startswith("lax"))
    names: dict[str, object] = {"Arithmetic": Arithmetic}
    exec(declared, names)
    assert isinstance(names["lax"], Arithmetic)


@pytest.mark.parametrize("path", WITH_SESSIONS, ids=lambda path: path.stem)
def test_docstrings_print_what_they_show(path: Path) -> None:
    """The sessions in the reference's docstrings, which its pages show."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    found = doctest.testmod(import_module(name))
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize(
    ("source", "include"),
    [
        ("write_kv.cpp", ["-I", str(ROOT / "conformance" / "harness")]),
        ("quantize_kv.cpp", ["-I", str(ROOT / "conformance" / "harness")]),
        ("block_allocator.cpp", ["-I", str(ROOT / "conformance" / "harness")]),
        ("paged_attention.cpp", []),
    ],
)
def test_cpp_harness_works(source: str, include: list[str], examples: Path) -> None:
    """Every harness of the docs compiles without a warning and speaks the protocol."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed")
    folder = examples if include else ROOT / "conformance" / "harness"
    program = examples / "harness"
    command = [compiler, "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", *include, "-o", str(program)]
    built = subprocess.run([*command, str(folder / source)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    done = run(kvref("smoke", "--exec", str(program)), examples)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("example", ["write_kv", "block_allocator"])
def test_cpp_example_is_conformant(example: str, examples: Path) -> None:
    """A kernel and a manager in a page of C++ each keep every requirement of what they claim."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed")
    program = examples / example
    include = str(ROOT / "conformance" / "harness")
    command = [compiler, "-std=c++17", "-O2", "-I", include, "-o", str(program), f"{example}.cpp"]
    subprocess.run(command, cwd=examples, check=True)
    done = run(kvref("check", "--exec", str(program), "--no-finds"), examples)
    assert done.returncode == 0, done.stdout + done.stderr

"""Python subjects in an interpreter of their own: found, described, called, and kept off the wire."""

import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from kvref_conformance.contracts import Call, Failed, OutputSpec
from kvref_conformance.host.process import ProcessHost, python_command

Q = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
ROPE = Call(
    "apply_rope",
    {"x": Q, "positions": np.zeros(2, np.int32)},
    {"base": 10000.0, "rotary_dim": 2, "style": "half"},
    {"out": OutputSpec("float32", (2, 2, 3))},
)
Write = Callable[..., ProcessHost]


@pytest.fixture
def subject(tmp_path: Path) -> Iterator[Write]:
    """Write a subject's source to a file of its own and host it from there."""
    hosts: list[ProcessHost] = []

    def writer(source: str, attr: str = ":Subject", *, python: str = sys.executable) -> ProcessHost:
        (tmp_path / "mine.py").write_text(textwrap.dedent(source))
        hosts.append(ProcessHost(python_command(python, f"mine{attr}"), cwd=str(tmp_path)))
        return hosts[-1]

    yield writer
    for host in hosts:
        host.close()


ECHO = """
    class Subject:
        version = "7"
        claims = {"features": ["lse"]}
        def apply_rope(self, x, *, positions, base, rotary_dim, style):
            return x
    instance = Subject()
    def factory():
        return Subject()
    def apply_rope(x, *, positions, base, rotary_dim, style):
        return x
"""


@pytest.mark.parametrize("attr", [":Subject", ":instance", ":factory", ""])
def test_a_subject_may_be_a_class_an_instance_a_factory_or_a_module(subject: Write, attr: str) -> None:
    """Nothing is required but methods with the contract's names."""
    host = subject(ECHO, attr)
    assert host.hello().verbs == ("apply_rope",)
    np.testing.assert_array_equal(host.call(ROPE).outputs["out"], Q)


def test_a_subject_may_be_named_by_file(subject: Write, tmp_path: Path) -> None:
    """A path that ends in .py, wherever it is; modules beside it can be imported."""
    subject(ECHO)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "helper.py").write_text("from mine import Subject\n")
    (tmp_path / "sub" / "other.py").write_text("import helper\nSubject = helper.Subject\n")
    with ProcessHost(python_command(sys.executable, "sub/other.py:Subject"), cwd=str(tmp_path)) as host:
        hello = host.hello()
    assert (hello.name, hello.version, hello.claims) == ("Subject", "7", {"features": ["lse"]})
    assert hello.environment["numpy"] == np.__version__
    assert hello.environment["framework"] == "numpy"


def test_claims_may_be_the_record(subject: Write) -> None:
    """The suite's own packages can be imported in the subject's interpreter."""
    source = """
        from kvref.attention.bounds import Arithmetic
        from kvref_conformance.claims import Claims
        class Subject:
            claims = Claims(name="mine", arithmetic=Arithmetic(merges=0), head_dims=(64,))
            def write_kv(self, k, v, k_cache, v_cache, *, slot_mapping): ...
    """
    hello = subject(source).hello()
    assert hello.name == "mine"
    assert hello.claims["head_dims"] == [64]
    assert hello.claims["arithmetic"]["merges"] == 0


def test_large_claims_travel_in_a_file(subject: Write) -> None:
    """A line holds 64 KiB; a declaration may be longer."""
    source = """
        class Subject:
            claims = {"notes": "é" * 60000}
            def write_kv(self): ...
    """
    assert subject(source).hello().claims == {"notes": "é" * 60000}


def test_nothing_a_subject_prints_or_reads_touches_the_wire(subject: Write) -> None:
    """print, the C library's stdout, a child's stdout, and input() are all led away."""
    source = """
        import os, subprocess, sys
        print("at import")
        class Subject:
            def apply_rope(self, x, **_):
                print("{}")
                os.write(1, b"raw bytes\\n")
                subprocess.run([sys.executable, "-S", "-c", "import sys; print('child', sys.stdin.read())"])
                assert sys.stdin.read() == ""
                return x
    """
    host = subject(source)
    np.testing.assert_array_equal(host.call(ROPE).outputs["out"], Q)
    host.close()
    assert all(word in host.stderr for word in ("at import", "raw bytes", "child"))


@pytest.mark.parametrize(
    ("raises", "kind", "detail"),
    [
        ("RuntimeError('no kernel\\nimage')", "error", "RuntimeError: no kernel\nimage"),
        ("NotImplementedError('head_dim 3')", "unsupported", "NotImplementedError: head_dim 3"),
        (
            "kvref.errors.BlockTableError('block_tables[0] = 9')",
            "refused",
            "BlockTableError: block_tables[0] = 9",
        ),
        ("SystemExit(3)", "error", "SystemExit: 3"),
        ("KeyError('\\ud800')", "error", "KeyError"),
        ("ValueError('x' * 10**6)", "error", "ValueError: xxx"),
    ],
)
def test_what_a_subject_raises_has_its_kind(subject: Write, raises: str, kind: str, detail: str) -> None:
    """The line where it happened comes along; the subject serves on."""
    source = f"""
        import kvref.errors
        class Subject:
            def apply_rope(self, x, *, style, **_):
                if style == "half":
                    raise {raises}  # here
                return x
    """
    host = subject(source)
    with pytest.raises(Failed) as caught:
        host.call(ROPE)
    assert caught.value.kind == kind
    assert caught.value.detail.startswith(detail)
    assert "mine.py:6 in apply_rope" in caught.value.detail
    assert "server.py" not in caught.value.detail
    again = Call(ROPE.verb, ROPE.tensors, {**ROPE.params, "style": "interleaved"}, ROPE.outputs)
    np.testing.assert_array_equal(host.call(again).outputs["out"], Q)


@pytest.mark.parametrize(
    ("returns", "kind", "detail"),
    [
        ("x[:1]", "shape", "out is float32 [1, 2, 3], expected float32 [2, 2, 3]"),
        ("x.astype('float64')", "dtype", "out is float64 [2, 2, 3], expected float32 [2, 2, 3]"),
        ("None", "error", "AnswerError: apply_rope returned None, expected out"),
        ("(x, x)", "error", "AnswerError: apply_rope returned 2 tensors, expected out"),
        ("{'out': x}", "error", "AnswerError: apply_rope returned as out: found dict, expected a NumPy"),
        ("x.tolist()", "error", "AnswerError: apply_rope returned a list of lists, expected out"),
        ("x.tolist()[0][0][0]", "error", "apply_rope returned as out: found float, expected a NumPy array"),
        ("x.astype('complex64')", "dtype", "out is complex64 [2, 2, 3], expected float32 [2, 2, 3]"),
    ],
)
def test_what_a_subject_returns_must_be_what_was_asked_for(
    subject: Write, returns: str, kind: str, detail: str
) -> None:
    """Nothing is converted for it (KV-CONF-014)."""
    host = subject(f"class Subject:\n    def apply_rope(self, x, **_):\n        return {returns}\n")
    with pytest.raises(Failed) as caught:
        host.call(ROPE)
    assert caught.value.kind == kind
    assert detail in caught.value.detail


@pytest.mark.parametrize(
    ("source", "attr", "detail"),
    [
        ("import nowhere", ":Subject", "ModuleNotFoundError: No module named 'nowhere'"),
        ("class Other: ...", ":Subject", "has no attribute 'Subject'"),
        ("class Subject: ...", ":Subject", "has no method of the contract, expected some of attention"),
        ("class Subject:\n    claims = 3\n    def write_kv(self): ...", ":Subject", "claims is int"),
        ("class Subject:\n    claims = {'a': {1}}\n    def write_kv(self): ...", ":Subject", "JSON has not"),
        (
            "class Subject:\n    def __init__(self, n): ...",
            ":Subject",
            "missing 1 required positional argument",
        ),
    ],
)
def test_a_subject_that_cannot_be_loaded_says_why(
    subject: Write, source: str, attr: str, detail: str
) -> None:
    """At hello, as an error of the subject, before any case."""
    with pytest.raises(Failed) as caught:
        subject(source, attr).hello()
    assert caught.value.kind == "error"
    assert detail in caught.value.detail


def test_a_script_that_starts_a_suite_when_imported_does_not_start_it_again(subject: Write) -> None:
    """A subject's file often ends with the line that checks it; without a guard that would never end."""
    source = (
        ECHO
        + """
    import sys
    from kvref_conformance.host.process import ProcessHost, python_command
    with ProcessHost(python_command(sys.executable, "mine:Subject")) as host:
        host.hello()
"""
    )
    with pytest.raises(Failed, match="starts a subject while it is imported"):
        subject(source).hello()


def test_a_native_crash_shows_the_python_frames(subject: Write) -> None:
    """faulthandler's traceback is among the last lines of stderr."""
    source = """
        import ctypes
        class Subject:
            def apply_rope(self, x, *, style, **_):
                if style == "half":
                    ctypes.string_at(0)
                return x
    """
    host = subject(source)
    with pytest.raises(Failed) as caught:
        host.call(ROPE)
    assert caught.value.kind == "crash"
    assert "SIGSEGV" in caught.value.detail
    assert "mine.py" in caught.value.detail
    again = Call(ROPE.verb, ROPE.tensors, {**ROPE.params, "style": "interleaved"}, ROPE.outputs)
    np.testing.assert_array_equal(host.call(again).outputs["out"], Q)


def test_new_content_arrives_at_the_old_address(subject: Write) -> None:
    """An answer kept by the address of its input is a wrong answer here, as in a serving engine."""
    source = """
        class Subject:
            kept = {}
            def apply_rope(self, x, **_):
                return self.kept.setdefault(x.ctypes.data, x.copy())
    """
    host = subject(source)
    np.testing.assert_array_equal(host.call(ROPE).outputs["out"], Q)
    again = Call(ROPE.verb, {**ROPE.tensors, "x": Q + 1}, ROPE.params, ROPE.outputs)
    np.testing.assert_array_equal(host.call(again).outputs["out"], Q)


def test_an_interpreter_without_the_suite_can_host_a_subject(subject: Write, tmp_path: Path) -> None:
    """Only NumPy and ml_dtypes are needed there; kvref is found by path, under these two names alone."""
    source = """
        import sys
        assert "kvref" not in [entry.split("/")[-1] for entry in sys.path]
        import kvref_conformance, kvref.attention.merge
        class Subject:
            def apply_rope(self, x, **_):
                return x
    """
    bare = tmp_path / "bare"
    bare.mkdir()
    for module in (np.__file__, __import__("ml_dtypes").__file__):
        package = Path(module).parent
        (bare / package.name).symlink_to(package)
        libs = package.parent / f"{package.name}.libs"
        if libs.is_dir():
            (bare / libs.name).symlink_to(libs)
    launcher = tmp_path / "python"
    launcher.write_text(f'#!/bin/sh\nPYTHONPATH={bare} exec {sys.executable} -S "$@"\n')
    launcher.chmod(0o755)
    host = subject(source, python=str(launcher))
    np.testing.assert_array_equal(host.call(ROPE).outputs["out"], Q)


def test_an_interpreter_that_lacks_numpy_says_so(subject: Write, tmp_path: Path) -> None:
    """With the command that would repair it."""
    launcher = tmp_path / "python"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    launcher.chmod(0o755)
    with pytest.raises(Failed) as caught:
        subject(ECHO, python=str(launcher)).hello()
    assert caught.value.kind == "error"
    assert "lacks numpy and ml_dtypes, which the host needs; try:" in caught.value.detail
    assert "-m pip install numpy ml_dtypes" in caught.value.detail


def test_the_host_leaves_no_file_and_no_process(subject: Write) -> None:
    """The scratch directory and the process are gone after close, and close may be called twice."""
    host = subject(ECHO)
    host.call(ROPE)
    root, pid = host._scratch.root, host._pipe._program.pid  # type: ignore[union-attr]
    host.close()
    host.close()
    assert not root.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_error_whose_text_fails_is_an_error(subject: Write) -> None:
    """What goes wrong while a subject's own error is spelled costs nothing but the text."""
    source = """
        class Odd(Exception):
            def __str__(self):
                raise RuntimeError
        class Subject:
            def apply_rope(self, x, **_):
                raise Odd
    """
    with pytest.raises(Failed) as caught:
        subject(source).call(ROPE)
    assert caught.value.kind == "error"
    assert "Odd: (its text cannot be had: RuntimeError)" in caught.value.detail


def test_a_subject_that_removes_the_directory_costs_its_own_call(subject: Write) -> None:
    """The next call has a directory again."""
    source = """
        import re, shutil
        class Subject:
            def apply_rope(self, x, *, base, **_):
                if base == 1.0:
                    (found,) = {re.search(r"(/\\S*kvref-\\w*)/x[.]bin", line)[1]
                                for line in open("/proc/self/maps") if "/x.bin" in line}
                    shutil.rmtree(found)
                return x
    """
    host = subject(source)
    host.call(ROPE)
    bad = Call(ROPE.verb, ROPE.tensors, {**ROPE.params, "base": 1.0}, ROPE.outputs)
    with pytest.raises(Failed, match="the file is gone"):
        host.call(bad)
    np.testing.assert_array_equal(host.call(ROPE).outputs["out"], Q)


HANGS = """
    import pathlib, time
    class Subject:
        def apply_rope(self, x, **_):
            pathlib.Path("hanging").touch()
            time.sleep(600)
"""


def test_an_interrupted_call_leaves_a_host_that_closes_at_once(
    subject: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subject that is still at work does not hear `bye`; nobody waits for it."""
    host = subject(HANGS)
    host.hello()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    assert host._pipe is not None
    monkeypatch.setattr(host._pipe, "_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        host.call(ROPE)
    assert host._pipe is None
    began = time.monotonic()
    host.close()
    assert time.monotonic() - began < 5


def test_a_subject_ends_with_a_suite_that_was_killed(subject: Write, tmp_path: Path) -> None:
    """SIGKILL cannot be handled, and a call that hangs would run for ever."""
    subject(HANGS)
    source = f"""
        import sys
        from kvref_conformance.host.process import ProcessHost, python_command
        from tests_rope import ROPE
        ProcessHost(python_command(sys.executable, "mine:Subject"), cwd={str(tmp_path)!r}).call(ROPE)
    """
    (tmp_path / "suite.py").write_text(textwrap.dedent(source))
    shutil.copy(__file__, tmp_path / "tests_rope.py")
    suite = subprocess.Popen([sys.executable, "suite.py"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    wait_until((tmp_path / "hanging").exists)
    children = Path(f"/proc/{suite.pid}/task/{suite.pid}/children").read_text().split()
    suite.kill()
    suite.wait()
    assert children
    wait_until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in children))


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + 900
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)

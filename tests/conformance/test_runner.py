"""The run under pytest: ours alone, one host for each worker, and no case lost to a crash."""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from kvref.errors import ArgumentError
from kvref_conformance.claims import Claims
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.runner.evaluate import Evidence
from kvref_conformance.runner.fuzz import fuzz
from kvref_conformance.runner.patience import NOT_RUN
from kvref_conformance.runner.plugin import named_plan, run_under_pytest
from kvref_conformance.runner.suite import Settings, conclude, run_suite
from kvref_conformance.runner.target import BUILT_IN, Target
from kvref_conformance.subjects.tiled import Tiled

SUBJECTS = '''\
"""Subjects for the tests of the runner."""

import os
import time

import numpy as np

from kvref.attention.paged import write_kv
from kvref_conformance.claims import Claims

NARROW = dict(dtypes=("float32",), head_dims=(64,))


class Good:
    """Writes as the reference does."""

    claims = Claims(name="good", **NARROW)

    def write_kv(self, k, v, k_cache, v_cache, *, slot_mapping):
        write_kv(k, v, k_cache, v_cache, slot_mapping=slot_mapping)


class Crashes(Good):
    """Dies where the caches have seven key heads or fewer tokens than two."""

    claims = Claims(name="crashes", **NARROW)

    def write_kv(self, k, v, k_cache, v_cache, *, slot_mapping):
        if (np.asarray(slot_mapping) < 0).any():
            os._exit(9)
        super().write_kv(k, v, k_cache, v_cache, slot_mapping=slot_mapping)


class Hangs(Good):
    """Sleeps where a token has no slot."""

    claims = Claims(name="hangs", **NARROW)

    def write_kv(self, k, v, k_cache, v_cache, *, slot_mapping):
        if (np.asarray(slot_mapping) < 0).any():
            time.sleep(60)
        super().write_kv(k, v, k_cache, v_cache, slot_mapping=slot_mapping)


class Sleeps(Good):
    """Never answers."""

    claims = Claims(name="sleeps", **NARROW)

    def write_kv(self, k, v, k_cache, v_cache, *, slot_mapping):
        time.sleep(60)


class Swapped(Good):
    """Keys where values belong."""

    claims = Claims(name="swapped", **NARROW)

    def write_kv(self, k, v, k_cache, v_cache, *, slot_mapping):
        print("debugging")
        super().write_kv(v, k, k_cache, v_cache, slot_mapping=slot_mapping)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's project: subjects, and a pytest configuration that would ruin a run."""
    (tmp_path / "subjects.py").write_text(SUBJECTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('a conftest of the user was loaded')\n")
    (tmp_path / "bad_plugin.py").write_text("raise RuntimeError('a plugin of the user was loaded')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    monkeypatch.setenv("PYTEST_PLUGINS", "bad_plugin")
    return tmp_path


def gather(
    subject: str, *, workers: int = 0, timeout: float = 60.0, in_process: bool = False
) -> tuple[list[Evidence], list[str]]:
    """Run a subject of the file under pytest."""
    target = Target(subject=f"subjects.py:{subject}", timeout=timeout, in_process=in_process)
    host = target.open()
    try:
        hello = host.hello()
    finally:
        host.close()
    return run_under_pytest(target, Claims.from_dict(hello.claims), hello.verbs, Settings(), workers=workers)


def test_nothing_of_the_user_leaks_in(folder: Path) -> None:
    """No ini file, no conftest, no plugin, no PYTEST_ADDOPTS; and the environment is as it was."""
    evidence, broken = gather("Good")
    assert broken == []
    assert evidence
    assert {found.status for found in evidence} == {"pass"}
    assert os.environ["PYTEST_ADDOPTS"] == "--no-such-option"
    assert "PYTEST_DISABLE_PLUGIN_AUTOLOAD" not in os.environ
    assert sorted(path.name for path in folder.iterdir() if path.suffix != "") == [
        "bad_plugin.py",
        "conftest.py",
        "pytest.ini",
        "subjects.py",
    ]


def test_evidence_is_that_of_a_plain_loop(folder: Path) -> None:
    """pytest carries the evidence; it adds nothing and loses nothing."""
    evidence, _ = gather("Swapped")
    claims = Claims(name="swapped", dtypes=("float32",), head_dims=(64,))
    planned = named_plan(claims, ("write_kv",), Settings())
    assert [(found.check, found.case) for found in evidence] == [
        (check.name, case) for check, case in planned.values()
    ]
    assert {found.status for found in evidence} == {"pass", "fail"}
    assert all(found.message for found in evidence if found.status == "fail")


def test_a_crash_costs_the_cases_it_happens_in(folder: Path) -> None:
    """KV-CONF-015: the others pass."""
    evidence, broken = gather("Crashes")
    assert broken == []
    assert {found.failure for found in evidence if found.status == "fail"} == {"crash"}
    assert {found.requirement for found in evidence if found.status == "fail"} >= {"KV-ATTN-051"}
    assert any(found.status == "pass" for found in evidence)


def test_a_hang_costs_the_cases_it_happens_in(folder: Path) -> None:
    """The time limit ends the call, not the run."""
    evidence, broken = gather("Hangs", timeout=0.5)
    assert broken == []
    assert {found.failure for found in evidence if found.status == "fail"} == {"timeout"}
    assert any(found.status == "pass" for found in evidence)


def test_an_area_that_hangs_is_given_up(folder: Path) -> None:
    """After five hangs nothing waits any more, neither the run nor the report; and nothing has passed."""
    evidence, broken = gather("Sleeps", timeout=0.3)
    assert broken == []
    counts = Counter(found.failure for found in evidence)
    assert counts == {"timeout": 5, NOT_RUN: len(evidence) - 5}
    target = Target(subject="subjects.py:Sleeps", timeout=60)
    host = target.open()
    try:
        hello = host.hello()
        report = conclude(evidence, host, hello, Claims.from_dict(hello.claims), Settings(survey=True))
    finally:
        host.close()
    assert [area.verdict for area in report.areas if area.area == "write_kv"] == ["not conformant"]
    assert all(result.failure for result in report.requirements)
    assert "not asked: 5 cases of write_kv ran out of time before" in {
        result.failure.message for result in report.requirements if result.failure
    }


def test_workers_bring_the_same_evidence(folder: Path) -> None:
    """With xdist each worker has a host of its own, and the plan keeps the order."""
    alone, _ = gather("Swapped")
    together, broken = gather("Swapped", workers=2)
    assert broken == []
    assert [found.to_dict() for found in together] == [found.to_dict() for found in alone]


def test_a_worker_that_dies_costs_the_case_it_died_in(folder: Path) -> None:
    """An in-process subject takes its worker along; xdist starts another."""
    evidence, broken = gather("Crashes", workers=2, in_process=True)
    assert broken == []
    died = [found for found in evidence if found.status == "fail"]
    assert died
    assert {found.failure for found in died} == {"crash"}


def test_an_error_of_the_suite_is_not_blamed_on_the_subject(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that raises is a broken run, exit code 3; and a case that did not run has not passed."""

    def explode(*arguments: object) -> Evidence:
        raise ZeroDivisionError("in a check")

    monkeypatch.setattr("kvref_conformance.runner.patience.evaluate", explode)
    evidence, broken = gather("Good", in_process=True)
    assert {(found.status, found.failure) for found in evidence} == {("fail", "not run")}
    assert "in a check" in broken[0]


def test_what_a_subject_prints_stays_out_of_stdout(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`--json` must print one JSON object and nothing else."""
    gather("Swapped", in_process=True)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "debugging" in captured.err


def test_the_report_of_a_crash_is_small_and_says_crash(folder: Path) -> None:
    """Even a crash is made small, within a few restarts."""
    target = Target(subject="subjects.py:Crashes")
    host = target.open()
    try:
        report = run_suite(host, settings=Settings(finds=folder / "finds"))
    finally:
        host.close()
    assert report.failures
    for result in report.failures:
        assert result.failure is not None
        assert result.failure.kind == "crash"
        assert result.failure.find is not None
        found = json.loads((folder / "finds" / result.failure.find).read_text())
        assert found["kind"] == "crash"


def test_a_fuzz_run_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    """What it tries follows from the seed; an honest subject gives no finds."""
    settings = Settings(areas=("write_kv", "select_topk"))
    host = InProcessHost(Tiled)
    runs = [fuzz(host, settings, seconds=60, seed=3, out=tmp_path, limit=25) for _ in range(2)]
    assert [run.to_dict() for run in runs] == [runs[0].to_dict()] * 2
    assert runs[0].cases == 25
    assert runs[0].saved == []


def test_a_find_of_a_fuzz_run_is_a_case_file(folder: Path) -> None:
    """It can be replayed by itself, and is saved once."""
    host = Target(subject="subjects.py:Swapped", in_process=True).open()
    finds = fuzz(host, Settings(), seconds=60, seed=1, out=folder / "finds", limit=20)
    assert finds.saved
    assert all((folder / "finds" / name).is_file() for name in finds.saved)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subject": "no_such_name"}, "expected one of tiled"),
        ({"subject": "no_such_file.py:Subject"}, "does not exist"),
        ({"program": "./harness", "in_process": True}, "--exec"),
        ({"python": sys.executable, "in_process": True}, "--in-process"),
    ],
)
def test_a_target_that_makes_no_sense_is_refused(options: dict[str, object], said: str) -> None:
    """Before anything is started."""
    with pytest.raises(ArgumentError, match=said):
        Target(**options)  # type: ignore[arg-type]


def test_built_in_subjects_have_short_names() -> None:
    """`kvref check torch` is all one types."""
    assert Target(subject="torch").where == BUILT_IN["torch"]
    assert Target(subject="tiled").command() == "tiled"


def test_a_command_names_no_path_of_this_machine(folder: Path) -> None:
    """Committed reports carry it."""
    target = Target(subject=str(folder / "subjects.py") + ":Good", python=sys.executable)
    assert target.command() == "subjects.py:Good --python PYTHON"
    assert Target(program="./harness 'a b'").command() == "--exec './harness '\\''a b'\\'''"

"""The run under pytest: one item for each (check, case), one host for each worker.

pytest brings selection of items, several workers (xdist) and reports that survive a crashed worker. It is
started with a configuration of our own in an empty folder, so that nothing of the user's leaks in: no ini
file, no conftest, no plugins, no PYTEST_ADDOPTS. Evidence travels from the workers as a user property of the
item's report, in JSON; tensors stay behind.

As a plugin this module has one hook: it collects the file `run.json`, which says what to run.
"""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kvref_conformance.cases import Case
from kvref_conformance.checks.check import Check
from kvref_conformance.claims import Claims
from kvref_conformance.host import Host
from kvref_conformance.oracle import Oracle
from kvref_conformance.runner.evaluate import Evidence, plan
from kvref_conformance.runner.patience import Patience, not_run
from kvref_conformance.runner.suite import Progress, Settings
from kvref_conformance.runner.target import Target

RUN_FILE = "run.json"
_PROPERTY = "kvref"
_INI = "[pytest]\naddopts =\nfilterwarnings = default\n"
_FOREIGN = "PYTEST_"
"""How the names of the variables begin that pytest and its plugins read."""
_OWN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


class Interrupted(KeyboardInterrupt):
    """A run that was ended from outside, with the evidence it had by then."""

    def __init__(self, evidence: Iterable[Evidence], planned: int) -> None:
        super().__init__("interrupted")
        self.evidence = tuple(evidence)
        self.planned = planned


class Gathering:
    """The controller's side: takes evidence out of the items' reports."""

    def __init__(self, items: Mapping[str, tuple[Check, Case]], progress: Progress | None) -> None:
        self._items = items
        self._progress = progress
        self.evidence: dict[str, Evidence] = {}
        self.broken: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the evidence of one item; an item without any has crashed its worker or broken the suite."""
        name = report.nodeid.rpartition("::")[2]
        values = dict(report.user_properties)
        if _PROPERTY in values:
            if report.when == "call":
                self._keep(name, _evidence(json.loads(str(values[_PROPERTY]))))
        elif report.failed and str(report.when) == "???":  # how xdist reports an item whose worker died
            check, case = self._items[name]
            died = Evidence(check.requirement, check.name, case, "fail", "the worker process died", "crash")
            self._keep(name, died)
        elif report.failed:
            self.broken.append(f"{name}: {report.longreprtext.strip()[-2000:]}")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep an error of collection: then nothing ran."""
        if report.failed:
            self.broken.append(f"collection: {str(report.longrepr).strip()[-2000:]}")

    def pytest_internalerror(self, excrepr: object) -> None:
        """Keep an error of pytest itself."""
        self.broken.append(f"internal error: {str(excrepr).strip()[-2000:]}")

    def _keep(self, name: str, found: Evidence) -> None:
        self.evidence[name] = found
        if self._progress is not None:
            self._progress(found)


def run_under_pytest(
    target: Target,
    declared: Claims,
    verbs: tuple[str, ...],
    settings: Settings,
    *,
    workers: int = 0,
    progress: Progress | None = None,
) -> tuple[list[Evidence], list[str]]:
    """Run every (check, case) and return the evidence in the order of the plan, and what broke.

    A case that did not run has failed (KV-CONF-009 skip-is-not-pass). `workers` processes run the items, 0
    meaning this one.
    Raises: Interrupted where the run was.
    """
    items = named_plan(settings.claims(declared), verbs, settings)
    gathering = Gathering(items, progress)
    with tempfile.TemporaryDirectory(prefix="kvref-run-") as name, _own_environment():
        folder = Path(name)
        (folder / "pytest.ini").write_text(_INI, encoding="utf-8")
        run = {"target": target.to_dict(), "claims": declared.to_dict(), "verbs": verbs}
        run["settings"] = {"level": settings.level, "canonical": settings.canonical, "rings": settings.rings}
        (folder / RUN_FILE).write_text(json.dumps(run), encoding="utf-8")
        arguments = ["-c", str(folder / "pytest.ini"), "--rootdir", name, "--noconftest", "--capture=no"]
        for blocked in ("cacheprovider", "terminal", "doctest", "unittest", "python", "faulthandler"):
            arguments += ["-p", f"no:{blocked}"]
        arguments += ["-p", __name__]
        if workers:
            arguments += ["-p", "xdist.plugin", "-n", str(workers), "--dist", "load"]
        with contextlib.redirect_stdout(sys.stderr):
            code = pytest.main([*arguments, str(folder / RUN_FILE)], plugins=[gathering])
    if code == pytest.ExitCode.INTERRUPTED and not gathering.broken:
        raise Interrupted(gathering.evidence.values(), len(items))
    missing = [name for name in items if name not in gathering.evidence]
    if missing and not gathering.broken:
        gathering.broken.append(f"{len(missing)} of {len(items)} items gave no evidence, {missing[0]} first")
    return [gathering.evidence.get(name) or not_run(*items[name]) for name in items], gathering.broken


def named_plan(claims: Claims, verbs: tuple[str, ...], settings: Settings) -> dict[str, tuple[Check, Case]]:
    """Return what a run consists of, by item name: the requirement, the check, the verb, a number."""
    items: dict[str, tuple[Check, Case]] = {}
    counts: dict[str, int] = {}
    for check, case in plan(verbs, claims, settings.level, rings=settings.rings):
        stem = f"{check.requirement}.{check.name}.{case.verb}"
        counts[stem] = counts.get(stem, 0) + 1
        items[f"{stem}.{counts[stem]}"] = (check, case)
    return items


class _Worker:
    """One host and one oracle for all items of a process."""

    def __init__(self, target: Target, claims: Claims) -> None:
        self._target = target
        self.oracle = Oracle(claims)
        self.patience = Patience()
        self._host: Host | None = None

    @property
    def host(self) -> Host:
        if self._host is None:
            self._host = self._target.open()
        return self._host

    def close(self) -> None:
        if self._host is not None:
            self._host.close()


class RunFile(pytest.File):
    """`run.json`: the items of one run."""

    def collect(self) -> Iterator["CheckItem"]:
        """Yield one item for each (check, case)."""
        run = json.loads(self.path.read_text(encoding="utf-8"))
        run["settings"]["rings"] = tuple(run["settings"]["rings"])
        settings = Settings(**run["settings"])
        claims = settings.claims(Claims.from_dict(run["claims"]))
        worker = _Worker(Target(**run["target"]), claims)
        self.config.add_cleanup(worker.close)
        for name, (check, case) in named_plan(claims, tuple(run["verbs"]), settings).items():
            yield CheckItem.from_parent(self, name=name, worker=worker, check=check, case=case)


class CheckItem(pytest.Item):
    """One check at one case."""

    def __init__(self, *, worker: _Worker, check: Check, case: Case, **rest: Any) -> None:
        super().__init__(**rest)
        self._worker, self._check, self._case = worker, check, case

    def runtest(self) -> None:
        """Evaluate, and hand the evidence over with the report."""
        worker = self._worker
        found = worker.patience.evaluate(self._check, self._case, worker.host, worker.oracle)
        self.user_properties.append((_PROPERTY, json.dumps(found.to_dict(), default=_plain)))
        if found.status == "fail":
            pytest.fail(found.message, pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return the requirement and the case as what pytest prints."""
        return self.path, None, self.name


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the run file, and nothing else."""
    if file_path.name != RUN_FILE:
        return None
    collector: pytest.Collector = RunFile.from_parent(parent, path=file_path)
    return collector


@contextlib.contextmanager
def _own_environment() -> Iterator[None]:
    """Hide the user's pytest variables for a while."""
    before = {name: value for name, value in os.environ.items() if name.startswith(_FOREIGN)}
    for name in before:
        del os.environ[name]
    os.environ.update(_OWN)
    try:
        yield
    finally:
        for name in _OWN:
            os.environ.pop(name, None)
        os.environ.update(before)


def _evidence(data: Mapping[str, Any]) -> Evidence:
    return Evidence(**{**data, "case": Case.from_dict(data["case"])})


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no JSON form")

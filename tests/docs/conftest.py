"""What the tests of the documents share: a copy of the examples, and the built site."""

import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from documents import DOCS, EXAMPLES, ROOT, run

BUILD_SECONDS = 900


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy of the examples, so that what they leave behind is not in the tree."""
    ignored = shutil.ignore_patterns("__pycache__", "finds")
    return Path(shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=ignored))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once with warnings as errors; workers of one run share it.

    `KVREF_SITE` names one that is built already.
    """
    if "KVREF_SITE" in os.environ:
        return Path(os.environ["KVREF_SITE"])
    for name in ("sphinx", "myst_parser", "furo", "matplotlib"):
        pytest.importorskip(name, reason=f"{name} is not installed; it comes with kvref[docs]")
    parent = tmp_path_factory.getbasetemp()
    shared = (parent.parent if os.environ.get("PYTEST_XDIST_WORKER") else parent) / "site"
    log = shared.with_suffix(".log")
    try:
        shared.mkdir()
    except FileExistsError:
        _wait_for(log)
    else:
        command = [sys.executable, "-m", "sphinx", "-j", "2", "-W", "-n", "-q", "-b", "html"]
        done = run([*command, "-d", str(shared / "doctrees"), str(DOCS), str(shared / "html")], ROOT)
        part = log.with_suffix(".part")
        part.write_text(f"{done.returncode}\n{done.stdout}{done.stderr}", encoding="utf-8")
        part.rename(log)
    code, _, said = log.read_text(encoding="utf-8").partition("\n")
    assert code == "0", said
    return shared / "html"


def _wait_for(path: Path) -> None:
    end = time.monotonic() + BUILD_SECONDS
    while not path.is_file():
        assert time.monotonic() < end, f"no {path.name} after {BUILD_SECONDS} s"
        time.sleep(0.5)

"""The directory of tensor files: gone at the end, and swept up after a suite that was killed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvref_conformance.contracts import Failed
from kvref_conformance.host import scratch
from kvref_conformance.host.scratch import ABANDONED_AFTER, Scratch


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let scratch directories be made in a directory of the test."""
    monkeypatch.setattr(scratch, "_shared_memory", lambda: str(tmp_path))
    return tmp_path


def age(folder: Path) -> None:
    """Make a directory look as if it was left hours ago."""
    then = folder.stat().st_mtime - 2 * ABANDONED_AFTER
    os.utime(folder, (then, then))


def test_the_same_name_and_size_is_the_same_file(place: Path) -> None:
    """Another size is another file, so that no mapping is cut short under a subject."""
    here = Scratch()
    path, store = here.allocate("q", 128)
    store.write(60, b"abcdefgh")
    assert store.read(60, 8) == b"abcdefgh"
    assert here.allocate("q", 128) == (path, store)
    before = os.stat(path).st_ino
    with open(path, "rb") as still_open:
        _, other = here.allocate("q", 256)
        assert os.stat(path).st_size == other.size == 256
        assert os.stat(path).st_ino != before
        assert len(still_open.read()) == 128
    here.close()
    assert not list(place.iterdir())


def test_a_file_that_became_shorter_reads_as_zeros(place: Path) -> None:
    """Reading never fails, whatever a subject does meanwhile; the size is checked apart."""
    here = Scratch()
    path, store = here.allocate("out", 128)
    store.write(0, b"\1" * 128)
    os.truncate(path, 4)
    assert store.read(0, 8) == b"\1\1\1\1\0\0\0\0"
    with pytest.raises(Failed, match="out: the file has 4 bytes, expected 128"):
        here.check()
    here.close()


def test_a_file_that_is_gone_is_named_and_made_again(place: Path) -> None:
    """The next call has its files whatever happened to the last one's."""
    here = Scratch()
    path, _ = here.allocate("out", 128)
    os.remove(path)
    with pytest.raises(Failed, match="out: the file is gone"):
        here.check()
    os.symlink("/etc/passwd", path)
    with pytest.raises(Failed, match="out: the file was replaced by another"):
        here.check()
    here.allocate("out", 128)
    assert not os.path.islink(path)
    here.check()
    here.close()


def test_a_directory_is_removed_when_the_interpreter_ends(place: Path) -> None:
    """Also where nobody closed the host."""
    code = "from kvref_conformance.host.scratch import Scratch; s = Scratch(); print(s.root)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not Path(done.stdout.strip()).exists()


def test_an_abandoned_directory_is_swept_up_and_no_other(place: Path) -> None:
    """Old and locked by nobody; a young one, a locked one and a stranger's are left alone."""
    in_use = Scratch()
    for name in ("kvref-old", "kvref-young", "other-old"):
        (place / name).mkdir()
        (place / name / "k_cache.bin").write_bytes(b"x")
    for name in (in_use.root.name, "kvref-old", "other-old"):
        age(place / name)
    here = Scratch()
    left = {folder.name for folder in place.iterdir()}
    assert left == {in_use.root.name, here.root.name, "kvref-young", "other-old"}
    here.close()
    in_use.close()


@pytest.mark.parametrize("instead", ["nothing", "another directory", "a link elsewhere", "a file"])
def test_a_directory_that_is_gone_is_made_again(place: Path, tmp_path_factory: Any, instead: str) -> None:
    """A subject may remove it; the next call has a directory, and what a link leads to is not touched."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "mine").write_text("keep me")
    here = Scratch()
    here.allocate("out", 128)
    shutil.rmtree(here.root)
    if instead == "another directory":
        here.root.mkdir()
        (here.root / "out.bin").mkdir()
    elif instead == "a link elsewhere":
        here.root.symlink_to(elsewhere)
    elif instead == "a file":
        here.root.write_text("not a directory")
    with pytest.raises(Failed, match="out: the file"):
        here.check()
    assert here.sweep() == []
    path, store = here.allocate("out", 128)
    assert here.root.is_dir()
    assert not here.root.is_symlink()
    assert os.stat(path).st_size == store.size
    assert (elsewhere / "mine").read_text() == "keep me"
    here.close()
    assert not list(place.iterdir())

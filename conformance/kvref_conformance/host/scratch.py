"""The directory through which tensors travel: one file a tensor, used again where the size is the same.

The same name and size give the same file, so that a subject which keeps its mapping sees new content at an
old address, as a serving engine's kernels do. A file of another size is a new file: nobody's mapping is cut
short under them.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

from kvref_conformance.contracts import Failed

ROOM = 2**30
"""Bytes that must be free in shared memory before it is used instead of a disk."""
PREFIX = "kvref-"
ABANDONED_AFTER = 60
"""Seconds after which a directory that nobody holds locked was left by a suite that was killed."""


@dataclass
class FileStore:
    """The bytes of one open file."""

    file: int
    path: str
    size: int

    def read(self, offset: int, count: int) -> bytes:
        """Return `count` bytes from `offset` on; zeros where the file has become shorter."""
        data = os.pread(self.file, count, offset)
        while len(data) < count:
            more = os.pread(self.file, count - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data.ljust(count, b"\0")

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write bytes from `offset` on."""
        rest = memoryview(data)
        while len(rest):
            done = os.pwrite(self.file, rest, offset)
            rest, offset = rest[done:], offset + done


class Scratch:
    """A temporary directory of tensor files, locked while it is in use."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_shared_memory()))
        self._lock, self._identity = _locked(self.root), _identity(self.root)
        self._files: dict[str, FileStore] = {}
        self._finalizer = weakref.finalize(self, shutil.rmtree, self.root, ignore_errors=True)
        _sweep_abandoned(self.root.parent)

    def allocate(self, name: str, size: int) -> tuple[str, FileStore]:
        """Return the path and the bytes of a tensor's file, sparse where nothing has been written."""
        self._restore()
        known = self._files.get(name)
        if known is not None and known.size == size and _intact(known) is None:
            return known.path, known
        if known is not None:
            self._drop(name)
        path = str(self.root / f"{name}.bin")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._files[name] = store = FileStore(file, path, size)
        os.ftruncate(file, size)
        return path, store

    def check(self) -> None:
        """Check that every file is still the one that was created, at its size.

        Raises: Failed (protocol) naming the tensor, what was found and what was expected.
        """
        for name, store in self._files.items():
            fault = _intact(store)
            if fault is not None:
                raise Failed("protocol", f"{name}: {fault}; open tensor files for update and write in place")

    def sweep(self) -> list[str]:
        """Remove what the subject left in the directory and return its names."""
        self._restore()
        ours = {Path(store.path).name for store in self._files.values()}
        extra = sorted(entry.name for entry in os.scandir(self.root) if entry.name not in ours)
        for name in extra:
            _remove(self.root / name)
        return extra

    def close(self) -> None:
        """Remove the directory."""
        for store in self._files.values():
            os.close(store.file)
        self._files.clear()
        self._finalizer()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _restore(self) -> None:
        """Make the directory again where it is gone, or where something else has taken its place."""
        with contextlib.suppress(FileNotFoundError):
            if _identity(self.root) == self._identity:
                return
            _remove(self.root)
        if self._lock is not None:
            os.close(self._lock)
        self.root.mkdir(mode=0o700)
        self._lock, self._identity = _locked(self.root), _identity(self.root)

    def _drop(self, name: str) -> None:
        store = self._files.pop(name)
        os.close(store.file)
        _remove(Path(store.path))


def _identity(path: Path) -> tuple[int, int]:
    status = os.stat(path, follow_symlinks=False)
    return status.st_dev, status.st_ino


def _locked(folder: Path) -> int | None:
    """Lock a directory and return what holds the lock; None if another process has it."""
    held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held


def _sweep_abandoned(place: Path) -> None:
    """Remove what killed suites have left: in shared memory it would cost memory until a reboot."""
    for folder in place.glob(PREFIX + "*"):
        with contextlib.suppress(OSError):
            status = folder.stat(follow_symlinks=False)
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < ABANDONED_AFTER:
                continue
            held = _locked(folder)
            if held is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(held)


def _intact(store: FileStore) -> str | None:
    """Return what is wrong with a file, if anything is."""
    held = os.fstat(store.file)
    if held.st_size != store.size:
        return f"the file has {held.st_size} bytes, expected {store.size}"
    try:
        found = _identity(Path(store.path))
    except (FileNotFoundError, NotADirectoryError):
        return "the file is gone, expected it to stay"
    if found != (held.st_dev, held.st_ino):
        return "the file was replaced by another, expected it to stay"
    return None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _shared_memory() -> str | None:
    """Return the directory of shared memory if it has room, else None: the system's temporary directory."""
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return None
    return "/dev/shm" if room.f_bavail * room.f_frsize >= ROOM and os.access("/dev/shm", os.W_OK) else None

"""The script that the subject's interpreter runs: guards the wire, makes the suite importable, serves.

That interpreter need not have kvref installed: a finder limited to the two names `kvref` and
`kvref_conformance` imports them by path, so NumPy and ml_dtypes are all it must have. The file is written for
old interpreters, so that they too can say what is wrong.

Usage: python child.py PATH_TO_KVREF MODULE:ATTR
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import select
import signal
import sys
import threading
import time
from importlib.machinery import ModuleSpec
from typing import BinaryIO

OLDEST_PYTHON = (3, 11)
NEEDED = ("numpy", "ml_dtypes")
GRACE = 5.0
"""Seconds to end by itself once the suite is gone."""


class SuiteFinder:
    """Finds the two packages of the suite by path, and nothing else."""

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the import spec of `kvref` or `kvref_conformance`, None for any other name."""
        place = self._places.get(name)
        if place is None:
            return None
        init = os.path.join(place, "__init__.py")
        return importlib.util.spec_from_file_location(name, init, submodule_search_locations=[place])


def main(kvref: str, where: str) -> int:
    """Serve the subject named `where` and return the exit status."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    sys.path.insert(0, os.getcwd())
    requests, replies = _take_wire()
    threading.Thread(target=_end_with, args=(requests,), daemon=True).start()
    faulthandler.enable(sys.stderr)
    fault = _unfit()
    if fault is not None:
        first = json.loads(requests.readline() or b"{}")
        replies.write(json.dumps({"id": first.get("id", ""), "error": fault}).encode() + b"\n")
        replies.flush()
        return 1
    places = {"kvref": kvref, "kvref_conformance": os.path.dirname(here)}
    sys.meta_path.insert(0, SuiteFinder(places))
    from kvref_conformance.host.server import Server

    Server(requests, replies, where).serve()
    return 0


def _take_wire() -> tuple[BinaryIO, BinaryIO]:
    """Return the wire's two streams; what anyone else prints or reads goes to stderr and /dev/null."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdout.flush()
    os.dup2(2, 1)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)
    return requests, replies


def _end_with(requests: BinaryIO) -> None:
    """End this process and all it started once nobody can send requests: its suite may have been killed."""
    gone = select.poll()
    gone.register(requests.fileno(), 0)  # nothing but the end of the other side
    gone.poll()
    time.sleep(GRACE)
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _unfit() -> str | None:
    """Return why this interpreter cannot host a subject, or None."""
    if sys.version_info < OLDEST_PYTHON:
        wanted = ".".join(str(part) for part in OLDEST_PYTHON)
        return "%s is Python %s, expected %s or later" % (sys.executable, sys.version.split()[0], wanted)  # noqa: UP031
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        command = "%s -m pip install %s" % (sys.executable, " ".join(missing))  # noqa: UP031
        return "%s lacks %s, which the host needs; try: %s" % (sys.executable, names, command)  # noqa: UP031
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

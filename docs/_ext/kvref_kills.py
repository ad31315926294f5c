"""The kill matrix of a build: which checks every exhibit failed, found by running the suite on it.

The run takes half a minute. What it found is kept in `docs/_generated` under a digest of the code it rests
on, so that a build after an edit of the text does not run it again.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
from kvref_evidence import ROOT

from kvref_conformance.museum import all_exhibits
from kvref_conformance.museum.kill_matrix import kill_matrix


@dataclass(frozen=True)
class Row:
    """One exhibit: which requirements failed for it."""

    exhibit: str
    declared: tuple[str, ...]
    """Those that its fault breaks."""
    others: tuple[str, ...]
    """Those that it may break as well."""
    escaped: tuple[str, ...]
    """Those that its fault breaks and the suite passed; none, as the tests of the museum hold."""


@cache
def kills() -> tuple[Row, ...]:
    """Return what the suite found about each exhibit, under the quick cases."""
    kept = ROOT / "docs" / "_generated" / f"kills-{_digest()}.json"
    if not kept.is_file():
        kept.parent.mkdir(exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps([asdict(row) for row in _run()]), encoding="utf-8")
        os.replace(part, kept)
    rows = json.loads(kept.read_text(encoding="utf-8"))
    return tuple(Row(row.pop("exhibit"), **{name: tuple(ids) for name, ids in row.items()}) for row in rows)


def _run() -> list[Row]:
    exhibits = {exhibit.name: exhibit for exhibit in all_exhibits()}
    return [
        Row(
            name,
            tuple(r for r in exhibits[name].breaks if r in found.failing),
            tuple(r for r in found.failing if r not in exhibits[name].breaks),
            tuple(r for r in exhibits[name].breaks if r not in found.failing),
        )
        for name, found in kill_matrix(exhibits.values()).items()
    ]


def _digest() -> str:
    """Return a name for the code and the NumPy that a run rests on."""
    seen = hashlib.sha256(np.__version__.encode())
    folders = (ROOT / "kvref", ROOT / "conformance" / "kvref_conformance")
    for path in sorted(path for folder in folders for path in Path(folder).rglob("*.py")):
        seen.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return seen.hexdigest()[:16]

"""The kill matrix: which checks every exhibit failed, kept beside the page that shows it.

To run every check on every exhibit takes minutes. So what was found is a file of the page, a line an exhibit,
which this module writes, the cores sharing the work, and to which the tests of the museum hold every exhibit:

    python docs/_ext/kvref_kills.py
"""

import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvref_conformance.museum import all_exhibits
from kvref_conformance.museum.exhibit import Exhibit
from kvref_conformance.museum.kill_matrix import kill_matrix
from kvref_conformance.oracle import Oracle
from kvref_conformance.subjects.tiled import Tiled

KEPT = Path(__file__).parents[1] / "evidence" / "kills.json"


@dataclass(frozen=True)
class Row:
    """One exhibit: which requirements failed for it."""

    exhibit: str
    declared: tuple[str, ...]
    """Those that its fault breaks."""
    others: tuple[str, ...]
    """Those that it may break as well."""


@cache
def kills() -> tuple[Row, ...]:
    """Return what the suite found about each exhibit, under the quick cases."""
    found = json.loads(KEPT.read_text(encoding="utf-8"))
    return tuple(
        Row(
            exhibit.name,
            tuple(r for r in exhibit.breaks if r in found[exhibit.name]),
            tuple(r for r in found[exhibit.name] if r not in exhibit.breaks),
        )
        for exhibit in all_exhibits()
    )


def write() -> None:
    """Run the suite on every exhibit, and keep which requirements fail."""
    names = [exhibit.name for exhibit in all_exhibits()]
    with ProcessPoolExecutor() as processes:
        failing = processes.map(_failing, names, chunksize=4)
        lines = (f"{json.dumps(name)}: {json.dumps(ids)}" for name, ids in zip(names, failing, strict=True))
        KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _failing(name: str) -> list[str]:
    exhibits, known = _ground()
    return list(kill_matrix([exhibits[name]], known=known)[name].failing)


@cache
def _ground() -> tuple[dict[str, Exhibit], Oracle]:
    """Return the exhibits by name, and what one process keeps of right answers."""
    return {exhibit.name: exhibit for exhibit in all_exhibits()}, Oracle(Tiled.claims)


if __name__ == "__main__":
    write()

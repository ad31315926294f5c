"""Which checks each exhibit fails: the suite judged by faults it must see.

Every exhibit runs in this process, and all share one memory of right answers; the whole matrix still takes
minutes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from kvref_conformance.cases import Level
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.museum.exhibit import Exhibit
from kvref_conformance.oracle import Oracle
from kvref_conformance.runner.evaluate import Evidence, evaluate, plan
from kvref_conformance.subjects.tiled import Tiled

#: Requirements whose checks make calls so large that they are asked only of exhibits about them.
LARGE = ("KV-RNN-028", "KV-RNN-032")


@dataclass(frozen=True)
class Kills:
    """What the checks found about one subject."""

    failing: tuple[str, ...]
    """Requirements with at least one failing case, in order."""
    examined: tuple[str, ...]
    """Requirements that had a case at all."""
    evidence: tuple[Evidence, ...]
    """One failing piece of evidence a requirement, the first."""


def examine(
    subject: Any,
    verbs: tuple[str, ...],
    level: Level = "quick",
    known: Oracle | None = None,
    spared: tuple[str, ...] = (),
) -> Kills:
    """Run every check of some verbs or managers on a subject in this process.

    `known` is an oracle whose answers are reused; what it claims does not matter. Checks of `spared`
    requirements are left out.
    """
    host = InProcessHost(subject)
    oracle = Oracle(subject.claims) if known is None else replace(known, claims=subject.claims)
    failing: dict[str, Evidence] = {}
    examined: dict[str, None] = {}
    offered = [name for name in host.hello().verbs if name.partition(".")[0] in verbs]
    for check, case in plan(tuple(offered), subject.claims, level):
        if check.requirement in spared:
            continue
        examined[check.requirement] = None
        if check.requirement in failing:
            continue
        found = evaluate(check, case, host, oracle)
        if found.status == "fail":
            failing.setdefault(found.requirement, found)
    host.close()
    return Kills(tuple(sorted(failing)), tuple(sorted(examined)), tuple(failing.values()))


def kill_matrix(
    exhibits: Iterable[Exhibit], level: Level = "quick", known: Oracle | None = None
) -> dict[str, Kills]:
    """Return for each exhibit, by name, the requirements it fails."""
    shared = Oracle(Tiled.claims) if known is None else known
    return {e.name: examine(e.subject(), e.verbs, level, shared, _spared(e)) for e in exhibits}


def _spared(exhibit: Exhibit) -> tuple[str, ...]:
    """Return the requirements of large calls that an exhibit is not about."""
    return tuple(name for name in LARGE if not set(LARGE) & set(exhibit.breaks))

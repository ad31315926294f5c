"""A check: one requirement, the cases it is run at, and what must hold at each.

Decorating a function with `check` turns it into a `Check` record; the function builds probes and holds the
answers to what the requirement says. Its name and first docstring line are what a report shows.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from kvref_conformance.cases import Case, Level, lattice
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import ATTENDING
from kvref_conformance.managers import operations_of
from kvref_conformance.trial import Trial

Ring = Literal["core", "numeric", "fuzz"]
Lattice = Callable[[Claims, str, Level], list[Case]]


@dataclass(frozen=True)
class Check:
    """One requirement's check."""

    requirement: str
    name: str
    summary: str
    run: Callable[[Trial], None]
    cases: Lattice
    ring: Ring
    verbs: tuple[str, ...]
    features: tuple[str, ...]
    operations: tuple[str, ...] = ()
    """Operations of the manager without which nothing can be asked."""

    def applies(self, verb: str, claims: Claims) -> bool:
        """Say whether a subject that offers `verb` under these claims must pass this check."""
        return verb in self.verbs and set(self.features) <= set(claims.features)

    def drives(self, verb: str, offered: Iterable[str]) -> bool:
        """Say whether a subject offers what the check needs of a manager; of a verb it needs nothing more."""
        return not self.operations or set(self.operations) <= set(operations_of(verb, offered))


def check(
    requirement: str,
    *,
    ring: Ring = "core",
    verbs: tuple[str, ...] = ATTENDING,
    features: tuple[str, ...] = (),
    operations: tuple[str, ...] = (),
    cases: Lattice = lattice,
) -> Callable[[Callable[[Trial], None]], Check]:
    """Make a function the check of a requirement.

    `verbs` are verbs, or managers; of a manager the check needs `operations`.
    """

    def decorate(run: Callable[[Trial], None]) -> Check:
        summary = (run.__doc__ or "").strip().splitlines()[0]
        return Check(requirement, run.__name__, summary, run, cases, ring, verbs, features, operations)

    return decorate

"""Exhibits of managers put to programs: whether one shows the fault, and whether a search finds it."""

from collections.abc import Iterator
from random import Random

from kvref_conformance.cases import PROGRAM, Case, opening
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.journal import Entry, Journaled
from kvref_conformance.managers import MANAGERS
from kvref_conformance.museum.exhibit import Exhibit
from kvref_conformance.programs.breach import Breach
from kvref_conformance.programs.drawn import draw_case
from kvref_conformance.programs.running import run
from kvref_conformance.programs.shrinking import steps_of

#: Exhibits of managers that no case of the matrix tells from others; a report does, by the smallest input.
TOLD_BY_A_REPORT = {"NullBlockHandedOut", "SentinelFreed", "KeysOfAnotherSeed"}
#: Operations that a search may take, and steps of a drawn program.
OPERATIONS, LENGTHS = 200_000, (5, 10, 20, 40, 80)


def shown(exhibit: Exhibit, case: Case) -> tuple[tuple[Breach, ...], int]:
    """Return what a program breaches on an exhibit, and how many operations it takes."""
    journal: list[Entry] = []
    session = Journaled(InProcessHost(exhibit.subject()).open(case.verb, **opening(case)), journal)
    ran = run(str(case.option(PROGRAM)), session, case, exhibit.subject.claims)
    return ran.breaches, len(journal)


def breaks(exhibit: Exhibit, case: Case) -> bool:
    """Say whether a program shows what an exhibit breaks."""
    return any(breach.requirement in exhibit.breaks for breach in shown(exhibit, case)[0])


def breaks_without(exhibit: Exhibit, case: Case) -> Iterator[str]:
    """Yield the programs that still show the fault with one of several steps left out."""
    steps = steps_of(case)
    for at in range(len(steps) if len(steps) > 1 else 0):
        shorter = "; ".join(steps[:at] + steps[at + 1 :])
        if breaks(exhibit, case.with_options(**{PROGRAM: shorter})):
            yield shorter


def finds(exhibit: Exhibit, rng: Random) -> Iterator[Case]:
    """Yield drawn cases that show the fault, as long as the operations of a search last."""
    manager, claims = exhibit.verbs[0], exhibit.subject.claims
    operations = tuple(
        name
        for name, operation in MANAGERS[manager].operations.items()
        if operation.feature is None or operation.feature in claims.features
    )
    spent = 0
    while spent < OPERATIONS:
        case = draw_case(manager, rng, claims, operations, rng.choice(LENGTHS))
        breaches, count = shown(exhibit, case)
        spent += count
        if any(breach.requirement in exhibit.breaks for breach in breaches):
            yield case

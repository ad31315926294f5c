"""A search for programs that a manager fails: seeded, bounded by time, and never a verdict.

Program number i of a seed is drawn from (seed, i) alone, so that several machines can take every n-th each.
A program is run once and every requirement is judged. What is breached is tried on the built-in managers,
which must not breach it, made short, and saved under its requirement, whose check replays it.

Realises: KV-CONF-021 fuzz-never-decides.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvref_conformance.cases import PROGRAM, Case, opening
from kvref_conformance.checks import all_checks
from kvref_conformance.checks.check import Check
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Failed
from kvref_conformance.host import Host
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.journal import Entry, Journaled
from kvref_conformance.managers import MANAGERS, operations_of
from kvref_conformance.oracle import Oracle
from kvref_conformance.programs.drawn import draw_case
from kvref_conformance.programs.running import run
from kvref_conformance.programs.shrinking import shrink_program
from kvref_conformance.requirements import load_requirements
from kvref_conformance.runner.casefile import save_case
from kvref_conformance.runner.evaluate import evaluate
from kvref_conformance.runner.failures import case_file
from kvref_conformance.runner.finds import FINDS_EACH, Finds

#: Steps that a program may be drawn with.
LENGTHS = (5, 10, 20, 40, 80, 160)
#: Programs that a shrinking may run where each ends the subject's process.
BUDGETS = {"crash": 60, "protocol": 60, "timeout": 12}


@dataclass(frozen=True)
class Shard:
    """Which programs of a seed are tried: every `of`-th, from `number` on, counted from 1."""

    number: int = 1
    of: int = 1


@dataclass(frozen=True)
class _Shown:
    """What a program showed: requirements breached, or how the subject failed; and what it took."""

    breached: tuple[str, ...]
    failure: str
    operations: int


class ProgramSearch:
    """Searches the managers of one subject."""

    def __init__(self, host: Host, claims: Claims, offered: Sequence[str], finds: Finds, out: Path) -> None:
        self.host, self.claims, self.finds, self.out = host, claims, finds, out
        self.operations = {name: asked_of(name, offered, claims) for name in MANAGERS if name in offered}
        self._offered = tuple(offered)
        self._honest = honest_managers()
        self._spent: dict[str, int] = {}

    def search(
        self,
        seed: int,
        until: float,
        *,
        shard: Shard,
        limit: int | None,
        now: Callable[[], float],
    ) -> None:
        """Run programs until the time is spent, or `limit` operations."""
        index = shard.number - 1
        managers = list(self.operations)
        while managers and now() < until and (limit is None or self.finds.operations < limit):
            self.try_one(self.draw(seed, index))
            index += shard.of

    def draw(self, seed: int, index: int) -> Case:
        """Return the case of one number."""
        rng = random.Random(f"{seed}/{index}")
        manager = rng.choice(list(self.operations))
        return draw_case(manager, rng, self.claims, self.operations[manager], rng.choice(LENGTHS))

    def try_one(self, case: Case) -> None:
        """Run one program, and save what it breaches."""
        shown = self._show(self.host, self.claims, case)
        self.finds.cases += 1
        self.finds.operations += shown.operations
        if shown.failure:
            self._keep(case, next(iter(self._checks(case, None)), None), shown.failure)
        for requirement in shown.breached:
            self._keep(case, next(iter(self._checks(case, requirement)), None), "")

    def _keep(self, case: Case, check: Check | None, failure: str) -> None:
        """Make a failing case short and save it, unless the built-in managers fail there too."""
        if check is None or self._spent.get(check.requirement, 0) >= FINDS_EACH:
            return
        if not self._fails_alone(case, check, failure):
            self.finds.outside += 1
            return
        self._spent[check.requirement] = self._spent.get(check.requirement, 0) + 1
        budget = BUDGETS.get(failure)
        options = {} if budget is None else {"budget": budget}
        small = shrink_program(case, lambda tried: self._fails_alone(tried, check, failure), **options)
        found = evaluate(check, small, self.host, Oracle(self.claims))
        if found.status == "pass":
            return  # not again: the subject does not always fail
        requirement = load_requirements().get(check.requirement)
        saved = case_file(found, requirement.slug if requirement else "", self.host.hello())
        name = save_case(self.out, saved).name
        if name not in self.finds.saved:
            self.finds.saved.append(name)
            self.finds.messages.append(saved.message)

    def _fails_alone(self, case: Case, check: Check, failure: str) -> bool:
        """Say whether the subject fails a case in this way, and the built-in managers do not."""
        shown = self._show(self.host, self.claims, case)
        if shown.failure != failure or (not failure and check.requirement not in shown.breached):
            return False
        host, claims = self._honest
        honest = self._show(host, claims, case)
        return not honest.failure and check.requirement not in honest.breached

    def _show(self, host: Host, claims: Claims, case: Case) -> _Shown:
        journal: list[Entry] = []
        session = None
        try:
            session = Journaled(host.open(case.verb, **opening(case)), journal)
            ran = run(str(case.option(PROGRAM)), session, case, claims)
        except Failed as failed:
            return _Shown((), failed.kind, len(journal) + 1)
        finally:
            if session is not None and not session.gone:
                session.close()
        return _Shown(tuple(breach.requirement for breach in ran.breaches), "", len(journal))

    def _checks(self, case: Case, requirement: str | None) -> list[Check]:
        """Return the checks that can replay a case, of one requirement or of any."""
        return [
            check
            for check in all_checks()
            if requirement in (None, check.requirement)
            and check.applies(case.verb, self.claims)
            and check.drives(case.verb, self._offered)
        ]


def asked_of(manager: str, offered: Sequence[str], claims: Claims) -> tuple[str, ...]:
    """Return the operations of a manager that may be asked: offered, and their feature claimed."""
    known = MANAGERS[manager].operations
    return tuple(
        name
        for name in operations_of(manager, offered)
        if known[name].feature is None or known[name].feature in claims.features
    )


def honest_managers() -> tuple[Host, Claims]:
    """Return the built-in managers, and what they claim."""
    from kvref_conformance.subjects.lists import Lists

    return InProcessHost(Lists), Lists.claims

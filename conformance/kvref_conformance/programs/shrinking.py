"""From a failing program to a short one that fails in the same way.

Steps are dropped, first many at once, then a few in a row, then all that name one request, then any two or
three; then numbers are left out and made smaller, in the steps and beside the program. A smaller pool needs
less to fill it, so it is tried with steps left out as well. Any part of a program is a program, and there is
nothing to repair. Which of several short programs comes out depends on the order alone, never on chance.

Source: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input" (2002), algorithm ddmin.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from kvref_conformance.cases import PROGRAM, Case

#: Programs that one shrinking may run.
BUDGET = 2500
#: Smaller numbers that are tried in place of one that stands in several steps.
RENAMES = 8
#: Runs of steps up to which each is tried, wherever it begins: a request that comes and goes is one.
SHORT = 4
#: Steps of a program up to which each two of them, and each three, are left out together.
PAIRS_UP_TO, TRIPLES_UP_TO = 32, 14
_NUMBER = re.compile(r"-?[0-9]+")

Fails = Callable[[Case], bool]
"""Says whether a case still fails in the way that is looked for."""


@dataclass
class _Search:
    """The shortest case found, and what was tried already."""

    best: Case
    fails: Fails
    left: int
    seen: set[str] = field(default_factory=set)

    def take(self, case: Case) -> bool:
        """Keep a case if it fails; False where it does not, or was tried before, or nothing may be tried."""
        key = repr(sorted(case.options.items()))
        if key in self.seen or self.left <= 0:
            return False
        self.seen.add(key)
        self.left -= 1
        if not self.fails(case):
            return False
        self.best = case
        return True

    def take_steps(self, steps: Sequence[str]) -> bool:
        """Keep the case with these steps if it fails."""
        return self.take(with_steps(self.best, steps))

    @property
    def steps(self) -> list[str]:
        """The steps of the shortest program found."""
        return steps_of(self.best)


def shrink_program(case: Case, fails: Fails, budget: int = BUDGET) -> Case:
    """Return the shortest case found that `fails`, which `case` does; at most `budget` are tried."""
    search = _Search(case, fails, budget)
    before = None
    while search.best != before and search.left > 0:
        before = search.best
        _drop_parts(search)
        _narrow(search)
        _drop_named(search)
        _drop_groups(search, 2, PAIRS_UP_TO)
        _drop_groups(search, 3, TRIPLES_UP_TO)
        _shorten(search)
        _rename(search)
        _lower_numbers(search)
        _lower_options(search)
    return search.best


def steps_of(case: Case) -> list[str]:
    """Return the steps of a case's program as text."""
    return [step.strip() for step in str(case.option(PROGRAM)).split(";") if step.strip()]


def with_steps(case: Case, steps: Sequence[str]) -> Case:
    """Return the case with other steps."""
    return case.with_options(**{PROGRAM: "; ".join(steps)})


def _drop_parts(search: _Search) -> None:
    """Leave out runs of steps, each run half as long as those before; of short ones, every run there is."""
    size = len(search.steps)
    while size:
        at = 0
        while at < len(search.steps):
            steps = search.steps
            if not search.take_steps(steps[:at] + steps[at + size :]):
                at += size if size > SHORT else 1
        size = size // 2 if size > SHORT else size - 1


def _narrow(search: _Search) -> None:
    """Open the manager with fewer blocks, and leave out a few steps that were needed to fill it."""
    while any(search.take(case) for case in _narrower(search.best)):
        pass


def _narrower(case: Case) -> Iterator[Case]:
    blocks, steps = case.options.get("num_blocks"), steps_of(case)
    if not isinstance(blocks, int):
        return
    for fewer in sorted({blocks // 2, *range(max(blocks - SHORT, 1), blocks)} - {0}):
        small = case.with_options(num_blocks=fewer)
        yield small
        for size in range(SHORT, 0, -1):
            for at in range(len(steps) - size + 1):
                yield with_steps(small, steps[:at] + steps[at + size :])


def _drop_named(search: _Search) -> None:
    """Leave out all steps whose first number is the same: what one request or allocation does."""
    for name in sorted({step.split()[1] for step in search.steps if " " in step}):
        search.take_steps([step for step in search.steps if step.split()[1:2] != [name]])


def _drop_groups(search: _Search, count: int, up_to: int) -> None:
    """Leave out any few steps of a short program, as one that begins something and one that ends it."""
    found = len(search.steps) <= up_to
    while found:
        steps = search.steps
        groups = combinations(range(len(steps)), count)
        found = any(search.take_steps([s for at, s in enumerate(steps) if at not in g]) for g in groups)


def _shorten(search: _Search) -> None:
    """Leave out two numbers of a step, or one."""
    for at in range(len(search.steps)):
        while any(
            search.take_steps([*search.steps[:at], shorter, *search.steps[at + 1 :]])
            for shorter in _shorter(search.steps[at])
        ):
            pass


def _shorter(step: str) -> Iterator[str]:
    words = step.split()
    for count in (2, 1):
        for at in range(1, len(words) - count + 1):
            yield " ".join([*words[:at], *words[at + count :]])


def _rename(search: _Search) -> None:
    """Replace a number wherever it stands by a smaller one: what a program names keeps being one thing."""
    for old in sorted({int(n) for step in search.steps for n in _NUMBER.findall(step)}):
        word = re.compile(rf"(?<![0-9-]){old}(?![0-9])")
        for new in range(min(old, RENAMES)):
            if search.take_steps([word.sub(str(new), step) for step in search.steps]):
                break


def _lower_numbers(search: _Search) -> None:
    """Make the numbers of each step smaller, one at a time."""
    for at in range(len(search.steps)):
        while any(
            search.take_steps([*search.steps[:at], simpler, *search.steps[at + 1 :]])
            for simpler in _simpler(search.steps[at])
        ):
            pass


def _lower_options(search: _Search) -> None:
    """Make the numbers beside the program smaller: the pool, the blocks of it."""
    for name, value in search.best.options.items():
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        while any(
            search.take(search.best.with_options(**{name: lower}))
            for lower in _lower(int(search.best.options[name]))
            if lower > 0
        ):
            pass


def _simpler(step: str) -> Iterator[str]:
    """Yield a step with one of its numbers smaller."""
    for found in _NUMBER.finditer(step):
        for lower in _lower(int(found[0])):
            yield step[: found.start()] + str(lower) + step[found.end() :]


def _lower(number: int) -> list[int]:
    """Return numbers nearer to 0, the nearest first."""
    sign = -1 if number < 0 else 1
    size = abs(number)
    return [sign * lower for lower in dict.fromkeys((0, 1, size // 2, size - 1)) if 0 <= lower < size]

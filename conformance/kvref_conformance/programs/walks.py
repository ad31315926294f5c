"""Walks: long programs that were drawn once, and are fixed cases of many checks.

A program that somebody has written shows the faults that somebody has thought of. A walk does whatever a
subject offers in an order that nobody thought of, and each check holds it to a requirement of its own. It
follows from its number alone, so a verdict does not depend on chance.
"""

import random

from kvref_conformance.cases import Case, Level
from kvref_conformance.claims import Claims
from kvref_conformance.managers import MANAGERS, MAX_LIST
from kvref_conformance.programs.asking import Lattice, opened, tables
from kvref_conformance.programs.drawn import draw_case

#: How many walks a check goes at each level.
WALKS: dict[Level, int] = {"quick": 2, "full": 8, "exhaustive": 32}
#: Steps of a walk; block tables are all read after each.
STEPS = {"block_allocator": 100, "block_tables": 50}
#: What goes wrong late is reached by more than a thousand steps: one allocator's walk, and a request that
#: forks, is cut back and ends, over and over.
LATE = 1200
FAMILY = "add 0; append 0 b+1; fork 0 1; append 1 1; truncate 1 b; append 1 2; append 0 b; free 1; free 0; "
#: The same for windows: a request slides, forks, and both end.
SLIDING = "add 0; append 0 2b+1; prune 0; fork 0 1; append 1 b; prune 1; free 0; append 1 1; free 1; "
#: Slots that two bytes count.
SLOTS = 2**16
#: Walks that may be drawn for one that is opened as it should be.
TRIED = 200


def walks(*, opened_with: str = "") -> Lattice:
    """Return walks; `opened_with` names what a manager has to be opened with: windows, several groups."""

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        drawn = (_walk(claims, manager, number, STEPS[manager]) for number in range(TRIED))
        fitting = (case for case in drawn if not opened_with or opened_with in case.options)
        return [case for case, _ in zip(fitting, range(WALKS[level]), strict=False)]

    return cases


def late(claims: Claims, manager: str, level: Level) -> list[Case]:
    """Return one case of more than a thousand steps."""
    if manager == "block_tables":
        return tables(FAMILY * (LATE // FAMILY.count(";")) + "drain")(claims, manager, level)[:1]
    return [_walk(claims, manager, 0, LATE)]


def late_windows(claims: Claims, manager: str, level: Level) -> list[Case]:
    """Return one case of more than a thousand steps in which requests slide and end."""
    program = SLIDING * (LATE // SLIDING.count(";")) + "drain"
    return opened(program, num_blocks=12, windows="h")(claims, manager, level)


def spread(claims: Claims, manager: str, level: Level) -> list[Case]:
    """Return one case of more slots than two bytes count, and of more tokens where a table can hold them.

    It is asked in the largest block size, where the pool then has no more blocks than one answer can name.
    """
    size = max(claims.block_sizes)
    if size * MAX_LIST < SLOTS:
        return []
    first = SLOTS // 2 if size * MAX_LIST < SLOTS + 2 * size else SLOTS
    program = f"add 0; append 0 {first + size}; add 1; append 1 {SLOTS - first + 1}; append 0 1; free 1"
    return opened(program, num_blocks=SLOTS // size + 4, block_size=size)(claims, manager, level)


def _walk(claims: Claims, manager: str, number: int, length: int) -> Case:
    operations = MANAGERS[manager].operations.values()
    asked = tuple(o.name for o in operations if o.feature is None or o.feature in claims.features)
    return draw_case(manager, random.Random(f"walk {number}"), claims, asked, length)

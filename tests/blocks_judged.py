"""Subjects that offer managers of blocks, and what the checks of blocks say of them."""

from typing import Any

from kvref_conformance.claims import Claims
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.oracle import Oracle
from kvref_conformance.runner.evaluate import Evidence, evaluate, plan

MANAGERS = ("block_allocator", "block_tables")


def judged(subject: Any, level: Any = "quick") -> list[Evidence]:
    """Run all checks of blocks that a subject must pass."""
    host = InProcessHost(subject)
    offered = tuple(name for name in host.hello().verbs if name.partition(".")[0] in MANAGERS)
    oracle = Oracle(subject.claims)
    return [evaluate(check, case, host, oracle) for check, case in plan(offered, subject.claims, level)]


def levels_ask(subject: Any, managers: tuple[str, ...] = MANAGERS) -> list[set[str]]:
    """Return the requirements that each level asks of managers, the smallest first.

    Each level holds the one before: what passes the largest passes all.
    """
    verbs = InProcessHost(subject).hello().verbs
    offered = tuple(name for name in verbs if name.partition(".")[0] in managers)
    plans = [plan(offered, subject.claims, level) for level in ("quick", "full", "exhaustive")]
    cases = [{(check.name, repr(case)) for check, case in planned} for planned in plans]
    assert cases[0] <= cases[1] <= cases[2]
    return [{check.requirement for check, _ in planned} for planned in plans]


def failed(subject: Any) -> list[tuple[str, str]]:
    """Return what failed, and how."""
    return [(found.requirement, found.message) for found in judged(subject) if found.status == "fail"]


def with_managers(allocator: Any = None, tables: Any = None, **claims: Any) -> Any:
    """Return a subject that offers these managers under these claims."""
    members = {"claims": Claims(**{"block_sizes": (4, 3), **claims})}
    members |= {"block_allocator": allocator} if allocator else {}
    members |= {"block_tables": tables} if tables else {}
    return type("Subject", (), members)()

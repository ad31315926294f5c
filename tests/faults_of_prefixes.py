"""Faults that no exhibit stands for, of prefix caches, keys and indexes: each is held to a requirement."""

from typing import Any

from kvref_conformance.claims import Claims
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.oracle import Oracle
from kvref_conformance.runner.evaluate import evaluate, plan
from kvref_conformance.subjects.lists import OF_PREFIXES
from kvref_conformance.subjects.lists.index import IndexLists
from kvref_conformance.subjects.lists.keys import KeyLists
from kvref_conformance.subjects.lists.prefix import PrefixLists

#: What a faulty class is made of -> the manager that it is.
MANAGERS = {PrefixLists: "prefix_cache", KeyLists: "block_keys", IndexLists: "block_index"}
#: Requirement, fault, and what it declares.
Faults = list[tuple[str, Any, dict[str, str]]]


def noting(faults: Faults) -> Any:
    """Return a decorator that notes a fault, and which requirement a check must show it by."""

    def shows(requirement: int, **choices: str) -> Any:
        spelled = {name.replace("_", "-"): answer for name, answer in choices.items()}

        def noted(fault: Any) -> Any:
            faults.append((f"KV-PREFIX-{requirement:03d}", fault, spelled))
            return fault

        return noted

    return shows


def base_of(made: Any) -> Any:
    """Return the honest class that a fault is made of."""
    return next(base for base in MANAGERS if issubclass(made, base))


def failing(requirement: str, made: Any, choices: dict[str, str], level: Any = "quick") -> int:
    """Count the failing cases of one requirement."""
    claims = Claims(block_sizes=(4, 1), features=OF_PREFIXES, choices=choices)
    host = InProcessHost(type("Subject", (), {MANAGERS[base_of(made)]: made, "claims": claims})())
    planned = plan(host.hello().verbs, claims, level)
    cases = [(check, case) for check, case in planned if check.requirement == requirement]
    assert cases
    return sum(evaluate(check, case, host, Oracle(claims)).status == "fail" for check, case in cases)

"""What tests of checks share: running some checks on a subject, and the checks of a topic."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

from kvref_conformance.checks.check import Check
from kvref_conformance.host import Host
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.host.subject import verbs_of
from kvref_conformance.oracle import Oracle
from kvref_conformance.runner.evaluate import Evidence, evaluate

Failing = Callable[..., list[Evidence]]


def checks_of(topic: str) -> list[Check]:
    """Return the checks of one module."""
    module = import_module(f"kvref_conformance.checks.{topic}")
    return [value for value in vars(module).values() if isinstance(value, Check)]


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[str, Host]]:
    """Hosts by subject, each opened when it is first asked for."""
    found: dict[str, Host] = {}
    yield found
    for host in found.values():
        host.close()


@pytest.fixture
def failing() -> Failing:
    """Return a function that runs a topic's checks on a subject and gives what failed.

    Requirement and verbs narrow it down; where they leave nothing to run, the test is wrong.
    """

    def run(
        topic: str, subject: Any, requirement: str = "", level: Any = "quick", verbs: tuple[str, ...] = ()
    ) -> list[Evidence]:
        host, claims = InProcessHost(subject), subject.claims
        oracle = Oracle(claims)
        found = [
            evaluate(check, case, host, oracle)
            for check in checks_of(topic)
            if check.requirement.startswith(requirement)
            for verb in verbs or verbs_of(subject)
            if check.applies(verb, claims)
            for case in check.cases(claims, verb, level)
        ]
        assert found, f"no check of {topic} was run for {requirement or 'anything'}"
        return [evidence for evidence in found if evidence.status == "fail"]

    return run

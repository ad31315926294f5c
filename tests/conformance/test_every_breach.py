"""Whatever a program of a manager was made for: what it breaks counts, if the subject is held to it."""

import pytest

from kvref_conformance.checks import all_checks
from kvref_conformance.checks.check import Check
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.managers import MANAGERS
from kvref_conformance.museum import all_exhibits
from kvref_conformance.museum.exhibit import Exhibit
from kvref_conformance.oracle import Oracle
from kvref_conformance.programs.expecting import expect_unbroken
from kvref_conformance.runner.evaluate import Evidence, evaluate, plan
from kvref_conformance.trial import Trial

#: Keys are left out: some of their checks ask two processes, and run no program.
EXHIBITS = [e for e in all_exhibits() if e.program and set(e.verbs) & set(MANAGERS) - {"block_keys"}][::3]


def first_failure(fault: Exhibit, host: InProcessHost, oracle: Oracle) -> Evidence:
    """Return the first case of the quick level that an exhibit fails under its own requirement."""
    for check, case in plan(tuple(host.hello().verbs), fault.subject.claims, "quick"):
        if check.requirement in fault.breaks:
            found = evaluate(check, case, host, oracle)
            if (found.status, found.requirement) == ("fail", check.requirement):
                return found
    raise AssertionError(f"{fault.name} passes")


def checks_of_others(requirement: str, fault: Exhibit, host: InProcessHost) -> list[Check]:
    """Return the checks of other requirements that a fault's subject is asked."""
    verb, offered = fault.verbs[0], host.hello().verbs
    asked = [c for c in all_checks() if c.applies(verb, fault.subject.claims) and c.drives(verb, offered)]
    return [check for check in asked if check.requirement != requirement]


@pytest.mark.parametrize("fault", EXHIBITS, ids=lambda e: str(e.name))
def test_a_fault_fails_under_any_check_that_runs_its_program(fault: Exhibit) -> None:
    """The case of one requirement, asked for another: it fails, under a check that replays it."""
    host, oracle = InProcessHost(fault.subject), Oracle(fault.subject.claims)
    shown = first_failure(fault, host, oracle)
    for check in checks_of_others(shown.requirement, fault, host)[:2]:
        found = evaluate(check, shown.case, host, oracle)
        assert found.status == "fail"
        assert found.made_for in ("", check.name)
        assert (found.check == check.name) != bool(found.made_for)
        again = next(c for c in all_checks() if (c.requirement, c.name) == (found.requirement, found.check))
        assert evaluate(again, shown.case, host, oracle) == found


def test_what_is_not_asked_of_a_subject_is_not_held_against_it() -> None:
    """A breach of a requirement that is not in force, in a program made for another, is passed over."""
    fault = next(e for e in EXHIBITS if e.verbs == ("snapshot_cache",))
    host, oracle = InProcessHost(fault.subject), Oracle(fault.subject.claims)
    shown = first_failure(fault, host, oracle)
    trial = Trial(host, shown.case, oracle)
    trial.is_in_force = lambda requirement: requirement != shown.requirement
    expect_unbroken(trial, "KV-SNAP-018")

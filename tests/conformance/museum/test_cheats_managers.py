"""Tests of cheats among managers: nobody comes out conformant who does not remember what it was told."""

import pytest

from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.managers import MANAGERS, offering
from kvref_conformance.museum.cheats_managers import HONEST, MANAGER_CHEATS, ManagerCheat, subject_of
from kvref_conformance.oracle import Oracle
from kvref_conformance.runner.evaluate import evaluate, plan


@pytest.mark.parametrize("cheat", MANAGER_CHEATS, ids=lambda cheat: str(cheat.__name__))
def test_cheats_offer_everything(cheat: type[ManagerCheat]) -> None:
    """A cheat that claims little proves little."""
    every = tuple(name for manager in MANAGERS for name in offering(manager))
    assert InProcessHost(subject_of(cheat)).hello().verbs == every


@pytest.mark.parametrize(
    ("cheat", "manager"),
    [(cheat, name) for cheat in MANAGER_CHEATS for name in MANAGERS if (cheat.__name__, name) not in HONEST],
)
def test_no_manager_of_a_cheat_passes(cheat: type[ManagerCheat], manager: str) -> None:
    """KV-CONF-028: no area that it claims is conformant."""
    subject = subject_of(cheat)
    host, oracle = InProcessHost(subject), Oracle(subject.claims)
    planned = plan(offering(manager), subject.claims, "quick")
    assert planned
    assert any(evaluate(check, case, host, oracle).status == "fail" for check, case in planned)

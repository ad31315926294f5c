"""Tests of the cheats: an answer without the work behind it is found out, whatever the verb."""

from dataclasses import replace

import pytest

from kvref_conformance.contracts import VERBS
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.host.subject import verbs_of
from kvref_conformance.museum.cheats import CHEATS, Cheat
from kvref_conformance.oracle import Oracle
from kvref_conformance.runner.evaluate import evaluate, plan


@pytest.fixture(scope="module")
def known() -> Oracle:
    """Right answers, shared by all cheats."""
    return Oracle(Cheat.claims)


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: str(cheat.__name__))
def test_cheats_offer_everything(cheat: type[Cheat]) -> None:
    """A cheat that claims little proves little."""
    assert verbs_of(cheat()) == tuple(VERBS)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: str(cheat.__name__))
def test_no_verb_of_a_cheat_passes(cheat: type[Cheat], verb: str, known: Oracle) -> None:
    """Whoever does not do the work must not come out conformant in any area."""
    host, oracle = InProcessHost(cheat), replace(known, claims=cheat.claims)
    assert any(
        evaluate(check, case, host, oracle).status == "fail"
        for check, case in plan((verb,), cheat.claims, "quick")
    )

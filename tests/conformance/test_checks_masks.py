"""Checks of the attended set: each is failed by its own rule's faults, and by nobody else's."""

from collections.abc import Callable

import pytest

from kvref_conformance.museum import all_exhibits
from kvref_conformance.runner.evaluate import Evidence
from kvref_conformance.subjects.reference import Reference
from kvref_conformance.subjects.tiled import Tiled

Failing = Callable[..., list[Evidence]]
EXHIBITS = {exhibit.name: exhibit for exhibit in all_exhibits()}


@pytest.mark.parametrize("subject", [Reference, Tiled])
def test_honest_subjects_pass(failing: Failing, subject: type[Reference]) -> None:
    """A check that an honest subject fails would be a false alarm."""
    assert failing("masks", subject, verbs=("attention",)) == []
    assert failing("spans", subject, verbs=("attention",)) == []


@pytest.mark.parametrize("name", ["HeadsTiled", "ScaleTwice", "SoftcapIgnored", "PaddingInDenominator"])
def test_faults_of_the_formula_pass_the_edges(failing: Failing, name: str) -> None:
    """Wrong weights and wrong heads leave a needle where it is: found inside, not found outside."""
    claims = Tiled.claims
    faulty = type("Faulty", (EXHIBITS[name].subject,), {"claims": claims})
    for topic, requirement in (("masks", "020"), ("masks", "022"), ("spans", "024"), ("spans", "025")):
        found = failing(topic, faulty, f"KV-ATTN-{requirement}", verbs=("paged_attention",))
        assert found == [], requirement


def test_a_found_needle_is_named(failing: Failing) -> None:
    """The message says who found what, where it lies, and that it lies outside."""
    (first, *_) = failing("masks", EXHIBITS["WindowOnBothSides"].subject, "KV-ATTN-022")
    assert "found position" in first.message
    assert "outside its attended set" in first.message
    assert "(block " in first.message

"""Tests of the museum: the suite sees every fault and no other, and knows it again when it is seen."""

import re

import pytest

from kvref_conformance.contracts import VERBS
from kvref_conformance.host.subject import verbs_of
from kvref_conformance.managers import MANAGERS
from kvref_conformance.museum import TOPICS, all_exhibits
from kvref_conformance.museum.diagnose import diagnose
from kvref_conformance.museum.exhibit import Exhibit
from kvref_conformance.museum.kill_matrix import Kills, kill_matrix
from kvref_conformance.museum.reports import ELSEWHERE, by_report
from kvref_conformance.oracle import Oracle
from kvref_conformance.subjects.bitwise import Bitwise
from kvref_conformance.subjects.scanned import Scanned
from kvref_conformance.subjects.tiled import Tiled

EXHIBITS = {exhibit.name: exhibit for exhibit in all_exhibits()}

#: Faults that no single call shows: they lie between calls, or in bits that every bound forgives.
UNSEEN_IN_ONE_CALL = {"CachedByFingerprint", "SplitsFollowTheBatch", "BitsPassThroughArithmetic"}

#: Faults that show in calls too large for all exhibits to be tried on them.
UNTRIED = {"GridOfSixteenBits", "TokensInSixteenBits", "SixteenChunks", "SlotsInSixteenBits"}


@pytest.fixture(scope="module")
def known() -> Oracle:
    """Right answers, shared by all subjects."""
    return Oracle(Tiled.claims)


@pytest.fixture(scope="module")
def kills(known: Oracle) -> dict[str, Kills]:
    """Which checks every exhibit fails."""
    return kill_matrix(EXHIBITS.values(), known=known)


@pytest.mark.parametrize("name", EXHIBITS)
def test_exhibit_fails_what_it_breaks_and_little_else(name: str, kills: dict[str, Kills]) -> None:
    """A check that lets the fault pass is blind; one that fails beside the fault is too broad."""
    exhibit, failing = EXHIBITS[name], set(kills[name].failing)
    assert set(exhibit.breaks) <= failing
    assert failing <= {*exhibit.breaks, *exhibit.may_also_break}


#: Exhibits of managers: a journal shows them, and `test_museum_managers` that they are recognised by it.
OF_MANAGERS = {name for name, exhibit in EXHIBITS.items() if set(exhibit.verbs) & set(MANAGERS)}


@pytest.mark.parametrize("name", sorted(EXHIBITS.keys() - UNSEEN_IN_ONE_CALL - UNTRIED - OF_MANAGERS))
def test_exhibit_is_recognised(name: str, kills: dict[str, Kills]) -> None:
    """The failing input and the wrong answer are enough to name the fault again."""
    exhibit = EXHIBITS[name]
    shown = [e for e in kills[name].evidence if e.requirement in exhibit.breaks and e.answer is not None]
    if not shown:
        pytest.skip("it raises, so there is no answer to compare")
    for evidence in shown:
        assert evidence.call is not None
        assert evidence.answer is not None
        found = diagnose(evidence.call, evidence.answer, evidence.requirement, exhibit.subject.claims)
        assert name in [match.exhibit.name for match in found]


def test_exhibits_are_subjects_of_their_own() -> None:
    """What a decorator narrows is the exhibit; the built-in subjects keep their verbs and their claims."""
    assert {*verbs_of(Tiled()), *verbs_of(Bitwise()), *verbs_of(Scanned())} == set(VERBS)
    assert not hasattr(Tiled, "exhibit")
    assert not hasattr(Bitwise, "exhibit")
    assert not hasattr(Scanned, "exhibit")
    assert all(e.subject.claims.name == e.name for e in EXHIBITS.values())


def test_topics_are_those_of_the_checks() -> None:
    """A fault is found next to the checks that are meant to catch it."""
    assert {exhibit.topic for exhibit in EXHIBITS.values()} == set(TOPICS)


@pytest.mark.parametrize("exhibit", EXHIBITS.values(), ids=lambda exhibit: str(exhibit.name))
def test_exhibits_speak_in_sentences(exhibit: Exhibit) -> None:
    """A report quotes them: a summary, a story, a phrase that follows "as if", a numbered class."""
    assert exhibit.summary.endswith(".")
    assert exhibit.as_if[0].islower() or exhibit.as_if.startswith("-1 ") or exhibit.as_if[:6] == "ALiBi "
    assert not exhibit.as_if.endswith(".")
    assert re.fullmatch(r"F\d\d [a-zA-Z ]+", exhibit.fault)
    assert exhibit.is_plant or "plant" not in exhibit.story


def test_reports_are_shown_or_sent_elsewhere() -> None:
    """No report is both an exhibit here and somebody else's fault."""
    assert not by_report().keys() & ELSEWHERE.keys()
    assert all(reason for reason in ELSEWHERE.values())

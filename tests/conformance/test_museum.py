"""Tests of the museum: the suite sees every fault and no other, and knows it again when it is seen."""

import json
import re

import pytest
from documents import DOCS
from exhibits import TOLD_BY_A_REPORT

from kvref_conformance.checks import all_checks
from kvref_conformance.contracts import VERBS
from kvref_conformance.host.subject import verbs_of
from kvref_conformance.managers import MANAGERS
from kvref_conformance.museum import TOPICS, all_exhibits
from kvref_conformance.museum.diagnose import diagnose
from kvref_conformance.museum.diagnose_managers import diagnose_manager
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

#: Exhibits of managers, which a journal shows.
OF_MANAGERS = {name for name, exhibit in EXHIBITS.items() if set(exhibit.verbs) & set(MANAGERS)}
CHECKS = {check.name: check for check in all_checks()}

#: What the page of the kill matrix shows: exhibit -> requirements that fail for it.
KEPT = json.loads((DOCS / "evidence" / "kills.json").read_text(encoding="utf-8"))
#: Requirements of which some check is held to a bound.
NUMERIC = {check.requirement for check in all_checks() if check.ring == "numeric"}


@pytest.fixture(scope="module")
def known() -> Oracle:
    """Right answers, shared by all subjects."""
    return Oracle(Tiled.claims)


@pytest.fixture(scope="module", params=EXHIBITS)
def killed(request: pytest.FixtureRequest, known: Oracle) -> tuple[Exhibit, Kills]:
    """An exhibit, and which checks it fails: one after the other, so that test processes share them out."""
    exhibit = EXHIBITS[request.param]
    return exhibit, kill_matrix([exhibit], known=known)[exhibit.name]


def test_exhibit_fails_what_it_breaks_and_little_else(killed: tuple[Exhibit, Kills]) -> None:
    """A check that lets the fault pass is blind; one that fails beside the fault is too broad."""
    exhibit, failing = killed[0], set(killed[1].failing)
    assert set(exhibit.breaks) <= failing
    assert failing <= {*exhibit.breaks, *exhibit.may_also_break}


def test_exhibit_is_recognised(killed: tuple[Exhibit, Kills]) -> None:
    """The failing input and the wrong answer, or what a manager gave, are enough to name the fault again."""
    exhibit, kills = killed
    name = exhibit.name
    if name in UNSEEN_IN_ONE_CALL | UNTRIED | TOLD_BY_A_REPORT:
        pytest.skip("no single case of the matrix tells what it is")
    shown = [e for e in kills.evidence if e.requirement in exhibit.breaks]
    if name in OF_MANAGERS:
        asked = ((CHECKS[e.made_for or e.check], e) for e in shown)
        found = (diagnose_manager(check, e, exhibit.subject.claims) for check, e in asked)
        assert any(name in [match.exhibit.name for match in matches] for matches in found)
        return
    shown = [e for e in shown if e.answer is not None]
    if not shown:
        pytest.skip("it raises, so there is no answer to compare")
    for evidence in shown:
        assert evidence.call is not None
        assert evidence.answer is not None
        matches = diagnose(evidence.call, evidence.answer, evidence.requirement, exhibit.subject.claims)
        assert name in [match.exhibit.name for match in matches]


def test_page_shows_what_was_found(killed: tuple[Exhibit, Kills]) -> None:
    """The matrix that is kept for the page is that of this suite: `docs/_ext/kvref_kills.py` writes it.

    What a numeric check finds beside a fault may rest on the arithmetic of the machine.
    """
    exhibit, kills = killed
    differing = set(KEPT[exhibit.name]) ^ set(kills.failing)
    assert {name for name in differing if name not in NUMERIC} == set()


def test_page_shows_every_exhibit() -> None:
    """And none that is gone."""
    assert list(KEPT) == list(EXHIBITS)


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

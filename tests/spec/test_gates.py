"""The gates between the spec, the checks and the museum: nothing on one side without the other."""

import re
from pathlib import Path

import pytest

from kvref_conformance.checks import all_checks
from kvref_conformance.checks.check import Check
from kvref_conformance.contracts import VERBS
from kvref_conformance.museum import all_exhibits
from kvref_conformance.museum.exhibit import Exhibit
from kvref_conformance.requirements import Requirement, load_requirements

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def spec() -> dict[str, Requirement]:
    """Every requirement, by id."""
    return load_requirements()


@pytest.fixture(scope="module")
def checks() -> list[Check]:
    """Every check of the suite."""
    return all_checks()


@pytest.fixture(scope="module")
def exhibits() -> list[Exhibit]:
    """Every exhibit of the museum, plants included."""
    return all_exhibits()


def returns_lse_unasked(check: Check) -> bool:
    """Whether all verbs of a check return an lse in any case, as merging does."""
    verbs = [VERBS[name] for name in check.verbs]
    return all("lse" in v.returns and "return_lse" not in [a.name for a in v.arguments] for v in verbs)


def test_every_must_has_a_check_or_a_reason(spec: dict[str, Requirement], checks: list[Check]) -> None:
    """A rule that nothing tests is a wish; one that cannot be tested says why."""
    checked = {check.requirement for check in checks}
    missing = [r.title for r in spec.values() if r.test != "untestable" and r.id not in checked]
    assert missing == []


def test_every_check_names_a_live_requirement(spec: dict[str, Requirement], checks: list[Check]) -> None:
    """A check without a rule behind it is somebody's taste."""
    assert [c.name for c in checks if c.requirement not in spec] == []


def test_untestable_is_not_tested(spec: dict[str, Requirement], checks: list[Check]) -> None:
    """A reason why a rule cannot be tested is out of date once it is tested."""
    assert [c.name for c in checks if spec[c.requirement].test == "untestable"] == []


def test_requirements_are_decided_in_their_ring(spec: dict[str, Requirement], checks: list[Check]) -> None:
    """The spec says whether exact cases or the bound decide, and one check at least is of that ring."""
    rings: dict[str, set[str]] = {}
    for check in checks:
        rings.setdefault(check.requirement, set()).add(check.ring)
    wrong = [
        f"{spec[name].title}: {sorted(found)}"
        for name, found in rings.items()
        if spec[name].test not in found
    ]
    assert wrong == []


def test_checks_wait_for_the_feature(spec: dict[str, Requirement], checks: list[Check]) -> None:
    """A requirement that needs a feature is asked only of subjects that claim it."""
    wrong = [
        f"{c.name} of {spec[c.requirement].title} waits for {c.features}"
        for c in checks
        if spec[c.requirement].feature not in ("", *c.features)
        and not (spec[c.requirement].feature == "lse" and returns_lse_unasked(c))
    ]
    assert wrong == []


def test_exhibits_break_live_requirements(spec: dict[str, Requirement], exhibits: list[Exhibit]) -> None:
    """An exhibit says which rules its fault breaks, and they exist."""
    wrong = [e.name for e in exhibits if not e.breaks or not {*e.breaks, *e.may_also_break} <= set(spec)]
    assert wrong == []


def test_exhibits_say_where_they_were_seen(exhibits: list[Exhibit]) -> None:
    """A report is named so that it can be found: owner, repository, number."""
    wrong = [
        (e.name, place)
        for e in exhibits
        for place in e.seen_in
        if not re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", place)
    ]
    assert wrong == []


def test_every_checked_must_is_caught(
    spec: dict[str, Requirement], checks: list[Check], exhibits: list[Exhibit]
) -> None:
    """A check that has never failed may be unable to."""
    broken = {name for exhibit in exhibits for name in exhibit.breaks}
    musts = {c.requirement for c in checks if spec[c.requirement].level == "MUST"}
    assert sorted(spec[name].title for name in musts - broken) == []


def test_reasons_name_tests_that_exist(spec: dict[str, Requirement]) -> None:
    """A reason that points to a test is only as good as the test."""
    named = {path for r in spec.values() for path in re.findall(r"tests/[\w/]+\.py", r.reason)}
    missing = sorted(path for path in named if not (ROOT / path).is_file())
    if missing:
        pytest.skip(f"not written yet: {', '.join(missing)}")


@pytest.mark.parametrize("chapter", ["attention", "formats", "memory", "recurrent", "sizing"])
def test_every_requirement_is_realised(spec: dict[str, Requirement], chapter: str) -> None:
    """Each module of the reference says which rules it realises; those of `Manners` bind subjects alone."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "kvref").rglob("*.py"))
    realised = [r for r in spec.values() if r.chapter == chapter and r.section != "Manners"]
    assert [r.title for r in realised if r.id not in code] == []

"""Every decision inside formats can be told from its others: by the checks, and by the report."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from kvref.formats.paths import PATHS
from kvref_conformance.cases import Case
from kvref_conformance.checks import all_checks
from kvref_conformance.checks.check import Check
from kvref_conformance.choices import FORMAT_CHOICES, choice_name
from kvref_conformance.choices_found import APPROXIMATE, SHOWN_BY_ATTENTION, find_choices
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import FORMATTED
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.museum.formats_attend import ScaleByPosition
from kvref_conformance.oracle import Oracle
from kvref_conformance.probes.parting import PARTINGS
from kvref_conformance.requirements import load_requirements
from kvref_conformance.runner.evaluate import evaluate
from kvref_conformance.subjects.reference import Reference

CHECKS = [check for check in all_checks() if set(check.verbs) & set(FORMATTED)]


def subject_with(choices: dict[str, str]) -> Any:
    """The reference by another path, which it declares."""

    class Declared(Reference):
        claims = replace(Reference.claims, choices=choices)

    return Declared


def must_be_told_apart(does: str, declares: str) -> bool:
    """Whether two answers never agree: whoever divides within a step or two has kept to an approximation.

    The reference's own approximation is exact.
    """
    if declares == APPROXIMATE:
        return does.startswith("input")
    return (does, declares) != (APPROXIMATE, "divide")


def opened_by(choice: str) -> list[Check]:
    """The checks of the requirements that open a choice."""
    ids = {r.id for r in load_requirements().values() if choice in r.choices}
    return [check for check in CHECKS if check.requirement in ids]


def runs(checks: list[Check], claims: Claims) -> Iterator[tuple[Check, Case]]:
    """Every case of some checks at level quick."""
    for check in checks:
        for verb in set(check.verbs) & set(FORMATTED):
            for case in check.cases(claims, verb, "quick"):
                yield check, case


@pytest.mark.parametrize("choice", FORMAT_CHOICES)
def test_checks_tell_every_two_answers_apart(choice: str) -> None:
    """Who declares one answer and gives another fails a requirement that opens the choice."""
    answers = PATHS[choice.replace("-", "_")]
    for does, declares in permutations(answers, 2):
        if not must_be_told_apart(does, declares):
            continue
        host = InProcessHost(subject_with({choice: does}))
        claims = replace(Reference.claims, choices={choice: declares})
        oracle = Oracle(claims)
        failed = any(
            evaluate(check, case, host, oracle).status == "fail"
            for check, case in runs(opened_by(choice), claims)
        )
        assert failed, f"{choice} = {does} passes as {declares}"


@pytest.mark.parametrize("choice", FORMAT_CHOICES)
def test_every_answer_passes_as_what_it_is(choice: str) -> None:
    """An answer of the named set is excused by nothing and fails nothing."""
    for answer in PATHS[choice.replace("-", "_")][1:]:
        subject = subject_with({choice: answer})
        host, oracle = InProcessHost(subject), Oracle(subject.claims)
        for check, case in runs(opened_by(choice), subject.claims):
            found = evaluate(check, case, host, oracle)
            assert found.status == "pass", f"{choice} = {answer}: {found.message}"


def test_every_decision_has_inputs_at_which_its_answers_part() -> None:
    """A decision that no probe looks at would be missing from every report."""
    assert set(PARTINGS) | set(SHOWN_BY_ATTENTION) == set(PATHS)


def test_the_canonical_answers_are_found() -> None:
    """Of a subject by the book every decision is found, and each alone."""
    found = find_choices(InProcessHost(Reference), Reference.claims, FORMATTED)
    assert {choice.choice for choice in found} == set(FORMAT_CHOICES)
    assert [choice for choice in found if choice.found != (choice.declared,)] == []


@pytest.mark.parametrize(
    ("choice", "answer"),
    [
        ("e4m3-overflow", "nan"),
        ("fp8-nan", "positive"),
        ("e2m1-ties", "away"),
        ("scale-division", "input"),
        ("scale-floor", "1e-6"),
        ("mx-scale", "rceil"),
        ("mx-span", "flattened"),
        ("nvfp4-operand", "encode"),
        ("nvfp4-division", "reciprocal"),
        ("constant-group", "nan"),
        ("nibble-order", "high_first"),
        ("scale-layout", "tiled_128x4"),
        ("v-scale-layout", "interleaved"),
        ("decode-dtype", "output"),
        ("scale-axis", "tokens"),
        ("attend-values", "input"),
    ],
)
def test_an_undeclared_answer_is_found(choice: str, answer: str) -> None:
    """A subject that says nothing is seen to make its choice, and no other finding suffers from it."""
    formats = ("fp8_e4m3", "fp8_e4m3_token_head", "mxfp4", "nvfp4", "kivi_v4", "mxfp8_e4m3")
    claims = replace(Reference.claims, formats=formats)
    found = find_choices(InProcessHost(subject_with({choice: answer})), claims, FORMATTED)
    seen = {one.choice: one for one in found}
    assert seen[choice].found == (answer,)
    assert not seen[choice].agrees
    assert [one for one in found if one.choice != choice and not one.agrees] == []


def test_two_undeclared_answers_are_found_together() -> None:
    """What is found of one decision is assumed when the next is looked at."""
    choices = {"nibble-order": "high_first", "mx-scale": "ceil", "e2m1-ties": "away"}
    claims = replace(Reference.claims, formats=("mxfp4",))
    found = find_choices(InProcessHost(subject_with(choices)), claims, FORMATTED)
    assert {one.choice: one.found for one in found if not one.agrees} == {
        name: (answer,) for name, answer in choices.items()
    }


def test_of_what_is_none_of_the_answers_nothing_is_found() -> None:
    """A fault is no choice: no answer agrees with it."""

    class Truncates(Reference):
        claims = replace(Reference.claims, formats=("mxfp4",))

        def quantize_kv(self, x: Any, **rest: Any) -> Any:
            codes, scales = super().quantize_kv(x, **rest)
            return codes & 0xEE, scales

    (ties,) = (
        one
        for one in find_choices(InProcessHost(Truncates), Truncates.claims, ("quantize_kv",))
        if one.choice == "e2m1-ties"
    )
    assert ties.found == ()
    assert ties.shown == "none of the answers"


def test_an_answer_that_no_claim_allows_is_not_found() -> None:
    """Two groups in a row cannot be interleaved by four, so wrong scales of values are no such layout."""
    claims = ScaleByPosition.claims
    for subject, found in ((ScaleByPosition, ()), (subject_with({}), ("linear",))):
        (layout,) = (
            one
            for one in find_choices(InProcessHost(subject), claims, (FORMATTED[2],))
            if one.choice == "v-scale-layout"
        )
        assert layout.found == found


def test_choices_are_those_of_the_formats_that_are_claimed() -> None:
    """A subject of FP8 alone has made no choice about E2M1."""
    claims = replace(Reference.claims, formats=("fp8_e4m3",))
    found = {one.choice for one in find_choices(InProcessHost(Reference), claims, FORMATTED)}
    assert {"e4m3-overflow", "fp8-nan", "scale-division", "decode-dtype"} <= found
    assert not {name for name in found if name.startswith(("e2m1", "mx", "nvfp4", "e5m2"))}
    assert choice_name("e4m3_overflow") in found

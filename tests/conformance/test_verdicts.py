"""Verdicts and exit codes: what a run says when something fails, is missing, or was never claimed."""

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from kvref.errors import ArgumentError
from kvref_conformance.choices import CHOICES
from kvref_conformance.claims import ALL_BLOCK_SIZES, ALL_DTYPES, ALL_HEAD_DIMS, Claims
from kvref_conformance.contracts import VERBS, Failed
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.report.model import AreaResult, KnownResult, Report, RequirementResult
from kvref_conformance.runner.suite import Settings, run_suite
from kvref_conformance.runner.verdict import (
    BROKEN,
    CONFORMANT,
    NOT_CONFORMANT,
    UNEXPECTED_PASS,
    claimed_share,
    deviations,
    exit_code,
    judge,
)
from kvref_conformance.subjects.bitwise import Bitwise
from kvref_conformance.subjects.reference import Reference
from kvref_conformance.subjects.tiled import Tiled

QUIET = Settings(smallest=False)


def result(failed: int = 0, level: str = "MUST", requirement: str = "KV-ATTN-050") -> RequirementResult:
    """Return what one requirement gave in the area write_kv."""
    return RequirementResult(
        requirement=requirement,
        slug="write-slot",
        level=level,
        area="write_kv",
        ring="core",
        cases=4,
        failed=failed,
        margin=0.25,
    )


def report(*results: RequirementResult, known: tuple[KnownResult, ...] = (), **changes: Any) -> Report:
    """Return a report of these results; write_kv is claimed, attention is not."""
    areas = (judge("write_kv", True, results, 1.0), judge("attention", False, (), 0.0))
    values: dict[str, Any] = {
        "kvref_version": "0",
        "spec_version": "0.1.0",
        "subject": "s",
        "subject_version": "",
        "command": "kvref check s",
        "level": "quick",
        "canonical": False,
        "environment": {},
        "claims": {},
        "deviations": (),
        "inferred": {},
        "disagreements": (),
        "survivors": (),
        "areas": areas,
        "requirements": results,
        "known": known,
    }
    return Report(**{**values, **changes})


def known(outcome: Any, requirement: str = "KV-ATTN-050") -> KnownResult:
    """Return what became of one known failure."""
    return KnownResult(requirement=requirement, kind="bug", reason="r", url="", line=3, outcome=outcome)


def test_an_area_is_conformant_exactly_if_every_must_passed() -> None:
    """One failing case of one MUST is enough; nothing is averaged."""
    assert judge("write_kv", True, [result(), result()], 0.5).verdict == "conformant"
    verdict = judge("write_kv", True, [result(), result(failed=1)], 0.5)
    assert verdict.verdict == "not conformant"
    assert "KV-ATTN-050" in verdict.reason


def test_a_broken_should_is_reported_and_decides_nothing() -> None:
    """SHOULD is advice; the failure stays in the report."""
    results = [result(), result(failed=2, level="SHOULD")]
    verdict = judge("write_kv", True, results, 1.0)
    assert (verdict.verdict, verdict.failed) == ("conformant", 2)
    assert exit_code(report(*results), ["write_kv"]) == CONFORMANT


def test_a_claim_that_nothing_ran_for_is_not_conformant() -> None:
    """Silence is no evidence."""
    verdict = judge("write_kv", True, [], 0.0, ["its cases are of prepare"])
    assert (verdict.verdict, verdict.reason) == (
        "not conformant",
        "no check ran for it: its cases are of prepare",
    )
    assert judge("write_kv", True, [], 0.0).verdict == "not conformant"
    assert judge("write_kv", False, [], 0.0).verdict == "not claimed"


@pytest.mark.parametrize(
    ("made", "asked", "code"),
    [
        (report(result()), ["write_kv"], CONFORMANT),
        (report(result(failed=1)), ["write_kv"], NOT_CONFORMANT),
        (report(result()), ["write_kv", "attention"], NOT_CONFORMANT),  # asked, but not claimed
        (report(), ["write_kv"], NOT_CONFORMANT),  # claimed, but nothing ran
        (report(result(failed=1), known=(known("fails"),)), ["write_kv"], CONFORMANT),
        (report(result(), known=(known("passes"),)), ["write_kv"], UNEXPECTED_PASS),
        (report(result(), known=(known("not run", "KV-ATTN-030"),)), ["write_kv"], CONFORMANT),
        (report(result(failed=1), known=(known("passes", "KV-ATTN-052"),)), ["write_kv"], NOT_CONFORMANT),
        (report(result(), broken=("a check raised",)), ["write_kv"], BROKEN),
    ],
)
def test_the_exit_code_is_zero_only_if_every_failure_is_listed(
    made: Report, asked: list[str], code: int
) -> None:
    """A script sees the exit code and nothing else."""
    assert exit_code(made, asked) == code


def test_what_was_not_asked_is_no_known_failure() -> None:
    """A file of known failures explains what failed, and not what was claimed and never asked."""
    results = [result(failed=1)]
    area = judge("write_kv", True, results, 1.0, ["claims.dtypes holds float64: not asked"])
    assert area.verdict == "not conformant"
    assert area.reason.endswith("KV-ATTN-050; claims.dtypes holds float64: not asked")
    made = report(*results, known=(known("fails"),))
    assert exit_code(made, ["write_kv"]) == CONFORMANT
    assert exit_code(replace(made, areas=(area,)), ["write_kv"]) == NOT_CONFORMANT


class Believed(Bitwise):
    """Claims a dtype that no format is read into."""

    claims = replace(Bitwise.claims, features=(), formats=("int8",), dtypes=("float32", "float64"))
    quantize_kv = quantized_paged_attention = None


def test_a_claim_that_is_never_asked_is_not_conformant() -> None:
    """Every case passes, and of one claim nothing is known (KV-CONF-003)."""
    made = run_suite(InProcessHost(Believed), settings=QUIET)
    (area,) = [area for area in made.areas if area.verdict != "not claimed"]
    assert (area.verdict, area.failed) == ("not conformant", 0)
    assert area.cases
    assert area.reason.startswith("claims.dtypes holds float64: dequantize_kv is not asked in it, expected")
    assert exit_code(made, [area.area]) == NOT_CONFORMANT


class Double(Reference):
    """Attends over codes, with queries in float64."""

    claims = replace(Reference.claims, features=(), formats=("fp8_e4m3", "nvfp4"), dtypes=("float64",))
    for _verb in VERBS:
        if _verb != "quantized_paged_attention":
            locals()[_verb] = None


def test_attention_over_codes_is_asked_in_float64() -> None:
    """Numbers are not stored from it, but queries may have it; every probe is made for it too."""
    made = run_suite(InProcessHost(Double), settings=QUIET)
    (area,) = [area for area in made.areas if area.verdict != "not claimed"]
    assert (area.verdict, area.reason) == ("conformant", "")


def test_a_known_failure_leaves_the_verdict_as_it_is() -> None:
    """The file is about the build of the implementer, not about the truth."""
    made = report(result(failed=1), known=(known("fails"),))
    assert made.areas[0].verdict == "not conformant"


class Unsupported(Tiled):
    """Claims write_kv and answers that it cannot."""

    claims = replace(Tiled.claims, features=())
    for _verb in VERBS:
        if _verb != "write_kv":
            locals()[_verb] = None

    def write_kv(self, *arguments: Any, **rest: Any) -> None:
        """Refuse everything."""
        raise NotImplementedError("not on this device")


def test_claimed_but_unsupported_is_a_failure() -> None:
    """KV-CONF-020: presence is a claim, and a claim is answered."""
    made = run_suite(InProcessHost(Unsupported), settings=QUIET)
    areas = {area.area: area.verdict for area in made.areas}
    assert areas.pop("write_kv") == "not conformant"
    assert set(areas.values()) == {"not claimed"}
    assert all(r.failure is not None and r.failure.kind == "unsupported" for r in made.failures)


def test_the_claimed_share_is_the_part_of_the_whole_domain() -> None:
    """One width of six is a sixth, but for the few checks whose cases have a width of their own."""
    whole = {"dtypes": ALL_DTYPES, "head_dims": ALL_HEAD_DIMS, "block_sizes": ALL_BLOCK_SIZES}
    widest = Claims(**whole, features=Tiled.claims.features)  # type: ignore[arg-type]
    assert claimed_share("write_kv", widest) == pytest.approx(1.0)
    assert claimed_share("write_kv", replace(widest, head_dims=(64,))) == pytest.approx(1 / 6, abs=0.01)
    assert claimed_share("write_kv", replace(widest, head_dims=(48,))) == 0.0
    assert claimed_share("paged_attention", replace(widest, features=())) < 1.0


def test_a_declared_choice_is_listed_with_its_hazard() -> None:
    """A deviation that was declared is no failure, and not nothing either."""
    claims = Claims(choices={"lse-base": "2", "lse-sink": "excluded"})
    (deviation,) = deviations(claims)
    assert (deviation.choice, deviation.declared, deviation.canonical) == ("lse-base", "2", "e")
    assert deviation.hazard == CHOICES["lse-base"].alternatives["2"]


def test_canonical_ignores_the_declared_choices() -> None:
    """Whoever wants to know how a subject does without its exceptions asks so."""
    declared = Claims(choices={"lse-base": "2"})
    assert Settings(canonical=True).claims(declared).choice("lse-base") == "e"
    assert Settings().claims(declared).choice("lse-base") == "2"


def test_areas_are_run_in_the_order_of_the_contract() -> None:
    """An area that was not asked for costs nothing."""
    assert Settings(areas=("write_kv", "attention")).verbs(VERBS) == ("attention", "write_kv")
    assert Settings().verbs(("write_kv", "unheard_of")) == ("write_kv",)


class Silent:
    """Cannot even be described."""

    claims = 7

    def write_kv(self) -> None:
        """Never called."""


def test_a_subject_that_cannot_be_asked_is_no_verdict() -> None:
    """A harness that says nothing is not a kernel that computes wrongly."""
    with pytest.raises(Failed):
        run_suite(InProcessHost(Silent))


def test_a_claim_outside_the_contract_is_refused() -> None:
    """A misspelt feature must not pass as an absent one."""

    class Misspelt(Unsupported):
        claims: Any = MappingProxyType({"features": ("windows",)})

    with pytest.raises(ArgumentError, match="windows"):
        run_suite(InProcessHost(Misspelt))


def test_area_results_are_plain_records() -> None:
    """The verdict is data: no method decides anything later."""
    assert AreaResult(area="write_kv", verdict="not claimed", reason="").claimed_share == 0.0

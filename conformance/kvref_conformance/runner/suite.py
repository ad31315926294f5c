"""A run: every check a subject's claims call for, the failures made small, and the report.

`run_suite` is a plain function: it asks one host in this process and returns the report. The command line
gathers its evidence through pytest instead (`plugin`), for several workers and crashed ones, and ends in the
same `conclude`.

Realises: KV-CONF-003 claims-are-checked, KV-CONF-006 honest-verdicts.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import kvref
from kvref_conformance.cases import Case, Level
from kvref_conformance.checks import all_checks
from kvref_conformance.checks.check import Check
from kvref_conformance.claims import Claims
from kvref_conformance.host import Hello, Host
from kvref_conformance.managers import AREAS, MANAGERS, operations_of
from kvref_conformance.oracle import Oracle
from kvref_conformance.report.model import AreaResult, KnownResult, Report, RequirementResult
from kvref_conformance.requirements import Requirement, load_requirements, spec_version
from kvref_conformance.runner.evaluate import Evidence, plan
from kvref_conformance.runner.failures import Examiner
from kvref_conformance.runner.known_failures import KnownFailure, settle
from kvref_conformance.runner.patience import Patience
from kvref_conformance.runner.survey import Survey, survey
from kvref_conformance.runner.unasked import unasked
from kvref_conformance.runner.unasked_of_manager import unasked_of_manager
from kvref_conformance.runner.verdict import claimed_share, deviations, judge

Progress = Callable[[Evidence], None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is asked of a run, beside the subject."""

    level: Level = "quick"
    areas: tuple[str, ...] = ()
    """Verbs and managers to check; empty: every claimed one."""
    canonical: bool = False
    """Ignore the declared choices."""
    rings: tuple[str, ...] = ("core", "numeric")
    smallest: bool = True
    """Make one failing input per requirement small, and draw and diagnose it."""
    finds: Path | None = None
    """Folder for the files that replay failures; None: write none."""
    survey: bool = False
    """Infer the arithmetic and list the exhibits that would survive under the declared one."""
    subject: str = "SUBJECT"
    """The words that name the subject on the command line."""

    @property
    def command(self) -> str:
        """What reproduces the run: what was asked, not where its results went."""
        words = ["kvref check", self.subject, *(f"--area {area}" for area in self.areas)]
        return " ".join([*words, *(["--canonical"] if self.canonical else []), f"--level {self.level}"])

    def replay_command(self, file: str) -> str:
        """Return what replays one case file."""
        canonical = " --canonical" if self.canonical else ""
        return f"kvref check {self.subject}{canonical} --case {shlex.quote(file)}"

    def claims(self, declared: Claims) -> Claims:
        """Return the claims the subject is held to."""
        return declared.canonical() if self.canonical else declared

    def verbs(self, offered: Iterable[str]) -> tuple[str, ...]:
        """Return what is to run: offered and asked, in the order of the contract.

        Verbs and managers are areas; the operations of a manager go with it.
        """
        names = set(offered)
        areas = [area for area in AREAS if area in names & set(self.areas or AREAS)]
        return (
            *areas,
            *(f"{area}.{o}" for area in areas if area in MANAGERS for o in operations_of(area, names)),
        )


def run_suite(
    host: Host,
    claims: Claims | None = None,
    verbs: Sequence[str] | None = None,
    level: Level = "quick",
    *,
    settings: Settings | None = None,
    progress: Progress | None = None,
    known: Sequence[KnownFailure] = (),
) -> Report:
    """Check one subject in this process and return the report.

    `claims` and `verbs` default to what the subject says. Raises: Failed if it cannot be asked;
    ArgumentError if its claims are not those of the contract.
    """
    hello = host.hello()
    declared = Claims.from_dict(hello.claims) if claims is None else claims
    hello = hello if verbs is None else replace(hello, verbs=tuple(verbs))
    asked = replace(settings or Settings(), level=level)
    held = asked.claims(declared)
    oracle = Oracle(held)
    evidence, patience = [], Patience()
    for check, case in plan(asked.verbs(hello.verbs), held, asked.level, rings=asked.rings):
        evidence.append(_light(patience.evaluate(check, case, host, oracle)))
        if progress is not None:
            progress(evidence[-1])
    return conclude(evidence, host, hello, declared, asked, known=known)


def conclude(
    evidence: Sequence[Evidence],
    host: Host,
    hello: Hello,
    declared: Claims,
    settings: Settings,
    *,
    known: Sequence[KnownFailure] = (),
    broken: Sequence[str] = (),
) -> Report:
    """Turn evidence into the report: make failures small, judge the areas, settle the known failures."""
    spec = load_requirements()
    oracle = Oracle(settings.claims(declared))
    checks = {check.name: check for check in all_checks()}
    rings = {name: check.ring for name, check in checks.items()}
    examiner = Examiner(host, hello, oracle, settings.smallest, settings.finds, settings.replay_command)
    results = [_result(group, spec, rings, examiner) for group in _grouped(evidence, spec)]
    wanted = settings.areas or AREAS
    asked = [(checks[item.made_for or item.check], item.case) for item in evidence]
    areas = tuple(
        _judged(area, hello.verbs, declared, oracle.claims, results, asked)
        for area in AREAS
        if area in wanted
    )
    settled: tuple[KnownResult, ...] = settle(known, results)
    failed = {r.requirement for r in results if r.failed}
    hangs = {item.case.verb for item in evidence if item.failure == "timeout"}
    awake = tuple(verb for verb in hello.verbs if verb.partition(".")[0] not in hangs)
    surveyed = survey(host, oracle.claims, awake) if settings.survey else Survey()
    return Report(
        kvref_version=kvref.__version__,
        spec_version=spec_version(),
        subject=hello.name,
        subject_version=hello.version,
        command=settings.command,
        level=settings.level,
        canonical=settings.canonical,
        environment={k: v for k, v in sorted(hello.environment.items()) if k != "platform"},
        claims=declared.to_dict(),
        deviations=deviations(declared),
        inferred=surveyed.inferred,
        disagreements=surveyed.disagreements,
        survivors=surveyed.survivors,
        choices=surveyed.choices,
        areas=areas,
        requirements=tuple(results),
        known=settled,
        broken=tuple(broken),
        requirement_texts={name: spec[name].text for name in sorted(failed) if name in spec},
    )


def _judged(
    area: str,
    offered: Sequence[str],
    declared: Claims,
    held: Claims,
    results: Sequence[RequirementResult],
    asked: Sequence[tuple[Check, Case]],
) -> AreaResult:
    """Return the verdict on one area; `declared` says how much of the domain it is, `held` what was asked."""
    if area not in offered:
        return judge(area, False, (), 0.0)
    mine = [(check, case) for check, case in asked if case.verb == area]
    missed = unasked_of_manager if area in MANAGERS else unasked
    return judge(
        area,
        True,
        [r for r in results if r.area == area],
        claimed_share(area, declared, offered),
        missed(area, offered, held, mine),
        operations_of(area, offered) if area in MANAGERS else (),
    )


def _grouped(evidence: Sequence[Evidence], spec: dict[str, Requirement]) -> list[list[Evidence]]:
    """Group evidence by area and requirement, in the order of the contract and the spec."""
    groups: dict[tuple[str, str], list[Evidence]] = {}
    for item in evidence:
        groups.setdefault((item.case.verb, item.requirement), []).append(item)
    areas, ids = list(AREAS), list(spec)

    def rank(key: tuple[str, str]) -> tuple[int, int, str]:
        known = ids.index(key[1]) if key[1] in spec else len(ids)
        return areas.index(key[0]), known, key[1]

    return [groups[key] for key in sorted(groups, key=rank)]


def _result(
    group: list[Evidence], spec: dict[str, Requirement], rings: Mapping[str, str], examiner: Examiner
) -> RequirementResult:
    first = group[0]
    requirement = spec.get(first.requirement)
    slug = requirement.slug if requirement else ""
    failing = [item for item in group if item.status == "fail"]
    return RequirementResult(
        requirement=first.requirement,
        slug=slug,
        level=requirement.level if requirement else "MUST",
        area=first.case.verb,
        ring=rings.get(first.check, "core"),
        cases=len(group),
        failed=len(failing),
        margin=round(max((i.margin for i in group if i.status == "pass"), default=0.0), 4),
        unbounded=sum(item.unbounded for item in group),
        failure=examiner.examine(failing, slug) if failing else None,
    )


def _light(found: Evidence) -> Evidence:
    """Drop the tensors: a run keeps thousands of cases, and a failing one is asked again."""
    return replace(found, call=None, answer=None, journal=())

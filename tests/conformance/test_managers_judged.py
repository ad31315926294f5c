"""A run over managers: areas, what is claimed and not asked, and failures that somebody can work with."""

import json
import sys
from collections.abc import Iterator
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from kvref_conformance.cases import Case
from kvref_conformance.checks import all_checks
from kvref_conformance.checks.check import Check, check
from kvref_conformance.claims import MANAGER_BLOCK_SIZES, Claims
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.host.process import ProcessHost, python_command
from kvref_conformance.managers import MANAGERS, offering
from kvref_conformance.museum.kill_matrix import examine
from kvref_conformance.oracle import Oracle
from kvref_conformance.report.files import write_report
from kvref_conformance.report.html import to_html
from kvref_conformance.report.junit import to_junit
from kvref_conformance.report.markdown import to_markdown
from kvref_conformance.report.model import Report, load_report
from kvref_conformance.report.terminal import render
from kvref_conformance.runner.casefile import load_case, parse_case
from kvref_conformance.runner.evaluate import evaluate
from kvref_conformance.runner.plugin import run_under_pytest
from kvref_conformance.runner.replay import replay
from kvref_conformance.runner.suite import Settings, run_suite
from kvref_conformance.runner.target import Target
from kvref_conformance.runner.unasked_of_manager import unasked_of_manager
from kvref_conformance.runner.verdict import claimed_share
from kvref_conformance.subjects.lists import Lists
from kvref_conformance.subjects.lists.allocator import ListAllocator
from kvref_conformance.trial import Trial, Violation

ALLOCATOR = Settings(areas=("block_allocator",))
CLAIMS = Claims(name="forgetful <pool>", choices={"free-order": "fifo"})


class Forgetful(ListAllocator):
    """Forgets every holder but the last: a block is free when the first lets go."""

    pin = unpin = begin_step = end_step = None  # type: ignore[assignment]

    def hold(self, block: int) -> None:
        """Take no note."""


class Subject:
    """Offers the forgetful allocator and no features."""

    claims = CLAIMS
    block_allocator = Forgetful


@pytest.fixture(scope="module")
def report() -> Report:
    """The report on an allocator with one fault."""
    return run_suite(InProcessHost(Subject), settings=ALLOCATOR)


def area_of(report: Report, name: str) -> Any:
    """One area of a report."""
    return next(area for area in report.areas if area.area == name)


def program_of(report: Report, requirement: str) -> tuple[str, ...]:
    """The program that a failure shows."""
    failure = next(r.failure for r in report.failures if r.requirement == requirement)
    assert failure is not None
    return failure.program


def test_an_honest_allocator_is_conformant() -> None:
    """All of it, since it offers all operations and claims all features."""
    made = run_suite(InProcessHost(Lists), settings=ALLOCATOR)
    (area,) = made.areas
    assert (area.verdict, area.reason, area.claimed_share) == ("conformant", "", 1.0)
    assert area.operations == tuple(MANAGERS["block_allocator"].operations)


def test_a_manager_is_one_area_with_its_operations(report: Report) -> None:
    """What is not offered is neither asked nor held against it."""
    (area,) = report.areas
    assert area.verdict == "not conformant"
    assert area.operations == ("allocate", "free", "touch", "num_free")
    assert area.reason.startswith(
        f"{len(report.failures)} of {area.requirements} requirements fail: KV-BLOCK-"
    )
    assert 0.5 < area.claimed_share < 1


def test_what_is_not_offered_is_not_claimed() -> None:
    """A subject without managers has none, and a manager alone leaves the verbs out."""
    made = run_suite(InProcessHost(Subject), settings=Settings(smallest=False))
    verdicts = {area.area: area.verdict for area in made.areas}
    assert verdicts.pop("block_allocator") == "not conformant"
    assert set(verdicts.values()) == {"not claimed"}
    assert set(verdicts) > {"paged_attention", "prefix_cache"}


def test_a_failure_shows_its_program(report: Report) -> None:
    """As short as it gets, opened as it was, with calls beside it and a mark at the step that shows it."""
    assert program_of(report, "KV-BLOCK-004") == (
        "      block_allocator with num_blocks = 1",
        "    0  allocate 0 1   allocate(num_blocks=1)",
        "    1  touch 0        touch(blocks=[0])",
        ">   2  free 0         free(blocks=[0])",
    )


def test_every_form_of_a_report_shows_the_program(report: Report, tmp_path: Path) -> None:
    """In the terminal, in Markdown, on a page, in JUnit, and in JSON that the schema describes."""
    text = StringIO()
    render(report, Console(file=text, width=120))
    for form in (text.getvalue(), to_markdown(report), to_junit(report), to_html(report)):
        assert "2  free 0" in form
        assert "allocate 0 1" in form
    assert "block_allocator offers allocate, free, touch, num_free; not pin, unpin" in text.getvalue()
    schema = json.loads((files("kvref_conformance") / "report" / "schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(report.to_json()), schema)
    write_report(report, tmp_path / "report.json")
    assert load_report(tmp_path / "report.json").to_json() == report.to_json()


def test_a_saved_failure_comes_back(tmp_path: Path) -> None:
    """The file holds the program; replaying it shows, under each step, its operations with what they gave."""
    settings = Settings(areas=("block_allocator",), finds=tmp_path)
    run_suite(InProcessHost(Subject), settings=settings)
    case = load_case(tmp_path / "KV-BLOCK-004-0001.json")
    assert case.case.options["program"] == "allocate 0 1; touch 0; free 0"
    again = replay(case, InProcessHost(Subject), Settings())
    text = StringIO()
    again.show(Console(file=text, width=120))
    assert ">   2  free 0" in text.getvalue()
    assert "free(blocks=[0]) -> done" in text.getvalue()
    assert "FAIL" in text.getvalue()
    told = json.loads(again.to_json())
    assert "num_free() -> num_free_blocks = 1" in told["journal"]


def test_the_run_under_pytest_says_the_same(tmp_path: Path) -> None:
    """The command gathers its evidence that way, from processes."""
    (tmp_path / "mine.py").write_text(
        "from kvref_conformance.subjects.lists.allocator import ListAllocator\n"
        "class Subject:\n"
        "    claims = {'choices': {'free-order': 'fifo'}, 'features': ['pin', 'steps']}\n"
        "    block_allocator = ListAllocator\n"
    )
    target = Target(subject=str(tmp_path / "mine.py") + ":Subject")
    host = target.open()
    hello = host.hello()
    verbs = ALLOCATOR.verbs(hello.verbs)
    evidence, broken = run_under_pytest(target, Claims.from_dict(hello.claims), verbs, ALLOCATOR)
    host.close()
    assert broken == []
    assert {found.status for found in evidence} == {"pass"}
    assert len(evidence) > 50


def test_areas_can_be_chosen() -> None:
    """The operations of a manager go with it."""
    offered = (*offering("block_keys"), "write_kv", *offering("block_index"))
    assert Settings(areas=("block_index",)).verbs(offered) == offering("block_index")
    assert Settings().verbs(offered)[:3] == ("write_kv", "block_keys", "block_index")


SIZES = (4, 16)


def nothing(trial: Trial) -> None:
    """Ask nothing."""


def case(**options: Any) -> Case:
    """A case of block tables."""
    return Case(verb="block_tables", seq_lens=(), query_lens=(), block_size=SIZES[0], options=options)


def asked_for(*operations: str, requirement: str = "KV-BLOCK-020", features: tuple[str, ...] = ()) -> Check:
    """A check of block tables that needs these."""
    make = check(requirement, verbs=("block_tables",), operations=operations, features=features)
    return make(nothing)


def test_claims_that_no_case_is_about_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block sizes, operations and features: each with why nothing asked for it (KV-CONF-003)."""
    plain, pruning = asked_for("add", "append"), asked_for("prune", features=("pruning",))
    monkeypatch.setattr("kvref_conformance.runner.unasked_of_manager.all_checks", lambda: [plain, pruning])
    offered = ("block_tables", "block_tables.add", "block_tables.append", "block_tables.num_free")
    claims = Claims(block_sizes=SIZES, features=("pruning",))
    assert unasked_of_manager("block_tables", offered, claims, [(plain, case())]) == (
        "claims.block_sizes holds 16: no case of block_tables has it",
        "block_tables.num_free is offered: no case needs it beside what is offered",
        "claims.features holds pruning: the operations that it is asked by are not offered",
    )


def test_an_operation_waits_for_its_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way out is named: claim the feature, and be asked."""
    plain = asked_for("add")
    monkeypatch.setattr("kvref_conformance.runner.unasked_of_manager.all_checks", lambda: [plain])
    offered = ("block_tables", "block_tables.add", "block_tables.prune")
    found = unasked_of_manager("block_tables", offered, Claims(block_sizes=(4,)), [(plain, case())])
    assert found == ("block_tables.prune is offered: it is asked of those that claim pruning",)


def test_a_declared_choice_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that no case was about, though a check of the manager could have been, is believed by nobody."""
    plain, choosing = asked_for("add"), asked_for("prune", requirement="KV-BLOCK-008")
    monkeypatch.setattr("kvref_conformance.runner.unasked_of_manager.all_checks", lambda: [plain, choosing])
    offered, claims = (
        ("block_tables", "block_tables.add"),
        Claims(block_sizes=(4,), choices={"null-block": "reserved"}),
    )
    (found,) = unasked_of_manager("block_tables", offered, claims, [(plain, case())])
    assert found == "claims.choices holds null-block: no case of block_tables is about it"
    assert unasked_of_manager("block_tables", offered, claims.canonical(), [(plain, case())]) == ()


def test_nothing_that_can_be_asked_is_no_verdict() -> None:
    """An operation without which no check makes sense is not conformant, and not wrong either."""

    class Pool:
        def __init__(self, num_blocks: int) -> None:
            self.num_blocks = num_blocks

        def num_free(self) -> int:
            return self.num_blocks

    made = run_suite(InProcessHost(type("Counts", (), {"block_allocator": Pool})), settings=ALLOCATOR)
    (area,) = made.areas
    assert area.verdict == "not conformant"
    assert area.reason == (
        "no check ran for it: none of its checks has a case under these claims and operations"
    )


def test_the_share_counts_operations_features_and_block_sizes() -> None:
    """Half the operations are less than all of them, whatever else is claimed."""
    every = Claims(block_sizes=MANAGER_BLOCK_SIZES, features=Lists.claims.features)
    offered = offering("block_tables")
    whole = claimed_share("block_tables", every, offered)
    assert whole == pytest.approx(1.0)
    few = offering("block_tables", ("add", "append", "free", "block_table"))
    narrow = Claims(block_sizes=(16,), features=Lists.claims.features)
    for claims, names in (
        (every, few),
        (narrow, offered),
        (Claims(block_sizes=MANAGER_BLOCK_SIZES), offered),
    ):
        assert 0 < claimed_share("block_tables", claims, names) < whole
    assert claimed_share("block_tables", Claims(block_sizes=(5,)), offered) == 0.0


@check("KV-BLOCK-001", verbs=("block_allocator",), operations=("allocate",))
def ends_the_subject(trial: Trial) -> None:
    """Ask for so many blocks that the subject ends."""
    session = trial.open("block_allocator", num_blocks=4)
    session.do("allocate", num_blocks=1)
    session.do("allocate", num_blocks=3)


FRAGILE = """
import os

class Subject:
    class block_allocator:
        def __init__(self, num_blocks):
            self.blocks = list(range(num_blocks))

        def allocate(self, count):
            if count == 3:
                os._exit(7)
            return [self.blocks.pop() for _ in range(count)]
"""


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[ProcessHost]:
    """An allocator that ends its process when it is asked for three blocks."""
    (tmp_path / "fragile.py").write_text(FRAGILE)
    with ProcessHost(python_command(sys.executable, "fragile:Subject"), cwd=str(tmp_path)) as host:
        yield host


def test_a_crash_names_the_operation_it_happened_in(fragile: ProcessHost) -> None:
    """What was done before is in the journal; the next case finds a fresh process."""
    where = Case(verb="block_allocator", seq_lens=(), query_lens=(), options={"num_blocks": 4, "program": ""})
    found = evaluate(ends_the_subject, where, fragile, Oracle(Claims()))
    assert (found.status, found.failure) == ("fail", "crash")
    assert found.detail == {"operation": "allocate(num_blocks=3)"}
    assert [entry.failure for entry in found.journal] == ["", "crash"]
    assert fragile.open("block_allocator", num_blocks=2).do("allocate", num_blocks=2) == {"blocks": [1, 0]}


@check("KV-BLOCK-001", verbs=("block_allocator",), operations=("allocate",))
def leaves_sessions_open(trial: Trial) -> None:
    """Open two and fail."""
    for _ in range(2):
        trial.open("block_allocator", num_blocks=4)
    raise Violation("no", detail={"step": 0})


def test_sessions_of_a_case_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subject is not asked to keep what nobody looks at any more, also after a failure."""
    host = InProcessHost(Subject)
    closed: list[str] = []
    real = host.open

    def watched(manager: str, /, **params: Any) -> Any:
        session = real(manager, **params)
        monkeypatch.setattr(session, "close", lambda: closed.append(manager))
        return session

    monkeypatch.setattr(host, "open", watched)
    where = Case(verb="block_allocator", seq_lens=(), query_lens=(), options={"num_blocks": 4, "program": ""})
    evaluate(leaves_sessions_open, where, host, Oracle(Claims()))
    assert closed == ["block_allocator"] * 2


def test_the_kill_matrix_takes_managers() -> None:
    """An exhibit offers one manager, and the checks of what it offers are run."""
    kills = examine(Subject(), ("block_allocator",))
    assert "KV-BLOCK-005" in kills.failing
    assert set(kills.examined) <= {c.requirement for c in all_checks() if "block_allocator" in c.verbs}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"options": {"num_blocks": 4}}, "case of block_allocator has no program"),
        ({"options": {"num_blocks": 4, "program": 3}}, "case of block_allocator has no program"),
        ({"seq_lens": [3], "query_lens": [1]}, "case of block_allocator has no program"),
        ({"options": {"num_blocks": 2**21, "program": ""}}, "expected at most 1048576"),
        ({"options": {"num_blocks": 4, "program": "x" * 65537}}, "has 65537 characters"),
        ({"verb": "block_pool"}, "expected one of attention,"),
    ],
)
def test_case_files_of_managers_are_read_with_suspicion(
    changes: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    """They travel between people; nothing is opened before its size is known."""
    run_suite(InProcessHost(Subject), settings=Settings(areas=("block_allocator",), finds=tmp_path))
    data = json.loads((tmp_path / "KV-BLOCK-005-0001.json").read_text(encoding="utf-8"))
    data["case"] |= changes
    with pytest.raises(ValueError, match=complaint):
        parse_case(json.dumps(data))

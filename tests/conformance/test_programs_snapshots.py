"""
""Tests of programs for snapshot caches: what makes sense, what every state slot holds, what a breach says."""

import random
from typing import Any

import pytest

from kvref_conformance.cases import Case, opening
from kvref_conformance.claims import Claims
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.managers import MANAGERS
from kvref_conformance.programs.drawn import draw_case
from kvref_conformance.programs.running import Run, run
from kvref_conformance.subjects.lists import Lists
from kvref_conformance.subjects.lists.snapshots import SnapshotLists, Step
from kvref_conformance.subjects.reference_memory import ReferenceMemory

LONG = (
    "admit 1 1 6 2 4; part 2 3 1 6 3 5; commit 2; commit 1; more 2 99; draft 1 2 4 3; accept_beyond 1 1; "
    "accept_negative 1 1; accept 1 1; salt 3 1; image 3 7 1 2; admit 3 0 5; again 1; stranger 9; "
    "huge 9; reset; "
    "draft_beyond 1 1; draft_negative 1 1; decode 1 5 4; commit 1; finish 1; commit 3; abort 3; commit 2; "
    "finish 2; reset; adapter 1 1; version 1 2; embed 1 7 0 1; admit 1 1 6"
)
OPERATIONS = tuple(MANAGERS["snapshot_cache"].operations)


def performed(program: str, cache: Any = SnapshotLists, **options: Any) -> Run:
    """Run a program on a snapshot cache of twelve blocks of four and twelve states."""
    subject = type("Subject", (), {"snapshot_cache": cache})
    options = {"num_blocks": 12, "num_states": 12, "snapshot_interval": 4, "program": program, **options}
    case = Case(verb="snapshot_cache", seq_lens=(), query_lens=(), block_size=4, options=options)
    session = InProcessHost(subject()).open("snapshot_cache", **opening(case))
    return run(program, session, case, Lists.claims)


def messages(ran: Run) -> dict[str, str]:
    """Return what is said about each requirement."""
    return {breach.requirement: breach.message for breach in ran.breaches}


@pytest.mark.parametrize("cache", [SnapshotLists, ReferenceMemory.snapshot_cache])
def test_honest_caches_breach_nothing(cache: Any) -> None:
    """Every step is performed, on lists and on the reference."""
    ran = performed(LONG, cache)
    assert ran.breaches == ()
    assert ran.performed == LONG.count(";") + 1


@pytest.mark.parametrize("drop", range(LONG.count(";") + 1))
def test_any_part_of_a_program_is_a_program(drop: int) -> None:
    """Steps that make no sense without the one that was dropped are passed over."""
    steps = LONG.split("; ")
    assert performed("; ".join(steps[:drop] + steps[drop + 1 :])).breaches == ()
    assert performed("; ".join(steps[drop:])).breaches == ()


@pytest.mark.parametrize(
    "step",
    [
        *(
            "commit 7",
            "accept 1 1",
            "finish 7",
            "finish 1",
            "abort 7",
            "more 7 1",
            "more 1 1",
            "decode 1 1 1",
        ),
        *("draft 1 1 1 1", "draft 7 1 1 1", "again 7", "stranger 1", "admit 1 1 1", "admit 3 1 0", "huge 1"),
        *("accept_beyond 7 1", "accept_beyond 1 0", "draft_beyond 1 1", "dance 1"),
    ],
)
def test_step_that_makes_no_sense_is_passed_over(step: str) -> None:
    """A request is in flight; no numbers are missing."""
    assert performed(f"admit 1 1 3; {step}").performed == 1


def test_drafts_are_not_asked_of_those_who_have_none() -> None:
    """Programs of others come with drafts; they say nothing about this one."""
    case = Case(
        verb="snapshot_cache",
        seq_lens=(),
        query_lens=(),
        block_size=4,
        options={"num_blocks": 4, "num_states": 4, "snapshot_interval": 4, "program": "admit 1 1 1"},
    )
    session = InProcessHost(Lists()).open("snapshot_cache", **opening(case))
    ran = run(
        "admit 1 1 1; accept_beyond 1 1; commit 1; draft 1 1 1 1; draft_beyond 1 1", session, case, Claims()
    )
    assert (ran.performed, ran.breaches) == (2, ())


def test_message_says_whose_state_was_restored() -> None:
    """Who wrote it, after how many tokens, and when: that is where debugging starts."""

    class Late(SnapshotLists):
        def told(self, step: Step) -> tuple[int, int, list[int], list[int]]:
            source, state, positions, slots = super().told(step)
            return source, state, [min(p + 1, step.stop) for p in positions], slots

    said = messages(performed("admit 1 1 5; commit 1; admit 2 1 6", Late))["KV-SNAP-002"]
    assert said.endswith("it holds the state of request 1 after 5 tokens, from step 1")


@pytest.mark.parametrize(
    ("operation", "program", "requirement"),
    [
        ("commit", "admit 1 1 4; commit 1", "KV-SNAP-010"),
        ("finish", "admit 1 1 4; commit 1; finish 1", "KV-SNAP-010"),
        ("abort", "admit 1 1 4; abort 1", "KV-SNAP-010"),
        ("reset", "reset", "KV-SNAP-020"),
        ("admit", "admit 1 1 4", "KV-SNAP-011"),
        ("extend", "admit 1 1 4; commit 1; decode 1 1 1", "KV-SNAP-011"),
        ("num_free", "admit 1 1 4", "KV-SNAP-010"),
        ("num_free_states", "admit 1 1 4", "KV-SNAP-010"),
    ],
)
def test_what_must_succeed_and_raises_is_a_breach(operation: str, program: str, requirement: str) -> None:
    """Whatever is raised: a refusal without need and an error are one to whoever asked."""

    def broken(self: Any, *_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    cache = type("Broken", (SnapshotLists,), {operation: broken})
    assert requirement in messages(performed(program, cache))


@pytest.mark.parametrize("subject", [Lists, ReferenceMemory])
def test_drawn_programs_breach_nothing(subject: Any) -> None:
    """Small pools, in which blocks and states push each other out, drafts and windows."""
    host = InProcessHost(subject)
    for seed in range(120):
        case = draw_case("snapshot_cache", random.Random(seed), subject.claims, OPERATIONS, 60)
        session = host.open("snapshot_cache", **opening(case))
        ran = run(str(case.option("program")), session, case, subject.claims)
        assert ran.breaches == (), case.options


def test_drawn_programs_do_what_they_are_for() -> None:
    """They hit snapshots, save, are refused, and reject drafts."""
    host = InProcessHost(Lists)
    lines: list[str] = []
    for seed in range(60):
        case = draw_case("snapshot_cache", random.Random(seed), Lists.claims, OPERATIONS, 60)
        session = host.open("snapshot_cache", **opening(case))
        lines += run(str(case.option("program")), session, case, Lists.claims).trace
    for word in ("from a snapshot", "is refused", "drafts", "accept ", "reset then"):
        assert sum(word in line for line in lines) > 20, word

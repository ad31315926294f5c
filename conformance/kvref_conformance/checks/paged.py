"""Checks of addressing: which slots are read, through which table, and which never."""

from typing import Any

import numpy as np

from kvref_conformance.cases import Case, Level, lattice, tile_cases
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import ATTENDING
from kvref_conformance.probes.needles import edges, hunt_in_turn, hunt_near, needles, tile_edges
from kvref_conformance.probes.random import random_problem
from kvref_conformance.probes.records import present_mla, random_records, record_cases
from kvref_conformance.problems import Placement, Problem
from kvref_conformance.trial import Result, Trial

PAGED = ("paged_attention", "append_and_attend")


def _some(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Half of the lattice: for checks whose fault does not depend on the group."""
    return lattice(claims, verb, level)[::2]


def _crowds(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Seventeen requests around the block grid; every fifth brings no query token."""
    cases = record_cases(claims, verb, level) if verb == "mla_attention" else lattice(claims, verb, level)
    prefill = "prefill" in claims.features
    some = cases[:1] if level == "quick" else cases[::2]
    return [_but(case, **_crowd(case.block_size, prefill)) for case in some]


def _crowd(block_size: int, prefill: bool) -> dict[str, Any]:
    lens = tuple(1 + (7 * i) % (2 * block_size + 2) for i in range(17))
    queries = tuple(0 if i % 5 == 2 and prefill else min(1 + i % 3 * prefill, n) for i, n in enumerate(lens))
    return {"seq_lens": lens, "query_lens": queries}


def _sharing(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Contexts that all reach into their second block, one query token each."""
    cases = lattice(claims, verb, level, prefill=False)
    return [
        _but(case, seq_lens=tuple(case.block_size + 1 + 2 * i for i in range(3)), query_lens=(1, 1, 1))
        for case in cases
    ]


@check("KV-ATTN-010")
def position_is_found_through_its_slot(trial: Trial) -> None:
    """Needles at both ends of the context and around every block boundary, blocks scrambled."""
    problem = needles(trial.case, hunt_in_turn(trial.case, edges(trial.case)))
    trial.expect_attention(problem, trial.attend(problem))


@check("KV-ATTN-010", cases=tile_cases)
def position_is_found_across_tiles(trial: Trial) -> None:
    """Contexts that end around a kernel's tiles; needles on both sides of each tile and each split."""
    problem = needles(trial.case, hunt_in_turn(trial.case, tile_edges(trial.case)))
    trial.expect_attention(problem, trial.attend(problem))


@check("KV-ATTN-011")
def exactly_the_length_is_read(trial: Trial) -> None:
    """The last token is found, and the slot after it, which scores as high, is not."""
    case = trial.case
    problem = needles(case, hunt_near(case, 0))
    trial.expect_attention(problem, trial.attend(problem))


@check("KV-ATTN-013", verbs=PAGED)
def blocks_may_lie_anywhere(trial: Trial) -> None:
    """A context in ascending, descending and scattered blocks gives the same bits where it is exact."""
    case = trial.case
    problem = needles(case, hunt_near(case, 0, -1, -case.block_size))
    exact = trial.oracle.attention(problem).exact
    first = trial.attend(problem, Placement(seed=1, tables=_in_order(case, 1), num_blocks=_count(case) + 2))
    for order in (-1, 3):
        other = trial.attend(
            problem, Placement(seed=2, tables=_in_order(case, order), num_blocks=_count(case) + 2)
        )
        trial.expect_equal("out under another placement", other, other.out[exact], first.out[exact])


@check("KV-ATTN-016", cases=_some)
def neighbours_do_not_move_an_answer(trial: Trial) -> None:
    """Everything of the last request is replaced by loud content: the others keep their bits."""
    case = trial.case
    problem = random_problem(case)
    start = int(problem.context_start_loc[-2])
    first = int(problem.query_start_loc[-2])
    q, k, v = problem.q.copy(), problem.k.copy(), problem.v.copy()
    q[first:], k[start:], v[start:] = -2 * q[first:], 8, 96
    before = trial.attend(problem)
    after = trial.attend(problem.but(q=q, k=k, v=v))
    trial.expect_equal("out beside another neighbour", after, after.out[:first], before.out[:first])


@check("KV-ATTN-016", verbs=(*ATTENDING, "mla_attention"), cases=_crowds)
def company_does_not_move_an_answer(trial: Trial) -> None:
    """Seventeen requests, some without queries: in reverse and each alone they answer the same."""
    case = trial.case
    latent = case.verb == "mla_attention"
    problem = random_records(case, 0.03125) if latent else random_problem(case)
    every = list(range(len(case.seq_lens)))
    together = _ask(trial, problem)
    expected = trial.oracle.attention(problem)
    for some in (every[::-1], [0], [len(every) // 2], [every[-1]]):
        result = _ask(trial, problem.only(some))
        rows = problem.rows_of(some)
        what = "in reverse order" if len(some) > 1 else f"request {some[0]} alone"
        trial.expect_alike(what, result, result.out, together.out[rows], 2 * expected.out_bound[rows])


@check("KV-ATTN-017", verbs=PAGED, cases=_sharing)
def requests_may_share_blocks(trial: Trial) -> None:
    """Three requests name the same first block: each answers as with a copy of its own."""
    case = trial.case
    problem = needles(case, hunt_in_turn(case, [[0, case.block_size - 1, n - 1] for n in case.seq_lens]))
    k, v = problem.k.copy(), problem.v.copy()
    for start in problem.context_start_loc[1:-1]:
        k[start : start + case.block_size] = k[: case.block_size]
        v[start : start + case.block_size] = v[: case.block_size]
    shared = problem.but(k=k, v=v)
    apart = trial.attend(shared, Placement(seed=case.seed))
    together = trial.attend(shared, Placement(seed=case.seed, shared_blocks=1))
    trial.expect_same("the first block is shared", shared, together, apart)


def _ask(trial: Trial, problem: Problem) -> Result:
    case = trial.case
    if case.verb != "mla_attention":
        return trial.attend(problem)
    return trial.call(present_mla(problem, case, Placement(seed=case.seed + 1)), problem)


def _count(case: Case) -> int:
    return sum(-(-n // case.block_size) for n in case.seq_lens)


def _in_order(case: Case, step: int) -> Any:
    """Tables whose blocks ascend, descend, or jump by 3 (mod a number prime to 3), padding a valid block."""
    total = _count(case)
    modulus = total + 1 + (total % 3 == 2)
    ids = [(step * i) % modulus if abs(step) > 1 else i for i in range(total)]
    ids = [total - 1 - i for i in range(total)] if step < 0 else ids
    needed = [-(-n // case.block_size) for n in case.seq_lens]
    tables = np.full((len(needed), max(needed) + 1), total + 1)
    for request, count in enumerate(needed):
        tables[request, :count] = [ids.pop(0) for _ in range(count)]
    return tables


def _but(case: Case, **changes: Any) -> Case:
    return Case(**{**case.__dict__, **changes})

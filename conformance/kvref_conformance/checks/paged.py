"""Checks of addressing: which slots are read, through which table, and which never."""

from typing import Any

import numpy as np

from kvref.arrays import dtype_of
from kvref_conformance.cases import Case, Level, lattice
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.needles import edges, hunt_in_turn, hunt_near, needles
from kvref_conformance.probes.random import random_problem
from kvref_conformance.problems import Placement, Problem
from kvref_conformance.trial import Trial

PAGED = ("paged_attention", "append_and_attend")


def _some(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Half of the lattice: for checks whose fault does not depend on the group."""
    return lattice(claims, verb, level)[::2]


def _sharing(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Contexts that all reach into their second block, one query token each."""
    cases = lattice(claims, verb, level, prefill=False)
    return [
        _but(case, seq_lens=tuple(case.block_size + 1 + 2 * i for i in range(3)), query_lens=(1, 1, 1))
        for case in cases
    ]


def _wide(claims: Claims, verb: str, level: Level) -> list[Case]:
    """One small case in the smallest dtype: its memory is almost all untouched."""
    dtype = min(claims.dtypes, key=lambda name: dtype_of(name).itemsize)
    size = min(claims.block_sizes, key=lambda b: abs(b - 16))
    changes = {"dtype": dtype, "block_size": size, "seq_lens": (size + 1, 3), "query_lens": (1, 1)}
    return [_but(case, **changes) for case in lattice(claims, verb, "quick")[:1]]


@check("KV-ATTN-010")
def position_is_found_through_its_slot(trial: Trial) -> None:
    """Needles at both ends of the context and around every block boundary, blocks scrambled."""
    problem = needles(trial.case, hunt_in_turn(trial.case, edges(trial.case)))
    trial.expect_attention(problem, trial.attend(problem))


@check("KV-ATTN-011")
def exactly_the_length_is_read(trial: Trial) -> None:
    """The last token is found, and the slot after it, which scores as high, is not."""
    case = trial.case
    problem = needles(case, hunt_near(case, 0))
    trial.expect_attention(problem, trial.attend(problem))


@check("KV-ATTN-012")
def dead_slots_may_hold_any_bits(trial: Trial) -> None:
    """NaN, then infinity, in every slot outside the attended set: the answer stays the same."""
    case = trial.case
    any_bits = trial.claims.choice("dead-slots") == "any_bits"
    for key, value in ((np.nan, np.nan), (np.inf, -np.inf)) if any_bits else ((240.0, -240.0),):
        problem = _with_dead_positions(trial, random_problem(case), key, value)
        trial.expect_attention(problem, trial.attend(problem, Placement(seed=case.seed, poison=(key, value))))


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


@check("KV-ATTN-015", verbs=PAGED)
def table_padding_is_never_followed(trial: Trial) -> None:
    """Entries past the last needed block hold −1, then 2^31 − 1: nobody looks."""
    case = trial.case
    problem = needles(case, hunt_near(case, 0))
    valid = trial.claims.choice("table-padding") == "valid_block"
    for padding in (None,) if valid else (-1, 2**31 - 1):
        trial.expect_attention(
            problem, trial.attend(problem, Placement(seed=case.seed, table_padding=padding))
        )


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


@check("KV-ATTN-017", verbs=PAGED, cases=_sharing)
def requests_may_share_blocks(trial: Trial) -> None:
    """Three requests name the same first block, and each finds its needles there and in its own blocks."""
    case = trial.case
    problem = needles(case, hunt_in_turn(case, [[0, case.block_size - 1, n - 1] for n in case.seq_lens]))
    k, v = problem.k.copy(), problem.v.copy()
    for start in problem.context_start_loc[1:-1]:
        k[start : start + case.block_size] = k[: case.block_size]
        v[start : start + case.block_size] = v[: case.block_size]
    shared = problem.but(k=k, v=v)
    trial.expect_attention(shared, trial.attend(shared, Placement(seed=case.seed, shared_blocks=1)))


@check("KV-ATTN-018", verbs=PAGED, features=("strided",), cases=_wide)
def offsets_beyond_two_to_the_31(trial: Trial) -> None:
    """Blocks so far apart that a slot's element offset does not fit in 32 bits."""
    case = trial.case
    problem = needles(case, hunt_near(case, 0, -1))  # -1 lies in the block that is farthest away
    blocks = 5
    stride = 2**31 // (blocks - 1) + 64
    tables = np.array([[4, 1, 0], [3, 0, 0]])
    where = Placement(seed=case.seed, tables=tables, num_blocks=blocks, block_stride=stride)
    trial.expect_attention(problem, trial.attend(problem, where))


@check("KV-ATTN-019", verbs=PAGED, features=("strided",), cases=_some)
def strides_of_the_cache_are_honoured(trial: Trial) -> None:
    """The caches are views into something larger, with a gap after every block."""
    case = trial.case
    problem = needles(case, hunt_in_turn(case, edges(case)))
    stride = (case.block_size + 1) * case.num_kv_heads * case.head_dim
    trial.expect_attention(problem, trial.attend(problem, Placement(seed=case.seed, block_stride=stride)))


def _with_dead_positions(trial: Trial, problem: Problem, key: float, value: float) -> Problem:
    """Kill positions inside the contexts where a claimed feature lets a query not attend to them."""
    features = trial.claims.features
    if "window" in features:
        variant = {**problem.variant, "window": 3}
    elif "mask" in features:
        variant = {**problem.variant, "mask": _recent_only(problem)}
    else:
        return problem
    k, v = problem.k.copy(), problem.v.copy()
    reach = 3 + (trial.claims.choice("window-spelling") == "left" and "window" in features)
    for start, n, n_q in zip(problem.context_start_loc, problem.seq_lens, problem.query_lens, strict=False):
        oldest = 0 if trial.claims.choice("causal-corner") == "top_left" else int(n - n_q)
        dead = slice(start, start + max(oldest - reach + 1, 0))
        k[dead], v[dead] = key, value
    return problem.but(k=k, v=v, variant=variant)


def _recent_only(problem: Problem) -> Any:
    rows = []
    for n, n_q in zip(problem.seq_lens, problem.query_lens, strict=True):
        t, j = np.arange(n - n_q, n)[:, None], np.arange(n)[None, :]
        rows.append(((j > t - 3) & (j <= t)).ravel())
    return np.concatenate([*rows, np.zeros(0, np.bool_)])


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

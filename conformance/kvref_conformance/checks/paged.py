"""Checks of addressing: which slots are read, through which table, and which never."""

from dataclasses import replace
from typing import Any

import numpy as np

from kvref.arrays import dtype_of
from kvref_conformance.cases import Case, Level, lattice, tile_cases
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Call
from kvref_conformance.probes.needles import edges, hunt_in_turn, hunt_near, needles, tile_edges
from kvref_conformance.probes.random import random_problem
from kvref_conformance.problems import Placement, Problem
from kvref_conformance.trial import Trial

PAGED = ("paged_attention", "append_and_attend")
#: What dead slots hold at first, key and value: a little weight for whoever reads them, and a large value.
FINITE = (0.0, 200.0)


def _some(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Half of the lattice: for checks whose fault does not depend on the group."""
    return lattice(claims, verb, level)[::2]


def _crowds(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Seventeen requests around the block grid; every fifth brings no query token."""
    cases = lattice(claims, verb, level)
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


def _wide(claims: Claims, verb: str, level: Level) -> list[Case]:
    """One small case in the smallest dtype and with few heads: its memory is almost all untouched."""
    dtype = min(claims.dtypes, key=lambda name: dtype_of(name).itemsize)
    size = min(claims.block_sizes, key=lambda b: abs(b - 16))
    changes = {"dtype": dtype, "block_size": size, "seq_lens": (size + 1, 3), "query_lens": (1, 1)}
    changes |= {"num_kv_heads": 1, "group": 3, "head_dim": min(claims.head_dims)}
    return [_but(case, **changes) for case in lattice(claims, verb, "quick")[:1]]


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


@check("KV-ATTN-012")
def dead_slots_may_hold_any_bits(trial: Trial) -> None:
    """Numbers, then NaN, then infinity in every slot outside the attended set: the answer stays the same."""
    case = trial.case
    any_bits = trial.claims.choice("dead-slots") == "any_bits"
    before = None
    for key, value in (
        (FINITE, (np.nan, np.nan), (np.inf, -np.inf)) if any_bits else (FINITE, (240.0, -240.0))
    ):
        problem, dead = _with_dead_positions(trial, random_problem(case), key, value)
        result = trial.attend(problem, Placement(seed=case.seed, poison=(key, value)))
        before = result if before is None else before
        spread = np.isfinite(before.out) & ~np.isfinite(result.out)
        if spread.any():
            token, head, channel = (int(i) for i in np.argwhere(spread)[0])
            request = problem.request_of(token)
            trial.expect(
                False,
                f"request {request}, token {token}, head {head}: out[{channel}] is not finite "
                f"({result.out[token, head, channel]}) once dead slots hold {key} and {value}; "
                f"dead were {_dead_slots(problem, result.call, request, dead[request])}",
                result,
                where=[token, head, channel],
                outside=int(spread.any(axis=-1).sum()),
                of=int(spread[..., 0].size),
            )
        what = f"dead slots hold {key} and {value} instead of {FINITE[0]} and {FINITE[1]}"
        trial.expect_same(what, problem, result, before)


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
    before = trial.attend(problem, Placement(seed=case.seed))
    valid = trial.claims.choice("table-padding") == "valid_block"
    spare = (_count(case) + 1) if valid else -1
    for padding in (spare,) if valid else (spare, 2**31 - 1):
        result = trial.attend(problem, Placement(seed=case.seed, table_padding=padding))
        trial.expect_same(f"padding of the tables is {padding}", problem, result, before)


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


@check("KV-ATTN-016", cases=_crowds)
def company_does_not_move_an_answer(trial: Trial) -> None:
    """Seventeen requests, some without queries: in reverse and each alone they answer the same."""
    case = trial.case
    problem = random_problem(case)
    every = list(range(len(case.seq_lens)))
    together = trial.attend(problem)
    expected = trial.oracle.attention(problem)
    for some in (every[::-1], [0], [len(every) // 2], [every[-1]]):
        result = trial.attend(problem.only(some))
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


@check("KV-ATTN-018", verbs=PAGED, features=("strided",), cases=_wide)
def offsets_beyond_two_to_the_32(trial: Trial) -> None:
    """Blocks 2^30 elements apart: offsets that 31 bits do not hold, one that 32 bits take for small."""
    case = trial.case
    problem = needles(case, hunt_near(case, 0, -1, -case.block_size))
    near = Placement(seed=case.seed, tables=np.array([[4, 2, 0], [3, 0, 0]]), num_blocks=5)
    far = replace(near, block_stride=2**30 + 64)
    what = "blocks lie 2^30 elements apart"
    trial.expect_same(what, problem, trial.attend(problem, far), trial.attend(problem, near))


@check("KV-ATTN-018", verbs=("paged_attention",), features=("strided",), cases=_wide)
def block_ids_beyond_16_bits(trial: Trial) -> None:
    """Block ids above 65536, of a view whose blocks lie over each other so that it takes little memory."""
    case, apart = trial.case, trial.case.block_size
    problem = needles(case, hunt_near(case, 0, -1, -case.block_size))
    tables = np.array([[3, 1, 0], [2, 0, 0]])
    near = Placement(seed=case.seed, tables=tables, num_blocks=4)
    high = replace(
        near,
        tables=2**16 + apart * tables,  # so that no two of them share a slot
        num_blocks=2**16 + 4 * apart,
        block_stride=case.num_kv_heads * case.head_dim,
    )
    what = f"block ids are {2**16} and above"
    trial.expect_same(what, problem, trial.attend(problem, high), trial.attend(problem, near))


@check("KV-ATTN-019", verbs=PAGED, features=("strided",), cases=_some)
def strides_of_the_cache_are_honoured(trial: Trial) -> None:
    """The caches are views into something larger, with a gap after every block."""
    case = trial.case
    problem = needles(case, hunt_in_turn(case, edges(case)))
    stride = (case.block_size + 1) * case.num_kv_heads * case.head_dim
    dense = trial.attend(problem, Placement(seed=case.seed))
    view = trial.attend(problem, Placement(seed=case.seed, block_stride=stride))
    trial.expect_same(f"blocks lie {stride} elements apart", problem, view, dense)


def _with_dead_positions(
    trial: Trial, problem: Problem, key: float, value: float
) -> tuple[Problem, list[int]]:
    """Kill the first positions of each context where a claimed feature lets no query attend to them.

    Returns how many positions are dead in each request, too.
    """
    features = trial.claims.features
    if "window" in features:
        variant = {**problem.variant, "window": 3}
    elif "mask" in features:
        variant = {**problem.variant, "mask": _recent_only(problem)}
    else:
        return problem, [0] * len(problem.seq_lens)
    k, v = problem.k.copy(), problem.v.copy()
    reach = 3 + (trial.claims.choice("window-spelling") == "left" and "window" in features)
    dead = []
    for start, n, n_q in zip(problem.context_start_loc, problem.seq_lens, problem.query_lens, strict=False):
        oldest = 0 if trial.claims.choice("causal-corner") == "top_left" else int(n - n_q)
        dead.append(max(oldest - reach + 1, 0))
        k[start : start + dead[-1]], v[start : start + dead[-1]] = key, value
    return problem.but(k=k, v=v, variant=variant), dead


def _dead_slots(problem: Problem, call: Call, request: int, positions: int) -> str:
    """Say which slots near a request are dead."""
    parts = [f"positions 0 to {positions - 1} of its context"] if positions else []
    if "block_tables" in call.tensors:
        n, size = int(problem.seq_lens[request]), call.tensors["k_cache"].shape[1]
        if n % size:
            block = int(call.tensors["block_tables"][request, n // size])
            parts.append(f"slots {n % size} to {size - 1} of its last block, {block}")
        parts.append("every block that is not its own")
    return " and ".join(parts) or "the contexts of other requests"


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

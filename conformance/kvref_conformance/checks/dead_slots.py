"""Checks of what must not be read: dead slots, and the padding of tables.

A subject is compared with itself over dead slots that hold numbers, so what fails is the leak.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from kvref_conformance.cases import Case, Level, lattice
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Call
from kvref_conformance.probes.imprints import CACHES
from kvref_conformance.probes.needles import hunt_near, needles
from kvref_conformance.probes.random import random_problem
from kvref_conformance.probes.records import present_mla, random_records, record_cases, record_needles
from kvref_conformance.probes.replays import replayed
from kvref_conformance.probes.selections import choose, over_selection, present_sparse
from kvref_conformance.problems import Placement, Problem
from kvref_conformance.trial import Trial

PAGED = ("paged_attention", "append_and_attend")
#: Slots that a query token chooses.
FEW = 6
#: What dead slots hold at first, key and value: a little weight for whoever reads them, and a large value.
FINITE = (0.0, 200.0)


def _choosing(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Two query tokens a request, with more positions than they choose."""
    cases = lattice(claims, verb, level, min_len=2 * FEW)
    return [replace(case, query_lens=(2,) * len(case.seq_lens)) for case in cases]


def _decoding(claims: Claims, verb: str, level: Level) -> list[Case]:
    return lattice(claims, verb, level, prefill=False)


@check("KV-ATTN-012")
def dead_slots_may_hold_any_bits(trial: Trial) -> None:
    """Numbers, then NaN, then infinity in every slot outside the attended set: the answer stays the same."""
    case = trial.case
    before = None
    for key, value in _fills(trial):
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
                f"({result.out[token, head, channel]}) once dead slots hold {key} in keys and {value} in "
                f"values; dead: {_dead_slots(problem, result.call, request, dead[request])}",
                result,
                where=[token, head, channel],
                outside=int(spread.any(axis=-1).sum()),
                of=int(spread[..., 0].size),
            )
        what = f"dead slots hold {key} and {value} instead of {FINITE[0]} and {FINITE[1]}"
        trial.expect_same(what, problem, result, before)


@check("KV-ATTN-012", verbs=("mla_attention",), cases=record_cases)
def dead_records_may_hold_any_bits(trial: Trial) -> None:
    """The same where keys and values are one record: zero times a record of NaN is not zero."""
    case = trial.case
    problem = random_records(case, 0.03125)
    before = None
    for fill in _fills(trial):
        result = trial.call(present_mla(problem, case, Placement(seed=case.seed, poison=fill)), problem)
        before = result if before is None else before
        trial.expect_same(f"dead records hold {fill[0]}", problem, result, before)


@check("KV-ATTN-012", verbs=("sparse_attention",), cases=_choosing)
def slots_not_chosen_may_hold_any_bits(trial: Trial) -> None:
    """Every slot that no query token has chosen is dead, also those that an entry of −1 may stand for."""
    case = trial.case
    problem, positions = random_problem(case), choose(case, FEW)
    positions[::2, 1] = -1
    call = present_sparse(problem, positions, case, Placement(seed=case.seed))
    chosen = np.unique(call.tensors["slots"][call.tensors["slots"] >= 0])
    masked = over_selection(problem, positions)
    before = None
    for fill in _fills(trial):
        caches = {}
        for name, value in zip(CACHES, fill, strict=True):
            caches[name] = np.full_like(call.tensors[name], value)
            at = np.divmod(chosen, case.block_size)
            caches[name][at] = call.tensors[name][at]
        result = trial.call(replace(call, tensors={**call.tensors, **caches}), masked)
        before = result if before is None else before
        trial.expect_same(f"slots not chosen hold {fill[0]} and {fill[1]}", masked, result, before)


@check("KV-ATTN-012", verbs=("replay",), features=("prepare",), cases=_decoding)
def dead_slots_of_replays_may_hold_any_bits(trial: Trial) -> None:
    """The same in a prepared run, whose tables and lengths change and whose rows are padded."""
    before = None
    for fill in _fills(trial):
        result = trial.call(replayed(trial.case, poison=fill).call)
        before = result.out if before is None else before
        trial.expect_alike(f"dead slots hold {fill[0]}", result, result.out, before, np.zeros_like(before))


@check("KV-ATTN-015", verbs=PAGED)
def table_padding_is_never_followed(trial: Trial) -> None:
    """Entries past the last needed block hold −1, then 2^31 − 1: nobody looks."""
    case = trial.case
    problem = needles(case, hunt_near(case, 0))
    before = trial.attend(problem, Placement(seed=case.seed))
    for padding in _paddings(trial):
        result = trial.attend(problem, Placement(seed=case.seed, table_padding=padding))
        trial.expect_same(f"padding of the tables is {padding}", problem, result, before)


@check("KV-ATTN-015", verbs=("mla_attention",), cases=record_cases)
def table_padding_of_records_is_never_followed(trial: Trial) -> None:
    """The same over records."""
    case = trial.case
    problem = record_needles(case)
    before = trial.call(present_mla(problem, case, Placement(seed=case.seed)), problem)
    for padding in _paddings(trial):
        where = Placement(seed=case.seed, table_padding=padding)
        result = trial.call(present_mla(problem, case, where), problem)
        trial.expect_same(f"padding of the tables is {padding}", problem, result, before)


@check("KV-ATTN-015", verbs=("replay",), features=("prepare",), cases=_decoding)
def table_padding_of_replays_is_never_followed(trial: Trial) -> None:
    """The same in a prepared run, where whole rows of the tables are padding."""
    before = trial.call(replayed(trial.case).call).out
    for padding in _paddings(trial):
        result = trial.call(replayed(trial.case, table_padding=padding).call)
        what = f"padding of the tables is {padding}"
        trial.expect_alike(what, result, result.out, before, np.zeros_like(before))


def _fills(trial: Trial) -> tuple[tuple[float, float], ...]:
    """Return what dead slots hold in turn, key and value: numbers first, then what the subject allows."""
    if trial.claims.choice("dead-slots") == "any_bits":
        return FINITE, (np.nan, np.nan), (np.inf, -np.inf)
    return FINITE, (240.0, -240.0)


def _paddings(trial: Trial) -> tuple[int, ...]:
    """Return what the padding of tables holds in turn: integers that name no block, or a block in use."""
    return (0,) if trial.claims.choice("table-padding") == "valid_block" else (-1, 2**31 - 1)


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
    parts = [f"its first {positions} positions"] if positions else []
    if "block_tables" in call.tensors:
        n, size = int(problem.seq_lens[request]), call.tensors["k_cache"].shape[1]
        if n % size:
            block = int(call.tensors["block_tables"][request, n // size])
            parts.append(f"the last {size - n % size} slots of its block {block}")
        parts.append("all blocks of others")
    return ", ".join(parts) or "the contexts of other requests"


def _recent_only(problem: Problem) -> Any:
    rows = []
    for n, n_q in zip(problem.seq_lens, problem.query_lens, strict=True):
        t, j = np.arange(n - n_q, n)[:, None], np.arange(n)[None, :]
        rows.append(((j > t - 3) & (j <= t)).ravel())
    return np.concatenate([*rows, np.zeros(0, np.bool_)])

"""Checks of manners: what a call may touch, what it must write, and what its answer may depend on."""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref_conformance.cases import Case, Level, lattice
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import ATTENDING, VERBS
from kvref_conformance.probes.alterations import UNALTERED, alterations
from kvref_conformance.probes.random import random_problem
from kvref_conformance.probes.records import present_mla, random_records, record_cases
from kvref_conformance.probes.replays import replayed
from kvref_conformance.probes.specimens import Specimen, hollow, specimen, specimen_cases
from kvref_conformance.problems import Placement, Problem
from kvref_conformance.scan_cases import is_update
from kvref_conformance.trial import Result, Trial, bits

EVERY = tuple(VERBS)
#: Verbs that return what they compute.
RETURNING = tuple(name for name, verb in VERBS.items() if verb.returns)
#: Verbs whose requests may have no context.
RAGGED = (*ATTENDING, "mla_attention", "sparse_attention", "select_topk", "quantized_paged_attention")
#: Added to one context of a batch, so that it is long enough to be split.
LONG = 288


def _with_empty(claims: Claims, verb: str, level: Level) -> list[Case]:
    """A request without context between others, where the verb has requests."""
    cases = specimen_cases(claims, verb, level)
    return [hollow(case) for case in cases] if verb in RAGGED else cases


def _unasked(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Cases of shapes that no other check has: whoever remembers shapes has not met them."""
    if is_update(verb):  # one token a request, whatever the case
        return [
            replace(case, seq_lens=(*case.seq_lens, 1) * 3, query_lens=(*case.query_lens, 1) * 3)
            for case in specimen_cases(claims, verb, level)
        ]
    return [
        replace(
            case,
            seq_lens=(case.seq_lens[0] + 1, *case.seq_lens[1:]),
            query_lens=(case.query_lens[0] + (case.query_lens[0] == case.seq_lens[0]), *case.query_lens[1:]),
        )
        for case in specimen_cases(claims, verb, level)
    ]


def _replays(claims: Claims, verb: str, level: Level) -> list[Case]:
    return lattice(claims, verb, level, prefill=False)


def _invariant(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Three requests, one of them long, where the subject promises the same bits."""
    if not claims.batch_invariant:
        return []
    cases = record_cases(claims, verb, level) if verb == "mla_attention" else lattice(claims, verb, level)
    return [
        replace(
            case,
            seq_lens=(*case.seq_lens[:2], case.seq_lens[0] + LONG),
            query_lens=(*case.query_lens[:2], 1),
        )
        for case in cases
    ]


@check("KV-ATTN-100", verbs=EVERY, cases=specimen_cases)
def inputs_are_left_alone(trial: Trial) -> None:
    """Inputs the verb may not write have the same bytes after the call, gaps between strides included."""
    result = trial.call(specimen(trial.case, trial.claims).call)
    changed = result.answer.mutated
    trial.expect(not changed, f"the call changed {', '.join(changed)}", result, changed=list(changed))


@check("KV-ATTN-101", verbs=RETURNING, cases=_with_empty)
def outputs_are_written_whole(trial: Trial) -> None:
    """Outputs begin as poison: none is left, not in rows without work either, and nothing beyond changes."""
    result = trial.call(specimen(trial.case, trial.claims).call)
    left = ", ".join(f"{count} elements of {name}" for name, count in result.answer.unwritten.items())
    trial.expect(not left, f"{left} were not written", result, unwritten=dict(result.answer.unwritten))
    beyond = ", ".join(result.answer.overrun)
    trial.expect(not beyond, f"the call wrote past the end of {beyond}", result, overrun=beyond)


@check("KV-ATTN-102", verbs=EVERY, cases=_unasked)
def answer_follows_from_this_call(trial: Trial) -> None:
    """Same shapes and addresses, other content, and back again: no answer is that of an earlier call."""
    first, second = (specimen(trial.case, trial.claims, turn) for turn in (0, 1))
    before = trial.call(first.call)
    now = trial.call(second.call)
    kept = _kept(trial, (first, before), (second, now))
    trial.expect(not kept, f"other content, {kept} answer as the call before", now)
    again = trial.call(first.call)
    wrong = [first.wrong(trial, result) for result in (before, again)]
    for name in wrong[0]:
        changed = int((wrong[0][name] != wrong[1][name]).sum())
        message = f"the same call was answered otherwise the second time: {changed} elements of {name}"
        trial.expect(not changed, message, again)


@check("KV-ATTN-102", verbs=ATTENDING, cases=_unasked)
def answer_follows_from_every_input(trial: Trial) -> None:
    """One input alone is replaced, the others left as they were: no row is answered as before."""
    calls = {turn: alterations(trial.case, lse="lse" in trial.claims.features, turn=turn) for turn in (0, 1)}
    first = calls[0].pop(UNALTERED)
    before = trial.call(first.call)
    for what, altered in calls[0].items():
        now = trial.call(altered.call)
        kept = _kept(trial, (first, before), (altered, now))
        if not kept:
            continue
        # who never looks at that input remembers nothing: contents never asked before are wrong as well
        fresh = calls[1][what]
        unseen = fresh.wrong(trial, trial.call(fresh.call))
        message = f"{what} changed and nothing else, {kept} answer as the call before"
        trial.expect(any(wrong.any() for wrong in unseen.values()), message, now)


@check("KV-ATTN-103", verbs=("replay",), features=("prepare",), cases=_replays)
def runs_follow_the_metadata_of_their_time(trial: Trial) -> None:
    """Four runs after one preparation: other contexts, longer, shorter, and fewer requests than prepared."""
    replay = replayed(trial.case)
    result = trial.call(replay.call)
    for i, problem in enumerate(replay.problems):
        expected = trial.oracle.attention(problem)
        found = result.out[i, : len(problem.q)]
        trial.expect_within(f"out of run {i}", result, found, expected.out, expected.out_bound)


@check("KV-ATTN-104", verbs=(*ATTENDING, "mla_attention"), cases=_invariant)
def batch_does_not_move_a_bit(trial: Trial) -> None:
    """Each request alone, beside fewer others, and in reverse: the bits of its rows are the same."""
    case = trial.case
    latent = case.verb == "mla_attention"
    problem = random_records(case, 0.03125) if latent else random_problem(case)
    every = list(range(len(problem.seq_lens)))
    whole = _rows(problem, _ask(trial, problem, every), every)
    for some in [every[::-1], every[1:]] + [[request] for request in every]:
        result = _ask(trial, problem, some)
        for request, rows in _rows(problem, result, some).items():
            trial.expect_bits(f"out of request {request} in batch {some} ", result, rows, whole[request])


def _kept(trial: Trial, earlier: tuple[Specimen, Result], later: tuple[Specimen, Result]) -> str:
    """Say which rows of a later answer are those of an earlier one, and wrong now; empty if none are.

    A row counts if it was right before. A whole answer counts whatever it was, unless it is not finite: NaN
    comes from arithmetic, not from memory. Who wrote before and now writes nothing took the call for done.
    """
    wrote = [any((bits(x) != bits(y)).any() for x, y in _caches(result)) for _, result in (earlier, later)]
    if wrote == [True, False]:
        return "all caches have the same"
    stale, whole, finite = [], True, True
    wrong = [one.wrong(trial, result) for one, result in (earlier, later)]
    for name, wrong_now in wrong[1].items():
        old, new = (np.asarray(result.answer.outputs[name]) for _, result in (earlier, later))
        if old.shape != new.shape:
            return ""
        same = (bits(old) == bits(new)).all(axis=-1)
        rows = same & ~wrong[0][name].any(axis=-1) & wrong_now.any(axis=-1)
        if rows.any():
            stale.append(f"{int(rows.sum())} of {rows.size} rows of {name}")
        whole &= bool(same.all())
        finite &= bool(np.isfinite(new.astype(np.float64)).all())
    if whole and finite and any(x.any() for side in wrong for x in side.values()):
        return "all of it has the same"
    return f"{' and '.join(stale)} have the same" if stale else ""


def _caches(result: Result) -> list[tuple[Array, Array]]:
    """Return what a call wrote in place, before and after."""
    return [(result.call.tensors[name], result.answer.outputs[name]) for name in result.call.in_place]


def _ask(trial: Trial, problem: Problem, requests: list[int]) -> Result:
    """Ask for some requests of a problem, in the given order."""
    some = problem.only(requests)
    if trial.case.verb != "mla_attention":
        return trial.attend(some)
    return trial.call(present_mla(some, trial.case, Placement(seed=trial.case.seed + 1)), some)


def _rows(problem: Problem, result: Result, requests: list[int]) -> dict[int, Array]:
    """Return each request's rows of an answer."""
    starts = np.concatenate([[0], np.cumsum(problem.query_lens[requests])])
    out = np.asarray(result.answer.outputs["out"])
    return {request: out[starts[i] : starts[i + 1]] for i, request in enumerate(requests)}

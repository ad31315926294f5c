"""Checks of attention over codes, number by number: each code, each scale, and what is no number.

A kernel for attention decodes by code of its own, which the codec beside it does not have. Over ordinary
numbers most codes never occur and every scale is near 1.
"""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref.attention.bounds import exceeds
from kvref_conformance.cases import Case, Level
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.code_cases import Lattice, coded
from kvref_conformance.probes.code_readouts import (
    key_rows,
    keys_weighed,
    no_numbers,
    value_tokens,
    values_read_out,
)
from kvref_conformance.probes.format_cases import kind_of
from kvref_conformance.problems import Problem
from kvref_conformance.trial import Trial, Violation

VERB = ("quantized_paged_attention",)
#: Query heads that share the keys which are looked at, one channel each.
GROUP = 16
#: Contexts of which the first two have a number that is none.
THREE = (3, 2, 5)


def _values(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Contexts of one token, as many as hold every code and scale, and one of two."""
    found = []
    for i, case in enumerate(coded(24)(claims, verb, level)):
        two = replace(case, num_kv_heads=2, group=1).with_options(size=case.seed + i)
        count = value_tokens(two, claims.path())
        lens = (*[1] * count, 2)
        found += _sizes(replace(two, seq_lens=lens, query_lens=(1,) * len(lens)))
    return found


def _keys(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Contexts of two tokens, as many as look at every code, and one of three."""
    found = []
    for i, case in enumerate(coded(25)(claims, verb, level)):
        two = replace(case, num_kv_heads=2, group=GROUP).with_options(size=case.seed + i)
        lens = (*[2] * key_rows(two), 3)
        found += _sizes(replace(two, seq_lens=lens, query_lens=(1,) * len(lens)))
    return found


def _sizes(case: Case) -> list[Case]:
    """Return a case under a small scale and a large one where its format is given one for the whole cache."""
    kind = kind_of(case)
    if kind.group != "given" and kind.global_scale != "given":
        return [case]
    return [case.with_options(size=size) for size in (0, 1)]


def _live(scales: bool) -> Lattice:
    """Return the cases of formats that have a code, or a scale, for NaN."""

    def cases(claims: Claims, verb: str, level: Level) -> list[Case]:
        found = [replace(c, seq_lens=THREE, query_lens=(1, 1, 1)) for c in coded(26)(claims, verb, level)]
        found = [case if case.num_kv_heads > 1 else replace(case, num_kv_heads=2) for case in found]
        return [case for case in found if no_numbers(case, claims.path(), scales) is not None]

    return cases


@check("KV-FMT-090", ring="numeric", verbs=VERB, cases=_values)
def every_code_of_a_value_is_read(trial: Trial) -> None:
    """Contexts of one token answer with its value: every code, under scales of any size."""
    problem = values_read_out(trial.case, trial.claims.path())
    infinite = np.isinf(_of_rows(trial.case, problem))
    _hold(trial, problem, infinite)


@check("KV-FMT-090", ring="numeric", verbs=VERB, cases=_keys)
def every_code_of_a_key_counts(trial: Trial) -> None:
    """Two tokens, a query that looks at one channel: the weights tell the number of each code there."""
    problem = keys_weighed(trial.case, trial.claims.path())
    trial.expect_attention(problem, trial.attend(problem))


@check("KV-FMT-090", ring="numeric", verbs=VERB, cases=_live(False))
def a_live_code_that_is_no_number_shows(trial: Trial) -> None:
    """NaN in one key makes its heads' rows NaN, in one value its channel; all else is what it was."""
    problem = no_numbers(trial.case, trial.claims.path(), False)
    assert problem is not None
    _hold(trial, problem)


@check("KV-FMT-037", ring="numeric", verbs=VERB, cases=_live(True))
def a_live_scale_that_is_no_number_shows(trial: Trial) -> None:
    """The same by the scale of a group: of a key, then of a value."""
    problem = no_numbers(trial.case, trial.claims.path(), True)
    assert problem is not None
    _hold(trial, problem)


def _of_rows(case: Case, problem: Problem) -> Array:
    """Return the value of the first token of each row's context, [num_tokens, num_q_heads, head_dim]."""
    first = np.repeat(problem.context_start_loc[:-1], case.query_lens)
    return np.asarray(np.repeat(problem.v[first], case.group, axis=1))


def _hold(trial: Trial, problem: Problem, infinite: Array | None = None) -> None:
    """Hold an answer to NaN where NaN is due, to infinities where they are, and to the bound elsewhere.

    Raises: Violation.
    """
    expected, result = trial.oracle.attention(problem), trial.attend(problem)
    nan = np.isnan(expected.out) | _touched(trial.case, problem)
    wrong = np.where(nan, ~np.isnan(result.out), exceeds(result.out, expected.out, expected.out_bound))
    if infinite is not None:
        wrong = np.where(infinite & ~nan, result.out != expected.out, wrong)
    if not wrong.any():
        return
    token, head, channel = (int(i) for i in np.argwhere(wrong)[0])
    due = "nan" if nan[token, head, channel] else f"{expected.out[token, head, channel]:.6g}"
    raise Violation(
        f"request {problem.request_of(token)}, token {token}, head {head}: out[{channel}] = "
        f"{result.out[token, head, channel]:.6g}, expected {due} ({int(wrong.sum())} of {wrong.size} wrong)",
        result=result,
        detail={"where": [token, head, channel], "outside": int(wrong.sum()), "of": int(wrong.size)},
    )


def _touched(case: Case, problem: Problem) -> Array:
    """Say which components rest on a key or a value that is NaN; every row has one token, the last."""
    found = np.zeros((case.num_tokens, case.num_q_heads, problem.v.shape[2]), np.bool_)
    starts = problem.context_start_loc
    for row, request in enumerate(np.repeat(np.arange(len(case.seq_lens)), case.query_lens)):
        context = slice(starts[request], starts[request + 1])
        keys, values = np.isnan(problem.k[context]), np.isnan(problem.v[context])
        nan = np.asarray(keys.any(axis=(0, 2)))[:, None] | np.asarray(
            values.any(axis=0)
        )  # [num_kv_heads, head_dim]
        found[row] = np.repeat(nan, case.group, axis=0)
    return found

"""Checks of attention over codes: the numbers they stand for, whose scales are whose, and what is dead.

Needles are numbers that the format holds, under scales that are powers of two, and come back to the bit.
Random numbers are held to the bound of the declared arithmetic over what their codes stand for: what the
format has lost is on neither side.
"""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref.attention.arithmetic import Format as Rounding
from kvref.formats.format import FORMATS, Format
from kvref_conformance.cases import Case, Level
from kvref_conformance.checks.check import check
from kvref_conformance.claims import ALL_DTYPES, Claims
from kvref_conformance.code_problems import FINITE, NOT_A_NUMBER, present_codes
from kvref_conformance.oracle import Oracle
from kvref_conformance.probes.code_caches import code_needles, even_pairs, random_codes
from kvref_conformance.probes.code_cases import coded, coded_cases
from kvref_conformance.probes.needles import hunt_near
from kvref_conformance.problems import Placement, Problem
from kvref_conformance.trial import Result, Trial

VERB = ("quantized_paged_attention",)


def _of_slots(kind: Format) -> bool:
    """Formats whose scales are those of slots."""
    return kind.group not in ("given", "tensor") and kind.family != "ggml"


def _of_groups(kind: Format) -> bool:
    """Formats with a scale for each group of channels."""
    return kind.family in ("mx", "nvfp4")


def _pairs(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Contexts of two tokens, and of twice the two, in 16-bit dtypes, where a scale is given."""
    halves = tuple(dtype for dtype in claims.dtypes if dtype in ALL_DTYPES and dtype != "float32")
    names = tuple(name for name in claims.formats if name == "nvfp4" or FORMATS[name].group == "given")
    if not halves or not names:
        return []
    cases = coded_cases(replace(claims, dtypes=halves, formats=names), verb, level)
    return [replace(case, seq_lens=(2, 4), query_lens=(1, 1)) for case in cases]


@check("KV-FMT-090", ring="numeric", verbs=VERB, cases=coded_cases)
def codes_are_attended_as_numbers(trial: Trial) -> None:
    """Random keys and values under uneven scales, over scattered blocks."""
    problem = random_codes(trial.case, trial.claims.path())
    trial.expect_attention(problem, _ask(trial, problem))


@check("KV-FMT-090", ring="numeric", verbs=VERB, cases=_pairs)
def keys_are_rounded_as_declared(trial: Trial) -> None:
    """Two tokens whose scores are equal as long as no key is rounded to the dtype of q."""
    problem = even_pairs(trial.case, trial.claims.path())
    trial.expect_attention(problem, _ask(trial, problem))


@check("KV-FMT-090", ring="numeric", verbs=VERB, cases=_pairs)
def values_are_rounded_as_declared(trial: Trial) -> None:
    """Equal keys, and values that nearly cancel: rounded to the dtype of q they leave something else.

    Equal keys have equal weights, however these are rounded, and so one relative error.
    """
    claims = trial.claims
    problem = even_pairs(trial.case, claims.path(), alike=True)
    wide = replace(claims.arithmetic, probabilities="float32")
    expected = Oracle(replace(claims, arithmetic=wide)).attention(problem)
    slack = 2 * Rounding.of(problem.dtype).roundoff * np.abs(expected.out)
    result = _ask(trial, problem)
    trial.expect_within("out", result, result.out, expected.out, expected.out_bound + slack)


@check("KV-FMT-091", verbs=VERB, cases=coded(1))
def each_side_has_its_own_scales(trial: Trial) -> None:
    """Needles under scales of keys that are far from those of values, and no two heads alike."""
    problem = _needles(trial, hunt_near(trial.case, 0, -1, -3))
    trial.expect_attention(problem, _ask(trial, problem))


@check("KV-FMT-092", verbs=VERB, cases=coded(2, _of_slots))
def each_slot_has_its_own_scales(trial: Trial) -> None:
    """Needles in tokens whose scales all differ from their neighbours', wherever the blocks lie."""
    case = trial.case
    problem = _needles(trial, hunt_near(case, -2, 0, -1))
    for seed in (case.seed + 1, case.seed + 2):
        trial.expect_attention(problem, trial.attend(problem, Placement(seed=seed)))


@check("KV-FMT-071", verbs=VERB, cases=coded(3, _of_groups))
def scales_of_values_lie_where_declared(trial: Trial) -> None:
    """Needles in tokens whose groups all have scales of their own."""
    problem = _needles(trial, hunt_near(trial.case, 0, -1, -2, -3))
    trial.expect_attention(problem, _ask(trial, problem))


@check("KV-FMT-093", verbs=VERB, cases=coded(4))
def dead_codes_change_nothing(trial: Trial) -> None:
    """Large numbers in every slot outside the attended sets, then NaN in codes and in scales."""
    case = trial.case
    problem = _needles(trial, hunt_near(case, 0, -1))
    fills = (FINITE, NOT_A_NUMBER) if trial.claims.choice("dead-slots") == "any_bits" else (FINITE,)
    where = Placement(seed=case.seed + 3)
    for dead in fills:
        result = trial.call(present_codes(problem, case, where, dead=dead), problem)
        trial.expect_attention(problem, result)


def _ask(trial: Trial, problem: Problem) -> Result:
    return trial.attend(problem, lse="lse" in trial.claims.features)


def _needles(trial: Trial, hunts: Array) -> Problem:
    return code_needles(trial.case, hunts, trial.claims.path())

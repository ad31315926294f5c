"""Checks of latent attention: the record, the scale, and the naive form it stands for.

The naive form is the reference's, in float64. Its outputs are the expanded ones, W_UV o, so the bound on the
latent output o passes through |W_UV|; the matrices are exact in every dtype and add no rounding of their own.
"""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref.attention.mla import expand_outputs, mla_attention_naive
from kvref_conformance.cases import Case, Level
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.records import (
    absorbed_problem,
    present_mla,
    random_records,
    record_cases,
    record_needles,
)
from kvref_conformance.problems import Placement, Problem
from kvref_conformance.trial import Result, Trial

VERB = ("mla_attention",)
#: Scales on both sides of the width of any record to the power −½ (0.042 for 576).
SCALES = (0.0078125, 0.25)


def _short(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Contexts of a few tokens, where weights are far from each other whatever the data."""
    return [
        replace(case, seq_lens=(5, 3), query_lens=(1, 1)).with_options(scale=SCALES[i % 2])
        for i, case in enumerate(record_cases(claims, verb, level))
    ]


@check("KV-ATTN-060", ring="numeric", verbs=VERB, cases=record_cases)
def absorbed_equals_naive(trial: Trial) -> None:
    """Expanded after the call, the answer is that of attention over keys and values expanded before it."""
    case = trial.case
    problem, naive = absorbed_problem(case)
    result = _ask(trial, problem)
    expanded = mla_attention_naive(
        **naive,  # type: ignore[arg-type]  # four arrays by name
        kv_cache=problem.k,  # [num_slots, 1, width]: blocks of one slot
        block_tables=_one_slot_blocks(problem),
        seq_lens=problem.seq_lens,
        query_start_loc=problem.query_start_loc,
        scale=problem.variant["scale"],
    )
    expected = trial.oracle.attention(problem)
    bound = expand_outputs(expected.out_bound, np.abs(naive["w_uv"]))
    trial.expect_within(
        "expanded out", result, expand_outputs(result.out, naive["w_uv"]), expanded.out, bound
    )
    trial.expect_attention(problem, result)


@check("KV-ATTN-061", verbs=VERB, cases=record_cases)
def record_is_key_and_its_front_is_value(trial: Trial) -> None:
    """Needles hunted through the rotated part, then through the latent: the latent comes back whole."""
    problem = record_needles(trial.case)
    trial.expect_attention(problem, _ask(trial, problem))


@check("KV-ATTN-062", ring="numeric", verbs=VERB, cases=_short)
def scale_is_the_one_given(trial: Trial) -> None:
    """A scale far below and one far above the record's width to the power −½, over a few tokens."""
    problem = random_records(trial.case, trial.case.option("scale"))
    trial.expect_attention(problem, _ask(trial, problem))


def _ask(trial: Trial, problem: Problem) -> Result:
    lse = "lse" in trial.claims.features
    return trial.call(present_mla(problem, trial.case, Placement(seed=trial.case.seed + 1), lse=lse), problem)


def _one_slot_blocks(problem: Problem) -> Array:
    """Return tables for contexts that lie in one piece, in blocks of one slot."""
    longest = max(int(problem.seq_lens.max(initial=0)), 1)
    return np.asarray(problem.context_start_loc[:-1, None] + np.arange(longest)[None, :])

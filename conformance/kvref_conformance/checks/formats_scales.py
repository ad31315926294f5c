"""Checks of float32 scales: the direction, the division, whose scale it is, and how a writer derives one."""

from dataclasses import replace

import numpy as np

from kvref.formats.format import Format
from kvref_conformance.bytes_judged import expect_read, expect_written
from kvref_conformance.cases import FIRST
from kvref_conformance.checks.check import check
from kvref_conformance.probes import any_scales, codes, scalings
from kvref_conformance.probes.format_cases import format_cases, reading_of, writing_of
from kvref_conformance.probes.scalings import has_rows, is_amax, is_derived, is_divided
from kvref_conformance.trial import Trial

WRITE, READ = ("quantize_kv",), ("dequantize_kv",)


def _every(kind: Format) -> bool:
    return True


def _given(kind: Format) -> bool:
    return kind.group == "given"


@check("KV-FMT-020", verbs=WRITE, cases=format_cases(scalings.under_powers, _given))
def writers_divide_by_the_scale(trial: Trial) -> None:
    """Numbers of the element times 1/4, under scales of 1/4 and 8: every quotient is exact."""
    made = writing_of(scalings.under_powers, trial)
    for scale in scalings.EXACT:
        expect_written(trial, scalings.scaled(made, scale))


@check("KV-FMT-020", verbs=READ, cases=format_cases(codes.every_code, _given))
def readers_multiply_by_the_scale(trial: Trial) -> None:
    """Every code under scales of 1/4 and 8: every product is exact."""
    made = reading_of(codes.every_code, trial)
    for scale in scalings.EXACT:
        expect_read(trial, replace(made, scales=np.full(1, scale, np.float32)))


@check("KV-FMT-021", verbs=WRITE, cases=format_cases(scalings.hard_to_divide, is_divided))
def quotients_are_made_as_declared(trial: Trial) -> None:
    """Numbers whose quotient is near a tie, under scales of 0.37, 2.9 and 0.06."""
    made = writing_of(scalings.hard_to_divide, trial)
    for scale in scalings.UNEVEN if made.kind.group == "given" else (0.0,):
        expect_written(trial, scalings.scaled(made, scale) if scale else made)


@check(
    "KV-FMT-021",
    verbs=WRITE,
    cases=any_scales.with_heads(format_cases(any_scales.to_divide, _given, every_dtype=True)),
)
def scales_to_divide_by_may_be_of_any_size(trial: Trial) -> None:
    """Numbers near ties under scales from 1e-30 to 1e30, of eight heads or all, one call after the other."""
    case, path = trial.case, trial.claims.path()
    for turn in range(any_scales.TURNS):
        made = any_scales.to_divide(case, path, turn)
        expect_written(trial, made.part(case.option(FIRST), case.seq_lens[0]))


@check("KV-FMT-022", verbs=WRITE, cases=format_cases(scalings.own_heads, _given))
def heads_are_written_with_their_own_scales(trial: Trial) -> None:
    """The same numbers in every head, under scales that are all different."""
    expect_written(trial, writing_of(scalings.own_heads, trial))


@check("KV-FMT-022", verbs=READ, cases=format_cases(scalings.read_own_heads, _given))
def heads_are_read_with_their_own_scales(trial: Trial) -> None:
    """The same codes in every head, under scales that are all different."""
    expect_read(trial, reading_of(scalings.read_own_heads, trial))


@check("KV-FMT-023", verbs=WRITE, cases=format_cases(scalings.own_groups, has_rows))
def groups_have_scales_of_their_own(trial: Trial) -> None:
    """Groups of very different magnitude side by side, each of which has an exact scale."""
    expect_written(trial, writing_of(scalings.own_groups, trial))


@check("KV-FMT-024", verbs=WRITE, cases=format_cases(scalings.beyond_the_range, is_amax))
def range_is_that_of_the_quotient(trial: Trial) -> None:
    """Numbers past the largest whose quotients are not, and small ones whose quotients are."""
    expect_written(trial, writing_of(scalings.beyond_the_range, trial))


@check("KV-FMT-025", verbs=WRITE, cases=format_cases(scalings.spread_maxima, is_derived))
def scales_follow_the_declared_rule(trial: Trial) -> None:
    """Maxima from the smallest to the largest of the dtype, around every floor."""
    made = writing_of(scalings.spread_maxima, trial)
    for one in scalings.token_by_token(made, trial.claims.path()):
        expect_written(trial, one)


@check("KV-FMT-026", verbs=WRITE, cases=format_cases(scalings.zero_groups, is_derived))
def zeros_are_stored_as_zeros(trial: Trial) -> None:
    """Groups of zeros between others, or a tensor of nothing else."""
    expect_written(trial, writing_of(scalings.zero_groups, trial))


@check("KV-FMT-026", verbs=WRITE, cases=format_cases(scalings.zero_rows, _every))
def rows_of_zeros_are_stored_as_zeros(trial: Trial) -> None:
    """Heads of tokens that are zero as a whole, as padding is, beside ordinary ones; then nothing else."""
    made = writing_of(scalings.zero_rows, trial)
    for one in (made, replace(made, x=np.zeros_like(made.x))):
        expect_written(trial, one)

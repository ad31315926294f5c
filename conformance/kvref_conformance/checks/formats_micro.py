"""Checks of small groups: shared exponents, and two levels of scales."""

from kvref.errors import FormatError
from kvref_conformance.bytes_judged import expect_read, expect_refusal, expect_written
from kvref_conformance.cases import FIRST
from kvref_conformance.checks.check import check
from kvref_conformance.probes import microscaled, scalings, two_level
from kvref_conformance.probes.format_cases import format_cases, reading_of, writing_of
from kvref_conformance.probes.microscaled import has_own_scales, is_mx
from kvref_conformance.probes.two_level import is_derived, is_given, is_nvfp4
from kvref_conformance.trial import Trial

WRITE, READ = ("quantize_kv",), ("dequantize_kv",)


@check("KV-FMT-030", verbs=WRITE, cases=format_cases(microscaled.maxima, is_mx))
def exponents_follow_the_declared_rule(trial: Trial) -> None:
    """Maxima at and next to every place where a rule goes over to the next exponent, in many binades."""
    expect_written(trial, writing_of(microscaled.maxima, trial))


@check("KV-FMT-031", verbs=WRITE, cases=format_cases(microscaled.below_powers, is_mx))
def exponents_are_taken_as_declared(trial: Trial) -> None:
    """The number below every power of two, whose logarithm rounds up to the power's."""
    expect_written(trial, writing_of(microscaled.below_powers, trial))


@check("KV-FMT-032", verbs=WRITE, cases=format_cases(microscaled.under_shared_scales, is_mx))
def elements_are_those_of_the_quotients(trial: Trial) -> None:
    """Numbers of the element and their neighbours, times the scale of their group, and some that saturate."""
    expect_written(trial, writing_of(microscaled.under_shared_scales, trial))


@check("KV-FMT-033", verbs=WRITE, cases=format_cases(microscaled.nothing, is_mx))
def zeros_have_the_declared_exponent(trial: Trial) -> None:
    """Groups of zeros, and of numbers below 1e-10, between others."""
    expect_written(trial, writing_of(microscaled.nothing, trial))


@check("KV-FMT-034", verbs=WRITE, cases=format_cases(microscaled.with_nan, is_mx))
def one_nan_makes_a_group_nan(trial: Trial) -> None:
    """A NaN in each place of a group, alone or beside an infinity; the groups next to it have none."""
    expect_written(trial, writing_of(microscaled.with_nan, trial))


@check("KV-FMT-035", verbs=WRITE, cases=format_cases(microscaled.with_infinity, is_mx))
def infinities_are_stored_as_declared(trial: Trial) -> None:
    """An infinity in each place of a group; the groups next to it have none."""
    expect_written(trial, writing_of(microscaled.with_infinity, trial))


@check("KV-FMT-036", verbs=READ, cases=format_cases(microscaled.every_scale, is_mx))
def smallest_scale_is_a_number(trial: Trial) -> None:
    """Every code under every scale byte but NaN, 0x00 among them."""
    expect_read(trial, reading_of(microscaled.every_scale, trial))


@check("KV-FMT-037", verbs=READ, cases=format_cases(microscaled.nan_scales, has_own_scales))
def nan_scale_makes_every_number_nan(trial: Trial) -> None:
    """Every code under a scale of NaN, zeros among them, beside groups of other scales."""
    expect_read(trial, reading_of(microscaled.nan_scales, trial))


@check("KV-FMT-038", verbs=WRITE, cases=microscaled.split_cases)
def groups_span_what_is_declared(trial: Trial) -> None:
    """Heads of a width that groups do not divide: refused, or grouped as one row where that is declared."""
    made = writing_of(microscaled.split_heads, trial)
    if trial.claims.path().mx_span == "flattened":
        expect_written(trial, made)
        return
    try:
        made.stored(trial.claims.path())
    except FormatError as refused:
        expect_refusal(trial, made.call(microscaled.FLATTENED), str(refused))


@check("KV-FMT-023", verbs=WRITE, cases=format_cases(two_level.peaks, is_derived))
def global_scales_are_those_of_their_own_row(trial: Trial) -> None:
    """Tokens of very different magnitude, whose scales and codes are all their own, or the tensor's."""
    expect_written(trial, writing_of(two_level.peaks, trial))


@check("KV-FMT-040", verbs=WRITE, cases=format_cases(two_level.hard_to_divide, is_nvfp4))
def two_scales_are_applied_as_declared(trial: Trial) -> None:
    """Groups under an uneven global scale, with maxima and numbers near ties."""
    expect_written(trial, writing_of(two_level.hard_to_divide, trial))


@check("KV-FMT-040", verbs=WRITE, cases=format_cases(two_level.hard_to_divide, is_given, every_dtype=True))
def global_scales_may_be_of_any_size(trial: Trial) -> None:
    """Such groups under global scales from 1e-8 to 1e4, one call after the other."""
    case, path = trial.case, trial.claims.path()
    for g in two_level.given_scales(case):
        made = two_level.hard_to_divide(case, path, g)
        expect_written(trial, made.part(case.option(FIRST), case.seq_lens[0]))


@check("KV-FMT-040", verbs=WRITE, cases=format_cases(microscaled.with_nan, is_given))
def nan_leaves_its_group_as_declared(trial: Trial) -> None:
    """A NaN in each place of a group, alone or beside an infinity, between groups that have none."""
    expect_written(trial, writing_of(microscaled.with_nan, trial))


@check("KV-FMT-041", verbs=WRITE, cases=format_cases(two_level.exact_numbers, is_given))
def writers_take_the_declared_operand(trial: Trial) -> None:
    """Numbers that are codes times scales under a global scale of 1/4: nothing is rounded."""
    expect_written(trial, writing_of(two_level.exact_numbers, trial))


@check("KV-FMT-041", verbs=READ, cases=format_cases(two_level.under_global_scales, is_nvfp4))
def readers_take_the_declared_operand(trial: Trial) -> None:
    """Every code under every finite scale, of either sign, and a global scale of 1/4: nothing is rounded."""
    expect_read(trial, reading_of(two_level.under_global_scales, trial))


@check("KV-FMT-042", verbs=WRITE, cases=format_cases(two_level.scale_ties, is_given))
def group_scales_are_rounded_to_nearest(trial: Trial) -> None:
    """Groups whose scale is at a tie of E4M3, next to one, subnormal, or past the largest."""
    expect_written(trial, writing_of(two_level.scale_ties, trial))


@check("KV-FMT-043", verbs=WRITE, cases=format_cases(two_level.vanishing, is_nvfp4))
def tiny_groups_are_stored_as_declared(trial: Trial) -> None:
    """Groups whose scale is zero or nearly, and groups of zeros, beside ordinary ones."""
    expect_written(trial, writing_of(two_level.vanishing, trial))


@check("KV-FMT-044", verbs=WRITE, cases=format_cases(two_level.far_peaks, is_derived))
def global_scales_follow_the_declared_rule(trial: Trial) -> None:
    """Rows and tensors of magnitudes from 1e-30 to 1e30, none of which gives an even scale."""
    made = writing_of(two_level.far_peaks, trial)
    for one in scalings.token_by_token(made, trial.claims.path()):
        expect_written(trial, one)


@check("KV-FMT-045", verbs=WRITE, cases=format_cases(two_level.crowded, is_nvfp4))
def largest_numbers_are_put_where_declared(trial: Trial) -> None:
    """Groups whose numbers crowd near the largest."""
    expect_written(trial, writing_of(two_level.crowded, trial))

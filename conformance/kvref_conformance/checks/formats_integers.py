"""Checks of integer codes: rounding, range, zero points, and the blocks of bytes that ggml stores."""

from kvref_conformance.bytes_judged import expect_read, expect_written
from kvref_conformance.checks.check import check
from kvref_conformance.probes import blocks_of_bytes, integer_codes
from kvref_conformance.probes.blocks_of_bytes import of
from kvref_conformance.probes.format_cases import format_cases, reading_of, writing_of
from kvref_conformance.probes.integer_codes import has_axis, is_affine, is_int4, is_integer, may_overflow
from kvref_conformance.trial import Trial

WRITE, READ = ("quantize_kv",), ("dequantize_kv",)


def _blocks(trial: Trial) -> None:
    expect_written(trial, writing_of(blocks_of_bytes.hard_blocks, trial))


def _reads(trial: Trial) -> None:
    expect_read(trial, reading_of(blocks_of_bytes.blocks_to_read, trial))


@check("KV-FMT-050", verbs=WRITE, cases=format_cases(integer_codes.ties, is_integer))
def nearest_integer_wins(trial: Trial) -> None:
    """Every half in the range, and the numbers next to it."""
    expect_written(trial, writing_of(integer_codes.ties, trial))


@check("KV-FMT-051", verbs=WRITE, cases=format_cases(integer_codes.past_the_ends, may_overflow))
def what_is_beyond_takes_the_end(trial: Trial) -> None:
    """Numbers past both ends; where there is a zero point, rows that lie on one side of zero."""
    expect_written(trial, writing_of(integer_codes.past_the_ends, trial))


@check("KV-FMT-052", verbs=WRITE, cases=format_cases(integer_codes.zero_points, is_affine))
def zero_points_are_rounded_as_the_format_says(trial: Trial) -> None:
    """Groups whose zero point lies at a tie, next to one, or far from zero."""
    expect_written(trial, writing_of(integer_codes.zero_points, trial))


@check("KV-FMT-053", verbs=READ, cases=format_cases(integer_codes.marked_scales, is_int4))
def zero_points_are_read_out_of_scales(trial: Trial) -> None:
    """Every code under scales whose low bits hold every zero point."""
    expect_read(trial, reading_of(integer_codes.marked_scales, trial))


@check("KV-FMT-053", verbs=WRITE, cases=format_cases(integer_codes.zero_points, is_int4))
def zero_points_are_written_into_scales(trial: Trial) -> None:
    """Groups of many ranges: each scale holds its zero point in its low bits."""
    expect_written(trial, writing_of(integer_codes.zero_points, trial))


@check("KV-FMT-054", verbs=WRITE, cases=format_cases(integer_codes.outliers, has_axis))
def groups_run_along_the_declared_axis(trial: Trial) -> None:
    """Tokens and channels of very different magnitude."""
    expect_written(trial, writing_of(integer_codes.outliers, trial))


@check("KV-FMT-055", verbs=WRITE, cases=format_cases(integer_codes.constants, is_affine))
def constant_groups_are_stored_as_declared(trial: Trial) -> None:
    """Groups of one number each, zero among them, between ordinary ones."""
    expect_written(trial, writing_of(integer_codes.constants, trial))


@check("KV-FMT-060", verbs=WRITE, cases=format_cases(blocks_of_bytes.hard_blocks, of("ggml_q8_0")))
def q8_0_blocks_are_ggml_s(trial: Trial) -> None:
    """Halves under a scale of 1, ties of uneven scales, blocks of zeros, the smallest and largest scales."""
    _blocks(trial)


@check("KV-FMT-060", verbs=READ, cases=format_cases(blocks_of_bytes.blocks_to_read, of("ggml_q8_0")))
def q8_0_blocks_are_read(trial: Trial) -> None:
    """Every byte of codes under float16 scales, subnormal and negative ones among them."""
    _reads(trial)


@check("KV-FMT-061", verbs=WRITE, cases=format_cases(blocks_of_bytes.hard_blocks, of("ggml_q4_0")))
def q4_0_blocks_are_ggml_s(trial: Trial) -> None:
    """Ties, blocks whose largest magnitude comes in both signs, blocks of zeros."""
    _blocks(trial)


@check("KV-FMT-061", verbs=READ, cases=format_cases(blocks_of_bytes.blocks_to_read, of("ggml_q4_0")))
def q4_0_blocks_are_read(trial: Trial) -> None:
    """Every byte of codes under float16 scales, subnormal and negative ones among them."""
    _reads(trial)


@check("KV-FMT-062", verbs=WRITE, cases=format_cases(blocks_of_bytes.hard_blocks, of("ggml_mxfp4")))
def ggml_mxfp4_blocks_are_ggml_s(trial: Trial) -> None:
    """Ties, zeros of both signs, maxima of all magnitudes."""
    _blocks(trial)


@check("KV-FMT-062", verbs=READ, cases=format_cases(blocks_of_bytes.blocks_to_read, of("ggml_mxfp4")))
def ggml_mxfp4_blocks_are_read(trial: Trial) -> None:
    """Every byte of codes under every scale byte."""
    _reads(trial)


@check("KV-FMT-063", verbs=WRITE, cases=format_cases(blocks_of_bytes.hard_blocks, of("ggml_nvfp4")))
def ggml_nvfp4_blocks_are_ggml_s(trial: Trial) -> None:
    """Ties, zeros of both signs, maxima of all magnitudes."""
    _blocks(trial)


@check("KV-FMT-063", verbs=READ, cases=format_cases(blocks_of_bytes.blocks_to_read, of("ggml_nvfp4")))
def ggml_nvfp4_blocks_are_read(trial: Trial) -> None:
    """Every byte of codes under every scale byte."""
    _reads(trial)

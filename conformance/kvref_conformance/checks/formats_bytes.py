"""Checks of bytes and numbers: the order of nibbles, the layout of scales, extents, products, the loss."""

import numpy as np

from kvref.formats.format import Format, Quantized
from kvref.formats.loss import loss_bound
from kvref.formats.scaled import dequantize
from kvref_conformance.bytes_judged import REFUSALS, expect_read, expect_written
from kvref_conformance.cases import FIRST
from kvref_conformance.checks.check import check
from kvref_conformance.contracts import Failed
from kvref_conformance.probes import any_scales, codes, format_specimens, many_tokens, placed_bytes
from kvref_conformance.probes.format_cases import format_cases, reading_of, writing_of
from kvref_conformance.probes.placed_bytes import is_laid_out, is_packed, is_scaled
from kvref_conformance.trial import Trial

WRITE, READ = ("quantize_kv",), ("dequantize_kv",)


def _every(kind: Format) -> bool:
    return True


@check("KV-FMT-070", verbs=WRITE, cases=format_cases(placed_bytes.neighbours_apart, is_packed))
def codes_are_packed_in_the_declared_order(trial: Trial) -> None:
    """Numbers of which no two neighbours have the same code."""
    expect_written(trial, writing_of(placed_bytes.neighbours_apart, trial))


@check("KV-FMT-070", verbs=READ, cases=format_cases(codes.every_code, is_packed))
def codes_are_unpacked_in_the_declared_order(trial: Trial) -> None:
    """Every pair of codes in every byte."""
    expect_read(trial, reading_of(codes.every_code, trial))


@check("KV-FMT-071", verbs=WRITE, cases=format_cases(placed_bytes.distinct_scales, is_laid_out))
def scales_are_written_where_declared(trial: Trial) -> None:
    """More rows than a tile has, each group with a scale that none near it has."""
    expect_written(trial, writing_of(placed_bytes.distinct_scales, trial))


@check("KV-FMT-071", verbs=READ, cases=format_cases(placed_bytes.distinct_scales_to_read, is_laid_out))
def scales_are_read_where_declared(trial: Trial) -> None:
    """The same codes everywhere, under scales of which no two near each other are alike."""
    expect_read(trial, reading_of(placed_bytes.distinct_scales_to_read, trial))


@check("KV-FMT-072", verbs=WRITE, cases=format_cases(format_specimens.some_numbers, _every, all_through=True))
def tensors_have_the_extents_of_the_format(trial: Trial) -> None:
    """Every tensor that comes back, in extents and dtype, and no other."""
    case, path = trial.case, trial.claims.path()
    made = writing_of(format_specimens.some_numbers, trial)
    result = trial.call(made.call(path))
    found = {name: np.asarray(x).shape for name, x in result.answer.outputs.items()}
    wanted = placed_bytes.extents(made.kind, path, made.tokens, case.num_kv_heads, case.head_dim)
    trial.expect(found == wanted, f"tensors have extents {found}, expected {dict(wanted)}", result)


@check("KV-FMT-073", verbs=WRITE, cases=many_tokens.sized_cases)
def every_token_is_written(trial: Trial) -> None:
    """Ordinary numbers: one token of four heads, 139 of eight, 1101 of one."""
    expect_written(trial, writing_of(many_tokens.many_numbers, trial))


@check("KV-FMT-073", verbs=READ, cases=many_tokens.sized_cases)
def every_token_is_read(trial: Trial) -> None:
    """What is stored of such numbers: one token of four heads, 139 of eight, 1101 of one."""
    expect_read(trial, reading_of(many_tokens.many_codes, trial))


@check("KV-FMT-073", verbs=(*WRITE, *READ), cases=many_tokens.empty_cases)
def no_tokens_do_no_harm(trial: Trial) -> None:
    """A call without tokens: answered by tensors without tokens, or refused."""
    case, path = trial.case, trial.claims.path()
    try:
        if case.verb in WRITE:
            trial.call(many_tokens.no_numbers(case, path).call(path))
        else:
            trial.call(codes.written_by(many_tokens.no_numbers(case, path), path, case.dtype).call(path))
    except Failed as failed:
        if failed.kind not in REFUSALS:
            raise


@check("KV-FMT-080", verbs=READ, cases=format_cases(placed_bytes.exact_products, is_scaled))
def exact_products_are_read_exactly(trial: Trial) -> None:
    """Every code under powers of two, that no dtype needs to round."""
    expect_read(trial, reading_of(placed_bytes.exact_products, trial))


@check("KV-FMT-081", verbs=READ, cases=format_cases(placed_bytes.rounded_products, is_scaled))
def products_are_rounded_as_declared(trial: Trial) -> None:
    """Every code under uneven scales, whose products have to be rounded."""
    expect_read(trial, reading_of(placed_bytes.rounded_products, trial))


@check("KV-FMT-081", verbs=READ, cases=format_cases(any_scales.to_read, _every, every_dtype=True))
def scales_to_multiply_by_may_be_of_any_size(trial: Trial) -> None:
    """Every code under scales from 1e-30 to 1e30, products past either end of the dtype among them."""
    case, path = trial.case, trial.claims.path()
    for turn in range(any_scales.TURNS):
        made = any_scales.to_read(case, path, turn)
        expect_read(trial, made.part(case.option(FIRST), case.seq_lens[0]))


@check("KV-FMT-100", ring="numeric", verbs=WRITE, cases=format_cases(format_specimens.many_numbers, _every))
def nothing_is_lost_but_what_the_format_loses(trial: Trial) -> None:
    """Bell-shaped numbers, read back by definition: each within what its format allows."""
    path = trial.claims.path()
    made = writing_of(format_specimens.many_numbers, trial)
    result = trial.call(made.call(path))
    given = {"scales": made.scales, "global_scale": made.global_scale}
    parts = {name: x for name, x in given.items() if x is not None}
    stored = Quantized(**{**parts, **{name: np.asarray(x) for name, x in result.answer.outputs.items()}})
    back = dequantize(stored, made.kind, path=path)
    bound = loss_bound(made.x, stored, made.kind, path=path)
    trial.expect_within("number ", result, back, made.x.astype(np.float64), bound)

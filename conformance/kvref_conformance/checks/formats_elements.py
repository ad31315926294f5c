"""Checks of elements: what each code stands for, and which code each number becomes.

Numbers are encoded under a scale of 1, so that nothing but the cast is seen. Each check has its own numbers:
a fault at ties is not one of subnormals, and one past the range is not one of NaN.
"""

from kvref.formats.format import Format
from kvref_conformance.bytes_judged import expect_read, expect_written
from kvref_conformance.checks.check import check
from kvref_conformance.probes import casts, codes
from kvref_conformance.probes.casts import is_float, is_given, keeps_nan
from kvref_conformance.probes.format_cases import format_cases, reading_of, writing_of
from kvref_conformance.trial import Trial

WRITE, READ = ("quantize_kv",), ("dequantize_kv",)
HALVES = ("float16", "bfloat16")


def _every(kind: Format) -> bool:
    return True


def _signed(kind: Format) -> bool:
    return is_float(kind) and "fnuz" not in kind.element


def _enumerable(kind: Format) -> bool:
    """Say whether every 16-bit number can be encoded: NaN has a code, or is left out."""
    return kind.family in ("amax", "mx", "nvfp4")


@check("KV-FMT-001", verbs=READ, cases=format_cases(codes.every_code, _every, all_through=True))
def each_code_is_its_number(trial: Trial) -> None:
    """Every code of the element, every pair where two share a byte, under scales of 1."""
    expect_read(trial, reading_of(codes.every_code, trial))


@check("KV-FMT-002", verbs=WRITE, cases=format_cases(casts.ties, is_float))
def nearest_number_wins(trial: Trial) -> None:
    """Every normal number of the element and every tie between two, and the numbers next to them."""
    expect_written(trial, writing_of(casts.ties, trial))


@check("KV-FMT-003", verbs=WRITE, cases=format_cases(casts.overflowing, is_given))
def what_overflows_becomes_what_is_declared(trial: Trial) -> None:
    """The largest number, the edge halfway past it, what lies beyond, up to infinity; also under scales."""
    for one in casts.under_scales(writing_of(casts.overflowing, trial), trial.claims.path()):
        expect_written(trial, one)


@check("KV-FMT-004", verbs=WRITE, cases=format_cases(casts.subnormal, is_float))
def small_numbers_keep_their_codes(trial: Trial) -> None:
    """Every subnormal number and tie, down to half the smallest, and the numbers next to them."""
    expect_written(trial, writing_of(casts.subnormal, trial))


@check("KV-FMT-005", verbs=WRITE, cases=format_cases(casts.nan, keeps_nan))
def nan_becomes_what_is_declared(trial: Trial) -> None:
    """Quiet and signalling NaN of both signs, whatever the payload, between numbers; also under scales."""
    for one in casts.under_scales(writing_of(casts.nan, trial), trial.claims.path()):
        expect_written(trial, one)


@check("KV-FMT-006", verbs=WRITE, cases=format_cases(casts.zero, is_float))
def zeros_have_the_declared_sign(trial: Trial) -> None:
    """Zeros of both signs, and numbers too small for any code but zero."""
    expect_written(trial, writing_of(casts.zero, trial))


@check("KV-FMT-006", verbs=READ, cases=format_cases(codes.zero_codes, _signed))
def both_zeros_are_read(trial: Trial) -> None:
    """The codes of 0 and of −0 come back with their sign."""
    expect_read(trial, reading_of(codes.zero_codes, trial), signs=True)


@check(
    "KV-FMT-007", verbs=WRITE, cases=format_cases(casts.near_misses, is_float, dtypes=("float32", "float16"))
)
def no_detour_makes_a_tie(trial: Trial) -> None:
    """Numbers next to ties that a rounding to 16 bits on the way would put on them."""
    expect_written(trial, writing_of(casts.near_misses, trial))


@check("KV-FMT-008", verbs=WRITE, cases=format_cases(casts.finite_codes, is_float))
def codes_come_back(trial: Trial) -> None:
    """The number of every finite code is encoded again."""
    expect_written(trial, writing_of(casts.finite_codes, trial))


@check(
    "KV-FMT-009",
    verbs=WRITE,
    cases=format_cases(casts.halves, _enumerable, dtypes=HALVES, every_dtype=True),
)
def every_half_has_its_code(trial: Trial) -> None:
    """All 65536 numbers of each claimed 16-bit dtype."""
    expect_written(trial, writing_of(casts.halves, trial))


@check("KV-FMT-010", verbs=WRITE, cases=casts.sweep_cases)
def every_float_has_its_code(trial: Trial) -> None:
    """Of float32, each sign, exponent and first bits, the rest drawn; exhaustive: all 2^32, in pieces."""
    case = trial.case
    first, left = case.option("first"), case.seq_lens[0]
    while left:
        tokens = min(left, casts.PIECE // (case.num_kv_heads * case.head_dim))
        expect_written(trial, casts.swept(case, first, tokens))
        first, left = first + tokens, left - tokens

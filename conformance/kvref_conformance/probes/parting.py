"""Inputs at which the answers to a decision part, for every decision inside formats.

They are those of the checks. Where a format leaves nothing to decide all answers give the same, and nothing
is found.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvref.formats.format import Format
from kvref.formats.paths import Path
from kvref_conformance.cases import Case
from kvref_conformance.formatted import Reading, Writing
from kvref_conformance.probes import (
    blocks_of_bytes,
    casts,
    codes,
    integer_codes,
    microscaled,
    placed_bytes,
    scalings,
    two_level,
)


@dataclass(frozen=True)
class Parting:
    """Inputs for the formats for which `only` holds."""

    only: Callable[[Format], bool]
    make: Callable[[Case, Path], Iterable[Writing | Reading]]


def _one(
    build: Callable[[Case, Path], Writing] | Callable[[Case, Path], Reading], only: Callable[[Format], bool]
) -> Parting:
    return Parting(only, lambda case, path: [build(case, path)])


def _quotients(case: Case, path: Path) -> Iterable[Writing]:
    made = scalings.hard_to_divide(case, path)
    if made.kind.group != "given":
        return [made]
    return [scalings.scaled(made, scale) for scale in scalings.UNEVEN]


def _maxima(case: Case, path: Path) -> Iterable[Writing]:
    return scalings.token_by_token(scalings.spread_maxima(case, path), path)


def _peaks(case: Case, path: Path) -> Iterable[Writing]:
    return scalings.token_by_token(two_level.peaks(case, path), path)


def _is_ggml(kind: Format) -> bool:
    return kind.family == "ggml"


_OVERFLOW = (_one(casts.overflowing, casts.is_given),)
_NAN = (_one(casts.nan, casts.keeps_nan),)
_ZERO = (_one(casts.zero, casts.is_float),)
_MAXIMA = Parting(scalings.is_derived, _maxima)
_PRODUCTS = (_one(placed_bytes.rounded_products, placed_bytes.is_scaled),)
_BLOCKS = _one(blocks_of_bytes.hard_blocks, _is_ggml)
_VANISHING = (_one(two_level.vanishing, two_level.is_nvfp4),)

#: Decision -> its probes. Those of attention over codes are checks of their own.
PARTINGS: dict[str, tuple[Parting, ...]] = {
    "e4m3_overflow": _OVERFLOW,
    "e5m2_overflow": _OVERFLOW,
    "fnuz_overflow": _OVERFLOW,
    "fp8_nan": _NAN,
    "fp8_zero": _ZERO,
    "e2m1_nan": _NAN,
    "e2m1_ties": (_one(casts.ties, casts.is_float),),
    "e2m1_zero": _ZERO,
    "int_ties": (_one(integer_codes.ties, integer_codes.is_integer), _BLOCKS),
    "int8_lowest": (_one(integer_codes.past_the_ends, integer_codes.may_overflow),),
    "scale_division": (Parting(scalings.is_divided, _quotients),),
    "tensor_scale": (_MAXIMA,),
    "scale_floor": (_MAXIMA, _one(scalings.zero_groups, scalings.is_derived)),
    "scale_power": (_MAXIMA,),
    "mx_scale": (_one(microscaled.maxima, microscaled.is_mx),),
    "mx_exponent": (_one(microscaled.below_powers, microscaled.is_mx), _BLOCKS),
    "mx_zero_group": (_one(microscaled.nothing, microscaled.is_mx),),
    "mx_inf_group": (_one(microscaled.with_infinity, microscaled.is_mx),),
    "mx_smallest_divisor": (_one(microscaled.under_shared_scales, microscaled.is_mx),),
    "mx_span": (_one(microscaled.split_heads, microscaled.is_mx),),
    "nvfp4_operand": (
        _one(two_level.exact_numbers, two_level.is_given),
        _one(two_level.under_global_scales, two_level.is_nvfp4),
    ),
    "nvfp4_global": (Parting(two_level.is_derived, _peaks),),
    "nvfp4_division": (_one(two_level.hard_to_divide, two_level.is_nvfp4),),
    "nvfp4_scale_floor": _VANISHING,
    "nvfp4_tiny_group": _VANISHING,
    "nvfp4_nan_group": _NAN,
    "nvfp4_largest": (_one(two_level.crowded, two_level.is_nvfp4),),
    "constant_group": (_one(integer_codes.constants, integer_codes.is_affine),),
    "q8_0_reciprocal": (_BLOCKS,),
    "multiply_add": (_one(integer_codes.zero_points, integer_codes.is_affine), _BLOCKS, *_PRODUCTS),
    "nibble_order": (
        _one(placed_bytes.neighbours_apart, placed_bytes.is_packed),
        _one(codes.every_code, placed_bytes.is_packed),
    ),
    "scale_layout": (
        _one(placed_bytes.distinct_scales, placed_bytes.is_laid_out),
        _one(placed_bytes.distinct_scales_to_read, placed_bytes.is_laid_out),
    ),
    "decode_dtype": _PRODUCTS,
    "nvfp4_decode_order": _PRODUCTS,
    "scale_axis": (_one(integer_codes.outliers, integer_codes.has_axis),),
}

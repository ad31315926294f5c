"""Casts seen through formats: numbers from the lists of `numbers`, carried under a scale of 1."""

import numpy as np

from kvref.arrays import Array, dtype_of
from kvref.formats.elements import FloatElement, element_of, values
from kvref.formats.format import FORMATS, Format
from kvref.formats.paths import Path
from kvref_conformance.cases import Case, Level
from kvref_conformance.claims import Claims
from kvref_conformance.formatted import Writing, givens
from kvref_conformance.probes import numbers
from kvref_conformance.probes.carriers import Geometry, carried, in_groups
from kvref_conformance.probes.format_cases import format_case, kind_of, places_of, with_tokens
from kvref_conformance.problems import cast

#: Cases of the sweep over all float32 numbers, for each format.
SWEEPS = 32
#: Numbers of one call of the sweep.
PIECE = 2**24


def is_float(kind: Format) -> bool:
    """Say whether a format has float elements, one code after the other."""
    return isinstance(element_of(kind.element), FloatElement) and kind.family in ("amax", "mx", "nvfp4")


def is_given(kind: Format) -> bool:
    """Say whether a cast to float elements is bare: scales are given, and 1."""
    return is_float(kind) and kind.group == "given"


def keeps_nan(kind: Format) -> bool:
    """Say whether a format stores NaN as a code of its elements."""
    return is_given(kind) or kind.name == "nvfp4"


def ties(case: Case, path: Path) -> Writing:
    """Return every normal number and tie with its neighbours."""
    return _carrying(case, path, numbers.near_ties(kind_of(case).element, case.dtype))


def overflowing(case: Case, path: Path) -> Writing:
    """Return the end of the range and what lies past it."""
    return _carrying(case, path, numbers.past_the_largest(kind_of(case).element, case.dtype))


def subnormal(case: Case, path: Path) -> Writing:
    """Return every subnormal number and tie with its neighbours."""
    return _carrying(case, path, numbers.near_subnormals(kind_of(case).element, case.dtype))


def nan(case: Case, path: Path) -> Writing:
    """Return NaN of all kinds between ordinary numbers."""
    found = numbers.nans(case.dtype)
    ordinary = cast(np.resize([1.0, -2.0, 0.5], len(found)), case.dtype)
    return _carrying(case, path, np.stack([found, ordinary], axis=1).reshape(-1))


def zero(case: Case, path: Path) -> Writing:
    """Return zeros of both signs, and numbers that become them."""
    return _carrying(case, path, numbers.zeros(kind_of(case).element, case.dtype))


def near_misses(case: Case, path: Path) -> Writing:
    """Return numbers that are no ties, and would be after a detour."""
    return _carrying(case, path, numbers.witnesses(kind_of(case).element, case.dtype))


def finite_codes(case: Case, path: Path) -> Writing:
    """Return the number of every finite code."""
    table = values(kind_of(case).element)
    return _carrying(case, path, cast(table[np.isfinite(table)], case.dtype))


def halves(case: Case, path: Path) -> Writing:
    """Return every number of a 16-bit dtype, under a scale of 1 and, group by group, under their own.

    Scales that are derived from a whole tensor see only those that fit a scale of 1, integers no NaN.
    """
    kind, every = kind_of(case), numbers.every_half(case.dtype)
    with np.errstate(invalid="ignore"):
        wide = every.astype(np.float64)
    if kind.group == "given":
        return _carrying(case, path, every if is_float(kind) else every[~np.isnan(wide)])
    finite = every[np.isfinite(wide)]
    under_one = _carrying(case, path, finite)
    if kind.group == "tensor" or kind.global_scale == "tensor":
        return under_one
    geometry = Geometry.of(kind, path, case.num_kv_heads, case.head_dim)
    in_order = geometry.arrange(in_groups(finite, geometry.size))
    return Writing(kind.name, np.concatenate([under_one.x, in_order]), **givens(kind))


def sweep_cases(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Return cases that have every float32 number, at level exhaustive alone."""
    if level != "exhaustive" or "float32" not in claims.dtypes:
        return []
    found = []
    for name in claims.formats:
        if not is_given(FORMATS[name]):
            continue
        head_dim, heads = places_of(name, claims)[0]
        tokens = -(-(2**32 // SWEEPS) // (heads * head_dim))
        case = with_tokens(format_case(verb, name, "float32", heads, head_dim), tokens)
        found += [case.with_options(chunk=chunk) for chunk in range(SWEEPS)]
    return found


def swept(case: Case, first: int, tokens: int) -> Writing:
    """Return some tokens of a case of the sweep."""
    width = case.num_kv_heads * case.head_dim
    start = case.option("chunk") * (2**32 // SWEEPS) + first * width
    codes = np.arange(start, start + tokens * width, dtype=np.uint64).astype(np.uint32)
    kind = kind_of(case)
    return Writing(
        kind.name, codes.view(np.float32).reshape(tokens, case.num_kv_heads, case.head_dim), **givens(kind)
    )


def _carrying(case: Case, path: Path, found: Array) -> Writing:
    kind = kind_of(case)
    x = carried(found.astype(dtype_of(case.dtype)), kind, path, case.num_kv_heads, case.head_dim)
    return Writing(kind.name, x, **givens(kind))

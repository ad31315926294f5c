"""Casts seen through formats: numbers from the lists of `numbers`, carried under a scale of 1."""

from collections.abc import Iterator
from dataclasses import replace

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
from kvref_conformance.probes.two_level import operand
from kvref_conformance.problems import cast

#: Cases of the sweep over all float32 numbers, for each format.
SWEEPS = 32
#: Numbers of a slice through them, one of each sign, exponent and first eight bits; and what it is called.
SLICE, SLICED = 2**17, -1
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


def under_scales(made: Writing, path: Path) -> Iterator[Writing]:
    """Yield a writing, and the same numbers under given scales that are powers of two, times those."""
    yield made
    for scale in (0.25, 8.0):
        with np.errstate(all="ignore"):
            x = (made.x.astype(np.float32) * np.float32(scale)).astype(made.x.dtype)
        if made.scales is not None:
            yield replace(made, x=x, scales=np.full_like(made.scales, scale))
        elif made.global_scale is not None:
            yield replace(made, x=x, global_scale=operand(path, scale))


def sweep_cases(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Return cases that have a slice through all float32 numbers, or at level exhaustive every one."""
    if "float32" not in claims.dtypes:
        return []
    found = []
    for i, name in enumerate(claims.formats):
        places = places_of(name, claims)
        if not is_given(FORMATS[name]) or not places:
            continue
        head_dim, heads = places[i % len(places)]
        case = format_case(verb, name, "float32", heads, head_dim, seed=i)
        count, chunks = (2**32 // SWEEPS, range(SWEEPS)) if level == "exhaustive" else (SLICE, [SLICED])
        sized = with_tokens(case, -(-count // (heads * head_dim)))
        found += [sized.with_options(chunk=chunk) for chunk in chunks]
    return found


def swept(case: Case, first: int, tokens: int) -> Writing:
    """Return some tokens of a case of the sweep, or of the slice."""
    width, chunk = case.num_kv_heads * case.head_dim, case.option("chunk")
    places = np.arange(first * width, (first + tokens) * width, dtype=np.uint64)
    if chunk == SLICED:
        drawn = np.random.default_rng(case.seed + 331).integers(0, 2**32 // SLICE, SLICE, dtype=np.uint64)
        codes = places % SLICE * np.uint64(2**32 // SLICE) + drawn[places % SLICE]
    else:
        codes = places + np.uint64(chunk * (2**32 // SWEEPS))
    kind = kind_of(case)
    x = codes.astype(np.uint32).view(np.float32).reshape(tokens, case.num_kv_heads, case.head_dim)
    return Writing(kind.name, x, **givens(kind))


def _carrying(case: Case, path: Path, found: Array) -> Writing:
    kind = kind_of(case)
    x = carried(found.astype(dtype_of(case.dtype)), kind, path, case.num_kv_heads, case.head_dim)
    return Writing(kind.name, x, **givens(kind))

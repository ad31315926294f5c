"""Calls as large as those of engines: one token, odd numbers of them, many, under one kv head or eight.

A fault is mostly in a few numbers, so most probes are small; but kernels have tiles, tails and strides. These
numbers are ordinary, no two tokens or heads are of one magnitude, and the largest of all is in the last.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from kvref.arrays import Array
from kvref.formats.elements import largest
from kvref.formats.format import FORMATS, Format
from kvref.formats.paths import Path
from kvref_conformance.cases import Case, Level
from kvref_conformance.claims import ALL_DTYPES, Claims
from kvref_conformance.formatted import Reading, Writing, fits, givens
from kvref_conformance.probes import codes
from kvref_conformance.probes.carriers import Geometry, off_ties
from kvref_conformance.probes.format_cases import HEADS, format_case, kind_of, with_tokens
from kvref_conformance.probes.two_level import operand
from kvref_conformance.problems import cast

#: Tokens and kv heads of the calls that every format meets; of one more at level full; and of those that are
#: there for a dtype or width.
SIZES, LARGE, SMALL = ((139, 8), (1101, 1), (1, 4)), (4097, 1), (7, 4)
#: Tokens of the longest group along tokens: of such formats as many groups as it takes.
GROUP = 32
#: Option of a case: the tokens of the whole call.
TOKENS = "tokens"


def sized_cases(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Return cases of every size for every claimed format; each family meets every dtype and width.

    Full: each format meets every dtype and width. Exhaustive: in every size.
    """
    path, found = claims.path(), []
    for names in _families(claims.formats):
        for i, name in enumerate(names):
            places = list(product(_dtypes(claims), _widths(name, path, claims)))
            for k, (size, at) in enumerate(_points(len(places), len(names), i, level)):
                dtype, head_dim = places[at]
                tokens, heads = size
                heads = next(n for n in (heads, *HEADS) if fits(name, path, n, head_dim))
                case = format_case(verb, name, dtype, heads, head_dim, seed=100 * i + k)
                if Geometry.of(FORMATS[name], path, heads, head_dim).along_tokens:
                    tokens = -(-tokens // GROUP) * GROUP
                found.append(with_tokens(case, tokens).with_options(**{TOKENS: tokens}))
    return found


def empty_cases(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Return a case without tokens for every claimed format."""
    path, found = claims.path(), []
    for i, name in enumerate(claims.formats):
        places = list(product(_dtypes(claims), _widths(name, path, claims)))
        for dtype, head_dim in places[i % len(places) : i % len(places) + 1] if places else ():
            heads = next(n for n in HEADS if fits(name, path, n, head_dim))
            found.append(with_tokens(format_case(verb, name, dtype, heads, head_dim), 0))
    return found


def no_numbers(case: Case, path: Path) -> Writing:
    """Return no numbers, under given scales of 1."""
    kind = kind_of(case)
    shape = (0, case.num_kv_heads, case.head_dim)
    return Writing(kind.name, cast(np.zeros(shape), case.dtype), **givens(kind))


def many_numbers(case: Case, path: Path) -> Writing:
    """Return ordinary numbers, each head under a given scale of its own; the last row has the largest."""
    kind = kind_of(case)
    rng = np.random.default_rng(case.seed + 311)
    shape = (case.option(TOKENS), case.num_kv_heads, case.head_dim)
    sizes = rng.uniform(-4, 3, (*shape[:2], 1)) + rng.uniform(-2, 2, shape[2])
    x = rng.uniform(0.05, 1.0, shape) * rng.choice([-1.0, 1.0], shape) * np.exp2(sizes)
    x[-1, -1, -1] = 1.5 * np.abs(x).max()
    return Writing(kind.name, off_ties(cast(x, case.dtype)), **_given(kind, x, path, rng))


def many_codes(case: Case, path: Path) -> Reading:
    """Return what a writer stores of such numbers."""
    return codes.written_by(many_numbers(case, path), path, case.dtype)


def _given(kind: Format, x: Array, path: Path, rng: np.random.Generator) -> dict[str, Array]:
    if kind.group == "given":
        amax = np.abs(x).max(axis=(0, 2))
        scales = amax / largest(kind.element) * rng.uniform(1.1, 2.0, amax.shape)
        return {"scales": scales.astype(np.float32)}
    if kind.global_scale == "given":
        return {"global_scale": operand(path, float(np.abs(x).max()) / 2688 * 1.3)}
    return {}


def _families(names: tuple[str, ...]) -> list[list[str]]:
    """Return formats that are computed alike, together."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in names:
        found.setdefault((FORMATS[name].family, FORMATS[name].group), []).append(name)
    return list(found.values())


def _dtypes(claims: Claims) -> list[str]:
    return [dtype for dtype in claims.dtypes if dtype in ALL_DTYPES]


def _widths(name: str, path: Path, claims: Claims) -> list[int]:
    return [width for width in claims.head_dims if any(fits(name, path, n, width) for n in HEADS)]


def _points(places: int, names: int, turn: int, level: Level) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield (size, number of the dtype and width) for one of the formats of a family."""
    if not places:
        return
    if level == "exhaustive":
        yield from product((*SIZES, LARGE, SMALL), range(places))
        return
    sizes = SIZES if level == "quick" else (*SIZES, LARGE)
    each = -(-places // names) if level == "quick" else places
    for k in range(max(each, len(sizes))):
        size = sizes[(k + turn) % len(sizes)] if k < len(sizes) else SMALL
        yield size, (k * names + turn if level == "quick" else k) % places

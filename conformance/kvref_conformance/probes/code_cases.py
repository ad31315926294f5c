"""Cases of attention over codes: which point of the domain each format meets in each check.

Formats times groups, dtypes, widths and block sizes are too many for every check to visit. Each check has a
turn of its own, and the turns together visit them: after a few turns every two answers have met, in each
format.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, product

from kvref.formats.format import FORMATS, Format
from kvref.formats.paths import Path
from kvref_conformance.cases import Case, Level, lattice, length_patterns
from kvref_conformance.claims import MINIMUM_GROUPS, Claims
from kvref_conformance.formatted import fits
from kvref_conformance.probes.format_cases import HEADS

Lattice = Callable[[Claims, str, Level], list[Case]]
#: Widths, then block sizes.
Domain = tuple[tuple[int, ...], tuple[int, ...]]
#: Rows after which the order of points begins again.
_ROWS = 128
#: Turns that every format has, whatever is claimed.
_TURNS = 8


def attends(kind: Format) -> bool:
    """Say whether a format's scales each belong to one token, and a cache of its codes can be attended to."""
    return kind.group != "tokens" and not kind.zeros


def coded(
    turn: int, only: Callable[[Format], bool] = attends, vary: Callable[[Case], Sequence[Case]] | None = None
) -> Lattice:
    """Return the lattice of a check: the points of its turn in each claimed format for which `only` holds.

    Quick: one point a format, more where fewer formats are claimed. Full: as many as it takes for all turns
    to visit each group, width and block size of each format together. Exhaustive: each dtype, width and block
    size, all groups in turn. `vary` makes the cases of a point.
    """

    def cases(claims: Claims, verb: str, level: Level) -> list[Case]:
        path = claims.path()
        names = [] if path.scale_axis == "tokens" else [n for n in claims.formats if attends(FORMATS[n])]
        found: list[Case] = []
        for i, name in enumerate(names):
            domain = _domain(FORMATS[name], claims, path)
            if not all(domain) or not only(FORMATS[name]):
                continue
            own = replace(claims, formats=(name,), head_dims=domain[0], block_sizes=domain[1])
            for point in _points(own, verb, level, turn, i, len(names)):
                case = point.with_options(format=name)
                if not fits(name, path, case.num_kv_heads, case.head_dim):
                    case = replace(case, num_kv_heads=HEADS[-1])
                found.extend([case] if vary is None else vary(case))
        return found

    return cases


#: The points of no check in particular.
coded_cases = coded(0)


def _domain(kind: Format, claims: Claims, path: Path) -> Domain:
    """Return the claimed widths and block sizes that a cache of a format can have."""
    widths = tuple(width for width in claims.head_dims if holds(kind, path, width))
    return widths, tuple(size for size in claims.block_sizes if not (_by_fours(kind, path) and size % 4))


def _by_fours(kind: Format, path: Path) -> bool:
    """Say whether the scales of values take turns by four tokens."""
    return path.v_scale_layout == "interleaved" and kind.group == "channels" and kind.family != "ggml"


def holds(kind: Format, path: Path, width: int) -> bool:
    """Say whether a cache of a format can have a width."""
    whole = any(fits(kind.name, path, heads, width) for heads in (1, 2))
    return whole and not (_by_fours(kind, path) and width // kind.size % 4)


def _points(claims: Claims, verb: str, level: Level, turn: int, at: int, formats: int) -> list[Case]:
    """Return the points of a turn in the format at a place among others."""
    if level == "exhaustive":
        every = lattice(claims, verb, level)
        places = len(claims.dtypes) * len(claims.head_dims) * len(claims.block_sizes)
        groups = len(every) // places
        count = max(places, len(MINIMUM_GROUPS))
        return [every[(n + turn) % groups * places + n % places] for n in range(count)]
    dtypes, widths, sizes = claims.dtypes, claims.head_dims, claims.block_sizes
    lengths = len(MINIMUM_GROUPS), len(dtypes), len(widths), len(sizes)
    if level == "quick":
        order, share = pairs_first(lengths), -(-max(lengths) // formats)
    else:
        order = _every_triple(lengths)
        share = max(max(lengths), -(-len(order) // _TURNS))
    found = []
    for n in range(turn * share, (turn + 1) * share):
        g, d, w, b = ((i + at) % length for i, length in zip(order[n % len(order)], lengths, strict=True))
        found.append(_case(claims, verb, (MINIMUM_GROUPS[g], dtypes[d], widths[w], sizes[b]), n + at))
    return found


def _case(claims: Claims, verb: str, point: tuple[int, str, int, int], seed: int) -> Case:
    group, dtype, width, size = point
    patterns = length_patterns(size)
    lens = patterns[seed % len(patterns)]
    shares = (3, 1, 2) if "prefill" in claims.features else (3, 3, 3)
    queries = tuple({1: n, 2: -(-n // 2), 3: 1}[share] for n, share in zip(lens, shares, strict=False))
    return Case(
        verb=verb,
        seq_lens=lens,
        query_lens=queries,
        num_kv_heads=1 + seed % 2 if group > 1 else 3,
        group=group,
        head_dim=width,
        block_size=size,
        dtype=dtype,
        seed=seed,
    )


@lru_cache(maxsize=256)
def pairs_first(lengths: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return rows of indexes, one for each axis, of which the first ones let every two values meet.

    Each value of a row is the one that has met the fewest of those before it, or was taken least.
    """
    met: set[tuple[int, int, int, int]] = set()
    taken = [[0] * length for length in lengths]
    rows = []
    for _ in range(_ROWS):
        row: list[int] = []
        for axis, length in enumerate(lengths):
            new = [sum((a, x, axis, y) not in met for a, x in enumerate(row)) for y in range(length)]
            best = min(range(length), key=lambda y: (-new[y], taken[axis][y], y))
            row.append(best)
            taken[axis][best] += 1
        met.update((a, row[a], b, row[b]) for a, b in combinations(range(len(row)), 2))
        rows.append(tuple(row))
    return rows


@lru_cache(maxsize=256)
def _every_triple(lengths: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return every group, width and block size together, dtypes in turn."""
    groups, dtypes, widths, sizes = lengths
    every = product(range(widths), range(sizes), range(groups))
    return [(g, (n + n // dtypes) % dtypes, w, s) for n, (w, s, g) in enumerate(every)]

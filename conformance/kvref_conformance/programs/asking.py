"""The cases of a check that runs programs: what is asked, of which pools and block sizes.

The programs for block tables are written for any block size, for tables go wrong around the edges of blocks:
`b` stands for it, `h` for half of it, so that `append 0 2b-1` leaves one slot of two blocks.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kvref_conformance.cases import PROGRAM, Case, Level
from kvref_conformance.claims import MAX_ANSWERS, Claims
from kvref_conformance.programs.expecting import SESSIONS

#: Block sizes that a check's first program is run in are all that are claimed; those of its others:
COUNTS: dict[Level, int] = {"quick": 2, "full": 4, "exhaustive": MAX_ANSWERS}

Lattice = Callable[[Claims, str, Level], list[Case]]


def every(*lattices: Lattice) -> Lattice:
    """Return the cases of several lattices, one after the other."""

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        return [case for lattice in lattices for case in lattice(claims, manager, level)]

    return cases


def at_length(lattice: Lattice) -> Lattice:
    """Return the cases of a lattice, which take long, at every level but the quick one."""

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        return [] if level == "quick" else lattice(claims, manager, level)

    return cases


def beside(lattice: Lattice) -> Lattice:
    """Return the first case of a lattice, to be run on two managers that are open at once.

    A third, of other extents, is opened after them.
    """

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        return [case.with_options(**{SESSIONS: 2}) for case in lattice(claims, manager, level)[:1]]

    return cases


def pools(*programs: str, num_blocks: Iterable[int] = (6, 9)) -> Lattice:
    """Return the cases of programs for an allocator, in pools of several sizes."""

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        return [_case(manager, program, num_blocks=n) for program in programs for n in num_blocks]

    return cases


def sized(program: str, block_size: int) -> str:
    """Return a program with numbers in place of `3b`, `b+1` and `b+h`; `h` is at least one."""

    def number(found: re.Match[str]) -> str:
        factor, sign, rest = found.groups()
        more = half(block_size) if rest == "h" else int(rest or 0)
        return str(int(factor or 1) * block_size + (-more if sign == "-" else more))

    halved = re.sub(r"\bh\b(?<![+-]h)", str(half(block_size)), program)
    return re.sub(r"\b(\d*)b(?:([+-])(\d+|h))?\b", number, halved)


def half(block_size: int) -> int:
    """Return half a block size, and 1 at least."""
    return max(1, block_size // 2)


def tables(*programs: str, num_blocks: int = 12) -> Lattice:
    """Return the cases of programs for block tables: in every block size, and in pairs of groups."""

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        found = [
            _case(manager, sized(program, size), size, num_blocks=num_blocks)
            for at, program in enumerate(programs)
            for size in claims.block_sizes[: None if at == 0 else COUNTS[level]]
        ]
        return found + grouped(*programs, num_blocks=num_blocks)(claims, manager, level)

    return cases


def opened(program: str, *, num_blocks: int, block_size: int | None = None, windows: str = "") -> Lattice:
    """Return one case of one group, in the first claimed block size unless another is named."""

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        size = claims.block_sizes[0] if block_size is None else block_size
        options = {"windows": sized(windows, size)} if windows else {}
        return [_case(manager, sized(program, size), size, num_blocks=num_blocks, **options)]

    return cases


def crowded(*programs: str) -> Lattice:
    """Return cases in a pool of more blocks than a byte counts, in the smallest claimed block size."""

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        size = min(claims.block_sizes)
        return [_case(manager, sized(program, size), size, num_blocks=300) for program in programs]

    return cases


def grouped(*programs: str, num_blocks: int = 12) -> Lattice:
    """Return the same cases with groups of unequal block sizes, where groups are claimed: two, and three."""

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        return [
            _case(
                manager,
                sized(program, sizes[0]),
                sizes[0],
                block_sizes=_listed(sizes),
                num_blocks=_room(num_blocks, {"block_sizes": _listed(sizes)}, sizes[0]),
            )
            for at, program in enumerate(programs)
            for sizes in _groups(claims, level, threes=at == 0 or level != "quick")
        ]

    return cases


def alike(program: str) -> Lattice:
    """Return the case of three groups of which the last has the block size of the first."""

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        found = []
        for size, other in _groups(claims, level, threes=False)[:1]:
            room, sizes = 2 * 12 + -(-12 * size // other), _listed([size, other, size])
            found.append(_case(manager, sized(program, size), size, block_sizes=sizes, num_blocks=room))
        return found

    return cases


def tight(program: str) -> Lattice:
    """Return cases of three groups in which any of them may be the one that lacks a block.

    The pools hold a block of each group, and about as many tokens as the largest block.
    """

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        return [
            _case(manager, sized(program, sizes[0]), sizes[0], block_sizes=_listed(sizes), num_blocks=count)
            for sizes in _groups(claims, level)[-1:]
            for edge in (len(sizes), sum(-(-max(sizes) // size) for size in sizes))
            for count in range(edge, edge + 3)
        ]

    return cases


def windowed(*programs: str, num_blocks: int = 12, thorough: bool = False) -> Lattice:
    """Return cases with a window that ends inside a block, at its edge, and beyond; also beside no window.

    Thorough: every claimed block size with five windows, and three groups; otherwise as many sizes as of
    other programs with two windows, and two groups.
    """

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        opened: list[tuple[int, dict[str, Any]]] = [
            (size, {"windows": str(window)})
            for size in claims.block_sizes[: None if thorough else COUNTS[level]]
            for window in sorted(
                {1, half(size), size, size + 1, 2 * size - 1} if thorough else {half(size), size + 1}
            )
        ]
        for sizes in _groups(claims, level, threes=thorough):
            size, *others = sizes
            every = {"block_sizes": _listed(sizes)}
            opened += [
                (size, {**every, "windows": _listed([0, *(other + 1 for other in others)])}),
                (size, {**every, "windows": _listed([size, *(0 for _ in others)])}),
            ]
        for three in _groups(claims, level)[-1:] if thorough else ():
            small = [*three[:2], min(claims.block_sizes)]  # so small that the third slides too
            windows = _listed([small[0] + 1, 0, small[2] + small[2] // 2])
            opened.append((small[0], {"block_sizes": _listed(small), "windows": windows}))
        return [
            _case(manager, sized(program, size), size, num_blocks=_room(num_blocks, options, size), **options)
            for size, options in opened
            for program in programs
        ]

    return cases


def _room(num_blocks: int, options: Mapping[str, Any], block_size: int) -> int:
    """Return how many blocks hold in all groups the tokens that fit `num_blocks` of one."""
    sizes = [int(size) for size in str(options.get("block_sizes", block_size)).split(",")]
    return sum(-(-num_blocks * block_size // size) for size in sizes)


def _groups(claims: Claims, level: Level, *, threes: bool = True) -> list[list[int]]:
    """Return block sizes of groups: each claimed size with the nearest other one, and one case of three.

    Of three the last is a size far from the others, in which blocks can be partly full.
    """
    if "groups" not in claims.features:
        return []
    pairs = [
        [size, min((s for s in claims.block_sizes if s != size), key=lambda s: abs(s - size), default=size)]
        for size in claims.block_sizes
    ]
    return pairs[: COUNTS[level]] + ([[*pairs[0], max(claims.block_sizes)]] if threes else [])


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _case(manager: str, program: str, block_size: int = 16, **options: Any) -> Case:
    options = {"num_blocks": options.pop("num_blocks"), **options, PROGRAM: program}
    return Case(verb=manager, seq_lens=(), query_lens=(), block_size=block_size, options=options)

"""A check that runs a program: what it asks, of which pools and block sizes, and what must hold.

The programs for block tables are written for any block size, for tables go wrong around the edges of blocks:
`b` stands for it, `h` for half of it, so that `append 0 2b-1` leaves one slot of two blocks.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kvref_conformance.cases import PROGRAM, Case, Level, opening
from kvref_conformance.claims import MAX_ANSWERS, Claims
from kvref_conformance.programs.running import run
from kvref_conformance.programs.step import parse
from kvref_conformance.trial import Trial, Violation

#: Block sizes that a check's first program is run in are all that are claimed; those of its others:
COUNTS: dict[Level, int] = {"quick": 2, "full": 4, "exhaustive": MAX_ANSWERS}

Lattice = Callable[[Claims, str, Level], list[Case]]


def expect_unbroken(trial: Trial, requirement: str) -> None:
    """Run the program of the case on a manager of its own, and hold it to one requirement.

    Raises: Violation with the first breach of it; Failed if the subject is gone.
    """
    case = trial.case
    session = trial.open(case.verb, **opening(case))
    found = run(str(case.option(PROGRAM)), session, case, trial.claims).of(requirement)
    session.close()
    if found is None:
        return
    steps = parse(str(case.option(PROGRAM)))
    at = f"step {found.step}, `{steps[found.step]}`: " if found.step < len(steps) else ""
    raise Violation(f"{at}{found.message}", detail={"step": found.step})


def pools(*programs: str, num_blocks: Iterable[int] = (6, 9)) -> Lattice:
    """Return the cases of programs for an allocator, in pools of several sizes."""

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        return [_case(manager, program, num_blocks=n) for program in programs for n in num_blocks]

    return cases


def sized(program: str, block_size: int) -> str:
    """Return a program with numbers in place of `3b`, `b+1` and `b+h`; `h` is at least one."""

    def number(found: re.Match[str]) -> str:
        factor, sign, rest = found.groups()
        more = max(1, block_size // 2) if rest == "h" else int(rest or 0)
        return str(int(factor or 1) * block_size + (-more if sign == "-" else more))

    half = re.sub(r"\bh\b(?<![+-]h)", str(max(1, block_size // 2)), program)
    return re.sub(r"\b(\d*)b(?:([+-])(\d+|h))?\b", number, half)


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


def grouped(*programs: str, num_blocks: int = 12) -> Lattice:
    """Return the same cases with two groups of unequal block sizes, where groups are claimed."""

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        pairs = _pairs(claims.block_sizes)[: COUNTS[level]] if "groups" in claims.features else []
        return [
            _case(
                manager,
                sized(program, sizes[0]),
                sizes[0],
                block_sizes=f"{sizes[0]},{sizes[1]}",
                num_blocks=_room(num_blocks, {"block_sizes": f"{sizes[0]},{sizes[1]}"}, sizes[0]),
            )
            for program in programs
            for sizes in pairs
        ]

    return cases


def windowed(*programs: str, num_blocks: int = 12) -> Lattice:
    """Return cases with a window that ends inside a block, at its edge, and beyond; also beside no window."""

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        opened: list[tuple[int, dict[str, Any]]] = [
            (size, {"windows": str(window)})
            for size in claims.block_sizes
            for window in sorted({1, size, size + 1, 2 * size - 1})
        ]
        for size, other in _pairs(claims.block_sizes)[: COUNTS[level]] if "groups" in claims.features else []:
            both = {"block_sizes": f"{size},{other}"}
            opened += [
                (size, {**both, "windows": f"0,{other + 1}"}),
                (size, {**both, "windows": f"{size},0"}),
            ]
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


def _pairs(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return each size with the nearest other one; a single size is its own."""
    return [
        (size, min((other for other in sizes if other != size), key=lambda x: abs(x - size), default=size))
        for size in sizes
    ]


def _case(manager: str, program: str, block_size: int = 16, **options: Any) -> Case:
    options = {"num_blocks": options.pop("num_blocks"), **options, PROGRAM: program}
    return Case(verb=manager, seq_lens=(), query_lens=(), block_size=block_size, options=options)

"""Cases of programs for prefix caches, keys and indexes, in any block size, as those for block tables.

A request that is admitted, computed and finished before the next step is written as one step: `serve 1 2 3b`
stands for `admit 1 2 3b; commit 1; finish 1`.
"""

import re
from collections.abc import Iterable
from typing import Any

from kvref_conformance.cases import PROGRAM, Case, Level
from kvref_conformance.claims import Claims
from kvref_conformance.programs.asking import COUNTS, Lattice, at_length, sized


def caches(*programs: str, num_blocks: int = 12, hash_bits: Iterable[int] = ()) -> Lattice:
    """Return the cases of programs for a prefix cache that can hold so many blocks."""

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        count = num_blocks + (claims.choice("null-block") == "reserved")
        more: list[dict[str, Any]] = [{"hash_bits": bits} for bits in hash_bits] or [{}]
        return [
            case_of(manager, sized(served(program), size), size, num_blocks=count, **options)
            for at, program in enumerate(programs)
            for options in more
            for size in sizes_of(claims, level, at)
        ]

    return cases


def crowds(*programs: str, num_blocks: int = 600) -> Lattice:
    """Return cases in a cache of more blocks than a byte counts, in the smallest claimed block size.

    They take long: the quick level has none.
    """

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        size = min(claims.block_sizes)
        count = num_blocks + (claims.choice("null-block") == "reserved")
        return [
            case_of(manager, sized(served(program), size), size, num_blocks=count) for program in programs
        ]

    return at_length(cases)


def prompts(*programs: str) -> Lattice:
    """Return the cases of programs for keys, or for an index."""

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        return [
            case_of(manager, sized(program, size), size)
            for at, program in enumerate(programs)
            for size in sizes_of(claims, level, at)
        ]

    return cases


def sizes_of(claims: Claims, level: Level, at: int) -> tuple[int, ...]:
    """Return the block sizes that a program of a check is run in: the first in all that are claimed."""
    return claims.block_sizes[: None if at == 0 else COUNTS[level]]


def served(program: str) -> str:
    """Return a program with three steps in place of each `serve`."""
    return re.sub(r"serve ((\d+)[^;]*)", r"admit \1; commit \2; finish \2", program)


def case_of(manager: str, program: str, block_size: int, **options: Any) -> Case:
    """Return the case of one program."""
    options = {**options, PROGRAM: program}
    return Case(verb=manager, seq_lens=(), query_lens=(), block_size=block_size, options=options)

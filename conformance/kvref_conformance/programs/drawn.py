"""Drawn programs, for each manager: from a generator of random numbers alone, within the claims.

What a manager is opened with is drawn first, and then a program for it.
"""

import random
from typing import Any

from kvref_conformance.cases import PROGRAM, Case
from kvref_conformance.claims import Claims
from kvref_conformance.programs import drawn_blocks, drawn_geometry, drawn_prefix, drawn_snapshots

#: Managers whose programs `drawn_blocks` draws.
OF_BLOCKS = ("block_allocator", "block_tables")


def draw_case(
    manager: str, rng: random.Random, claims: Claims, operations: tuple[str, ...], length: int
) -> Case:
    """Return a case with a program of about `length` steps, in which only these operations are needed."""
    block_size = rng.choice(claims.block_sizes)
    if manager in OF_BLOCKS:
        options: dict[str, Any] = drawn_blocks.options(manager, rng, claims, block_size)
        program = drawn_blocks.draw(manager, rng, operations, length, block_size, options["num_blocks"])
    elif manager == "snapshot_cache":
        options = drawn_snapshots.options(rng, claims, block_size)
        program = drawn_snapshots.draw(rng, claims, length, block_size)
    elif manager == "cache_geometry":
        options = {}
        program = drawn_geometry.draw(rng, claims, length)
    else:
        options = drawn_prefix.options(manager, rng, claims)
        program = drawn_prefix.draw(manager, rng, claims, length, block_size)
    return Case(
        verb=manager,
        seq_lens=(),
        query_lens=(),
        block_size=block_size,
        options={**options, PROGRAM: program},
    )

"""Cases of programs for snapshot caches: in any block size, with room for so many blocks and states.

A request that is admitted, computed and finished before the next step is written as one step, `serve`.
"""

from typing import Any

from kvref_conformance.cases import Case, Level
from kvref_conformance.claims import Claims
from kvref_conformance.programs.asking import Lattice, sized
from kvref_conformance.programs.asking_caches import case_of, served, sizes_of

SNAPSHOTS = ("snapshot_cache",)


def snapshots(
    *programs: str, num_blocks: int = 16, num_states: int = 16, every: int = 1, window: str = ""
) -> Lattice:
    """Return the cases of programs for a cache whose snapshots are `every` blocks apart.

    `window` is a number of tokens as programs write it, such as `b+1`.
    """

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        null = claims.choice("null-block") == "reserved"
        return [
            case_of(
                manager,
                sized(served(program), size),
                size,
                num_blocks=num_blocks + null,
                num_states=num_states,
                snapshot_interval=every * size,
                **_window(window, size),
            )
            for at, program in enumerate(programs)
            for size in sizes_of(claims, level, at)
        ]

    return cases


def _window(window: str, block_size: int) -> dict[str, Any]:
    return {"window": int(sized(window, block_size))} if window else {}

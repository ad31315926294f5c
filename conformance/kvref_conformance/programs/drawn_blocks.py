"""Drawn programs for allocators and block tables: pools nearly full, many forks, cuts at any position.

What a program remembers of its own steps makes most of them sensible; the rest are passed over.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from kvref_conformance.claims import Claims

#: Allocations and requests that a program names, and steps that are in flight together.
NAMES, IN_FLIGHT = 6, 3
#: What the number of a request may be raised by, so that it is another's if it is cut to 8 or 16 bits.
FAR = (2**8, 2**16)
#: Step of an allocator's program -> how often it is tried, and the operations that it takes.
ALLOCATOR = {
    "allocate": (20, ("allocate",)),
    "rest": (5, ("allocate",)),
    "free": (22, ("free",)),
    "touch": (10, ("touch",)),
    "pin": (5, ("pin",)),
    "unpin": (7, ("unpin",)),
    "begin": (5, ("begin_step", "end_step")),
    "end": (6, ("end_step",)),
    "end_again": (1, ("end_step",)),
    "free_twice": (2, ("free",)),
    "unpin_twice": (2, ("unpin",)),
    "free_again": (3, ("free",)),
    "free_idle": (1, ("free",)),
    **{f"{name}_{how}": (1, (name,)) for how in ("outside", "alias") for name in ("free", "touch")},
    **{f"{name}_{how}": (1, (name,)) for how in ("outside", "alias") for name in ("pin", "unpin")},
    **{f"{name}_null": (1, (name,)) for name in ("free", "touch", "pin", "unpin")},
    **{f"{name}_none": (1, (name,)) for name in ("allocate", "free", "touch", "pin", "unpin")},
    "free_together": (2, ("free", "touch")),
    "touch_together": (1, ("touch",)),
    "pin_together": (1, ("pin", "unpin")),
    "unpin_together": (1, ("pin", "unpin")),
    "touch_idle": (1, ("touch",)),
    "pin_idle": (1, ("pin",)),
    "touch_waiting": (2, ("touch", "begin_step")),
    "free_pinned": (1, ("free", "pin")),
    "touch_pinned": (1, ("touch", "pin")),
    "allocate_negative": (1, ("allocate",)),
    "drain": (1, ("allocate", "free")),
}
#: The same for block tables.
TABLES = {
    "add": (8, ("add",)),
    "append": (32, ("append",)),
    "fill": (5, ("append",)),
    "fork": (12, ("fork",)),
    "truncate": (10, ("truncate",)),
    "prune": (8, ("prune",)),
    "free": (12, ("free",)),
    "add_again": (1, ("add",)),
    "append_unknown": (1, ("append",)),
    "truncate_unknown": (1, ("truncate",)),
    "prune_unknown": (1, ("prune",)),
    "free_unknown": (1, ("free",)),
    "truncate_beyond": (2, ("truncate",)),
    "append_none": (1, ("append",)),
    "add_far": (1, ("add",)),
    "litter": (1, ("fork",)),
    "fork_onto": (1, ("fork",)),
    "fork_unknown": (1, ("fork",)),
    "drain": (1, ("add", "append", "free")),
}


def options(manager: str, rng: random.Random, claims: Claims, block_size: int) -> dict[str, Any]:
    """Return what a manager is opened with beside its block size: few blocks, at times groups and windows."""
    found: dict[str, Any] = {"num_blocks": rng.choice((2, 3, 4, 5, 6, 8, 12))}
    if manager != "block_tables":
        return found
    sizes = [block_size]
    if "groups" in claims.features and rng.random() < 0.5:
        sizes += [rng.choice(claims.block_sizes) for _ in range(rng.choice((1, 1, 2)))]
        found["block_sizes"] = ",".join(map(str, sizes))
        found["num_blocks"] *= len(sizes)
    if "pruning" in claims.features and rng.random() < 0.5:
        windows = [rng.choice((0, rng.randint(1, 2 * size + 1), size, size + 1)) for size in sizes]
        found["windows"] = ",".join(map(str, windows))
    return found


def draw(
    manager: str,
    rng: random.Random,
    operations: tuple[str, ...],
    length: int,
    block_size: int,
    num_blocks: int,
) -> str:
    """Return a program of so many steps."""
    grammar = ALLOCATOR if manager == "block_allocator" else TABLES
    weights = {name: often for name, (often, takes) in grammar.items() if set(takes) <= set(operations)}
    drawn: _Allocations | _Requests
    drawn = _Allocations(rng, num_blocks) if manager == "block_allocator" else _Requests(rng, block_size)
    names, often = list(weights), list(weights.values())
    return "; ".join(drawn.step(name) for name in rng.choices(names, often, k=length))


@dataclass
class _Lot:
    """An allocation: its blocks, how often they are held, and how often pinned."""

    count: int
    holders: int = 1
    pins: int = 0


@dataclass
class _Allocations:
    """Allocations that are held, as far as the program knows."""

    rng: random.Random
    num_blocks: int
    lots: dict[int, _Lot] = field(default_factory=dict)
    past: dict[int, _Lot] = field(default_factory=dict)
    in_flight: list[int] = field(default_factory=list)

    def step(self, name: str) -> str:
        """Return a step of this name, or of another where this one would be passed over."""
        if name == "drain":
            self.lots.clear()
            self.in_flight.clear()
            return name
        if name.endswith("none"):
            return name
        if name in ("allocate_negative", "free_idle"):
            return f"{name} {self.rng.randint(1, 3)}"
        if name in ("touch_idle", "pin_idle"):
            return f"{name} {self._new()} {self.rng.randint(0, 3)}"
        if name == "end_again":
            return f"{name} {self.rng.randrange(IN_FLIGHT)}"
        if name in ("begin", "end"):
            return self._in_flight()
        if name in ("allocate", "rest") or not self.lots:
            return self._allocation("rest" if name == "rest" else "allocate")
        if name in ("free_again", "touch_waiting") and self.past:
            return f"{name} {self._one_of(self.past)}"
        return self._of_a_lot(name)

    def _of_a_lot(self, name: str) -> str:
        pinned = [
            lot
            for lot, held in self.lots.items()
            if held.pins and (not name.endswith("_pinned") or not held.holders)
        ]
        wants_pins = name.startswith("unpin") or name.endswith("_pinned")
        lot = self.rng.choice(pinned if wants_pins and pinned else list(self.lots))
        count = self.lots[lot].count
        if name.endswith(("outside", "null")):
            del self.lots[lot]
            return f"{name} {lot}" + f" {self.rng.choice((0, 1, 5, -1, -2))}" * name.endswith("outside")
        if name in ("free_again", "touch_waiting"):
            name = "free_twice"
        if "_" in name or self.rng.random() < 0.3:
            more = " 2" if name in ("touch_together", "pin_together") else ""
            return f"{name} {lot} {self.rng.randrange(count)}{more}"
        self._note(name, lot)
        return f"{name} {lot}"

    def _one_of(self, lots: dict[int, _Lot]) -> str:
        lot = self.rng.choice(list(lots))
        return f"{lot} {self.rng.randrange(lots[lot].count)}"

    def _new(self) -> int:
        return self.rng.choice([lot for lot in range(NAMES) if lot not in self.lots] or [0])

    def _note(self, name: str, lot: int) -> None:
        held = self.lots[lot]
        held.holders += {"touch": 1, "free": -1}.get(name, 0)
        held.pins += {"pin": 1, "unpin": -1 if held.pins else 0}.get(name, 0)
        if held.holders < 1 and not held.pins:
            self.past[lot] = self.lots.pop(lot)

    def _allocation(self, name: str) -> str:
        lot = self._new()
        free = self.num_blocks - sum(held.count for held in self.lots.values())
        count = free if name == "rest" else self.rng.choice((1, 1, 1, 2, 2, 3, free, free + 1))
        if 0 < count <= free:
            self.lots.setdefault(lot, _Lot(count))
        return f"rest {lot}" if name == "rest" else f"allocate {lot} {max(count, 1)}"

    def _in_flight(self) -> str:
        step = next((step for step in range(IN_FLIGHT) if step not in self.in_flight), None)
        if step is None or (self.in_flight and self.rng.random() < 0.5):
            last = self.rng.choice((0, 0, self.rng.randrange(len(self.in_flight))))
            ended = self.in_flight[last]
            del self.in_flight[: last + 1]
            return f"end {ended}"
        self.in_flight.append(step)
        return f"begin {step}"


@dataclass
class _Requests:
    """Requests and their lengths, as far as the program knows."""

    rng: random.Random
    block_size: int
    lengths: dict[int, int] = field(default_factory=dict)

    def step(self, name: str) -> str:
        """Return a step of this name, or of another where this one would be passed over."""
        if name == "drain":
            self.lengths.clear()
            return name
        free = [request for request in range(NAMES) if request not in self.lengths]
        new = self.rng.choice(free or [0])
        if name.endswith("unknown"):
            return f"{name} {new} {NAMES}" if name == "fork_unknown" else f"{name} {new}"
        if name == "add_far":
            return f"add_far {new + self.rng.choice(FAR)}"
        if (name == "add" and free) or not self.lengths:
            self.lengths[new] = 0
            return f"add {new}"
        old = self.rng.choice(list(self.lengths))
        if name == "fork":
            self.lengths[new] = self.lengths.get(old, 0)
            return f"fork {old} {new}"
        if name == "fork_onto":
            return f"fork_onto {old} {self.rng.choice(list(self.lengths))}"
        if name == "litter":
            return f"{name} {old} {self.rng.choice((1, 2, 5))}"
        if name == "truncate_beyond":
            return f"{name} {old} {self.rng.choice((1, 2, self.block_size, 2**16))}"
        if name in ("append", "truncate"):
            return f"{name} {old} {self._count(name, old)}"
        if name == "free":
            self.lengths.pop(old, None)
        return f"{name} {old}"

    def _count(self, name: str, request: int) -> int:
        """Return a number of tokens: around the edges of blocks, mostly."""
        had, size = self.lengths[request], self.block_size
        if name == "truncate":
            edge = had - had % size
            count = max(0, min(had, self.rng.choice((had - 1, edge, edge - 1, self.rng.randint(0, had)))))
            self.lengths[request] = count
            return count
        count = self.rng.choice(
            (1, 1, 2, size, size + 1, max(1, size - 1), 2 * size + 1, 20 * size, 2**16 + 1)
        )
        self.lengths[request] = had + (count if count < 20 * size else 0)
        return count

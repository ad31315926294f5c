"""Caches whose every element has a code of its own, in any named layout.

Codes are bit patterns: all of them in turn, those of NaN, infinity and negative zero included, so an element
that moved, or passed through arithmetic, shows. Addresses come from `slot_offset`, not from a converter.
"""

from dataclasses import dataclass, field
from itertools import islice, permutations
from math import prod

import numpy as np

from kvref.arrays import Array, dtype_of
from kvref.storage.layouts import LAYOUTS, CacheShape, slot_offset
from kvref_conformance.cases import Case, Level, lattice
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Call, OutputSpec, Scalar

#: An odd number, so that its multiples run through all codes before one returns.
_STEP = 0x9E3779B1
#: Pairs of layouts at level quick.
QUICK_PAIRS = 6


def layout_cases(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Return ordered pairs of claimed layouts that hold the same; dtypes, widths and block sizes in turn."""
    names = [
        name
        for name in claims.layouts
        if name in LAYOUTS and ("x_split" in claims.features or not LAYOUTS[name].splits_channels)
    ]
    pairs = [
        (one, other)
        for one, other in permutations(names, 2)
        if LAYOUTS[one].holds_both == LAYOUTS[other].holds_both
    ]
    points = lattice(claims, verb, level)
    count = {"quick": QUICK_PAIRS, "full": 2 * len(pairs), "exhaustive": len(pairs) * len(points)}[level]
    turns = ((pair, i) for i in range(len(points)) for pair in _turned(pairs, i))
    chosen = list(islice(turns, count))
    return [_case(points[(place + i) % len(points)], *pair) for place, (pair, i) in enumerate(chosen)]


@dataclass(frozen=True)
class CodedCache:
    """One cache of codes, to be seen in several layouts."""

    dtype: str
    shape: CacheShape
    holds_both: bool
    codes: Array = field(repr=False, compare=False)
    """[2 or 1, num_blocks, block_size, num_kv_heads, head_dim]: keys and values, or one of them."""

    @staticmethod
    def of(case: Case) -> "CodedCache":
        """Return the cache of a case that names a source and a target layout."""
        source, target = LAYOUTS[case.option("source")], LAYOUTS[case.option("target")]
        heads = 1 if "record" in (source.name, target.name) else case.num_kv_heads
        blocks = -(-sum(case.seq_lens) // case.block_size)
        shape = CacheShape(
            num_blocks=max(blocks, 1),
            block_size=case.block_size,
            num_kv_heads=heads,
            head_dim=case.head_dim,
            x=16 // dtype_of(case.dtype).itemsize,
        )
        extents = (1 + source.holds_both, shape.num_blocks, shape.block_size, heads, shape.head_dim)
        code = np.dtype(f"u{dtype_of(case.dtype).itemsize}")
        count = np.arange(1 + case.seed, 1 + case.seed + prod(extents), dtype=np.uint64)
        codes = (count * np.uint64(_STEP)).astype(code).reshape(extents)
        return CodedCache(case.dtype, shape, source.holds_both, codes)

    def seen_as(self, layout: str) -> Array:
        """Return the cache in a layout, each element put at its address by formula."""
        kv, block, offset, head, channel = np.ogrid[tuple(slice(0, n) for n in self.codes.shape)]
        at = slot_offset(layout, self.shape, block=block, offset=offset, head=head, channel=channel, kv=kv)
        flat = np.zeros(self.codes.size, self.codes.dtype)
        flat[np.broadcast_to(at, self.codes.shape)] = self.codes
        return flat.view(dtype_of(self.dtype)).reshape(self.extents(layout))

    def extents(self, layout: str) -> tuple[int, ...]:
        """Return the shape of the array that holds the cache in a layout."""
        x = self.shape.x if LAYOUTS[layout].splits_channels else 1
        sizes = {
            "kv": 2,
            "block": self.shape.num_blocks,
            "offset": self.shape.block_size,
            "head": self.shape.num_kv_heads,
            "channel": self.shape.head_dim // x,
            "x": x,
        }
        return tuple(prod(sizes[axis] for axis in dim) for dim in LAYOUTS[layout].dims)

    def present(self, cache: Array, source: str, target: str) -> Call:
        """Return the call of `convert_layout` for this cache as it is given."""
        params: dict[str, Scalar] = {"source": source, "target": target}
        if LAYOUTS[target].splits_channels:
            params["x"] = self.shape.x
        return Call(
            "convert_layout", {"cache": cache}, params, {"out": OutputSpec(self.dtype, self.extents(target))}
        )


def _turned(pairs: list[tuple[str, str]], by: int) -> list[tuple[str, str]]:
    """Begin the list further on, so that pairs meet other dtypes and sizes in the next round."""
    start = by % max(len(pairs), 1)
    return pairs[start:] + pairs[:start]


def _case(point: Case, source: str, target: str) -> Case:
    """Two blocks; three heads where the point has one, so that no two axes have the same extent."""
    return Case(
        verb=point.verb,
        seq_lens=(2 * point.block_size,),
        query_lens=(0,),
        num_kv_heads=point.num_kv_heads if point.num_kv_heads > 1 else 3,
        group=1,
        head_dim=point.head_dim,
        block_size=point.block_size,
        dtype=point.dtype,
        seed=point.seed,
        options={"source": source, "target": target},
    )

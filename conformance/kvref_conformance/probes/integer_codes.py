"""Integers and their zero points: ties, both ends of a range, and which numbers share a scale."""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref.formats.elements import IntElement, element_of
from kvref.formats.format import Format
from kvref.formats.paths import Path
from kvref_conformance.cases import Case
from kvref_conformance.formatted import Reading, Writing, givens
from kvref_conformance.probes import codes, numbers
from kvref_conformance.probes.carriers import Geometry, carried, filled, off_ties
from kvref_conformance.probes.format_cases import kind_of
from kvref_conformance.problems import cast

#: Numbers around and past both ends of int8.
PAST_INT8 = (126.4, 126.6, 127.0, 127.4, 127.6, 128.0, 128.4, 128.6, 129.0, 200.0, 4000.0)
#: Groups of one number each.
CONSTANTS = (0.0, 3.0, -2.5, 0.37, -77.0, 1e-3)
#: Numbers of a group whose zero point lies at a tie: k and a half steps of 1 below zero.
STEPS = 15
#: Powers of ten of the least and the widest range, by the dtype of the scale, or of numbers if that is less.
RANGES = {"float32": (-12.0, 30.0), "float16": (-6.5, 4.7)}


def is_integer(kind: Format) -> bool:
    """Say whether a format has integer codes, one after the other."""
    return isinstance(element_of(kind.element), IntElement) and kind.family in ("amax", "affine")


def is_affine(kind: Format) -> bool:
    """Say whether groups have a zero point."""
    return kind.family == "affine"


def is_int4(kind: Format) -> bool:
    """Say whether the zero point lies in the scale."""
    return kind.name == "int4_token_head"


def may_overflow(kind: Format) -> bool:
    """Say whether a quotient may lie past the ends of the integers."""
    return kind.name in ("int8", "int4_token_head")


def has_axis(kind: Format) -> bool:
    """Say whether groups run along an axis that another format, or another path, does not take."""
    return kind.name.startswith("kivi") or kind.family in ("mx", "nvfp4")


def ties(case: Case, path: Path) -> Writing:
    """Return every half in the range of int8, and the numbers next to it, as far as they fit."""
    kind = kind_of(case)
    found = numbers.near(np.arange(-256, 257) / 2.0, case.dtype)
    x = carried(found, kind, path, case.num_kv_heads, case.head_dim)
    return Writing(kind.name, x, **givens(kind))


def past_the_ends(case: Case, path: Path) -> Writing:
    """Return numbers past both ends; of a format with a zero point, rows on one side of zero."""
    kind = kind_of(case)
    if kind.name == "int8":
        most = 6e4 if case.dtype == "float16" else 1e30
        found = numbers.both_signs(cast(np.array([*PAST_INT8, most]), case.dtype))
        x = carried(found, kind, path, case.num_kv_heads, case.head_dim)
        return Writing(kind.name, x, **givens(kind))
    rng = np.random.default_rng(case.seed + 257)
    shape = (8, case.num_kv_heads, case.head_dim)
    low = np.resize([3.0, -5.0, 0.5, -40.0], (8, 1, 1))
    return Writing(kind.name, cast(low + rng.integers(0, 65, shape) / 32.0, case.dtype))


def zero_points(case: Case, path: Path) -> Writing:
    """Return groups of many ranges: zero points at ties and next to them, and no two alike."""
    kind = kind_of(case)
    geometry = Geometry.of(kind, path, case.num_kv_heads, case.head_dim)
    rng = np.random.default_rng(case.seed + 263)
    low = -numbers.near(np.arange(0.5, STEPS, 1.0), case.dtype).astype(np.float64)
    low = np.concatenate([low, -rng.uniform(0.0, 15.0, 24), rng.uniform(-2000.0, 2000.0, 24)])
    groups = low[:, None] + rng.integers(0, 16 * STEPS + 1, (len(low), geometry.size)) / 16.0
    groups[:, 0], groups[:, -1] = low, low + STEPS
    made = [cast(groups, case.dtype), _extreme(kind, geometry.size, case)]
    if is_int4(kind):
        made.append(_uneven(geometry.size, case))
    return Writing(kind.name, geometry.arrange(np.concatenate(made)))


def _extreme(kind: Format, size: int, case: Case) -> Array:
    """Return groups of ranges from nearly none, below any floor, to the widest that the scale can hold."""
    rng = np.random.default_rng(case.seed + 337)
    least, most = RANGES["float16" if case.dtype == "float16" else kind.scale_element]
    range_of = np.power(10.0, np.concatenate([rng.uniform(least, -4.8, 48), rng.uniform(0, most, 24)]))
    share = rng.uniform(0, 1, (len(range_of), size))
    share[:, 0], share[:, -1] = 0, 1
    places = -rng.uniform(0.4, 0.6, (len(range_of), 1)) + share  # nearly around zero
    return cast(places * range_of[:, None], case.dtype)


def _uneven(size: int, case: Case) -> Array:
    """Return groups of uneven ranges around zero, their numbers near ties of codes of four bits."""
    rng = np.random.default_rng(case.seed + 293)
    low, high = (cast(rng.uniform(0.3, 9.0, (300, 1)), case.dtype).astype(np.float64) for _ in range(2))
    step = (low + high) / STEPS
    zero = np.floor(low / step + 0.5)
    ties = step * (rng.integers(0, STEPS, (300, size - 2)) + 0.5 - zero)
    near = numbers.near(ties.reshape(-1), case.dtype).reshape(300, size - 2, 3)
    turns = rng.integers(0, 3, (300, size - 2, 1))
    inner = np.clip(np.take_along_axis(near, turns, axis=2)[..., 0].astype(np.float64), -low, high)
    return cast(np.concatenate([-low, inner, high], axis=1), case.dtype)


def marked_scales(case: Case, path: Path) -> Reading:
    """Return every code under scales whose low bits hold every zero point."""
    every = codes.every_code(case, path)
    reading = codes.with_codes(codes.template(case, path, max(every.tokens, 16)), every.codes)
    shape = np.asarray(reading.scales).shape
    scales = np.random.default_rng(case.seed + 269).uniform(0.01, 3.0, shape).astype(np.float32)
    marks = np.arange(scales.size, dtype=np.uint32).reshape(shape) * 5 % 16
    bits = scales.view(np.uint32) & np.uint32(0xFFFFFFF0) | marks.astype(np.uint32)
    return replace(reading, scales=bits.view(np.float32))


def outliers(case: Case, path: Path) -> Writing:
    """Return tokens and channels of very different magnitude: groups along the other axis are others."""
    kind = kind_of(case)
    tokens = np.exp2(-(np.arange(64) * 3.0 % 7))[:, None, None]
    heads = np.exp2(-1.0 * np.arange(case.num_kv_heads))[:, None]
    channels = np.exp2(-(np.arange(case.head_dim) * 5.0 % 8))
    signs = np.random.default_rng(case.seed + 271).choice([-5.8, -3.3, 4.4, 6.0], (64, 1, case.head_dim))
    return Writing(kind.name, off_ties(cast(tokens * heads * channels * signs, case.dtype)), **givens(kind))


def constants(case: Case, path: Path) -> Writing:
    """Return groups of one number each, between ordinary ones."""
    kind = kind_of(case)
    geometry = Geometry.of(kind, path, case.num_kv_heads, case.head_dim)
    groups = filled(np.full(2 * geometry.whole, 2.0), geometry.size, case.dtype, case.seed)
    groups[::2] = cast(np.resize(CONSTANTS, len(groups[::2])), case.dtype)[:, None]
    return Writing(kind.name, geometry.arrange(groups))

"""Blocks of bytes as ggml stores them: numbers that bring out each block's rounding, and blocks to read."""

from collections.abc import Callable

import numpy as np

from kvref.arrays import Array
from kvref.formats.format import Format
from kvref.formats.paths import Path
from kvref_conformance.cases import Case
from kvref_conformance.formatted import Reading, Writing
from kvref_conformance.probes import codes, numbers
from kvref_conformance.probes.carriers import Geometry, carried, filled, in_groups
from kvref_conformance.probes.format_cases import kind_of
from kvref_conformance.problems import cast

#: Levels of a block's codes on each side of zero, by which ties of a scale are found.
_LEVELS = {"ggml_q8_0": 127, "ggml_q4_0": 8}
_MIDDLES = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
#: Largest magnitudes, from those whose scale vanishes in float16 to those whose is past its end.
SPREAD = (0.0, 1e-30, 1e-9, 3e-8, 4e-6, 1e-5, 0.003, 0.37, 1.0, 2.9, 6.0, 7.9, 448.0, 2600.0, 3000.0, 6e4)
#: More of them, past all that float16 holds.
FAR = (3e-25, 1e-15, 7e6, 3e9, 1e20, 1e30)
#: Float16 scales of blocks to read: subnormal, uneven, negative, the largest.
_HALVES = (6e-8, 1e-5, 0.37, 1.0, -2.9, 77.0, 65504.0)


def of(name: str) -> Callable[[Format], bool]:
    """Return what says whether a format is the one of a name."""
    return lambda kind: kind.name == name


def hard_blocks(case: Case, path: Path) -> Writing:
    """Return blocks under a scale of 1, with numbers near ties of their scale, and of many magnitudes."""
    kind = kind_of(case)
    geometry = Geometry.of(kind, path, case.num_kv_heads, case.head_dim)
    listed = [numbers.near(np.arange(-256, 257) / 2.0, case.dtype)]
    if kind.name not in _LEVELS:
        listed = [f("e2m1", case.dtype) for f in (numbers.near_ties, numbers.near_subnormals, numbers.zeros)]
    under_one = carried(np.concatenate(listed), kind, path, case.num_kv_heads, case.head_dim)
    spread = [x for x in SPREAD if x == 0 or x > 1e-7] if case.dtype == "float16" else [*SPREAD, *FAR]
    groups = [
        _near_ties(kind, geometry.size, case),
        filled(np.repeat(spread, 3), geometry.size, case.dtype, case.seed),
        -filled(np.array([1.0, 0.7, 6.0]), geometry.size, case.dtype, case.seed + 1),
        _special(geometry.size, case.dtype),
    ]
    whole = geometry.arrange(_in_whole_blocks(np.concatenate(groups), geometry))
    return Writing(kind.name, np.concatenate([under_one, whole]))


def blocks_to_read(case: Case, path: Path) -> Reading:
    """Return blocks with every byte of codes under many scales, those that no writer stores among them."""
    reading = codes.template(case, path, 32)
    head, body = codes.blocks_of(reading)
    body[...] = (np.arange(body.size) * 7 % 256).reshape(body.shape)
    if reading.kind.scale_element == "float16":
        scales = np.resize(np.array(_HALVES, "<f2"), head.shape[:-1])
        head[...] = scales[..., None].view(np.uint8).reshape(head.shape)
    else:
        head[...] = (np.arange(head.size) * 11 % 256).reshape(head.shape)
    return reading


def _near_ties(kind: Format, size: int, case: Case) -> Array:
    """Return groups of uneven magnitude, with numbers at and next to ties of their scale."""
    rng = np.random.default_rng(case.seed + 277)
    count = 160
    amax = cast(rng.uniform(0.05, 9.0, count), case.dtype).astype(np.float64)
    groups = filled(amax, size, case.dtype, case.seed)
    levels = _LEVELS.get(kind.name)
    if levels is None:
        shares = rng.choice(_MIDDLES, (count, size - 4))
        step = 2.0 ** (np.floor(np.log2(amax)) - 2) if kind.name == "ggml_mxfp4" else amax / 6
    else:
        shares = rng.integers(0, levels, (count, size - 4)) + 0.5
        step = amax / levels
    ties = numbers.near((shares * step[:, None]).reshape(-1), case.dtype).reshape(count, -1, 3)
    turn = rng.integers(0, 3, (count, size - 4, 1))
    groups[:, 2:-2] = np.take_along_axis(ties, turn, axis=2)[..., 0] * rng.choice([-1, 1], (count, size - 4))
    groups[:, -1] = np.where(np.arange(count) % 2, -amax, amax)
    return groups


def _special(size: int, dtype: str) -> Array:
    """Return groups of −0, with one number, and with the largest magnitude in both signs, either first."""
    groups = np.zeros((6, size))
    groups[0] = -0.0
    groups[1, 3] = 2.0
    groups[2, 5] = -2.0
    groups[3, 2], groups[3, 7] = 4.0, -4.0
    groups[4, 2], groups[4, 7] = -4.0, 4.0
    groups[5] = 1.0
    return cast(groups, dtype)


def _in_whole_blocks(groups: Array, geometry: Geometry) -> Array:
    """Return groups, the first ones again at the end, so that they fill whole tokens."""
    flat = in_groups(groups.reshape(-1), geometry.size * geometry.whole)
    return flat.reshape(-1, geometry.size)

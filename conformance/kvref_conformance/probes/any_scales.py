"""Scales of every size a dtype leaves room for: none is 1, a power of two, or that of another head or call.

A scale that passes through fewer bits on its way, is held within bounds, or is left over from the last call,
does no harm as long as scales are round and near 1. So there are several calls, each under other scales.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from kvref.arrays import Array, dtype_of
from kvref.formats.elements import FloatElement, element_of, largest
from kvref.formats.format import Format
from kvref.formats.paths import Path
from kvref_conformance.cases import Case, Level
from kvref_conformance.claims import Claims
from kvref_conformance.formatted import SCALES, Reading, Writing
from kvref_conformance.probes import codes, numbers
from kvref_conformance.probes.format_cases import Lattice, kind_of
from kvref_conformance.problems import cast

#: Calls of one case: under scales of heads, and the last ones under one scale for all of them.
TURNS, ALIKE = 6, 2
#: Kv heads, each with a scale of its own; tokens of a writing, and of a reading at least.
HEADS, WRITTEN, READ = 8, 8, 16
#: Powers of ten between which scales lie; those of float16 inputs, of which other scales leave little.
WIDE, NARROW, GLOBAL = (-30.0, 30.0), (-7.0, 3.0), (-8.0, 4.0)
#: A scale below the smallest normal float32, and the divisions that cannot be asked to bear one.
SUBNORMAL, INEXACT = 3.3e-39, ("approximate", "reciprocal")


def with_heads(lattice: Lattice) -> Lattice:
    """Return the cases of a lattice with as many kv heads as there are scales."""

    def cases(claims: Claims, verb: str, level: Level) -> list[Case]:
        return [replace(case, num_kv_heads=HEADS) for case in lattice(claims, verb, level)]

    return cases


def to_divide(case: Case, path: Path, turn: int = 0) -> Writing:
    """Return numbers of which half are near ties of their head's scale, which may be of any size."""
    kind, rng = kind_of(case), np.random.default_rng(1000 * case.seed + turn + 313)
    scales = _given_scales(case, path, turn, rng)
    count = WRITTEN * case.head_dim
    columns = [_quotients(kind, float(scale), case.dtype, count, rng) for scale in scales]
    x = np.stack(columns, axis=1).reshape(WRITTEN, case.head_dim, -1).transpose(0, 2, 1)
    x = np.resize(x, (WRITTEN, HEADS, case.head_dim)) if len(scales) == 1 else x
    return Writing(kind.name, np.ascontiguousarray(x), scales)


def to_read(case: Case, path: Path, turn: int = 0) -> Reading:
    """Return every code under scales and zeros of any size, and products past both ends of the dtype."""
    rng = np.random.default_rng(1000 * case.seed + turn + 317)
    every = codes.every_code(case, path)
    reading = codes.template(case, path, max(every.tokens, READ))
    if reading.kind.family == "ggml":
        return _blocks(reading, rng)
    reading = codes.with_codes(reading, rng.permutation(every.codes.reshape(-1)))
    parts = {name: getattr(reading, name) for name in SCALES}
    if reading.kind.group == "given" and turn < TURNS - ALIKE:
        parts["scales"] = np.ones(case.num_kv_heads, np.float32)
    found: dict[str, Any] = {
        name: _like(part, name, reading, rng) for name, part in parts.items() if part is not None
    }
    if "zeros" in found and found["zeros"].dtype == np.float32:
        found["zeros"] = (found["scales"] * rng.uniform(-20, 20, found["scales"].shape)).astype(np.float32)
    return replace(reading, **found)


def _given_scales(case: Case, path: Path, turn: int, rng: np.random.Generator) -> Array:
    """Return scales `[HEADS]` or `[1]`, some far from what numbers of the dtype need."""
    count, narrow = HEADS if turn < TURNS - ALIKE else 1, case.dtype == "float16"
    powers = rng.uniform(*(NARROW if narrow else WIDE), count)
    if narrow and count > 1 and path.scale_division != "input_scale":  # there they would be 0 and infinite
        powers[rng.permutation(count)[:2]] = rng.uniform(*WIDE, 2)
    scales = np.power(10.0, powers)
    if count > 1 and case.dtype == "float32" and path.scale_division not in INEXACT:
        scales[rng.integers(count)] = SUBNORMAL
    return scales.astype(np.float32)


def _quotients(kind: Format, scale: float, dtype: str, count: int, rng: np.random.Generator) -> Array:
    """Return numbers of a dtype that are a scale times ties, next to such a product, or anywhere in range."""
    points = numbers.magnitudes(kind.element)
    if not isinstance(element_of(kind.element), FloatElement):
        points = np.arange(0.0, largest(kind.element) + 1)
    ties = rng.choice((points[1:] + points[:-1]) / 2, count)
    near = numbers.near(ties * scale, dtype)
    between = np.exp2(rng.uniform(np.log2(points[1]), np.log2(points[-1]), count)) * scale
    with np.errstate(over="ignore"):  # what the dtype cannot hold is left out
        found = np.concatenate([rng.choice(near, count // 2) if len(near) else near, cast(between, dtype)])
    found = found[np.isfinite(found.astype(np.float64))]
    found = found if len(found) else np.ones(1, dtype_of(dtype))
    return np.resize(rng.permutation(numbers.both_signs(found)), count)


def _like(part: Array, name: str, reading: Reading, rng: np.random.Generator) -> Array:
    """Return scales or zeros of any size in the shape and dtype of others."""
    kind = reading.kind
    if part.dtype == np.uint8:
        finite = np.arange(0xFF) if kind.scale_element == "e8m0" else np.delete(np.arange(0xFF), 0x7F)
        return rng.choice(finite, part.shape).astype(np.uint8)
    if part.dtype == np.float16:
        found = np.power(10.0, rng.uniform(-6.5, 4.8, part.shape))
        return (found * (rng.choice([-1, 1], part.shape) if name == "zeros" else 1)).astype(np.float16)
    if name == "global_scale":
        return np.power(10.0, rng.uniform(*GLOBAL, part.shape)).astype(np.float32)
    found = np.where(rng.random(part.shape) < 0.5, *(_sized(part, at, reading, rng) for at in (0, 1)))
    found = found.astype(np.float32)
    if kind.name == "int4_token_head":
        marks = rng.integers(0, 16, part.shape).astype(np.uint32)
        found = (found.view(np.uint32) & np.uint32(0xFFFFFFF0) | marks).view(np.float32)
    return found


def _sized(part: Array, at: int, reading: Reading, rng: np.random.Generator) -> Array:
    """Return scales of any size, or such that products lie around the ends of the dtype read into."""
    if at == 0 or reading.dtype != "float16":
        return np.power(10.0, rng.uniform(*WIDE, part.shape))
    top = 65504.0 / largest(reading.kind.element)
    ends = np.where(rng.random(part.shape) < 0.7, top, 2.0**-24)
    return np.asarray(ends * np.exp2(rng.uniform(-3, 3, part.shape)))


def _blocks(reading: Reading, rng: np.random.Generator) -> Reading:
    """Fill blocks of ggml with codes and scales of any size."""
    head, body = codes.blocks_of(reading)
    body[...] = rng.integers(0, 256, body.shape)
    head[...] = rng.integers(0, 256, head.shape)
    if reading.kind.scale_element == "float16":
        scales = np.power(10.0, rng.uniform(-7, 4.8, head.shape[:-1])) * rng.choice([-1, 1], head.shape[:-1])
        head[...] = scales.astype("<f2")[..., None].view(np.uint8).reshape(head.shape)
    return reading

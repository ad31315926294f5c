"""Where bytes lie and what is read from them: orders of nibbles, layouts of scales, extents, products."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref.formats.elements import FloatElement, element_of, values
from kvref.formats.format import Format
from kvref.formats.ggml import BLOCKS
from kvref.formats.packing import arranged_shape
from kvref.formats.paths import Path
from kvref_conformance.cases import Case
from kvref_conformance.formatted import Reading, Writing, givens
from kvref_conformance.probes import codes
from kvref_conformance.probes.carriers import Geometry, anchors
from kvref_conformance.probes.format_cases import kind_of
from kvref_conformance.problems import cast

#: More rows of scales than a tile has, whatever the heads.
TOKENS = 96
#: Given scales of readings: exact, and uneven.
EXACT, UNEVEN = 0.125, 0.0371


def is_packed(kind: Format) -> bool:
    """Say whether two codes share a byte, in an order of the path."""
    return kind.packed


def is_laid_out(kind: Format) -> bool:
    """Say whether scales lie in a layout of the path."""
    return kind.family in ("mx", "nvfp4")


def is_scaled(kind: Format) -> bool:
    """Say whether codes are multiplied by scales outside of them."""
    return kind.family != "ggml"


def neighbours_apart(case: Case, path: Path) -> Writing:
    """Return numbers of which no two neighbours, and no two in the same place of a group, have one code."""
    kind = kind_of(case)
    geometry = Geometry.of(kind, path, case.num_kv_heads, case.head_dim)
    fixed = anchors(kind)
    if isinstance(element_of(kind.element), FloatElement):
        table = values(kind.element)[np.array([7, 1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14, 15])]
        table = table[np.abs(table) <= abs(fixed[0])].astype(np.float64)
    else:
        table = np.arange(min(fixed), max(fixed) + 1)
    count = 3 * geometry.whole
    turns = np.arange(geometry.size) * 5 + np.arange(count)[:, None] * 3
    groups = table[turns % len(table)]
    for i, anchor in enumerate(fixed):
        groups[np.arange(count), (np.arange(count) * 7 + i) % geometry.size] = anchor
    return Writing(kind.name, geometry.arrange(cast(groups, case.dtype)), **givens(kind))


def distinct_scales(case: Case, path: Path) -> Writing:
    """Return groups each of which has a scale that none near it has, over more rows than a tile has."""
    kind = kind_of(case)
    geometry = Geometry.of(kind, path, case.num_kv_heads, case.head_dim)
    count = TOKENS // (geometry.size if geometry.along_tokens else 1) * geometry.whole
    powers = -(np.arange(count) * 7.0 % 15)
    if kind.family == "nvfp4":
        powers = -(np.arange(count) * 7.0 % 6)
        steps = 1 + np.arange(count) * 5 % 8 / 8
    else:
        steps = np.ones(count)
    signs = np.random.default_rng(case.seed + 281).choice([-0.5, 1.0, 0.75], (count, geometry.size))
    signs[:, 0] = 1.0
    groups = signs * (anchors(kind)[0] * steps * np.exp2(powers))[:, None]
    return Writing(kind.name, geometry.arrange(cast(groups, case.dtype)), **givens(kind))


def distinct_scales_to_read(case: Case, path: Path) -> Reading:
    """Return one code under scales of which no two near each other are alike."""
    kind = kind_of(case)
    reading = codes.with_codes(codes.template(case, path, TOKENS), np.array([2, 3, 2, 5], np.uint8))
    first, many = (0x78, 13) if kind.scale_element == "e8m0" else (0x20, 71)
    scales = np.asarray(reading.scales)
    found = (first + np.arange(scales.size) * 5 % many).astype(np.uint8)
    return replace(reading, scales=found.reshape(scales.shape))


def exact_products(case: Case, path: Path) -> Reading:
    """Return every code under powers of two, small enough that no product is rounded in any dtype."""
    return _products(case, path, exact=True)


def rounded_products(case: Case, path: Path) -> Reading:
    """Return every code under scales whose products no dtype holds."""
    return _products(case, path, exact=False)


def extents(
    kind: Format, path: Path, tokens: int, heads: int, head_dim: int
) -> Mapping[str, tuple[int, ...]]:
    """Return the extents of every tensor a writer returns, by the table of the spec."""
    if kind.family == "ggml":
        block = BLOCKS[kind.name.removeprefix("ggml_")]
        return {"codes": (tokens, heads, head_dim // block.numbers * block.bytes)}
    found: dict[str, tuple[int, ...]] = {"codes": (tokens, heads, head_dim // (2 if kind.packed else 1))}
    if kind.group == "tensor":
        found["scales"] = (1,)
    elif kind.group == "token_head":
        found["scales"] = (tokens, heads)
    elif kind.group != "given":
        found["scales"] = _of_groups(kind, path, tokens, heads, head_dim)
    if kind.zeros:
        found["zeros"] = found["scales"]
    if kind.global_scale in ("tensor", "token_head"):
        found["global_scale"] = (1,) if kind.global_scale == "tensor" else (tokens, heads)
    return found


def _of_groups(kind: Format, path: Path, tokens: int, heads: int, head_dim: int) -> tuple[int, ...]:
    micro = kind.family in ("mx", "nvfp4")
    if kind.group == "tokens" or (micro and path.scale_axis == "tokens"):
        shape: tuple[int, ...] = (tokens // kind.size, heads, head_dim)
    elif kind.family == "mx" and path.mx_span == "flattened":
        shape = (tokens, heads * head_dim // kind.size)
    else:
        shape = (tokens, heads, head_dim // kind.size)
    if micro and path.scale_layout != "linear":
        return arranged_shape(int(np.prod(shape[:-1])), shape[-1], path.scale_layout)
    return shape


def _products(case: Case, path: Path, *, exact: bool) -> Reading:
    every = codes.every_code(case, path)
    reading = codes.with_codes(codes.template(case, path, max(every.tokens, 12)), every.codes)
    rng = np.random.default_rng(case.seed + 283)
    return replace(
        reading,
        scales=_scales_like(reading.scales, reading.kind, rng, exact),
        zeros=_zeros_like(reading.zeros, reading.kind, rng, exact),
        global_scale=_floats_like(reading.global_scale, rng, exact),
    )


def _scales_like(scales: Array | None, kind: Format, rng: np.random.Generator, exact: bool) -> Array | None:
    if scales is None or scales.dtype != np.uint8:
        found = _floats_like(scales, rng, exact)
        if found is not None and kind.name == "int4_token_head":
            marks = rng.integers(0, 16, found.shape).astype(np.uint32)
            found = (found.view(np.uint32) & np.uint32(0xFFFFFFF0) | marks).view(np.float32)
        return found
    if kind.scale_element == "e8m0":
        return rng.integers(0x7D, 0x80, scales.shape).astype(np.uint8)
    some = [0x28, 0x30, 0x38, 0x40] if exact else [0x01, 0x0B, 0x25, 0x3B, 0x4D, 0x7E, 0x33]
    return rng.choice(np.array(some, np.uint8), scales.shape)


def _floats_like(scales: Array | None, rng: np.random.Generator, exact: bool) -> Array | None:
    if scales is None:
        return None
    if exact:
        found = rng.choice([1.0, 0.5, EXACT], scales.shape)
    else:
        found = UNEVEN * rng.uniform(0.3, 60.0, scales.shape)
    return found.astype(scales.dtype)


def _zeros_like(zeros: Array | None, kind: Format, rng: np.random.Generator, exact: bool) -> Array | None:
    if zeros is None:
        return None
    most = 0 if kind.element == "int8" else 8  # the sum of a code of 8 bits and a zero may have 9
    found = rng.integers(-most, most + 1, zeros.shape) / 2.0 if exact else rng.uniform(-9.0, 9.0, zeros.shape)
    return found.astype(zeros.dtype)

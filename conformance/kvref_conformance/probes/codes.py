"""Codes to be read: all of them, under scales of 1, of every size, and of what no number is."""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref.formats.elements import element_of
from kvref.formats.format import Format
from kvref.formats.ggml import BLOCKS
from kvref.formats.paths import Path
from kvref.formats.scaled import unpacked
from kvref_conformance.cases import Case
from kvref_conformance.formatted import SCALES, Reading, Writing, givens, ordinary
from kvref_conformance.probes.carriers import Geometry
from kvref_conformance.probes.format_cases import kind_of

#: Scale bytes that are 1.
ONE = {"e8m0": 0x7F, "e4m3fn": 0x38}
#: Tokens of the longest group along tokens.
_TOKENS = 32


def template(case: Case, path: Path, tokens: int) -> Reading:
    """Return codes of zero under scales of 1, in whole groups of at least so many tokens."""
    kind = kind_of(case)
    plain = replace(path, nibble_order="low_first", scale_layout="linear")
    if Geometry.of(kind, path, case.num_kv_heads, case.head_dim).along_tokens:
        tokens = -(-tokens // _TOKENS) * _TOKENS
    x = ordinary((tokens, case.num_kv_heads, case.head_dim))
    stored = Writing(kind.name, x, **givens(kind)).stored(plain)
    if kind.family == "ggml":
        return _unit_blocks(Reading(kind.name, np.zeros_like(stored.codes), case.dtype))
    ones = {name: _ones(getattr(stored, name), kind, name) for name in SCALES}
    return Reading(kind.name, np.zeros(x.shape, np.uint8), case.dtype, **ones)


def every_code(case: Case, path: Path) -> Reading:
    """Return every byte of codes: every code, and every two that share a byte."""
    kind = kind_of(case)
    if kind.family == "ggml":
        reading = template(case, path, 16)
        _, body = blocks_of(reading)
        body[...] = (np.arange(body.size) % 256).reshape(body.shape)
        return reading
    bits = element_of(kind.element).bits
    every = np.arange(2 ** (8 if kind.packed else bits), dtype=np.uint8)
    if kind.packed:
        every = np.stack([every & 15, every >> 4], axis=1).reshape(-1)
    return with_codes(template(case, path, tokens_for(case, len(every))), every)


def zero_codes(case: Case, path: Path) -> Reading:
    """Return the codes of both zeros, and a number."""
    sign = 1 << (element_of(kind_of(case).element).bits - 1)
    return with_codes(template(case, path, 1), np.array([0, sign, 1, sign, 0, 1 | sign], np.uint8))


def written_by(writing: Writing, path: Path, dtype: str) -> Reading:
    """Return what a writer of a path stores, to be read as numbers of a dtype."""
    plain = replace(path, scale_layout="linear")
    stored = writing.stored(plain)
    scales = {name: getattr(stored, name) for name in SCALES}
    return Reading(writing.format, unpacked(stored, writing.kind, path=plain), dtype, **scales)


def with_codes(reading: Reading, codes: Array) -> Reading:
    """Return the reading with these codes in place of its own, again and again."""
    return replace(reading, codes=np.resize(codes, reading.codes.shape))


def tokens_for(case: Case, count: int) -> int:
    """Return the tokens that hold so many codes."""
    return -(-count // (case.num_kv_heads * case.head_dim))


def blocks_of(reading: Reading) -> tuple[Array, Array]:
    """Return the bytes of scales and those of codes of ggml's blocks, as views, one block a row."""
    block = BLOCKS[reading.format.removeprefix("ggml_")]
    whole = reading.codes.reshape(*reading.codes.shape[:-1], -1, block.bytes)
    return whole[..., : block.scale_bytes], whole[..., block.scale_bytes :]


def _unit_blocks(reading: Reading) -> Reading:
    """Write the scale 1 into blocks of ggml."""
    head, _ = blocks_of(reading)
    one = ONE.get(reading.kind.scale_element)
    head[...] = np.ones(1, "<f2").view(np.uint8) if one is None else one
    return reading


def _ones(stored: Array | None, kind: Format, name: str) -> Array | None:
    """Return scales of 1 and zeros of 0 in the shape and dtype of what a writer has stored."""
    if stored is None:
        return None
    if name == "zeros":
        return np.zeros_like(stored)
    if stored.dtype == np.uint8:
        return np.full_like(stored, ONE[kind.scale_element])
    found = np.ones_like(stored)
    if kind.name == "int4_token_head":  # the zero point of each row lies in its scale
        zeros = (np.arange(found.size, dtype=np.uint32) * 7 % 16).reshape(found.shape)
        return (found.view(np.uint32) | zeros).view(np.float32)
    return found

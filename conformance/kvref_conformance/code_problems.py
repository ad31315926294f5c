"""Contexts of codes: how they lie in a cache of blocks, with their scales, and what the right answer is.

A problem over codes is a problem like any other once it says which numbers its codes stand for. Slots that
must not be read hold codes and scales of their own: numbers far from all others, or no numbers at all.
"""

from dataclasses import dataclass, replace

import numpy as np

from kvref.arrays import Array
from kvref.attention.bounds import Bound
from kvref.attention.bounds.code_cache import quantized_paged_bound
from kvref.attention.masks import VariantArgs
from kvref.attention.merge import State
from kvref.formats.elements import values
from kvref.formats.format import FORMATS, Format, Quantized
from kvref.formats.ggml import BLOCKS
from kvref.formats.packing import arrange_scales
from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Call
from kvref_conformance.problems import Placement, Problem, asked, blank, scattered, viewed

#: What dead slots hold: numbers larger than any other, or none.
FINITE, NOT_A_NUMBER = "numbers", "NaN"
#: A large scale of each scale element, and NaN, or what is nearest to it in blocks of bytes.
_LARGE = {"e8m0": 0x84, "e4m3fn": 0x60, "float32": 32.0, "float16": 32.0}
_NAN = {"e8m0": 0xFF, "e4m3fn": 0x7F, "float32": np.nan, "float16": np.nan}
#: Codes whose numbers are large, in any element.
_CODES = 0x77


@dataclass(frozen=True)
class Poison:
    """What a dead slot holds: a byte of codes, a scale, and a second scale."""

    byte: int
    scale: float
    second: float

    @staticmethod
    def of(kind: Format, what: str) -> "Poison":
        """Return large numbers, or NaN in codes as far as the element has it and in scales."""
        if what == FINITE:
            return Poison(_CODES, _LARGE[kind.scale_element], 8.0)
        not_numbers = np.flatnonzero(np.isnan(values(kind.element)))
        byte = int(not_numbers[0]) if len(not_numbers) else _CODES
        return Poison(byte, _NAN[kind.scale_element], np.nan)


def present_codes(
    problem: Problem, case: Case, placement: Placement, *, lse: bool = False, dead: str = FINITE
) -> Call:
    """Return the call of `quantized_paged_attention` that asks a problem over codes."""
    contexts = problem.codes
    assert contexts is not None
    kind = FORMATS[contexts.format]
    tensors, lengths, params, outputs = asked(problem, lse=lse)
    tables, slot_of, num_blocks = scattered(problem.seq_lens, case.block_size, placement)
    slots = np.concatenate([*slot_of, np.zeros(0, np.int64)]).astype(np.int64)
    poison = Poison.of(kind, dead)
    for side, stored in (("k", contexts.keys), ("v", contexts.values)):
        for name, part, fill in _parts(side, stored, poison):
            cache = part
            if part.ndim > 1:
                cache = np.full((num_blocks * case.block_size, *part.shape[1:]), fill, part.dtype)
                if kind.family == "ggml":
                    _scale_blocks(cache, kind, poison)
                cache[slots] = part
                cache = cache.reshape(num_blocks, case.block_size, *part.shape[1:])
                if part.ndim == 3 and name.endswith("cache"):
                    cache = _lying(cache, name, placement)
            if name == "v_scales" and contexts.interleaved and cache.ndim == 4:
                cache = arrange_scales(cache.swapaxes(1, 2), "interleaved").swapaxes(1, 2).copy()
            tensors[name] = cache
    return Call(
        case.verb,
        {**tensors, "block_tables": tables, **lengths},
        {"format": contexts.format, **params},
        outputs,
    )


def _lying(cache: Array, name: str, placement: Placement) -> Array:
    """Return a cache of codes as the view that a placement asks for."""
    if placement.view:
        return viewed(cache, placement.view, name)
    if placement.block_stride is None:
        return cache
    far = blank(cache.shape[:3], cache.shape[3], "uint8", 0, placement.block_stride)
    far[...] = cache
    return far


def code_bound(problem: Problem, variant: VariantArgs, claims: Claims) -> tuple[State, Bound]:
    """Return the exact answer to a problem over codes and the bound around it, before choices of spelling."""
    contexts = problem.codes
    assert contexts is not None
    kind, path = FORMATS[contexts.format], replace(claims.path(), v_scale_layout="linear")
    count = max(len(contexts.keys.codes), 1)
    arguments: dict[str, Array] = {}
    for side, stored in (("k", contexts.keys), ("v", contexts.values)):
        for name, part, _ in _parts(side, stored, Poison(0, 0.0, 0.0)):
            whole = part if part.ndim == 1 else np.resize(part, (count, *part.shape[1:]))[:, None]
            arguments[name] = whole  # [num_slots, 1, …]: blocks of one slot
    longest = max(int(problem.seq_lens.max(initial=0)), 1)
    tables = np.minimum(problem.context_start_loc[:-1, None] + np.arange(longest)[None, :], count - 1)
    return quantized_paged_bound(
        problem.q,
        format=kind,
        block_tables=tables,
        seq_lens=problem.seq_lens,
        query_start_loc=problem.query_start_loc,
        arithmetic=claims.arithmetic.resolve(problem.dtype),
        path=path,
        **arguments,  # type: ignore[arg-type]  # caches and scales by name
        **variant,
    )


def _parts(side: str, stored: Quantized, poison: Poison) -> list[tuple[str, Array, float]]:
    """Return (argument, tensor, what it holds in dead slots) of keys or values."""
    found: list[tuple[str, Array, float]] = [(f"{side}_cache", stored.codes, poison.byte)]
    if stored.scales is not None:
        found.append((f"{side}_scales", stored.scales, poison.scale))
    if stored.global_scale is not None:
        found.append((f"{side}_global_scale", stored.global_scale, poison.second))
    return found


def _scale_blocks(cache: Array, kind: Format, poison: Poison) -> None:
    """Write the scale of dead slots into blocks of bytes, which hold their own."""
    block = BLOCKS[kind.name.removeprefix("ggml_")]
    head = cache.reshape(*cache.shape[:-1], -1, block.bytes)[..., : block.scale_bytes]
    dtype = "<f2" if kind.scale_element == "float16" else np.uint8
    head[...] = np.resize(np.array([poison.scale], dtype).view(np.uint8), block.scale_bytes)

"""Faults of bytes and products: nibbles, the places of scales, extents, and the steps of reading."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.beside_formats import PACKED, less, named
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.bitwise import Bitwise

_WRITE, _READ = ("quantize_kv",), ("dequantize_kv",)
_BOTH = (*_WRITE, *_READ)


@exhibit(
    as_if="the first of two codes was put in the high bits",
    fault="F12 layout",
    breaks=("KV-FMT-070",),
    may_also_break=less(PACKED, "KV-FMT-070"),
    verbs=_BOTH,
    formats=("mxfp4", "nvfp4"),
)
class HighNibbleFirst(Bitwise):
    """Bytes are written as they are read aloud.

    A plant: one codec has this order, and a docstring of a kernel claims it. Writer and reader agree, so a
    round trip is perfect; the bytes mean something else to everybody else.
    """

    def nibbles(self, count: int, size: int) -> tuple[Array, Array]:
        """Exchange the two halves."""
        low, high = super().nibbles(count, size)
        return high, low


@exhibit(
    as_if="scales were read through the tiles of a matrix unit where they lie in order",
    fault="F12 layout",
    seen_in=("modular/modular#6600",),
    breaks=("KV-FMT-071",),
    may_also_break=named(1, 36, 37, 41, 73, 80, 81),
    verbs=_READ,
    formats=("mxfp4", "nvfp4"),
)
class ScalesTiledAgain(Bitwise):
    """A loader arranges scales for the hardware that are arranged already, or should not be.

    Both of two paths produced the same garbage to the byte, since the scales were shuffled before either.
    """

    def read(self, codes: Array, format: str, dtype: np.dtype[Any], scales: Any = None, *rest: Any) -> Array:
        """Read row m and group k at the place where a tile of 128 by 4 has them."""
        rows = scales.reshape(-1, scales.shape[-1])
        places = self.scale_places(len(rows), rows.shape[1], "tiled_128x4") % rows.size
        return super().read(codes, format, dtype, rows.reshape(-1)[places].reshape(scales.shape), *rest)


@exhibit(
    as_if="scales that lie in tiles were written row by row",
    fault="F12 layout",
    breaks=("KV-FMT-071",),
    may_also_break=less(PACKED, "KV-FMT-071"),
    verbs=_WRITE,
    formats=("mxfp4", "nvfp4"),
    choices={"scale-layout": "tiled_128x4"},
)
class TilesLeftOut(Bitwise):
    """The tensor has the extents of whole tiles, and the scales lie in it in order.

    A plant of an allocation that was changed and a loop that was not.
    """

    def tiled(self, scales: Array) -> Array:
        """Fill the tensor from its start."""
        tiles = np.zeros_like(super().tiled(scales))
        tiles.reshape(-1)[: scales.size] = scales.reshape(-1)
        return tiles


@exhibit(
    as_if="a row had the bytes of its codes and none for its scales",
    fault="F12 layout",
    seen_in=("ikawrakow/ik_llama.cpp#680", "ovg-project/kvcached#424"),
    breaks=("KV-FMT-072",),
    may_also_break=(
        *less(PACKED, "KV-FMT-072"),
        *("KV-FMT-060", "KV-ATTN-100", "KV-ATTN-101", "KV-ATTN-102"),  # no call of it is answered as asked
    ),
    verbs=_WRITE,
    formats=("ggml_q8_0",),
)
class RowWithoutItsScales(Bitwise):
    """The size of a row is its numbers times the size of a number.

    The formula was made for formats whose scales lie elsewhere. Where a row carries them inside, every stride
    after the first row is wrong.
    """

    def stored(self, coded: Any, kind: Any) -> Any:
        """Return as many bytes as there are numbers."""
        right = super().stored(coded, kind)
        return right._replace(codes=right.codes[..., : right.codes.shape[-1] // 34 * 32])


@exhibit(
    as_if="the product was formed in float16",
    fault="F11 overflow",
    breaks=("KV-FMT-081",),
    may_also_break=named(1, 20, 22, 36, 41, 73, 80),
    verbs=_READ,
    formats=("mxfp8_e4m3", "fp8_e4m3_token_head"),
)
class ProductInFloat16(Bitwise):
    """Numbers pass through float16 on their way to bfloat16 or float32.

    A plant: the only conversion the hardware has leads there. A scale past 65504 is infinite, and one below
    2^-24 is zero.
    """

    def product(self, numbers: Array, scales: Array, dtype: np.dtype[Any]) -> Array:
        """Multiply in float16."""
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            return np.asarray((numbers.astype(np.float16) * scales.astype(np.float16)).astype(dtype))


@exhibit(
    as_if="code and scale were rounded to the dtype of the output and multiplied there",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-081",),
    may_also_break=("KV-FMT-020", "KV-FMT-022", "KV-FMT-036", "KV-FMT-073", "KV-FMT-080"),
    verbs=_READ,
    formats=("fp8_e4m3", "fp8_e4m3_token_head"),
    dtypes=("bfloat16", "float16"),
)
class ProductInOutputDtype(Bitwise):
    """The scale is rounded before it is used.

    A plant, of a choice that was not declared: exact for powers of two, for which the kernel was made.
    """

    def product(self, numbers: Array, scales: Array, dtype: np.dtype[Any]) -> Array:
        """Round both, multiply, round."""
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            return np.asarray(numbers.astype(dtype) * scales.astype(dtype))


@exhibit(
    as_if="the two scales were multiplied first",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-081",),
    may_also_break=("KV-FMT-073",),
    verbs=_READ,
    formats=("nvfp4", "nvfp4_token_head"),
)
class ScalesMultipliedFirst(Bitwise):
    """The product of both scales is formed once a group, and rounded.

    A plant, of a choice that was not declared. One rounding more moves the last bit.
    """

    def says(self, decision: str) -> str:
        """Answer that one otherwise."""
        return "scales_first" if decision == "nvfp4-decode-order" else super().says(decision)


@exhibit(
    as_if="numbers came back one step of the element too small",
    fault="F01 boundary",
    breaks=("KV-FMT-100",),
    may_also_break=less(PACKED, "KV-FMT-100"),
    verbs=_WRITE,
    formats=("fp8_e4m3_token_head", "mxfp8_e4m3"),
)
class OneCodeTooLow(Bitwise):
    """Every code is the one below the nearest.

    A plant: a table that is searched from the wrong end. It is a smaller error than the format itself makes
    over a range of four bits, and a test that compares means passes.
    """

    def rounded(self, size: Array, fields: Any, element: str) -> Array:
        """Step down."""
        return np.asarray(np.maximum(super().rounded(size, fields, element) - 1, 0))


@exhibit(
    as_if="tokens past the 1024th were not read",
    fault="F01 boundary",
    breaks=("KV-FMT-073",),
    verbs=_READ,
    formats=("fp8_e4m3", "nvfp4_token_head", "ggml_q8_0"),
)
class TokensPastTheGrid(Bitwise):
    """One row of threads for each token, and no more of them than a block can have.

    A plant. A decode step is never that long, and a prompt is only in tests that somebody waits for. What is
    not read is what the memory held, zeros most of the time.
    """

    def read(self, *stored: Any, **options: Any) -> Array:
        """Leave zeros for the rest."""
        right = super().read(*stored, **options)
        right[1024:] = 0
        return right

"""Calls that name a format: what is written or read, how the verbs present it, and the right answer.

A writing is numbers and what a format is given with them; a reading is codes and scales. Under a path either
has one answer, to the bit.

Realises: KV-CONF-004 named-choices.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from kvref.arrays import Array, dtype_name
from kvref.errors import KVError
from kvref.formats.format import FORMATS, Format, Quantized
from kvref.formats.packing import arrange_scales, pack
from kvref.formats.paths import Path
from kvref.formats.scaled import decoded, quantize
from kvref_conformance.contracts import Call, OutputSpec

#: What a writer stores beside codes, in the order of the contract.
SCALES = ("scales", "zeros", "global_scale")


#: Numbers of kv heads, in the order in which they are tried: groups may fill two heads and not three.
KV_HEADS = (3, 2)


@dataclass(frozen=True)
class Writing:
    """Numbers to be quantised."""

    format: str
    x: Array
    """[num_tokens, num_kv_heads, head_dim]"""
    scales: Array | None = None
    """float32 [1] or [num_kv_heads], where the format is given them."""
    global_scale: Array | None = None
    """float32 [1], where the format is given it."""

    @property
    def kind(self) -> Format:
        """The format itself."""
        return FORMATS[self.format]

    @property
    def dtype(self) -> str:
        """The dtype of the numbers."""
        return dtype_name(self.x)

    @property
    def tokens(self) -> int:
        """How many tokens are written."""
        return len(self.x)

    def part(self, first: int, count: int) -> "Writing":
        """Return the writing of some consecutive tokens."""
        return replace(self, x=np.ascontiguousarray(self.x[first : first + count]))

    def stored(self, path: Path) -> Quantized:
        """Return what a writer of a path stores.

        Raises: FormatError if the path refuses these numbers.
        """
        return quantize(self.x, self.kind, scales=self.scales, global_scale=self.global_scale, path=path)

    def call(self, path: Path) -> Call:
        """Return the call of `quantize_kv`, for what a writer of a path returns."""
        made = replace(self, x=ordinary(self.x.shape)).stored(path)
        return self.call_for(outputs_of(made, self.kind))

    def call_for(self, outputs: Mapping[str, Array]) -> Call:
        """Return the call of `quantize_kv`, for outputs of these extents."""
        tensors = {"x": self.x, "scales": self.scales, "global_scale": self.global_scale}
        return Call(
            "quantize_kv",
            {name: tensor for name, tensor in tensors.items() if tensor is not None},
            {"format": self.format},
            {name: OutputSpec(dtype_name(x), x.shape) for name, x in outputs.items()},
        )


@dataclass(frozen=True)
class Reading:
    """Codes to be dequantised."""

    format: str
    codes: Array
    """One a byte, [num_tokens, num_kv_heads, head_dim]; of ggml's formats the bytes of blocks."""
    dtype: str
    """Of the numbers that come back."""
    scales: Array | None = None
    """In the order of groups, whatever the layout of a path."""
    zeros: Array | None = None
    global_scale: Array | None = None

    @property
    def kind(self) -> Format:
        """The format itself."""
        return FORMATS[self.format]

    @property
    def tokens(self) -> int:
        """How many tokens are read."""
        return len(self.codes)

    def part(self, first: int, count: int) -> "Reading":
        """Return the reading of some consecutive tokens, with their own scales."""
        taken: dict[str, Any] = {"codes": self.codes[first : first + count]}
        for name in SCALES:
            tensor = getattr(self, name)
            if tensor is not None and tensor.ndim > 1:
                tokens = self.tokens // len(tensor)  # that share a row of scales
                taken[name] = np.ascontiguousarray(tensor[first // tokens : (first + count) // tokens])
        return replace(self, **taken)

    def stored(self, path: Path) -> Quantized:
        """Return the codes and scales as a writer of a path stores them."""
        codes, scales = self.codes, self.scales
        if self.kind.packed:
            codes = pack(codes, path.nibble_order, self.kind.size or codes.shape[2])
        if self.kind.family in ("mx", "nvfp4") and path.scale_layout != "linear" and scales is not None:
            scales = arrange_scales(scales.reshape(-1, scales.shape[-1]), path.scale_layout)
        return Quantized(codes, scales, self.zeros, self.global_scale)

    def numbers(self, path: Path) -> Array:
        """Return what a reader of a path gets, [num_tokens, num_kv_heads, head_dim]."""
        return decoded(self.stored(path), self.kind, dtype=self.dtype, path=path)

    def call(self, path: Path) -> Call:
        """Return the call of `dequantize_kv`."""
        stored = self.stored(path)
        tensors = {name: getattr(stored, name) for name in ("codes", *SCALES)}
        return Call(
            "dequantize_kv",
            {name: tensor for name, tensor in tensors.items() if tensor is not None},
            {"format": self.format, "dtype": self.dtype},
            {"out": OutputSpec(self.dtype, self.numbers(path).shape)},
        )


def outputs_of(stored: Quantized, kind: Format) -> Mapping[str, Array]:
    """Return what comes back from a writer of a format, in order: codes, and what it was not given."""
    given = {"scales": kind.group == "given", "global_scale": kind.global_scale == "given"}
    found = {"codes": stored.codes}
    for name in SCALES:
        if getattr(stored, name) is not None and not given.get(name):
            found[name] = getattr(stored, name)
    return found


def givens(kind: Format, heads: int = 1, scale: float = 1.0) -> dict[str, Array]:
    """Return the arguments that a format is given, all the same number."""
    found = {}
    if kind.group == "given":
        found["scales"] = np.full(heads, scale, np.float32)
    if kind.global_scale == "given":
        found["global_scale"] = np.full(1, scale, np.float32)
    return found


@lru_cache(maxsize=4096)
def fits(name: str, path: Path, heads: int, head_dim: int) -> bool:
    """Say whether a format has whole groups, and bytes, in vectors of this width under a path."""
    kind = FORMATS[name]
    try:
        Writing(name, ordinary((32, heads, head_dim)), **givens(kind)).stored(path)
    except KVError:
        return False
    return True


def is_split(kind: Format, heads: int, head_dim: int) -> bool:
    """Say whether groups fill so many heads together, and none of them alone: to be refused, or flattened."""
    return kind.family == "mx" and head_dim % kind.size != 0 and heads * head_dim % kind.size == 0


def ordinary(shape: tuple[int, ...]) -> Array:
    """Return numbers that no path refuses: no group of them is constant."""
    return (np.arange(np.prod(shape)).reshape(shape) % 7).astype(np.float32)

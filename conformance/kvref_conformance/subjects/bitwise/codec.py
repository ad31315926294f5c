"""The verbs of formats: a name says which writer and which reader, and whether nibbles share bytes."""

from typing import Any

import numpy as np

from kvref.arrays import Array, dtype_of
from kvref_conformance.subjects.bitwise.coded import Coded
from kvref_conformance.subjects.bitwise.ggml import Ggml
from kvref_conformance.subjects.bitwise.kinds import Kind, kind_of
from kvref_conformance.subjects.bitwise.mx import MX
from kvref_conformance.subjects.bitwise.nvfp4 import NVFP4
from kvref_conformance.subjects.bitwise.packing import Packing


class Codec(MX, NVFP4, Ggml, Packing):
    """Writing and reading numbers `[num_tokens, num_kv_heads, head_dim]`."""

    def quantize_kv(
        self, x: Array, *, format: str, scales: Array | None = None, global_scale: Array | None = None
    ) -> Any:
        """Return codes, and what the format computes itself."""
        kind = kind_of(format)
        coded = self.stored(self.write(x, kind, format, scales, global_scale), kind)
        parts = tuple(part for part in coded if part is not None)
        return parts if len(parts) > 1 else parts[0]

    def write(
        self, x: Array, kind: Kind, name: str, scales: Array | None, global_scale: Array | None
    ) -> Coded:
        """Return codes, one a byte, and scales in order."""
        if kind.family == "amax":
            return self.write_amax(x, kind, scales)
        if kind.family == "mx":
            return self.write_mx(x, kind)
        if kind.family == "nvfp4":
            return self.write_nvfp4(x, kind, global_scale)
        return self.write_affine(x, kind) if kind.family == "affine" else self.write_ggml(x, kind, name)

    def stored(self, coded: Coded, kind: Kind) -> Coded:
        """Return codes as they share bytes, scales as they are laid out."""
        if kind.packed:
            coded = coded._replace(codes=self.packed(coded.codes, kind.size or coded.codes.shape[-1]))
        if coded.scales is not None and self.laid_out(kind):
            coded = coded._replace(scales=self.tiled(coded.scales))
        return coded

    def laid_out(self, kind: Kind) -> bool:
        """Say whether scales have a layout other than the order of their groups."""
        return kind.family in ("mx", "nvfp4") and self.says("scale-layout") == "tiled_128x4"

    def dequantize_kv(
        self,
        codes: Array,
        *,
        format: str,
        dtype: str,
        scales: Array | None = None,
        zeros: Array | None = None,
        global_scale: Array | None = None,
    ) -> Array:
        """Return numbers of a dtype."""
        return self.read(codes, format, dtype_of(dtype), scales, zeros, global_scale)

    def read(
        self,
        codes: Array,
        format: str,
        dtype: np.dtype[Any],
        scales: Any = None,
        zeros: Array | None = None,
        global_scale: Any = None,
    ) -> Array:
        """Return the numbers of stored bytes, in a dtype."""
        kind = kind_of(format)
        if kind.family == "ggml":
            return self.read_ggml(codes, format, dtype)
        plain = self.unpacked(codes, kind.size or 2 * codes.shape[-1]) if kind.packed else codes
        if self.laid_out(kind) and scales.ndim == 2:  # scales that belong to slots have no such layout
            scales = self.untiled(scales, self.scale_shape(plain, kind))
        if kind.family == "amax":
            return self.read_amax(plain, kind, scales, dtype)
        if kind.family == "mx":
            return self.read_mx(plain, kind, scales, dtype)
        if kind.family == "nvfp4":
            return self.read_nvfp4(plain, kind, scales, global_scale, dtype)
        return self.read_affine(plain, kind, scales, zeros, dtype)

    def scale_shape(self, codes: Array, kind: Kind) -> tuple[int, ...]:
        """Return the shape of scales in the order of their groups."""
        return self.grouped(codes, kind).shape[:-1]

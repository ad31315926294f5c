"""NVFP4: groups of 16 E2M1 elements under an E4M3 scale, and one float32 scale above those."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.errors import FormatError
from kvref_conformance.subjects.bitwise.amax import Amax, one_step_off, refuse_infinite
from kvref_conformance.subjects.bitwise.coded import Coded
from kvref_conformance.subjects.bitwise.floats import INFINITE, bits_of, from_bits
from kvref_conformance.subjects.bitwise.kinds import Kind

ONE = np.float32(1)


class NVFP4(Amax):
    """Two levels of scales. `g` multiplies when a number is read; `1/g` is its encode scale."""

    def write_nvfp4(self, x: Array, kind: Kind, global_scale: Array | None) -> Coded:
        """Return codes, E4M3 scales, and the global scale where it is not given."""
        given = global_scale is not None
        if global_scale is None:
            refuse_infinite(x)
            global_scale = self.own_global(x, kind)
        groups = self.grouped(x.astype(np.float32), kind)
        codes, scales = self.best(groups, self.over_groups(global_scale, kind), x.dtype)
        lost = self.lost(groups)
        codes = self.ungrouped(np.where(lost[..., None], 0, codes).astype(np.uint8), kind, x.shape[1])
        scales = np.where(lost, 0x7F, scales).astype(np.uint8)
        return Coded(codes, scales, None, None if given else global_scale)

    def lost(self, groups: Array) -> Array:
        """Say which groups are NaN as a whole."""
        broken = np.isnan(groups).any(axis=-1)
        return np.asarray(broken) & (self.says("nvfp4-nan-group") == "nan")

    def own_global(self, x: Array, kind: Kind) -> Array:
        """Return the global scale of a tensor `[1]` or of each vector `[num_tokens, num_kv_heads]`."""
        wide = x.astype(np.float32)
        amax = self.amax(wide.reshape(1, -1) if kind.global_scale == "tensor" else wide)
        rule = self.says("nvfp4-global")
        if rule == "unit":
            return np.ones_like(amax)
        return self.global_from(amax, np.float32(rule.partition("/")[2]))

    def global_from(self, amax: Array, most: np.float32) -> Array:
        """Return the scale that leads from `most` to the largest size, or the inverse if that is stored."""
        with np.errstate(divide="ignore", over="ignore"):
            return most / amax if self.says("nvfp4-operand") == "encode" else amax / most

    def inverse(self, scale: Array) -> Array:
        """Return 1 / scale in float32."""
        with np.errstate(divide="ignore", over="ignore"):
            return ONE / np.asarray(scale, np.float32)

    def over_groups(self, global_scale: Array, kind: Kind) -> Array:
        """Return a global scale so that it stands beside scales of groups."""
        one = np.asarray(global_scale, np.float32)
        if one.ndim > 1 and self.axis_of(kind) == "tokens":
            raise FormatError("a global scale a token, expected groups of channels, not of tokens")
        return one if one.ndim == 1 else one[..., None]

    def decode_scale(self, passed: Array) -> Array:
        """Return g, from what is passed."""
        return self.inverse(passed) if self.says("nvfp4-operand") == "encode" else passed

    def encode_scale(self, passed: Array) -> Array:
        """Return 1/g, from what is passed."""
        return passed if self.says("nvfp4-operand") == "encode" else self.inverse(passed)

    def best(self, groups: Array, passed: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
        """Return codes and scale codes, the largest number of a group at 6, or at 4 where that is nearer."""
        six = self.coded_group(groups, passed, 6, dtype)
        if self.says("nvfp4-largest") == "six":
            return six
        four = self.coded_group(groups, passed, 4, dtype)
        better = self.error(groups, *four, passed) < self.error(groups, *six, passed)
        return np.where(better[..., None], four[0], six[0]), np.where(better, four[1], six[1])

    def error(self, groups: Array, codes: Array, scales: Array, passed: Array) -> Array:
        """Return the squared error of groups."""
        scale = self.read_float(scales, "e4m3fn").astype(np.float64) * self.decode_scale(passed)
        apart = groups - self.read_float(codes, "e2m1") * scale[..., None]
        return np.asarray((apart**2).sum(axis=-1))

    def coded_group(
        self, groups: Array, passed: Array, largest: int, dtype: np.dtype[Any]
    ) -> tuple[Array, Array]:
        """Return the codes and the scale codes of groups whose maximum becomes `largest`."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
            amax = self.number_amax(groups)
            wanted = self.wanted_scale(amax, passed, np.float32(largest), dtype)
            scales = self.floored_code(self.group_scale(wanted), wanted)
            s = self.read_float(scales, "e4m3fn")
            numbers = self.under(groups, s[..., None], passed[..., None])
            if self.says("nvfp4-tiny-group") == "signed_zero":
                numbers = np.where((s == 0)[..., None], groups * np.float32(0), numbers)
        gone = ((s == 0) & self.vanishes(amax))[..., None]
        defined = ~np.isnan(groups)
        numbers = np.where(np.isnan(numbers) & defined, np.float32(np.nan), numbers)  # 0 / 0 has no sign
        numbers = np.where(np.isnan(numbers) & (amax == 0)[..., None] & defined, groups, numbers)
        codes = self.write_float(np.where(gone & defined, np.float32(0), numbers), "e2m1")
        return np.where(gone, 0, codes).astype(np.uint8), scales

    def number_amax(self, groups: Array) -> Array:
        """Return the largest size in each group; NaN counts for nothing."""
        size = bits_of(groups) & 0x7FFFFFFF
        return from_bits(np.where(size > INFINITE, 0, size).max(axis=-1))

    def wanted_scale(self, amax: Array, passed: Array, largest: np.float32, dtype: np.dtype[Any]) -> Array:
        """Return the scale of a group before it is rounded to E4M3; that of a group of zeros is 0."""
        rule = self.says("nvfp4-division")
        share = amax / largest
        if self.says("scale-division") == "input":
            share = share.astype(dtype).astype(np.float32)
        if rule == "two_reciprocals":
            wanted = share / self.decode_scale(passed)
        elif rule == "encode":
            wanted = share * self.encode_scale(passed)
        else:
            wanted = amax / (largest * self.decode_scale(passed))
        return np.where(amax == 0, np.float32(0), wanted)

    def group_scale(self, wanted: Array) -> Array:
        """Return the code of a group's scale."""
        return self.write_float(wanted, "e4m3fn", saturate=True)

    def floored_code(self, scales: Array, wanted: Array) -> Array:
        """Return scale codes, those below the declared least replaced: positive codes are in order."""
        rule = self.says("nvfp4-scale-floor")
        if rule == "smallest":
            return np.maximum(scales, 0x01).astype(np.uint8)
        if rule == "smallest_normal":
            return np.maximum(scales, 0x08).astype(np.uint8)
        if rule == "epsilon":
            return np.where(scales == 0, 0x20, scales).astype(np.uint8)
        if rule == "one":
            return np.where(wanted == 0, 0x38, np.maximum(scales, 0x01)).astype(np.uint8)
        return scales

    def under(self, x: Array, s: Array, passed: Array) -> Array:
        """Return numbers divided by both scales."""
        rule, g = self.says("nvfp4-division"), self.decode_scale(passed)
        if rule == "divide":
            return np.asarray(x / (s * g))
        if rule == "two_reciprocals":
            return x * (self.encode_scale(passed) / s)
        if rule == "encode":
            return x / (s / self.encode_scale(passed))
        if rule == "approximate":
            return one_step_off(np.asarray(x / (s * g)))
        return np.asarray(x * (ONE / (s * g)))

    def vanishes(self, amax: Array) -> Array:
        """Say which groups have codes of 0 if their scale is 0; those of others are infinite quotients."""
        rule = self.says("nvfp4-tiny-group")
        return np.asarray((amax == 0) & (rule == "largest")) | (rule == "zero")

    def read_nvfp4(
        self, codes: Array, kind: Kind, scales: Array, global_scale: Array, dtype: np.dtype[Any]
    ) -> Array:
        """Return numbers of a dtype."""
        e = self.grouped(self.read_float(codes, kind.element), kind)
        s = self.read_float(scales, "e4m3fn")[..., None]
        passed = self.over_groups(global_scale, kind)[..., None]
        with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
            if self.says("decode-dtype") == "output":
                e, s, passed = (part.astype(dtype) for part in (e, s, passed))
            if self.says("nvfp4-decode-order") == "scales_first":
                number = e * self.times_global(s, passed)
            else:
                number = self.times_global(e * s, passed)
        return self.ungrouped(number.astype(dtype), kind, codes.shape[1])

    def times_global(self, x: Array, passed: Array) -> Array:
        """Return numbers times g: divided by what is passed where that is 1/g."""
        return x / passed if self.says("nvfp4-operand") == "encode" else x * passed

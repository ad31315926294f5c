"""ggml's records: a scale and the codes it belongs to, in one run of bytes."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.errors import FormatError
from kvref_conformance.subjects.bitwise.affine import ONE, Affine
from kvref_conformance.subjects.bitwise.amax import refuse_infinite
from kvref_conformance.subjects.bitwise.coded import Coded
from kvref_conformance.subjects.bitwise.exponents import split
from kvref_conformance.subjects.bitwise.floats import bits_of
from kvref_conformance.subjects.bitwise.kinds import Kind

#: E2M1 as ggml holds it: twice the numbers, so that they are integers; −0 is 0.
DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
#: Format -> the bytes of a record, and those of its scales.
RECORDS = {"ggml_q8_0": (34, 2), "ggml_q4_0": (18, 2), "ggml_mxfp4": (17, 1), "ggml_nvfp4": (36, 4)}


class Ggml(Affine):
    """Rows of records along head_dim."""

    def write_ggml(self, x: Array, kind: Kind, name: str) -> Coded:
        """Return records `[num_tokens, num_kv_heads, bytes]`."""
        refuse_infinite(x)
        groups = self.grouped(x.astype(np.float32), kind)
        writers = {
            "ggml_q8_0": self.q8_0,
            "ggml_q4_0": self.q4_0,
            "ggml_mxfp4": self.ggml_mxfp4,
            "ggml_nvfp4": self.ggml_nvfp4,
        }
        with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
            records = np.concatenate(writers[name](groups), axis=-1)
        return Coded(records.reshape(*x.shape[:2], -1))

    def q8_0(self, x: Array) -> tuple[Array, Array]:
        """Return float16 scales and int8 codes."""
        amax = self.amax(x)
        scales = amax / np.float32(127)
        factor = ONE / scales if self.says("q8-0-reciprocal") == "of_scale" else np.float32(127) / amax
        ratio = np.where(x == 0, np.float32(0), x * factor[..., None])
        return half_bytes(scales), self.write_integer(np.clip(ratio, -127, 127), "int8")

    def q4_0(self, x: Array) -> tuple[Array, Array]:
        """Return float16 scales and nibbles: the first extreme becomes the lowest code."""
        scales = self.extreme(x) / np.float32(-8)
        lifted = self.multiplied_and_moved(x, (ONE / scales)[..., None], np.array([8.5], np.float32))
        lifted = np.where(x == 0, np.float32(8.5), lifted)
        return half_bytes(scales), self.halves(np.clip(np.trunc(lifted), 0, 15).astype(np.uint8))

    def extreme(self, x: Array) -> Array:
        """Return the first number of largest size in each record, with its sign; +0 for a record of zeros."""
        first = np.argmax(bits_of(x) & 0x7FFFFFFF, axis=-1)
        return np.take_along_axis(x, first[..., None], axis=-1)[..., 0] + np.float32(0)

    def ggml_mxfp4(self, x: Array) -> tuple[Array, Array]:
        """Return E8M0 scales and nibbles."""
        amax = self.amax(x)
        exponent = self.record_exponent(amax)
        byte = np.where(amax == 0, 0, np.clip(exponent - 2 + 127, 0, 255))
        half = np.ldexp(ONE, (byte - 128).astype(np.int32))
        return byte[..., None].astype(np.uint8), self.halves(self.nearest(x, half[..., None]))

    def record_exponent(self, amax: Array) -> Array:
        """Return ⌊log₂ amax⌋ from its bits, or from a rounded logarithm where that is declared."""
        if self.says("mx-exponent") == "log2":
            log = np.log2(amax.astype(np.float64)).astype(np.float32)
            return np.clip(np.floor(log), -512, 128).astype(np.int64)
        return split(amax)[0]

    def ggml_nvfp4(self, x: Array) -> tuple[Array, Array]:
        """Return four unsigned E4M3 scales a record, and nibbles."""
        groups = x.reshape(*x.shape[:-1], 4, 16)
        scales = self.record_scale(self.amax(groups) / np.float32(6))
        half = self.read_record_scale(scales) / np.float32(2)
        nibbles = self.halves(self.nearest(groups, half[..., None]))
        return scales, nibbles.reshape(*x.shape[:-1], 32)

    def record_scale(self, x: Array) -> Array:
        """Return unsigned E4M3 codes, ties up; no subnormal reaches 0x08, and from 0x78 on there is 448."""
        word = bits_of(x)
        normal = ((word + (1 << 19)) >> 20) - (120 << 3)
        normal = np.where(normal >= 0x78, 0x7E, normal)
        small = np.trunc(np.minimum(x, ONE) * np.float32(512) + np.float32(0.5)).astype(np.int64)
        return np.where(word >> 23 < 121, np.minimum(small, 7), normal).astype(np.uint8)

    def read_record_scale(self, codes: Array) -> Array:
        """Return what unsigned E4M3 codes stand for: the top bit is not looked at, and 0x7F is 0."""
        exponent, mantissa = (codes >> 3 & 0xF).astype(np.int32), (codes & 7).astype(np.int32)
        number = np.ldexp((8 * (exponent > 0) + mantissa).astype(np.float32), np.maximum(exponent, 1) - 10)
        return np.where(codes == 0x7F, np.float32(0), number)

    def nearest(self, x: Array, half: Array) -> Array:
        """Return the first codes at the least distance, which is taken in float32."""
        distance = np.abs(DOUBLED * half[..., None] - x[..., None])
        return np.asarray(np.argmin(distance, axis=-1), np.uint8)

    def halves(self, codes: Array) -> Array:
        """Return nibbles: the first half of a group low, the second half high."""
        half = codes.shape[-1] // 2
        return np.asarray(codes[..., :half] | codes[..., half:] << 4)

    def in_order(self, data: Array) -> Array:
        """Return the codes of nibbles in order."""
        return np.concatenate([data & 0xF, data >> 4], axis=-1)

    def read_ggml(self, codes: Array, name: str, dtype: np.dtype[Any]) -> Array:
        """Return numbers of a dtype."""
        size, head = RECORDS[name]
        if codes.shape[-1] % size:
            raise FormatError(f"{codes.shape[-1]} bytes, expected a multiple of the record's {size}")
        records = codes.reshape(*codes.shape[:2], -1, size)
        front, data = records[..., :head], records[..., head:]
        readers = {
            "ggml_q8_0": self.read_q8_0,
            "ggml_q4_0": self.read_q4_0,
            "ggml_mxfp4": self.read_ggml_mxfp4,
            "ggml_nvfp4": self.read_ggml_nvfp4,
        }
        with np.errstate(over="ignore", invalid="ignore"):
            found = readers[name](front, data).astype(np.float32).astype(dtype)
        return found.reshape(*codes.shape[:2], -1)

    def read_q8_0(self, front: Array, data: Array) -> Array:
        """Return d · code."""
        return half_floats(front) * self.read_integer(data, "int8")

    def read_q4_0(self, front: Array, data: Array) -> Array:
        """Return d · (code − 8)."""
        return half_floats(front) * (self.in_order(data).astype(np.float32) - 8)

    def read_ggml_mxfp4(self, front: Array, data: Array) -> Array:
        """Return half the scale · twice the number; byte 0xFF is a power of two like the others."""
        half = np.ldexp(1.0, front.astype(np.int32) - 128)
        return half * DOUBLED[self.in_order(data)]

    def read_ggml_nvfp4(self, front: Array, data: Array) -> Array:
        """Return half the group's scale · twice the number."""
        codes = self.in_order(data.reshape(*data.shape[:-1], 4, 8))
        return self.read_record_scale(front)[..., None] / 2 * DOUBLED[codes]


def half_bytes(scales: Array) -> Array:
    """Return the two bytes of float16 numbers, low byte first."""
    return np.ascontiguousarray(scales[..., None], "<f2").view(np.uint8)


def half_floats(data: Array) -> Array:
    """Return the float16 number in two bytes, as float64, beside the codes of its record."""
    return np.ascontiguousarray(data).view("<f2").astype(np.float64)

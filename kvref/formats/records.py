"""Records: what the bytes of a token are, where an engine keeps codes, scales and unquantised parts together.

A record is a list of fields. Those of its rows lie together, token after token; those of its tails lie
together too, token after token, behind the rows of all tokens of the block. A block is rounded up to a
multiple of some bytes, and what fills it belongs to nobody. Numbers wider than a byte are little-endian.

A record names the element of every field. Nothing else does: not its length (two of the records below have
368 bytes, one of E2M1 and one of signed integers) and not a dtype of 8 bits, which on some hardware means
FNUZ and half the value.

Realises: KV-FMT-072 record-bytes.
For porters: `field_address` is the definition; `pack_record` and `unpack_record` move whole blocks.
Source: FlashMLA's README and `tests/quant.py` (656 and 584 bytes); vLLM's and SGLang's code for the others;
ggml's block structures. `deepseek_v4_mxfp4` (sglang#32741, #37136) and `deepseek_v4_int4` (sglang#38301) are
open proposals: no release is known to write them, and the FP4 that DeepSeek-V4 names as native is its
experts', not its cache's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from kvref.arrays import Array, check_array, check_count
from kvref.errors import FormatError
from kvref.formats.elements import element_of

#: What fields hold besides codes: numbers stored as they are, and bytes a writer sets to zero or never sets.
NUMBERS = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
PADS = ("zero", "unset")


@dataclass(frozen=True)
class Field:
    """A run of elements of one token: `count` of them, two a byte where they have four bits."""

    name: str
    element: str
    """An element of `kvref.formats.elements`, a dtype of `NUMBERS`, or one of `PADS`."""
    count: int
    columns: int = 1
    """Element s lies at place (s mod columns) · count/columns + s div columns: in order, unless columns > 1."""

    def __post_init__(self) -> None:
        if self.count * self.bits % 8 or self.count % self.columns:
            raise FormatError(
                f"field {self.name} has {self.count} elements of {self.bits} bits in {self.columns} columns, "
                "expected whole bytes and whole columns (KV-FMT-072 record-bytes)"
            )

    @property
    def bits(self) -> int:
        """Width of an element."""
        if self.element in NUMBERS:
            return 8 * NUMBERS[self.element].itemsize
        return 8 if self.element in PADS else element_of(self.element).bits

    @property
    def bytes(self) -> int:
        """Bytes of a token's run."""
        return self.count * self.bits // 8

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the field as an array: codes and pairs of codes are uint8."""
        return NUMBERS.get(self.element, np.dtype(np.uint8))

    @property
    def items(self) -> int:
        """How many items of `dtype` a token has: its elements, or half as many pairs."""
        return self.bytes // self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class Record:
    """The fields of a token, and how the tokens of a block share its bytes."""

    name: str
    rows: tuple[Field, ...]
    tails: tuple[Field, ...] = ()
    multiple: int = 1
    """A block takes a multiple of so many bytes."""
    proposed: bool = False
    """Known from open proposals alone."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """Every field, rows first."""
        return (*self.rows, *self.tails)

    @property
    def bytes(self) -> int:
        """Bytes of a token, without its share of what rounds a block up."""
        return sum(field.bytes for field in self.fields)


def _latent(name: str, codes: Field, scales: Field, **more: bool | int) -> Record:
    """Return a record of codes and scales in tails, rounded up: the family of DeepSeek-V4."""
    return Record(name=name, rows=(codes,), tails=(scales,), **more)  # type: ignore[arg-type]


_ROPE = Field("rope", "bfloat16", 64)

#: The records of latent attention and of sparse attention's indexer, one vector a token, by name.
RECORDS: dict[str, Record] = {
    record.name: record
    for record in (
        Record(
            name="fp8_ds_mla",
            rows=(Field("codes", "e4m3fn", 512), Field("scales", "float32", 4), _ROPE),
        ),
        Record(
            name="nvfp4_ds_mla",
            rows=(
                Field("codes", "e2m1", 512),
                Field("rope", "e4m3fn", 64),
                Field("scales", "e4m3fn", 32, columns=4),
            ),
        ),
        Record(
            name="deepseek_v4",
            rows=(Field("codes", "e4m3fn", 448), _ROPE),
            tails=(Field("scales", "e8m0", 7), Field("pad", "zero", 1)),
            multiple=576,
        ),
        Record(
            name="deepseek_v41",
            rows=(Field("codes", "e4m3fn", 512),),
            tails=(Field("scales", "e8m0", 16),),
            multiple=512,
        ),
        Record(
            name="deepseek_v41_nvfp4",
            rows=(Field("codes", "e2m1", 512),),
            tails=(Field("scales", "e4m3fn", 32),),
            multiple=512,
        ),
        Record(
            name="deepseek_v4_mxfp4",
            rows=(Field("codes", "e2m1", 448), Field("scales", "e8m0", 14), Field("pad", "unset", 2), _ROPE),
            proposed=True,
        ),
        Record(
            name="deepseek_v4_int4",
            rows=(
                Field("codes", "int4", 448),
                Field("scales", "e4m3fn", 14),
                Field("pad", "unset", 2),
                _ROPE,
            ),
            proposed=True,
        ),
        Record(
            name="indexer_fp8",
            rows=(Field("codes", "e4m3fn", 128),),
            tails=(Field("scales", "float32", 1),),
        ),
        Record(
            name="indexer_mxfp4",
            rows=(Field("codes", "e2m1", 128),),
            tails=(Field("scales", "e8m0", 4),),
        ),
    )
}

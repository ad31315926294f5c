"""Records: what the bytes of a token are, where an engine keeps codes, scales and unquantised parts together.

A record is a list of fields. Those of its rows lie together, token after token; those of its tails lie
together too, token after token, behind the rows of all tokens of the block. A block is rounded up to a
multiple of some bytes, and what fills it belongs to nobody. Numbers wider than a byte are little-endian.

A record names the element of every field. Nothing else does: not its length (two of the records below have
368 bytes, one of E2M1 and one of signed integers) and not a dtype of 8 bits, which on some hardware means
FNUZ and half the value.

Realises: KV-FMT-072 record-bytes.
For porters: `field_address` is the definition; `kvref.formats.blocks` moves whole blocks.
Source: FlashMLA's README and `tests/quant.py` (656 and 584 bytes); vLLM 0.32.0 for the others. No release is
known to write `deepseek_v4_mxfp4` (sglang#32741, #37136) or `deepseek_v4_int4` (sglang#38301), which are open
proposals. Whether FP4 is a model's own format is a question of each record: of `deepseek_v41_nvfp4` a comment
in vLLM's source says that the model's reference stores it too, for its compressed cache alone; for V4 none
does, and the FP4 of its checkpoint is the experts'.
"""

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from kvref.arrays import check_count, is_index
from kvref.errors import FormatError, shown
from kvref.formats.elements import element_of

#: What fields hold besides codes: numbers stored as they are, and bytes a writer sets to zero or never sets.
NUMBERS: dict[str, np.dtype[Any]] = {
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
    """Item s lies at place (s mod columns) · items/columns + s div columns: in order, unless columns > 1."""

    def __post_init__(self) -> None:
        for name in ("count", "columns"):
            check_count(name, getattr(self, name))
        if self.count * self.bits % 8 or self.count % self.columns:
            raise FormatError(
                f"field {self.name} has {self.count} elements of {self.bits} bits in {self.columns} columns, "
                "expected whole bytes and whole columns (KV-FMT-072 record-bytes)"
            )

    @property
    def bits(self) -> int:
        """Width of an element."""
        if self.element in NUMBERS:
            return 8 * int(NUMBERS[self.element].itemsize)
        return 8 if self.element in PADS else element_of(self.element).bits

    @property
    def bytes(self) -> int:
        """Bytes of a token's run."""
        return self.count * self.bits // 8

    @property
    def dtype(self) -> np.dtype[Any]:
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

#: ggml's blocks: a row of head_dim elements is one after the other of these, scales and codes in each.
GGML_BLOCKS: dict[str, Record] = {
    record.name: record
    for record in (
        Record(name="ggml_q8_0", rows=(Field("scales", "float16", 1), Field("codes", "int8", 32))),
        Record(name="ggml_q4_0", rows=(Field("scales", "float16", 1), Field("codes", "uint4", 32))),
        Record(name="ggml_mxfp4", rows=(Field("scales", "e8m0", 1), Field("codes", "e2m1", 32))),
        Record(name="ggml_nvfp4", rows=(Field("scales", "e4m3fn", 4), Field("codes", "e2m1", 64))),
    )
}


def record_of(name: str) -> Record:
    """Return the record of a name.

    Raises: FormatError if there is none.
    """
    found = RECORDS.get(name) or GGML_BLOCKS.get(name) if isinstance(name, str) else None
    if found is None:
        raise FormatError(
            f"record = {shown(name)}, expected one of {', '.join([*RECORDS, *GGML_BLOCKS])} (KV-FMT-072)"
        )
    return found


def as_fnuz(record: Record) -> Record:
    """Return the record as hardware writes it whose 8-bit floats are FNUZ: the same bytes, other elements.

    Raises: FormatError if it has no element that would change.
    """
    check_record(record)
    if not any(field.element == "e4m3fn" for field in record.fields):
        raise FormatError(f"record {record.name} has no field of e4m3fn, expected one that FNUZ would change")

    def changed(fields: tuple[Field, ...]) -> tuple[Field, ...]:
        return tuple(replace(f, element="e4m3fnuz") if f.element == "e4m3fn" else f for f in fields)

    return replace(record, name=f"{record.name}_fnuz", rows=changed(record.rows), tails=changed(record.tails))


def block_bytes(record: Record, block_size: int) -> int:
    """Return the bytes of a block of so many tokens, what rounds it up included.

    Raises: FormatError if there is no such record; ArgumentError.
    """
    check_record(record)
    whole = check_count("block_size", block_size) * record.bytes
    return -(-whole // record.multiple) * record.multiple


def field_address(record: Record, block_size: int, field: str, *, slot: int, item: int) -> int:
    """Return how many bytes from the start of its block an item of a token's field begins.

    Raises: FormatError if the record has no such field, or the block no such slot, or the field no such item;
    ArgumentError if `block_size` is no count.
    """
    check_record(record)
    block_size = check_count("block_size", block_size)
    for region in (record.rows, record.tails):
        start = 0 if region is record.rows else block_size * sum(f.bytes for f in record.rows)
        within = 0
        for found in region:
            if found.name == field:
                _check_place(record, block_size, found, slot, item)
                slot, item = int(slot), int(item)
                tall = found.items // found.columns
                place = item % found.columns * tall + item // found.columns
                width = sum(f.bytes for f in region)
                return start + slot * width + within + place * found.dtype.itemsize
            within += found.bytes
    raise FormatError(f"field = {shown(field)}, expected one of {', '.join(f.name for f in record.fields)}")


def check_record(record: Record) -> None:
    """Check that a record is one, and not its name.

    Raises: FormatError.
    """
    if not isinstance(record, Record):
        raise FormatError(f"record = {record!r:.80}, expected a Record; record_of returns one by its name")


def _check_place(record: Record, block_size: int, field: Field, slot: int, item: int) -> None:
    if not (is_index(slot, block_size) and is_index(item, field.items)):
        raise FormatError(
            f"slot = {shown(slot)}, item = {shown(item)}, expected integers below {block_size} and "
            f"{field.items} in {field.name} of {record.name} (KV-FMT-072 record-bytes)"
        )

"""Blocks: the parts of a record's tokens, and the bytes of the block that holds them.

A part is a field of every token of a block, [..., block_size, items]: codes and pairs of codes as uint8,
other numbers as themselves. What is packed comes back in every bit; what is read is refused where it cannot
be a block of the record.

Realises: KV-FMT-072 record-bytes.
For porters: test yours against `kvref.formats.records.field_address`, item by item.
Source: as the records themselves.
"""

from collections.abc import Mapping

import numpy as np

from kvref.arrays import Array, as_array, check_array, check_shape
from kvref.errors import DTypeError, FormatError
from kvref.formats.records import PADS, Field, Record, block_bytes, check_record


def pack_record(parts: Mapping[str, Array], record: Record) -> Array:
    """Return the bytes [..., bytes of a block] of parts [..., block_size, items], one part a field.

    Pads are left out of the parts and become zeros, as does what rounds the block up.
    Raises: FormatError if a part is missing, unknown, or of another dtype or shape than its field.
    """
    check_record(record)
    if not isinstance(parts, Mapping):
        raise FormatError(f"parts is a {type(parts).__name__}, expected an object of field and array")
    wanted = {field.name for field in record.fields if field.element not in PADS}
    if set(parts) != wanted:
        found, names = (", ".join(sorted(map(str, some))) for some in (parts, wanted))
        raise FormatError(f"parts has {found}, expected {names} of {record.name}")
    lead = _lead_of(parts, record)
    body = [_region(parts, fields, lead) for fields in (record.rows, record.tails) if fields]
    whole = block_bytes(record, lead[-1])
    fill = np.zeros((*lead[:-1], whole - lead[-1] * record.bytes), np.uint8)
    return np.concatenate([*body, fill], axis=-1)


def unpack_record(
    raw: Array, record: Record, *, block_size: int, written: Array | None = None
) -> dict[str, Array]:
    """Return the parts [..., block_size, items] of bytes [..., bytes of a block], in new memory.

    `written` [..., block_size] says which slots a writer has filled: a pad that it must set to zero is held
    to that there, by default everywhere. What rounds the block up is not read.
    Raises: FormatError if the bytes are not those of such a block, or such a pad is not zero; DTypeError and
    ShapeError if `written` is not that.
    """
    check_array("raw", raw)
    whole = block_bytes(record, block_size)
    if raw.dtype != np.uint8 or raw.ndim == 0 or raw.shape[-1] != whole:
        raise FormatError(
            f"raw is {raw.dtype} {list(raw.shape)}, expected uint8 [..., {whole}] for blocks of {block_size} "
            f"tokens of {record.name} (KV-FMT-072 record-bytes)"
        )
    filled = np.bool_(True) if written is None else _filled(written, (*raw.shape[:-1], block_size))
    parts: dict[str, Array] = {}
    start = 0
    for fields in (record.rows, record.tails):
        width = sum(field.bytes for field in fields)
        region = raw[..., start : start + block_size * width].reshape(*raw.shape[:-1], block_size, width)
        start += block_size * width
        for field in fields:
            bytes_of, region = region[..., : field.bytes], region[..., field.bytes :]
            if field.element == "zero":
                _check_zero(bytes_of, record, filled)
            elif field.element not in PADS:
                parts[field.name] = _in_order(bytes_of.copy().view(field.dtype), field)
    return parts


def _lead_of(parts: Mapping[str, Array], record: Record) -> tuple[int, ...]:
    """Return the axes that all parts share, block_size last; every part checked against its field."""
    lead: tuple[int, ...] | None = None
    for field in record.fields:
        if field.element in PADS:
            continue
        part = parts[field.name]
        check_array(field.name, part)
        fits = part.dtype == field.dtype and part.ndim >= 2 and part.shape[-1] == field.items
        if not fits or (lead is not None and part.shape[:-1] != lead):
            before = "..., block_size" if lead is None else ", ".join(map(str, lead))
            raise FormatError(
                f"{field.name} is {part.dtype} {list(part.shape)}, expected {field.dtype} "
                f"[{before}, {field.items}] for {field.element} of {record.name} (KV-FMT-072 record-bytes)"
            )
        lead = part.shape[:-1]
    assert lead is not None  # a record without numbers is none
    return lead


def _region(parts: Mapping[str, Array], fields: tuple[Field, ...], lead: tuple[int, ...]) -> Array:
    """Return the bytes of some fields, token after token."""
    runs = [
        np.zeros((*lead, field.bytes), np.uint8)
        if field.element in PADS
        else np.ascontiguousarray(_as_stored(parts[field.name], field)).view(np.uint8)
        for field in fields
    ]
    region = np.concatenate(runs, axis=-1)
    return region.reshape(*lead[:-1], lead[-1] * region.shape[-1])


def _as_stored(part: Array, field: Field) -> Array:
    apart = part.reshape(*part.shape[:-1], field.items // field.columns, field.columns)
    return apart.swapaxes(-1, -2).reshape(part.shape)


def _in_order(stored: Array, field: Field) -> Array:
    apart = stored.reshape(*stored.shape[:-1], field.columns, field.items // field.columns)
    return apart.swapaxes(-1, -2).reshape(stored.shape)


def _filled(written: Array, shape: tuple[int, ...]) -> Array:
    found = as_array("written", written)
    if found.dtype != np.bool_:
        raise DTypeError(f"written has dtype {found.dtype}, expected bool")
    check_shape("written", found, shape)
    return found


def _check_zero(pad: Array, record: Record, written: Array | np.bool_) -> None:
    wrong = pad.any(axis=-1) & written
    if wrong.any():
        at = tuple(int(i[0]) for i in np.nonzero(wrong))
        raise FormatError(
            f"raw holds {int(pad[at].max()):#04x} in the pad of slot {list(at)}, expected 0x00 in "
            f"{record.name} (KV-FMT-072 record-bytes)"
        )

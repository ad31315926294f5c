"""Packing: two codes in a byte, several in a word, and the order in which scales lie.

A code of four bits is half a byte, and three conventions say which half: the even element low, the even
element high, or the two halves of a group side by side. Scales are an array of [rows, groups], and three
conventions say in which order its elements lie. Each convention is given twice: as the place of one element,
which is the definition, and as a permutation of whole arrays with its exact inverse.

Realises: KV-FMT-070 nibble-order-as-declared, KV-FMT-071 scale-layout-as-declared.
For porters: test your packer against `nibble_place` and `scale_address`; a round trip alone forgives two
wrong halves.
Source: CUDA's fp4x2 (`low_first`), ggml's quantised blocks (`split`), KIVI's `new_pack` (fields of a word),
cuBLAS' block scaling factors (`tiled_128x4`), TensorRT-LLM's and vLLM's NVFP4 cache (`interleaved`).
"""

import numpy as np

from kvref.arrays import Array, check_array, check_count, is_index, is_integer
from kvref.errors import FormatError, shown
from kvref.formats.elements import check_codes

NIBBLE_ORDERS = ("low_first", "high_first", "split")
SCALE_LAYOUTS = ("linear", "interleaved", "tiled_128x4")


def nibble_place(index: int, order: str = "low_first", size: int = 0) -> tuple[int, int]:
    """Return the byte of an element along its axis, and by how many bits it is shifted there.

    `size` is how many elements make a group; only `split` depends on it.
    Raises: FormatError (an unknown order, or a group that cannot be halved); ArgumentError (no such index).

    >>> nibble_place(17, "split", 32)
    (1, 4)
    """
    _check_order(order, size)
    index = check_count("index", index, minimum=0)
    if order == "split":
        group, within = divmod(index, size)
        half = size // 2
        return group * half + within % half, 4 * (within // half)
    odd = index % 2
    return index // 2, 4 * (odd if order == "low_first" else 1 - odd)


def pack(codes: Array, order: str = "low_first", size: int = 0) -> Array:
    """Return codes of four bits, two a byte along the last axis.

    Raises: FormatError if a code has more than four bits, the axis has an odd number of them or no whole
    number of groups, or the order has no such name; DTypeError if `codes` is no array.

    >>> pack(np.array([1, 7], np.uint8)).tolist()
    [113]
    """
    check_codes("codes", codes, "uint4")
    _check_axis("codes", codes)
    _check_order(order, size)
    _check_multiple("codes", codes.shape[-1], size if order == "split" else 2)
    if order == "split":
        apart = codes.reshape(*codes.shape[:-1], codes.shape[-1] // size, 2, size // 2)
        low, high = apart[..., 0, :], apart[..., 1, :]
    else:
        low, high = codes[..., 0::2], codes[..., 1::2]
    if order == "high_first":
        low, high = high, low
    packed: Array = low | high << 4
    return packed.reshape(*codes.shape[:-1], codes.shape[-1] // 2)


def unpack(packed: Array, order: str = "low_first", size: int = 0) -> Array:
    """Return the codes of four bits that `pack` put into bytes, one a byte.

    Raises: FormatError, DTypeError as `pack`.
    """
    check_codes("packed", packed, "uint8")
    _check_axis("packed", packed)
    _check_order(order, size)
    low, high = packed & 0x0F, packed >> 4
    if order == "high_first":
        low, high = high, low
    if order != "split":
        return np.stack([low, high], axis=-1).reshape(*packed.shape[:-1], 2 * packed.shape[-1])
    half = size // 2
    _check_multiple("packed", packed.shape[-1], half)
    apart = (*packed.shape[:-1], packed.shape[-1] // half, half)
    both = np.stack([low.reshape(apart), high.reshape(apart)], axis=-2)
    return both.reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def pack_fields(codes: Array, bits: int, axis: int) -> Array:
    """Return codes of 2, 4 or 8 bits in int32 words along an axis, the first code in the lowest bits.

    KIVI packs keys along the axis of tokens and values along the axis of channels.
    Raises: FormatError if a code has more bits, or the codes fill no whole number of words.
    """
    per_word = _per_word(bits)
    check_codes("codes", codes, f"uint{bits}")
    at = _axis_of("codes", codes, axis)
    _check_multiple("codes", codes.shape[at], per_word)
    last = np.moveaxis(codes, at, -1).astype(np.uint32)
    apart = last.reshape(*last.shape[:-1], last.shape[-1] // per_word, per_word)
    words = np.bitwise_or.reduce(apart << _shifts(bits), axis=-1)
    return np.ascontiguousarray(np.moveaxis(words, -1, at)).view(np.int32)


def unpack_fields(words: Array, bits: int, axis: int) -> Array:
    """Return the codes that `pack_fields` put into words, one a byte.

    Raises: FormatError if `words` does not hold int32.
    """
    per_word = _per_word(bits)
    check_array("words", words)
    if words.dtype != np.int32:
        raise FormatError(f"words has dtype {words.dtype}, expected int32")
    at = _axis_of("words", words, axis)
    last = np.moveaxis(words, at, -1)[..., None].astype(np.uint32)
    codes = (last >> _shifts(bits) & (2**bits - 1)).astype(np.uint8)
    flat = codes.reshape(*last.shape[:-2], last.shape[-2] * per_word)
    return np.ascontiguousarray(np.moveaxis(flat, -1, at))


def scale_address(row: int, column: int, layout: str, *, rows: int, columns: int) -> int:
    """Return how many scales from the start of an array [rows, columns] one of them lies.

    `interleaved`: rows are tokens of one head and block; four interleave. `tiled_128x4`: tiles of
    128 rows and 4 columns, one after the other along the columns; within a tile row m lies at place m // 32
    of run m % 32. Both extents are rounded up to whole tiles.
    Raises: FormatError (an unknown layout, extents it cannot hold, or a place outside them); ArgumentError.
    """
    arranged_shape(rows, columns, layout)
    if not (is_index(row, rows) and is_index(column, columns)):
        raise FormatError(
            f"scale [{shown(row)}, {shown(column)}], expected one inside [{rows}, {columns}] (KV-FMT-071)"
        )
    row, column, columns = int(row), int(column), int(columns)
    if layout == "interleaved":
        return row // 4 * 4 * columns + 4 * column + row % 4
    if layout == "tiled_128x4":
        tile = row // 128 * -(-columns // 4) + column // 4
        return tile * 512 + row % 32 * 16 + row // 32 % 4 * 4 + column % 4
    return row * columns + column


def arranged_shape(rows: int, columns: int, layout: str) -> tuple[int, int]:
    """Return the extents of scales [rows, columns] in a layout, which pads where it has whole tiles.

    Raises: FormatError; ArgumentError if an extent is no integer from 0 on.
    """
    if layout not in SCALE_LAYOUTS:
        raise FormatError(
            f"layout = {shown(layout)}, expected one of {', '.join(SCALE_LAYOUTS)} (KV-FMT-071)"
        )
    rows, columns = check_count("rows", rows, minimum=0), check_count("columns", columns, minimum=0)
    if layout == "interleaved" and (rows % 4 or columns % 4):
        raise FormatError(
            f"scales of one head are [{rows}, {columns}], expected multiples of 4 tokens and of 4 groups "
            "where four tokens take turns (KV-FMT-071 scale-layout-as-declared)"
        )
    if layout == "tiled_128x4":
        return -(-rows // 128) * 128, -(-columns // 4) * 4
    return rows, columns


def arrange_scales(scales: Array, layout: str) -> Array:
    """Return scales [..., rows, columns] in the order a layout keeps them; padding is zero bytes.

    The memory of the last two axes of the result, read in C order, is the layout. Any dtype.
    Raises: FormatError.
    """
    check_array("scales", scales)
    if scales.ndim < 2:
        raise FormatError(f"scales has shape {list(scales.shape)}, expected [..., rows, groups]")
    lead, (rows, columns) = scales.shape[:-2], scales.shape[-2:]
    tall, wide = arranged_shape(rows, columns, layout)
    if layout == "interleaved":
        turns = scales.reshape(*lead, rows // 4, 4, columns)
        return np.ascontiguousarray(turns.swapaxes(-1, -2)).reshape(scales.shape)
    if layout == "tiled_128x4":
        whole = np.zeros((*lead, tall, wide), scales.dtype)
        whole[..., :rows, :columns] = scales
        apart = whole.reshape(*lead, tall // 128, 4, 32, wide // 4, 4)
        return apart.swapaxes(-4, -2).reshape(whole.shape)
    return scales.copy(order="C")


def restore_scales(arranged: Array, layout: str, *, rows: int, columns: int) -> Array:
    """Return the scales [..., rows, columns] that `arrange_scales` put in order; padding is not read.

    Raises: FormatError if `arranged` has not the extents of the layout.
    """
    check_array("arranged", arranged)
    tall, wide = arranged_shape(rows, columns, layout)
    if arranged.shape[-2:] != (tall, wide):
        raise FormatError(
            f"arranged has shape {list(arranged.shape)}, expected [..., {tall}, {wide}] for scales "
            f"[{rows}, {columns}] in {layout} (KV-FMT-071 scale-layout-as-declared)"
        )
    lead = arranged.shape[:-2]
    if layout == "interleaved":
        turns = arranged.reshape(*lead, rows // 4, columns, 4)
        return np.ascontiguousarray(turns.swapaxes(-1, -2)).reshape(arranged.shape)
    if layout == "tiled_128x4":
        apart = arranged.reshape(*lead, tall // 128, wide // 4, 32, 4, 4)
        whole = apart.swapaxes(-4, -2).reshape(arranged.shape)
        return whole[..., :rows, :columns].copy(order="C")
    return arranged.copy(order="C")


def _check_order(order: str, size: int) -> None:
    if order not in NIBBLE_ORDERS:
        raise FormatError(f"order = {shown(order)}, expected one of {', '.join(NIBBLE_ORDERS)} (KV-FMT-070)")
    if order == "split" and not (is_integer(size) and size > 0 and size % 2 == 0):
        raise FormatError(f"size = {shown(size)}, expected an even number of elements a group (KV-FMT-070)")


def _check_axis(name: str, x: Array) -> None:
    if x.ndim == 0:
        raise FormatError(f"{name} is a single number, expected an array with an axis to pack along")


def _check_multiple(name: str, found: int, of: int) -> None:
    if found % of:
        raise FormatError(f"{name} has {found} elements along the packed axis, expected a multiple of {of}")


def _axis_of(name: str, x: Array, axis: int) -> int:
    """Return an axis counted from the front."""
    if not is_integer(axis) or not -x.ndim <= axis < x.ndim:
        raise FormatError(
            f"axis = {shown(axis)}, but {name} has shape {list(x.shape)}, expected one of its axes"
        )
    return int(axis) % x.ndim


def _per_word(bits: int) -> int:
    if check_count("bits", bits) not in (2, 4, 8):
        raise FormatError(f"bits = {shown(bits)}, expected 2, 4 or 8")
    return 32 // bits


def _shifts(bits: int) -> Array:
    return np.arange(0, 32, bits, dtype=np.uint32)

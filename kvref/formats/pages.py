"""Pages: how engines lay codes and scales of keys and values of every head into the bytes of one block.

Either the parts lie one after the other, each a whole array over slots and heads ([K | K scales | V | V
scales]), or every slot and head has a cell in which its parts lie together. In both, heads are outermost
(`hnd`) or slots are (`nhd`). The scales of values may take turns, four tokens at a time, within each head:
`interleaved` of `kvref.formats.packing`; keys never do.

Realises: KV-FMT-071 scale-layout-as-declared, KV-FMT-072 record-bytes.
For porters: `page_address` is the definition. Where heads and slots have extents that fit either way round, a
reader of the other order finds numbers everywhere and the right ones nowhere.
Source: vLLM 0.32.0 and FlashInfer (`nvfp4`); TensorRT-LLM, whose scales are in a pool of their own
(`nvfp4_codes`, `nvfp4_scales`; `quantizeAndWriteFP4KVCache`); vLLM's Triton backend (`*_token_head`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

from kvref.arrays import Array, check_array, check_count, is_index
from kvref.errors import FormatError, shown
from kvref.formats.packing import arrange_scales, restore_scales, scale_address
from kvref.formats.records import Field

ORDERS = ("hnd", "nhd")
V_SCALE_LAYOUTS = ("linear", "interleaved")


@dataclass(frozen=True)
class Part:
    """One of a page's arrays: of every slot and head, an element for each group of `per` channels."""

    name: str
    element: str
    per: int
    """Channels to an element; 0 where a slot and head has one element."""

    def field(self, head_dim: int) -> Field:
        """Return the elements of one slot and head.

        Raises: FormatError if groups do not fill head_dim.
        """
        if self.per and head_dim % self.per:
            raise FormatError(
                f"head_dim = {head_dim}, expected a multiple of {self.per} for {self.name} (KV-FMT-072)"
            )
        return Field(self.name, self.element, head_dim // self.per if self.per else 1)


@dataclass(frozen=True)
class Page:
    """The parts of a block, and whether each is an array or all share the cells of one."""

    name: str
    together: Literal["parts", "cells"]
    parts: tuple[Part, ...]


def _both(codes: tuple[str, int], scales: tuple[str, int]) -> tuple[Part, ...]:
    return tuple(
        Part(f"{kv}_{name}", *kind) for kv in "kv" for name, kind in (("codes", codes), ("scales", scales))
    )


#: Pages by name; `nvfp4_codes` and `nvfp4_scales` are the two pools of one cache.
PAGES: dict[str, Page] = {
    page.name: page
    for page in (
        Page("nvfp4", "parts", _both(("e2m1", 1), ("e4m3fn", 16))),
        Page("nvfp4_codes", "parts", (Part("k_codes", "e2m1", 1), Part("v_codes", "e2m1", 1))),
        Page("nvfp4_scales", "parts", (Part("k_scales", "e4m3fn", 16), Part("v_scales", "e4m3fn", 16))),
        Page("fp8_token_head", "cells", _both(("e4m3fn", 1), ("float32", 0))),
        Page("fp8_token_head_fnuz", "cells", _both(("e4m3fnuz", 1), ("float32", 0))),
        Page("int8_token_head", "cells", _both(("int8", 1), ("float32", 0))),
        Page("int4_token_head", "cells", _both(("uint4", 1), ("float32", 0))),
    )
}


@dataclass(frozen=True, kw_only=True)
class PageShape:
    """The extents of a page and the two orders that engines choose; with a `Page` they fix every address."""

    block_size: int
    num_kv_heads: int
    head_dim: int
    order: str = "hnd"
    v_scale_layout: str = "linear"

    def __post_init__(self) -> None:
        for name in ("block_size", "num_kv_heads", "head_dim"):
            check_count(name, getattr(self, name))
        for name, answers in (("order", ORDERS), ("v_scale_layout", V_SCALE_LAYOUTS)):
            if getattr(self, name) not in answers:
                raise FormatError(
                    f"{name} = {shown(getattr(self, name))}, expected one of {', '.join(answers)}"
                )


def page_of(name: str) -> Page:
    """Return the page of a name.

    Raises: FormatError if there is none.
    """
    if not isinstance(name, str) or name not in PAGES:
        raise FormatError(f"page = {shown(name)}, expected one of {', '.join(PAGES)}")
    return PAGES[name]


def page_bytes(page: Page, shape: PageShape) -> int:
    """Return the bytes of a page."""
    _check_page(page, shape)
    cell = sum(part.field(shape.head_dim).bytes for part in page.parts)
    return shape.block_size * shape.num_kv_heads * cell


def page_address(page: Page, shape: PageShape, part: str, *, slot: int, head: int, item: int) -> int:
    """Return how many bytes from the start of its page an item of a part begins.

    Raises: FormatError if there is no such part, slot, head or item, or `interleaved` cannot be.
    """
    _check_page(page, shape)
    fields = [found.field(shape.head_dim) for found in page.parts]
    names = [field.name for field in fields]
    if part not in names:
        raise FormatError(f"part = {shown(part)}, expected one of {', '.join(names)}")
    at = names.index(part)
    field, before = fields[at], sum(other.bytes for other in fields[:at])
    extents = (shape.block_size, shape.num_kv_heads, field.items)
    if not all(map(is_index, (slot, head, item), extents)):
        raise FormatError(
            f"slot = {shown(slot)}, head = {shown(head)}, item = {shown(item)}, expected integers below "
            f"{shape.block_size}, {shape.num_kv_heads} and {field.items} in {part} of "
            f"{page.name} (KV-FMT-072 record-bytes)"
        )
    slot, head, item = int(slot), int(head), int(item)
    if part == "v_scales" and shape.v_scale_layout == "interleaved":
        turn = scale_address(slot, item, "interleaved", rows=shape.block_size, columns=field.items)
        slot, item = divmod(turn, field.items)
    cell = head * shape.block_size + slot if shape.order == "hnd" else slot * shape.num_kv_heads + head
    if page.together == "cells":
        return cell * sum(other.bytes for other in fields) + before + item * field.dtype.itemsize
    cells = shape.block_size * shape.num_kv_heads
    return cells * before + cell * field.bytes + item * field.dtype.itemsize


def pack_page(parts: Mapping[str, Array], page: Page, shape: PageShape) -> Array:
    """Return the bytes [num_blocks, bytes of a page] of parts [num_blocks, block_size, num_kv_heads, items].

    Raises: FormatError if a part is missing, unknown, or of another dtype or shape than the page's.
    """
    _check_page(page, shape)
    if not isinstance(parts, Mapping):
        raise FormatError(f"parts is a {type(parts).__name__}, expected an object of part and array")
    names = [part.name for part in page.parts]
    if set(parts) != set(names):
        raise FormatError(
            f"parts has {', '.join(sorted(map(str, parts)))}, expected {', '.join(names)} of {page.name}"
        )
    arrays = []
    for part in page.parts:
        field, array = part.field(shape.head_dim), parts[part.name]
        check_array(part.name, array)
        extents = (shape.block_size, shape.num_kv_heads, field.items)
        if array.dtype != field.dtype or array.ndim != 4 or array.shape[1:] != extents:
            raise FormatError(
                f"{part.name} is {array.dtype} {list(array.shape)}, expected {field.dtype} [num_blocks, "
                f"{', '.join(map(str, extents))}] for {page.name} (KV-FMT-072 record-bytes)"
            )
        heads_first = array.swapaxes(1, 2)  # [num_blocks, num_kv_heads, block_size, items]
        if part.name == "v_scales":
            heads_first = arrange_scales(heads_first, shape.v_scale_layout)
        ordered = heads_first if shape.order == "hnd" else heads_first.swapaxes(1, 2)
        arrays.append(np.ascontiguousarray(ordered).view(np.uint8))
    if len({len(array) for array in arrays}) != 1:
        raise FormatError(f"parts have {[len(array) for array in arrays]} blocks, expected one number")
    if page.together == "cells":
        return np.concatenate(arrays, axis=-1).reshape(len(arrays[0]), page_bytes(page, shape))
    return np.concatenate([array.reshape(len(array), prod(array.shape[1:])) for array in arrays], axis=-1)


def unpack_page(raw: Array, page: Page, shape: PageShape) -> dict[str, Array]:
    """Return the parts [num_blocks, block_size, num_kv_heads, items] of pages [num_blocks, bytes].

    Raises: FormatError if `raw` is not uint8 of that many bytes a page.
    """
    check_array("raw", raw)
    whole = page_bytes(page, shape)
    if raw.dtype != np.uint8 or raw.ndim != 2 or raw.shape[1] != whole:
        raise FormatError(
            f"raw is {raw.dtype} {list(raw.shape)}, expected uint8 [num_blocks, {whole}] for {page.name} of "
            f"{shape.block_size} slots, {shape.num_kv_heads} heads of {shape.head_dim} (KV-FMT-072)"
        )
    fields = [part.field(shape.head_dim) for part in page.parts]
    outer = (shape.num_kv_heads, shape.block_size)
    outer = outer if shape.order == "hnd" else outer[::-1]
    cells = shape.block_size * shape.num_kv_heads
    unit, last = (
        (1, raw.reshape(len(raw), *outer, whole // cells)) if page.together == "cells" else (cells, raw)
    )
    parts, start = {}, 0
    for field in fields:
        run = last[..., start : start + unit * field.bytes].copy()
        start += unit * field.bytes
        ordered = run.reshape(len(raw), *outer, field.bytes).view(field.dtype)
        heads_first = ordered if shape.order == "hnd" else ordered.swapaxes(1, 2)
        if field.name == "v_scales":
            heads_first = restore_scales(
                heads_first, shape.v_scale_layout, rows=shape.block_size, columns=field.items
            )
        parts[field.name] = np.ascontiguousarray(heads_first.swapaxes(1, 2))
    return parts


def _check_page(page: Page, shape: PageShape) -> None:
    for name, found, kind in (("page", page, Page), ("shape", shape, PageShape)):
        if not isinstance(found, kind):
            raise FormatError(f"{name} = {found!r:.80}, expected a {kind.__name__}")

"""Named layouts of a cache: where the element (block, offset, head, channel) lies, and how to move it.

A layout is the order of an array's axes. Axes joined by `*` share one dimension, the left one outermost; an
axis that is not named has one element. Converting is a permutation of elements: no number is computed, so
every bit survives, NaN payloads included.

Realises: KV-ATTN-090 layout-roundtrip, KV-ATTN-091 layout-address.
For porters: test your converters with `slot_offset`, which shares nothing with `convert_layout`; a round trip
alone forgives two wrong halves.
Source: vLLM (`x_split` for keys with `values_last` for values, `kv_first`, `kv_packed`), FlashInfer (`nhd`,
`hnd`, `blocks_*`), Pallas ragged paged attention (`heads_interleaved`), FlashMLA (`record`).
"""

from dataclasses import dataclass, fields
from math import prod
from typing import Any

import numpy as np

from kvref.arrays import Array, as_array, check_array, check_count, check_shape
from kvref.errors import ArgumentError, DTypeError, ShapeError, shown


@dataclass(frozen=True)
class Layout:
    """A name and the axes of one array, outermost first."""

    name: str
    axes: str

    @property
    def dims(self) -> list[list[str]]:
        """The axes that share each dimension of the array."""
        return [dim.split("*") for dim in self.axes.split()]

    @property
    def flat(self) -> list[str]:
        """Every axis by itself."""
        return [axis for dim in self.dims for axis in dim]

    @property
    def splits_channels(self) -> bool:
        """Whether pieces of x channels lie apart."""
        return ["x"] in self.dims

    @property
    def holds_both(self) -> bool:
        """Whether one array holds keys and values."""
        return "kv" in self.flat


#: The layouts by name. The axis `channel*x` is head_dim; `kv` is 0 for the key and 1 for the value.
LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout("nhd", "block offset head channel*x"),
        Layout("hnd", "block head offset channel*x"),
        Layout("x_split", "block head channel offset x"),
        Layout("values_last", "block head channel*x offset"),
        Layout("record", "block offset channel*x"),
        Layout("kv_first", "kv block offset head channel*x"),
        Layout("blocks_nhd", "block kv offset head channel*x"),
        Layout("blocks_hnd", "block kv head offset channel*x"),
        Layout("heads_interleaved", "block offset head*kv channel*x"),
        Layout("kv_packed", "block head offset kv*channel*x"),
    )
}


def layout_of(name: str, argument: str = "layout") -> Layout:
    """Return the layout of a name.

    Raises: ArgumentError if it is not one of `LAYOUTS`.
    """
    if not isinstance(name, str) or name not in LAYOUTS:
        raise ArgumentError(f"{argument} = {shown(name)}, expected one of {', '.join(LAYOUTS)} (KV-ATTN-091)")
    return LAYOUTS[name]


def convert_layout(cache: Array, *, source: str, target: str, x: int | None = None) -> Array:
    """Return a cache in another layout, every element's bits as they were.

    Either both layouts hold one of keys and values, and a pair is converted one array at a time, or both
    hold the two in one array; `join_kv` and `split_kv` go between. `x` is how many channels stay together in
    an `x_split` target, by default those in 16 bytes. Any dtype, any strides; the result is new and
    contiguous.
    Raises: ShapeError, DTypeError, ArgumentError.

    >>> keys = np.arange(12).reshape(1, 2, 3, 2)  # one block of two slots, three heads of two channels
    >>> convert_layout(keys, source="nhd", target="hnd")[0, 2].tolist()
    [[4, 5], [10, 11]]
    """
    one, other = layout_of(source, "source"), layout_of(target, "target")
    check_array("cache", cache)
    if one.holds_both != other.holds_both:
        raise ArgumentError(
            f"source = {shown(source)} and target = {shown(target)}, expected two layouts that both hold "
            "keys and values, or neither; see join_kv and split_kv (KV-ATTN-090 layout-roundtrip)"
        )
    if x is not None and not other.splits_channels:
        raise ArgumentError(
            f"x = {shown(x)}, but {target} keeps channels together (KV-ATTN-091 layout-address)"
        )
    middle = LAYOUTS["kv_first" if one.holds_both else "nhd"]
    plain = _rearrange(cache, one, middle, 1)
    if not other.splits_channels:
        return _rearrange(plain, middle, other, 1)
    together = max(1, 16 // cache.dtype.itemsize) if x is None else check_count("x", x)
    return _rearrange(plain, middle, other, together)


def join_kv(k_cache: Array, v_cache: Array, *, layout: str) -> Array:
    """Return one array that holds both caches in the given layout.

    Shapes: k_cache, v_cache [num_blocks, block_size, num_kv_heads, head_dim], the same head_dim.
    Raises: ShapeError, DTypeError, ArgumentError (a layout that holds one of the two).
    """
    check_shape("k_cache", k_cache, ["num_blocks", "block_size", "num_kv_heads", "head_dim"])
    check_shape("v_cache", v_cache, k_cache.shape)
    if k_cache.dtype != v_cache.dtype:
        raise DTypeError(f"v_cache has dtype {v_cache.dtype}, expected {k_cache.dtype}, that of k_cache")
    return convert_layout(np.stack([k_cache, v_cache]), source="kv_first", target=layout)


def split_kv(cache: Array, *, layout: str) -> tuple[Array, Array]:
    """Return the key and the value cache of an array that holds both.

    Returns two arrays [num_blocks, block_size, num_kv_heads, head_dim].
    Raises: ShapeError, ArgumentError (a layout that holds one of the two).
    """
    keys, values = convert_layout(cache, source=layout, target="kv_first")
    return keys, values


@dataclass(frozen=True, kw_only=True)
class CacheShape:
    """The extents of a cache, which with a layout fix every address."""

    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    x: int = 1
    """Channels that stay together in `x_split`."""

    def __post_init__(self) -> None:
        for field in fields(self):
            check_count(field.name, getattr(self, field.name))
        if self.head_dim % self.x:
            raise ShapeError(f"head_dim = {self.head_dim}, expected a multiple of x = {self.x} (KV-ATTN-091)")


def slot_offset(
    layout: str, shape: CacheShape, *, block: Any, offset: Any, head: Any, channel: Any, kv: Any = 0
) -> Any:
    """Return how many elements from the start of its array an element of a slot lies.

    Written out layout by layout, independently of `convert_layout`. Indices are integers, or integer arrays
    that broadcast; `kv` is 0 for the key and 1 for the value where one array holds both.
    Raises: ArgumentError (an unknown layout, or an index outside the shape).
    """
    layout_of(layout)
    block, offset, head, channel, kv = _inside(
        layout, shape, block=block, offset=offset, head=head, channel=channel, kv=kv
    )
    blocks, size, heads, dim, x = (getattr(shape, field.name) for field in fields(shape))
    by_name = {
        "nhd": ((block * size + offset) * heads + head) * dim + channel,
        "hnd": ((block * heads + head) * size + offset) * dim + channel,
        "x_split": (((block * heads + head) * (dim // x) + channel // x) * size + offset) * x + channel % x,
        "values_last": ((block * heads + head) * dim + channel) * size + offset,
        "record": (block * size + offset) * dim + channel,
        "kv_first": (((kv * blocks + block) * size + offset) * heads + head) * dim + channel,
        "blocks_nhd": (((2 * block + kv) * size + offset) * heads + head) * dim + channel,
        "blocks_hnd": (((2 * block + kv) * heads + head) * size + offset) * dim + channel,
        "heads_interleaved": ((block * size + offset) * 2 * heads + 2 * head + kv) * dim + channel,
        "kv_packed": (((block * heads + head) * size + offset) * 2 + kv) * dim + channel,
    }
    return by_name[layout]


def _inside(layout: str, shape: CacheShape, **indices: Any) -> list[Any]:
    """Return indices as int64, in which no address overflows; checked against the shape."""
    heads = 1 if layout == "record" else shape.num_kv_heads
    both = 2 if LAYOUTS[layout].holds_both else 1
    extents = (shape.num_blocks, shape.block_size, heads, shape.head_dim, both)
    checked = []
    for (name, index), extent in zip(indices.items(), extents, strict=True):
        values = as_array(name, index)
        if not np.issubdtype(values.dtype, np.integer) or ((values < 0) | (values >= extent)).any():
            raise ArgumentError(
                f"{name} = {shown(index)}, expected integers from 0 to {extent - 1} (KV-ATTN-091)"
            )
        checked.append(index if isinstance(index, int) else values.astype(np.int64))
    try:
        np.broadcast_shapes(*(np.shape(index) for index in checked))
    except ValueError:
        shapes = ", ".join(f"{name} {list(np.shape(index))}" for name, index in indices.items())
        raise ShapeError(
            f"indices have shapes {shapes}, expected ones that broadcast (KV-ATTN-091)"
        ) from None
    return checked


def _rearrange(cache: Array, source: Layout, target: Layout, x: int) -> Array:
    """Split every dimension into its axes, permute them, and join them the target's way."""
    extents = _extents(cache, source, x)
    for axis in source.flat:
        if axis not in target.flat and extents[axis] != 1:
            raise ShapeError(
                f"cache has {extents[axis]} along {axis}, but {target.name} [{target.axes}] has no such axis "
                "(KV-ATTN-090 layout-roundtrip)"
            )
    every = [*source.flat, *(axis for axis in target.flat if axis not in source.flat)]
    wanted = [*target.flat, *(axis for axis in every if axis not in target.flat)]
    apart = cache.reshape([extents[axis] for axis in every])
    permuted = apart.transpose([every.index(axis) for axis in wanted]).copy(order="C")
    return permuted.reshape([prod(extents[axis] for axis in dim) for dim in target.dims])


def _extents(cache: Array, layout: Layout, x: int) -> dict[str, int]:
    """Return the extent of every axis: of a dimension, the one unknown axis takes what the known leave."""
    if cache.ndim != len(layout.dims):
        raise ShapeError(f"cache has shape {list(cache.shape)}, expected {layout.name} [{layout.axes}]")
    extents = {"kv": 2, "head": 1} if layout.splits_channels else {"kv": 2, "head": 1, "x": x}
    known = {"kv", "x"} & extents.keys()
    for dim, size in zip(layout.dims, cache.shape, strict=True):
        share = prod(extents[axis] for axis in dim if axis in known)
        unknown = [axis for axis in dim if axis not in known]
        if size % share or (not unknown and size != share):
            raise ShapeError(
                f"cache has shape {list(cache.shape)}, but {'*'.join(dim)} of {layout.name} must be "
                f"{' times '.join([str(share), *unknown])} (KV-ATTN-090 layout-roundtrip)"
            )
        extents.update(dict.fromkeys(unknown, size // share))
    return extents

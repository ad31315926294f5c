"""Inputs of other people's tests as NumPy arrays: from any framework, no more of them than the judging needs.

Realises: KV-CONF-017 derived-bounds (the default arithmetic).
For porters: not needed; this is the edge to other people's tests.
"""

import sys
from dataclasses import replace
from typing import Any, cast

import numpy as np

from kvref.arrays import Array, as_indices, check_count, check_real, dtype_name
from kvref.attention.arithmetic import Arithmetic
from kvref.attention.masks import VariantArgs
from kvref.errors import ArgumentError, DTypeError, ShapeError

#: Elements of the largest cache that is kept whole; of a larger one, only the blocks in the tables.
_WHOLE_CACHE = 2**24
#: How the dtypes begin whose elements are bytes of codes; torch packs two E2M1 codes into one element.
_BYTES = ("uint8", "int8", "float8", "float4_e2m1fn_x2")


def chosen_rows(tensors: dict[str, Array], rows: Any, max_rows: int) -> Array:
    """Return the query tokens to check: the given rows, all, or a fixed sample."""
    total, max_rows = tensors["q"].shape[0], check_count("max_rows", max_rows)
    if rows is not None:
        given = as_indices("rows", as_numpy(rows), ["num_rows"])
        if total and len(given) == 0:
            raise ArgumentError(f"rows is empty, expected at least one of the {total} query tokens")
        return given
    if total <= max_rows:
        return np.arange(total)
    starts = tensors["query_start_loc"]
    filled = np.diff(starts) > 0
    ends = np.unique(np.concatenate([starts[:-1][filled], starts[1:][filled] - 1]))
    if len(ends) >= max_rows:
        return np.asarray(ends[np.linspace(0, len(ends) - 1, max_rows).astype(np.int64)])
    others = np.setdiff1d(np.arange(total), ends)
    spread = np.linspace(0, len(others) - 1, max_rows - len(ends)).astype(np.int64)
    return np.union1d(ends, others[spread])


def needed_blocks(k_cache: Any, v_cache: Any, tables: Array, seq_lens: Array) -> tuple[Array, Array, Array]:
    """Return caches and tables; of large caches only the blocks in use, renumbered."""
    num_blocks, block_size = k_cache.shape[:2]
    if int(np.prod(k_cache.shape)) <= _WHOLE_CACHE:
        return as_numpy(k_cache), as_numpy(v_cache), tables
    live = np.arange(tables.shape[1])[None, :] < -(-seq_lens // block_size)[:, None]
    used = np.unique(tables[live])
    number = np.zeros(num_blocks, np.int64)
    number[used] = np.arange(len(used))
    index = used.tolist() if hasattr(k_cache, "detach") else used  # torch takes lists, NumPy and jax arrays
    return (
        as_numpy(k_cache[index]),
        as_numpy(v_cache[index]),
        np.where(live, number[np.where(live, tables, 0)], 0),
    )


def check_cache_shape(name: str, cache: Any) -> None:
    """Check the shape of a cache that is still on its device."""
    shape = getattr(cache, "shape", None)
    if shape is None:
        raise DTypeError(f"{name} is a {type(cache).__name__}, expected a tensor")
    if len(shape) != 4 or shape[1] == 0:
        raise ShapeError(
            f"{name} has shape {list(shape)}, expected [num_blocks, block_size, num_kv_heads, head_dim]"
        )


def lengths(query_start_loc: Any, seq_lens: Any) -> tuple[Array, Array]:
    """Return `query_start_loc [num_requests + 1]` and `seq_lens [num_requests]`, their shapes checked."""
    lens = as_indices("seq_lens", as_numpy(seq_lens), ["num_requests"])
    return as_indices("query_start_loc", as_numpy(query_start_loc), [len(lens) + 1]), lens


def facts_of(arithmetic: Arithmetic | None, out: Any) -> Arithmetic:
    """Return the arithmetic to hold an output to; undeclared, the result is rounded to its own dtype."""
    found = as_numpy(out)
    check_real("out", found)
    return replace(Arithmetic(), output=dtype_name(found)) if arithmetic is None else arithmetic


def plain_variant(variant: VariantArgs) -> VariantArgs:
    """Return the variant with its tensors as NumPy arrays."""
    plain: Any = {name: x if x is None or np.isscalar(x) else as_numpy(x) for name, x in variant.items()}
    return cast(VariantArgs, plain)  # the same keys, tensors as NumPy arrays


def as_numpy(x: Any) -> Array:
    """Return a NumPy, torch or jax array, or a list of numbers, as a NumPy array."""
    from kvref_conformance.host.bridges import to_numpy

    return np.asarray(x) if isinstance(x, list | tuple | int | float) else to_numpy(x)


def as_bytes(name: str, x: Any) -> Array:
    """Return codes as uint8: the bytes of a tensor whose elements take one each, on any device.

    Raises: DTypeError if they do not.
    """
    from kvref_conformance.host.bridges import library_of, to_numpy

    if library_of(x) == "torch":
        dtype = str(x.dtype).removeprefix("torch.")
        plain = x.detach().view(sys.modules["torch"].uint8).cpu() if dtype.startswith(_BYTES) else None
        array = None if plain is None else plain.numpy()
    else:
        whole = np.asarray(x) if library_of(x) in ("jax", "numpy") or isinstance(x, list) else to_numpy(x)
        dtype = whole.dtype.name
        array = whole.view(np.uint8) if dtype.startswith(_BYTES) else None
    if array is None:
        raise DTypeError(f"{name} has dtype {dtype}, expected uint8, int8 or a float8, taken by its bytes")
    return np.ascontiguousarray(array)

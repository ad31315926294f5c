"""Tensors in memory a subject can reach: where each lies, what surrounds it, and what became of it.

Every byte of a file that is no element is a guard: 64 bytes on both sides of whatever a subject may write,
and the gaps of a strided view. Outputs are filled with poison first, so what was never written shows; inputs
are compared byte for byte afterwards, so what was written without leave shows. A view that reaches far (block
offsets beyond 2^31 elements) costs only the bytes of its elements, and one that is folded (block ids beyond
65535 over a few megabytes) only those of its memory.

Realises: KV-CONF-013 guards, KV-CONF-030 inputs-rehashed.
For porters: `TensorRef` gives file, offset and strides; map the file and walk it.
Source: canaries around the signature of the RISC-V architecture tests.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from kvref.arrays import Array, dtype_name, dtype_of
from kvref_conformance.contracts import Answer, Call, Failed, OutputSpec
from kvref_conformance.host.messages import TensorRef

GUARD = 64
"""Guard bytes on both sides of a tensor that may be written; keeps elements aligned to 64 bytes."""
WIDEST_GAP = 2**20
"""Gaps longer than this many bytes are guarded at both ends only."""
SHORTEST_RUN = 8
"""Consecutive one-byte elements that must hold poison before they count as never written."""

_PATTERN = bytes((37 * i + 91) % 256 for i in range(256))
#: NaN codes with a payload that no arithmetic makes up; for integers and booleans, values no verb returns.
_POISON: dict[str, int] = {
    "float64": 0x7FFDA5A5A5A5A5A5,
    "float32": 0x7FE5A5A5,
    "float16": 0x7FA5,
    "bfloat16": 0x7FE5,
    "int64": 0xA5A5A5A5A5A5A5A5,
    "int32": 0xA5A5A5A5,
    "bool": 0xA5,
}


class Store(Protocol):
    """Bytes that both sides reach."""

    def read(self, offset: int, count: int) -> bytes:
        """Return `count` bytes from `offset` on."""
        ...

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write bytes from `offset` on."""
        ...


#: Returns (path, store) of at least `size` bytes for a tensor; the same name and size give the same memory.
Allocate = Callable[[str, int], tuple[str, Store]]
Laid = dict[str, tuple[TensorRef, Store]]


def lay(call: Call, allocate: Allocate) -> Laid:
    """Put the tensors of a call where the subject reaches them; outputs hold poison.

    A strided input keeps its strides where no two elements overlap, or where it may not be written and has
    far more elements than memory; any other travels in C order.
    """
    laid: Laid = {}
    for name, x in call.tensors.items():
        written = name in call.in_place
        strides = strides_of(x) if written or not _is_folded(x) else _steps(x)
        laid[name] = _put(name, x, strides, GUARD if written else 0, allocate)
    for name, spec in call.outputs.items():
        laid[name] = _put(name, poison(spec), None, GUARD, allocate)
    return laid


def collect(call: Call, laid: Laid) -> Answer:
    """Return what a subject has made of the tensors of a call."""
    inputs = [name for name in call.tensors if name not in call.in_place]
    returned = [*call.outputs, *call.in_place]
    outputs = {name: _read(*laid[name]) for name in returned}
    missing = {name: count_poison(outputs[name]) for name in call.outputs}
    return Answer(
        outputs=outputs,
        mutated=tuple(name for name in inputs if _changed(*laid[name], call.tensors[name])),
        overrun=tuple(name for name in returned if _guards_broken(*laid[name])),
        unwritten={name: count for name, count in missing.items() if count},
    )


def misfit(call: Call, name: str, dtype: str, shape: tuple[int, ...]) -> Failed:
    """Return the failure of an output that came back in another form: found against expected."""
    if name in call.outputs:
        wanted_dtype, wanted_shape = call.outputs[name].dtype, call.outputs[name].shape
    else:
        wanted_dtype, wanted_shape = dtype_name(call.tensors[name]), call.tensors[name].shape
    found, wanted = f"{dtype} {list(shape)}", f"{wanted_dtype} {list(wanted_shape)}"
    return Failed("shape" if dtype == wanted_dtype else "dtype", f"{name} is {found}, expected {wanted}")


def view(buffer: Any, ref: TensorRef) -> Array:
    """Return the tensor inside a buffer, without a copy.

    Raises: ValueError if the buffer is too short.
    """
    dtype = dtype_of(ref.dtype)
    strides = None if ref.strides is None else tuple(step * dtype.itemsize for step in ref.strides)
    return np.ndarray(ref.shape, dtype, buffer, ref.offset, strides)


def strides_of(x: Array) -> tuple[int, ...] | None:
    """Return the strides of an array in elements, or None where C order serves: contiguous or overlapping."""
    if x.flags.c_contiguous or x.size == 0 or any(stride % x.itemsize for stride in x.strides):
        return None
    steps = tuple(stride // x.itemsize for stride in x.strides)
    reach = 0
    for step, size in sorted(zip(steps, x.shape, strict=True)):
        if size > 1:
            if step <= reach:
                return None
            reach += step * (size - 1)
    return tuple(step if size > 1 else 1 for step, size in zip(steps, x.shape, strict=True))


def _steps(x: Array) -> tuple[int, ...]:
    return tuple(stride // x.itemsize for stride in x.strides)


def _is_folded(x: Array) -> bool:
    """Say whether a view has at least twice as many elements as the memory it walks, forwards only."""
    if x.size == 0 or any(stride <= 0 or stride % x.itemsize for stride in x.strides):
        return False
    return 2 * _reach(x.shape, _steps(x)) <= x.size


def _reach(shape: tuple[int, ...], steps: tuple[int, ...]) -> int:
    """Return the elements of memory from the first one of a view to its last."""
    return 1 + sum((size - 1) * step for size, step in zip(shape, steps, strict=True))


def poison(spec: OutputSpec) -> Array:
    """Return an output that nobody has written."""
    dtype, count = dtype_of(spec.dtype), math.prod(spec.shape)
    if spec.dtype not in _POISON:
        return np.frombuffer(_pattern(0, count), dtype).reshape(spec.shape)
    code = np.array(_POISON[spec.dtype], f"u{dtype.itemsize}").view(dtype)
    return np.full(spec.shape, code, dtype)


def count_poison(x: Array) -> int:
    """Return how many elements still hold poison.

    One-byte formats have no code to spare: there only a run of `SHORTEST_RUN` elements that repeats the
    poison pattern counts.
    """
    flat = np.ascontiguousarray(x).reshape(-1)
    codes = flat.view(f"u{x.dtype.itemsize}")
    if dtype_name(x) in _POISON:
        return int(np.count_nonzero(codes == _POISON[dtype_name(x)]))
    same = codes == np.frombuffer(_pattern(0, x.size), np.uint8)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    lengths = edges[1::2] - edges[::2]
    return int(lengths[lengths >= SHORTEST_RUN].sum())


def _put(
    name: str, x: Array, strides: tuple[int, ...] | None, guard: int, allocate: Allocate
) -> tuple[TensorRef, Store]:
    ref = TensorRef("", dtype_name(x), x.shape, strides, guard)
    path, store = allocate(name, file_size(ref))
    for start, stop in _gaps(ref):
        store.write(start, _pattern(start, stop - start))
    for offset, data in _pieces(ref, x):
        store.write(offset, data)
    return TensorRef(path, ref.dtype, ref.shape, ref.strides, ref.offset), store


def file_size(ref: TensorRef) -> int:
    """Return the bytes of a tensor's file; never 0, so that it can be mapped."""
    return max(ref.end + ref.offset, GUARD)


def _read(ref: TensorRef, store: Store) -> Array:
    order, offsets, run = _walk(ref)
    dtype = dtype_of(ref.dtype)
    rows = np.empty((len(offsets), run), dtype)
    for i, offset in enumerate(offsets.tolist()):
        rows[i] = np.frombuffer(store.read(offset, run * dtype.itemsize), dtype)
    ordered = rows.reshape([ref.shape[axis] for axis in order])
    return np.ascontiguousarray(ordered.transpose(np.argsort(order)) if order else ordered)


def _changed(ref: TensorRef, store: Store, x: Array) -> bool:
    wrong = any(store.read(offset, len(data)) != bytes(data) for offset, data in _pieces(ref, x))
    return wrong or _guards_broken(ref, store)


def _guards_broken(ref: TensorRef, store: Store) -> bool:
    return any(store.read(start, stop - start) != _pattern(start, stop - start) for start, stop in _gaps(ref))


def _pieces(ref: TensorRef, x: Array) -> Iterator[tuple[int, memoryview]]:
    """Yield (offset, bytes) of each contiguous run of elements; of a folded view, its memory as it lies."""
    if ref.strides is not None and _is_folded(x):
        memory = np.lib.stride_tricks.as_strided(x, (_reach(x.shape, ref.strides),), (x.itemsize,))
        yield ref.offset, memory.view(np.uint8).data
        return
    order, offsets, run = _walk(ref)
    size = run * x.dtype.itemsize
    data = np.ascontiguousarray(x.transpose(order)).reshape(-1).view(np.uint8)
    for i, offset in enumerate(offsets.tolist()):
        yield offset, data[i * size : (i + 1) * size].data


def _gaps(ref: TensorRef) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the bytes that belong to no element."""
    if ref.strides is not None and 0 < _reach(ref.shape, ref.strides) < math.prod(ref.shape):  # folded
        around = (0, ref.offset), (ref.end, file_size(ref))
        yield from ((start, stop) for start, stop in around if stop > start)
        return
    _, offsets, run = _walk(ref)
    size = run * dtype_of(ref.dtype).itemsize
    ends = [0, *(offset + size for offset in offsets.tolist())]
    for end, start in zip(ends, [*offsets.tolist(), file_size(ref)], strict=True):
        if start - end > WIDEST_GAP:
            yield end, end + GUARD
            yield start - GUARD, start
        elif start > end:
            yield end, start


def _walk(ref: TensorRef) -> tuple[list[int], Array, int]:
    """Return the axes in memory order, the byte offsets of the contiguous runs, and one run's elements."""
    shape = ref.shape
    if ref.strides is None and 0 not in shape:
        return list(range(len(shape))), np.array([ref.offset]), math.prod(shape)
    steps = ref.steps
    order = sorted(range(len(shape)), key=lambda axis: (shape[axis] > 1, -steps[axis]))
    if 0 in shape:
        return order, np.zeros(0, np.int64), 0
    run, outer = 1, list(order)
    while outer and (shape[outer[-1]] == 1 or steps[outer[-1]] == run):
        run *= shape[outer.pop()]
    offsets = np.zeros(1, np.int64)
    for axis in outer:
        offsets = (offsets[:, None] + np.arange(shape[axis]) * steps[axis]).reshape(-1)
    return order, ref.offset + offsets * dtype_of(ref.dtype).itemsize, run


def _pattern(start: int, count: int) -> bytes:
    """Return guard bytes for a place in a file; they depend on the place, so that a shift shows."""
    first = start % len(_PATTERN)
    return (_PATTERN * (count // len(_PATTERN) + 2))[first : first + count]

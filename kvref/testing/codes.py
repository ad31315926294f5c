"""Asserts for codecs: what was stored, and what was read back, held to the declared path byte by byte.

A codec has no tolerance: once its decisions are named, every byte is determined. Codes and scales are taken
by their bytes, whatever dtype a framework keeps them in.

Realises: KV-FMT-002 nearest-even, KV-FMT-020 decode-scale, KV-FMT-080 dequantised-exactly.
For porters: not needed; this is the edge to other people's tests.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.errors import DTypeError, FormatError
from kvref.formats.elements import ELEMENTS
from kvref.formats.format import FORMATS, Format, Quantized, format_of
from kvref.formats.paths import CANONICAL, Path
from kvref.formats.scaled import decoded
from kvref.testing.inputs import as_bytes, as_numpy
from kvref.testing.told import Reads, Writes, told_form, told_read, told_written

_OUTPUTS = ("float32", "bfloat16", "float16", "float64")


def assert_quantize_kv(
    codes: Any,
    x: Any,
    *,
    format: str | Format,
    scales: Any = None,
    zeros: Any = None,
    global_scale: Any = None,
    path: Path | Mapping[str, str] | None = None,
) -> None:
    """Assert that codes, and the scales stored with them, are those of x under a path, byte by byte.

    Shapes: x [num_tokens, num_kv_heads, head_dim] in float32, bfloat16 or float16; codes [num_tokens,
    num_kv_heads, bytes] in a dtype of one byte, taken by its bytes.
    `scales` and `global_scale` are an input where the format is given them (`fp8_e4m3`, `int8`; `nvfp4`), and
    the writer is held to them. Of every other format they are an output, like `zeros`: what the writer
    stored, and they are judged before the codes. E8M0 and E4M3 scales are taken by their bytes too.
    `path` has the decisions of the writer that are not canonical, as a Path or as a mapping of choice and
    answer. Where it divides approximately, either neighbour within its band is right; what lies under a scale
    that is NaN is not compared.
    Raises: AssertionError; FormatError, ShapeError, DTypeError where the input itself is wrong, or where the
    path refuses such numbers.
    """
    kind, way, numbers = _known(format), path_of(path), as_numpy(x)
    parts = {"scales": scales, "zeros": zeros, "global_scale": global_scale}
    given = {name: _given(name, parts.pop(name)) for name in _inputs(kind)}
    writes = Writes(kind, numbers, given)
    wanted = writes.answers(way)
    found = {"codes": as_bytes("codes", codes), **_parts(kind, parts)}
    for name in reversed(found):  # a wrong scale comes before the wrong codes that follow from it
        like = wanted[0][name]
        if found[name].shape != like.shape or found[name].dtype != like.dtype:
            raise AssertionError(told_form(writes, way, name, found, like))
    for name in reversed(found):
        right = writes.right(way, name, found, wanted)
        if not right.all():
            raise AssertionError(told_written(writes, way, name, right, found, wanted[0]))


def assert_dequantize_kv(
    out: Any,
    codes: Any,
    *,
    format: str | Format,
    scales: Any = None,
    zeros: Any = None,
    global_scale: Any = None,
    path: Path | Mapping[str, str] | None = None,
) -> None:
    """Assert that numbers are what a reader of a path makes of stored bytes, bit for bit.

    Shapes: out [num_tokens, num_kv_heads, head_dim] in float32, bfloat16, float16 or float64, the dtype that
    the reader is held to; codes [num_tokens, num_kv_heads, bytes] in a dtype of one byte.
    Everything but `out` is an input: all that the format stores, `scales`, `zeros` and `global_scale`, is
    passed as it is stored, E8M0 and E4M3 scales by their bytes. `path` as `assert_quantize_kv`.
    A NaN may have any payload; the sign of a zero counts where the element has one.
    Raises: AssertionError; FormatError, ShapeError, DTypeError where the input itself is wrong.
    """
    kind, way, found = _known(format), path_of(path), as_numpy(out)
    if found.dtype.name not in _OUTPUTS:
        raise DTypeError(f"out has dtype {found.dtype}, expected one of {', '.join(_OUTPUTS)}")
    parts = _parts(kind, {"scales": scales, "zeros": zeros, "global_scale": global_scale})
    stored = Quantized(as_bytes("codes", codes), **parts)
    wanted = decoded(stored, kind, dtype=found.dtype.name, path=way)
    if found.shape != wanted.shape:
        raise AssertionError(f"out has shape {list(found.shape)}, expected {list(wanted.shape)}")
    reads = Reads(kind, stored)
    right = reads.right(found, wanted)
    if not right.all():
        raise AssertionError(told_read(reads, way, right, found, wanted))


def path_of(path: Path | Mapping[str, str] | None) -> Path:
    """Return the path of declared decisions; of a mapping, under the names of choices or of fields.

    Raises: FormatError if a decision or an answer has no such name.
    """
    if path is None or isinstance(path, Path):
        return CANONICAL if path is None else path
    if not isinstance(path, Mapping):
        raise FormatError(f"path = {path!r:.80}, expected a Path, or a mapping of choice and answer")
    named = {name.replace("-", "_") if isinstance(name, str) else name: path[name] for name in path}
    return Path.of(named)


def _known(format: str | Format) -> Format:
    kind = format_of(format)
    if FORMATS.get(kind.name) != kind:
        raise FormatError(f"format = {kind!r:.80}, expected one of {', '.join(FORMATS)}")
    return kind


def _inputs(kind: Format) -> list[str]:
    """Return the names of the scales that a writer of a format is given."""
    owned = {"scales": kind.group, "global_scale": kind.global_scale}
    return [name for name, chosen_by in owned.items() if chosen_by == "given"]


def _given(name: str, scales: Any) -> Array:
    if scales is None:
        raise FormatError(f"{name} is missing, expected the float32 scales that the writer was given")
    return as_numpy(scales)


def _parts(kind: Format, parts: Mapping[str, Any]) -> dict[str, Array]:
    """Return what is stored beside codes, each part as the format stores it."""
    has = {"scales": kind.family != "ggml", "zeros": kind.zeros, "global_scale": bool(kind.global_scale)}
    found = {}
    for name, part in parts.items():
        if not has[name]:
            if part is not None:
                raise FormatError(f"{name} was passed, expected none: {kind.name} has no {name}")
            continue
        if part is None:
            raise FormatError(f"{name} is missing, expected those that are stored: {kind.name} has {name}")
        by_bytes = name == "scales" and kind.scale_element in ELEMENTS
        stored = as_bytes(name, part) if by_bytes else as_numpy(part)
        found[name] = stored.astype(np.float32) if isinstance(part, list | tuple) else stored
    return found

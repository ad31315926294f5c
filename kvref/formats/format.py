"""Formats: an element, what shares a scale, and what the scale is. A format is data; so is what it makes.

A number comes back as code · scale, or code · scale · global scale. Formats differ in the element, in the
group of numbers that shares a scale, in the element of the scale itself, and in who chooses the scale: the
caller (`given`) or the writer.

Realises: KV-FMT-020 decode-scale, KV-FMT-072 record-bytes.
For porters: `fp8_e4m3` first, then `mxfp8_e4m3`; the others combine the same parts.
Source: `spec/formats.md` names for each the engine or paper it comes from.
"""

from dataclasses import dataclass
from typing import Literal

from kvref.arrays import Array
from kvref.errors import FormatError

Family = Literal["amax", "mx", "nvfp4", "affine", "ggml"]
Group = Literal["given", "tensor", "token_head", "channels", "tokens"]


@dataclass(frozen=True, kw_only=True)
class Format:
    """One quantised format."""

    name: str
    element: str
    family: Family
    group: Group
    """What shares a scale. `given`: the caller passes scales, one for all or one a kv head."""
    size: int = 0
    """Channels or tokens of a group, where it is made of those."""
    scale_element: str = "float32"
    """What a scale is stored as: float32, float16, e8m0, e4m3fn."""
    zeros: bool = False
    """Whether zero points are stored beside the scales."""
    global_scale: Literal["", "given", "tensor", "token_head"] = ""
    """Who chooses the second scale of a two-level format, and what shares it; empty where there is none."""
    packed: bool = False
    """Whether two 4-bit codes share a byte."""


@dataclass(frozen=True)
class Quantized:
    """What a writer stores: bytes of codes, and what it takes to read them.

    Shapes: codes [num_tokens, num_kv_heads, bytes]; scales, zeros and global_scale as `spec/formats.md` lists
    them for each format, None where the format stores none.
    """

    codes: Array
    scales: Array | None = None
    zeros: Array | None = None
    global_scale: Array | None = None


def _amax(name: str, element: str, group: Group, size: int = 0) -> Format:
    return Format(name=name, element=element, family="amax", group=group, size=size)


def _mx(name: str, element: str, size: int = 32) -> Format:
    return Format(
        name=name,
        element=element,
        family="mx",
        group="channels",
        size=size,
        scale_element="e8m0",
        packed=element == "e2m1",
    )


def _nvfp4(name: str, global_scale: Literal["given", "tensor", "token_head"]) -> Format:
    return Format(
        name=name,
        element="e2m1",
        family="nvfp4",
        group="channels",
        size=16,
        scale_element="e4m3fn",
        global_scale=global_scale,
        packed=True,
    )


def _kivi(name: str, element: str, group: Group) -> Format:
    return Format(name=name, element=element, family="affine", group=group, size=32, zeros=True)


def _ggml(name: str, element: str, scale_element: str, size: int = 32) -> Format:
    return Format(
        name=name,
        element=element,
        family="ggml",
        group="channels",
        size=size,
        scale_element=scale_element,
    )


#: Every format by name.
FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        _amax("fp8_e4m3", "e4m3fn", "given"),
        _amax("fp8_e5m2", "e5m2", "given"),
        _amax("fp8_e4m3fnuz", "e4m3fnuz", "given"),
        _amax("fp8_e5m2fnuz", "e5m2fnuz", "given"),
        _amax("int8", "int8", "given"),
        _amax("fp8_e4m3_tensor", "e4m3fn", "tensor"),
        _amax("fp8_e4m3_token_head", "e4m3fn", "token_head"),
        _amax("int8_token_head", "int8", "token_head"),
        _amax("fp8_e4m3_group128", "e4m3fn", "channels", 128),
        _mx("mxfp8_e4m3", "e4m3fn"),
        _mx("mxfp8_e5m2", "e5m2"),
        _mx("mxfp4", "e2m1"),
        _mx("mxfp4_group16", "e2m1", 16),
        _nvfp4("nvfp4", "given"),
        _nvfp4("nvfp4_tensor", "tensor"),
        _nvfp4("nvfp4_token_head", "token_head"),
        Format(name="int4_token_head", element="uint4", family="affine", group="token_head", packed=True),
        Format(
            name="int8_midpoint",
            element="int8",
            family="affine",
            group="token_head",
            scale_element="float16",
            zeros=True,
        ),
        _kivi("kivi_k4", "uint4", "tokens"),
        _kivi("kivi_k2", "uint2", "tokens"),
        _kivi("kivi_v4", "uint4", "channels"),
        _kivi("kivi_v2", "uint2", "channels"),
        _ggml("ggml_q8_0", "int8", "float16"),
        _ggml("ggml_q4_0", "uint4", "float16"),
        _ggml("ggml_mxfp4", "e2m1", "e8m0"),
        _ggml("ggml_nvfp4", "e2m1", "e4m3fn", 64),
    )
}


def format_of(format: str | Format) -> Format:
    """Return the format of a name; a format is returned as it is.

    Raises: FormatError if there is none of that name.
    """
    if isinstance(format, Format):
        return format
    if not isinstance(format, str) or format not in FORMATS:
        raise FormatError(f"format = {format!r:.80}, expected one of {', '.join(FORMATS)}")
    return FORMATS[format]


def check_divides(size: int, extent: int, axis: str, format: Format) -> None:
    """Check that groups fill an axis.

    Raises: FormatError.
    """
    if extent % size:
        raise FormatError(
            f"{axis} = {extent}, expected a multiple of {size}, the group of {format.name}"
            " (KV-FMT-038 groups-stay-in-their-head)"
        )

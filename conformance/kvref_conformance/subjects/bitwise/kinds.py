"""What a format name means: its element, what shares a scale, and in what the scale is stored."""

from typing import Literal, NamedTuple

from kvref.errors import FormatError

Family = Literal["amax", "mx", "nvfp4", "affine", "ggml"]
Group = Literal["given", "tensor", "token_head", "channels", "tokens"]


class Kind(NamedTuple):
    """One format."""

    family: Family
    element: str
    group: Group
    """What shares a scale; `given` scales are an input."""
    size: int = 0
    """Elements of a group of channels or tokens."""
    packed: bool = False
    """Whether a byte holds two codes."""
    global_scale: str = ""
    """Of NVFP4: what shares the second scale."""


KINDS: dict[str, Kind] = {
    "fp8_e4m3": Kind("amax", "e4m3fn", "given"),
    "fp8_e5m2": Kind("amax", "e5m2", "given"),
    "fp8_e4m3fnuz": Kind("amax", "e4m3fnuz", "given"),
    "fp8_e5m2fnuz": Kind("amax", "e5m2fnuz", "given"),
    "int8": Kind("amax", "int8", "given"),
    "fp8_e4m3_tensor": Kind("amax", "e4m3fn", "tensor"),
    "fp8_e4m3_token_head": Kind("amax", "e4m3fn", "token_head"),
    "int8_token_head": Kind("amax", "int8", "token_head"),
    "fp8_e4m3_group128": Kind("amax", "e4m3fn", "channels", 128),
    "mxfp8_e4m3": Kind("mx", "e4m3fn", "channels", 32),
    "mxfp8_e5m2": Kind("mx", "e5m2", "channels", 32),
    "mxfp4": Kind("mx", "e2m1", "channels", 32, packed=True),
    "mxfp4_group16": Kind("mx", "e2m1", "channels", 16, packed=True),
    "nvfp4": Kind("nvfp4", "e2m1", "channels", 16, packed=True, global_scale="given"),
    "nvfp4_tensor": Kind("nvfp4", "e2m1", "channels", 16, packed=True, global_scale="tensor"),
    "nvfp4_token_head": Kind("nvfp4", "e2m1", "channels", 16, packed=True, global_scale="token_head"),
    "int4_token_head": Kind("affine", "uint4", "token_head", packed=True),
    "int8_midpoint": Kind("affine", "int8", "token_head"),
    "kivi_k4": Kind("affine", "uint4", "tokens", 32),
    "kivi_k2": Kind("affine", "uint2", "tokens", 32),
    "kivi_v4": Kind("affine", "uint4", "channels", 32),
    "kivi_v2": Kind("affine", "uint2", "channels", 32),
    "ggml_q8_0": Kind("ggml", "int8", "channels", 32),
    "ggml_q4_0": Kind("ggml", "int4", "channels", 32),
    "ggml_mxfp4": Kind("ggml", "e2m1", "channels", 32),
    "ggml_nvfp4": Kind("ggml", "e2m1", "channels", 64),
}


def kind_of(name: str) -> Kind:
    """Return what a format name means.

    Raises: FormatError.
    """
    if name not in KINDS:
        raise FormatError(f"format = {name!r:.80}, expected one of {', '.join(KINDS)}")
    return KINDS[name]

"""Asserts for other people's codecs: right bytes pass from any framework, wrong ones fail with a reason."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from kvref.arrays import Array, dtype_of
from kvref.errors import DTypeError, FormatError, KVError, ShapeError
from kvref.formats.format import FORMATS, Quantized
from kvref.formats.paths import Path
from kvref.formats.scaled import decoded, quantize
from kvref.testing import assert_dequantize_kv, assert_quantize_kv

TOKENS, HEADS, WIDTH = 32, 2, 128
SCALES = np.array([0.5, 0.01307], np.float32)


def numbers(dtype: str = "float32", *, seed: int = 0) -> Array:
    """Return keys of about unit size, the scale of each token its own."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((TOKENS, HEADS, WIDTH)) * np.exp2(rng.integers(-3, 4, (TOKENS, HEADS, 1)))
    return x.astype(dtype_of(dtype))


def ties() -> Array:
    """Return numbers that are, over the given scales, about halfway between two codes."""
    mantissa, exponent = np.frexp(numbers())
    return (np.ldexp(np.round(mantissa * 32) / 32, exponent) * SCALES[:, None]).astype(np.float32)


def given(name: str) -> dict[str, Any]:
    """Return the scales that a writer of a format is given."""
    kind = FORMATS[name]
    found = {"scales": SCALES} if kind.group == "given" else {}
    return found | ({"global_scale": np.array([0.02], np.float32)} if kind.global_scale == "given" else {})


def all_stored(q: Quantized, **replaced: Any) -> dict[str, Any]:
    """Return the scales beside codes, as arguments."""
    parts = {"scales": q.scales, "zeros": q.zeros, "global_scale": q.global_scale}
    return {name: part for name, part in parts.items() if part is not None} | replaced


def fails(codes: Any, x: Any, **rest: Any) -> str:
    """Return what the assert about written codes says."""
    with pytest.raises(AssertionError) as caught:
        assert_quantize_kv(codes, x, **rest)
    return str(caught.value)


def read_fails(out: Any, codes: Any, **rest: Any) -> str:
    """Return what the assert about numbers that were read says."""
    with pytest.raises(AssertionError) as caught:
        assert_dequantize_kv(out, codes, **rest)
    return str(caught.value)


@pytest.mark.parametrize("name", FORMATS)
def test_right_bytes_of_every_format_pass_both_ways(name: str) -> None:
    """What is an input and what an output differs by format; each is taken where the docstring says."""
    x = numbers("float16")
    q = quantize(x, name, **given(name))
    assert_quantize_kv(q.codes, x, format=name, **all_stored(q))
    for dtype in ("float32", "bfloat16"):
        assert_dequantize_kv(decoded(q, name, dtype=dtype), q.codes, format=name, **all_stored(q))


@pytest.mark.parametrize("name", FORMATS)
def test_one_wrong_bit_of_any_format_fails(name: str) -> None:
    """An assert that a broken codec can pass is worse than none."""
    x = numbers()
    q = quantize(x, name, **given(name))
    codes = q.codes.copy()
    codes[5, 1, 3] ^= 1
    told = fails(codes, x, format=name, **all_stored(q))
    assert told.startswith("token 5, head 1, ")
    assert "(1 of " in told
    out = decoded(q, name)
    assert "token 5, head 1" in read_fails(out, codes, format=name, **all_stored(q))


def test_a_right_torch_codec_passes_on_its_own_tensors() -> None:
    """bfloat16 in, float8 codes and float32 scales out, as a kernel has them."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from kvref_conformance.host.bridges import lend

    x, scales = lend(numbers("bfloat16"), "torch"), torch.tensor([0.01, 0.013])
    codes = (x.float() / scales[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert_quantize_kv(codes, x, format="fp8_e4m3", scales=scales)
    assert_quantize_kv(codes.view(torch.uint8), x, format="fp8_e4m3", scales=scales)
    assert_quantize_kv(codes.view(torch.int8), x, format="fp8_e4m3", scales=scales)
    out = (codes.float() * scales[:, None]).bfloat16()
    assert_dequantize_kv(out, codes, format="fp8_e4m3", scales=scales)

    own = x.float().abs().amax(-1) / 448
    codes = (x.float() / own[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert_quantize_kv(codes, x, format="fp8_e4m3_token_head", scales=own)


def test_scales_that_are_codes_are_taken_by_their_bytes() -> None:
    """A float8_e8m0fnu tensor holds the bytes that uint8 holds; by value, 2^-127 would become 0."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = numbers()
    x[0] = 0
    q = quantize(x, "mxfp8_e4m3")
    codes = torch.from_numpy(q.codes).view(torch.float8_e4m3fn)
    scales = torch.from_numpy(q.scales).view(torch.float8_e8m0fnu)
    assert q.scales is not None
    assert (q.scales[0] == 0).all()
    assert_quantize_kv(codes, torch.from_numpy(x), format="mxfp8_e4m3", scales=scales)
    out = torch.from_numpy(decoded(q, "mxfp8_e4m3"))
    assert_dequantize_kv(out, codes, format="mxfp8_e4m3", scales=scales)


def test_a_right_jax_codec_passes() -> None:
    """jax has the dtypes of ml_dtypes, and no view is needed."""
    jnp = pytest.importorskip("jax.numpy", reason="jax is not installed")
    x, scales = jnp.asarray(numbers("bfloat16")), jnp.asarray([0.01, 0.013], jnp.float32)
    codes = jnp.clip(x.astype(jnp.float32) / scales[:, None], -448, 448).astype(jnp.float8_e4m3fn)
    assert_quantize_kv(codes, x, format="fp8_e4m3", scales=scales)


def test_an_overflow_to_nan_is_named_and_explained() -> None:
    """The fault of most casts: no clamp before them. The place, the number, both codes, and the choice."""
    x = numbers()
    x[3, 1, 17] = 6.5  # 500 scales
    found = quantize(x, "fp8_e4m3", scales=SCALES, path=Path(e4m3_overflow="nan"))
    only = quantize(x, "fp8_e4m3", scales=SCALES).codes
    only[3, 1, 17] = found.codes[3, 1, 17]
    told = fails(only, x, format="fp8_e4m3", scales=SCALES)
    assert (
        "token 3, head 1, channel 17: 6.5 became 0x7f (nan), expected 0x7e (448) (1 of 8192 differ)" in told
    )
    told = fails(found.codes, x, format="fp8_e4m3", scales=SCALES)
    assert told.endswith("\nas with e4m3-overflow = nan")
    assert_quantize_kv(found.codes, x, format="fp8_e4m3", scales=SCALES, path={"e4m3-overflow": "nan"})


PLANTED: dict[str, tuple[str, dict[str, str]]] = {
    "scale-division = reciprocal": ("fp8_e4m3", {"scale_division": "reciprocal"}),
    "mx-scale = ceil": ("mxfp8_e4m3", {"mx_scale": "ceil"}),
    "nibble-order = high_first": ("mxfp4", {"nibble_order": "high_first"}),
    "int8-lowest = -127": ("int8", {"int8_lowest": "-127"}),
    "nvfp4-division = reciprocal": ("nvfp4", {"nvfp4_division": "reciprocal"}),
    "nvfp4-global = amax/448": ("nvfp4_tensor", {"nvfp4_global": "amax/448"}),
}


@pytest.mark.parametrize("sentence", PLANTED)
def test_another_decision_is_named(sentence: str) -> None:
    """A codec that took another decision is not broken; its user wants to know which."""
    name, answers = PLANTED[sentence]
    x = ties() if "division" in sentence else numbers()
    q = quantize(x, name, **given(name), path=Path(**answers))
    assert f"as with {sentence}" in fails(q.codes, x, format=name, **all_stored(q))
    assert_quantize_kv(q.codes, x, format=name, **all_stored(q), path=answers)


def test_a_scale_of_the_wrong_head_is_named_before_its_codes() -> None:
    """Wrong scales bring wrong codes; the first cause is what helps."""
    x = numbers()
    q = quantize(x[:, ::-1].copy(), "fp8_e4m3_token_head")
    told = fails(q.codes, x, format="fp8_e4m3_token_head", scales=q.scales)
    assert re.match(r"scales: token \d+, head \d: \S+.* was stored, expected ", told)
    assert "as with" not in told


def test_the_scale_of_the_other_head_is_no_decision() -> None:
    """A fault that no choice allows is told without an explanation."""
    x = numbers()
    q = quantize(x, "fp8_e4m3", scales=SCALES[::-1].copy())
    told = fails(q.codes, x, format="fp8_e4m3", scales=SCALES)
    assert told.startswith("token 0, head 0, channel 0: ")
    assert "as with" not in told


READ: dict[str, tuple[str, str]] = {
    "decode-dtype = output": ("fp8_e4m3", "bfloat16"),
    "nvfp4-decode-order = scales_first": ("nvfp4", "float32"),
    "nibble-order = split": ("mxfp4", "float32"),
}


@pytest.mark.parametrize("sentence", READ)
def test_another_reading_is_named(sentence: str) -> None:
    """The reader has decisions of its own; what came back tells which one it took."""
    name, dtype = READ[sentence]
    choice, answer = sentence.split(" = ")
    q = quantize(numbers(), name, **given(name))
    out = decoded(q, name, dtype=dtype, path=Path(**{choice.replace("-", "_"): answer}))
    told = read_fails(out, q.codes, format=name, **all_stored(q))
    assert f"as with {sentence}" in told
    assert re.search(r"the code 0x\w+ \(\S+\) was read as", told)
    assert_dequantize_kv(out, q.codes, format=name, **all_stored(q), path={choice: answer})


def test_a_reader_that_divides_is_told_the_code() -> None:
    """The oldest fault of them all: a scale that is one over the other's."""
    q = quantize(numbers(), "fp8_e4m3", scales=SCALES)
    out = decoded(q, "fp8_e4m3") / SCALES[:, None] ** 2
    told = read_fails(out, q.codes, format="fp8_e4m3", scales=SCALES)
    assert told.startswith("token 0, head 0, channel 0: the code 0x")
    assert "as with" not in told


def test_codes_under_a_nan_scale_are_not_compared() -> None:
    """They stand for NaN, whatever they are."""
    x = numbers()
    x[2, 0, 40] = np.nan
    q = quantize(x, "mxfp8_e4m3")
    codes = q.codes.copy()
    codes[2, 0, 32:64] = 0x55
    assert_quantize_kv(codes, x, format="mxfp8_e4m3", scales=q.scales)
    codes[2, 0, 31] ^= 1
    assert fails(codes, x, format="mxfp8_e4m3", scales=q.scales).startswith("token 2, head 0, channel 31")


def test_an_approximate_division_may_take_either_neighbour() -> None:
    """Only within its band: a code elsewhere that is one off is still wrong."""
    x = ties()
    q = quantize(x, "fp8_e4m3", scales=SCALES, path=Path(scale_division="reciprocal"))
    rest: dict[str, Any] = {
        "format": "fp8_e4m3",
        "scales": SCALES,
        "path": Path(scale_division="approximate"),
    }
    assert_quantize_kv(q.codes, x, **rest)
    assert "reciprocal or scale-division = approximate" in fails(q.codes, x, **{**rest, "path": None})
    q.codes[0, 0, 0] ^= 1
    assert "(1 of 8192 differ)" in fails(q.codes, x, **rest)


def test_zero_keeps_its_sign_when_read_where_the_element_has_one() -> None:
    """−0 is a code of its own; an integer has one zero, whatever a product makes of it."""
    codes = np.array([[[0x80, 0x00]]], np.uint8)
    assert_dequantize_kv(np.array([[[-0.0, 0.0]]], np.float32), codes, format="fp8_e4m3", scales=[1.0])
    assert "-0, " not in read_fails(np.zeros((1, 1, 2), np.float32), codes, format="fp8_e4m3", scales=[1.0])
    zeros = np.zeros((1, 1, 2), np.uint8)
    assert_dequantize_kv(-np.zeros((1, 1, 2), np.float32), zeros, format="int8", scales=[1.0])


def test_another_shape_or_dtype_of_an_output_fails() -> None:
    """Groups along another axis show in the shape first, and the choice explains it."""
    x = numbers()
    q = quantize(x, "mxfp8_e4m3", path=Path(scale_axis="tokens"))
    told = fails(q.codes, x, format="mxfp8_e4m3", scales=q.scales)
    assert told.startswith("scales has dtype uint8 and shape [1, 2, 128], expected uint8 and [32, 2, 4]")
    assert told.endswith("as with scale-axis = tokens")
    own = quantize(x, "int8_token_head")
    assert own.scales is not None
    told = fails(own.codes, x, format="int8_token_head", scales=own.scales.astype(np.float16))
    assert told.startswith("scales has dtype float16")
    out = decoded(own, "int8_token_head")[..., :-1]
    assert read_fails(out, own.codes, format="int8_token_head", scales=own.scales).startswith("out has shape")


X = numbers()
CODES = np.zeros(X.shape, np.uint8)
BAD: dict[str, tuple[Mapping[str, Any], type[KVError], str]] = {
    "no such format": ({"format": "fp9"}, FormatError, "format = 'fp9'"),
    "no scales": ({}, FormatError, "scales is missing"),
    "no stored scales": ({"format": "mxfp8_e4m3"}, FormatError, "scales is missing"),
    "zero scale": ({"scales": [0.0]}, FormatError, r"scales\[0\] = 0.0"),
    "zeros of a format without": ({"scales": [1.0], "zeros": [1.0]}, FormatError, "zeros was passed"),
    "scales inside": ({"format": "ggml_q8_0", "scales": [1.0]}, FormatError, "scales was passed"),
    "no such choice": ({"scales": [1.0], "path": {"e4m3": "nan"}}, FormatError, "path holds 'e4m3'"),
    "no path": ({"scales": [1.0], "path": "nan"}, FormatError, "path = 'nan'"),
    "codes as numbers": ({"scales": [1.0], "codes": X}, DTypeError, "codes has dtype float32"),
    "x as codes": ({"scales": [1.0], "x": CODES}, DTypeError, "x has dtype uint8"),
    "x flat": ({"scales": [1.0], "x": X.reshape(-1)}, ShapeError, "x has shape"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_passed_by_mistake_is_refused_by_name(case: str) -> None:
    """A wrong call is not a wrong codec: it raises another exception."""
    wrong, error, message = BAD[case]
    arguments: dict[str, Any] = {"codes": CODES, "x": X, "format": "fp8_e4m3", **wrong}
    with pytest.raises(error, match=message):
        assert_quantize_kv(**arguments)


def test_what_is_read_by_mistake_is_refused_by_name() -> None:
    """A reader is given all that is stored."""
    with pytest.raises(DTypeError, match="out has dtype uint8"):
        assert_dequantize_kv(CODES, CODES, format="fp8_e4m3", scales=[1.0])
    with pytest.raises(FormatError, match="global_scale is missing"):
        assert_dequantize_kv(X, CODES, format="nvfp4", scales=CODES)

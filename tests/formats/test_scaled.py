"""Quantise and dequantise: every format against a plain loop over its definition, and against libraries."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.arrays import Array
from kvref.errors import DTypeError, FormatError, ShapeError
from kvref.formats.casts import code_of
from kvref.formats.elements import largest, value_of
from kvref.formats.exponents import shared_exponent
from kvref.formats.format import FORMATS, Format, Quantized, format_of
from kvref.formats.paths import PATHS, Path
from kvref.formats.scaled import acceptable, decoded, dequantize, quantize, unpacked

#: Scales far from one and from powers of two, one a head.
SCALES = np.array([0.37, 2.9, 0.0625], np.float32)
GLOBAL = np.array([0.0042], np.float32)
HALVES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


def given_scales(format: str) -> dict[str, Any]:
    """What a caller passes to a format that is given its scales."""
    kind = FORMATS[format]
    scales = {"scales": SCALES} if kind.group == "given" else {}
    return scales | ({"global_scale": GLOBAL} if kind.global_scale == "given" else {})


def draw(seed: int, tokens: int = 32, width: int = 128, spread: float = 2.0) -> Array:
    """Numbers whose tokens and heads have magnitudes of their own."""
    rng = np.random.default_rng(seed)
    size = np.exp2(spread * rng.normal(size=(tokens, 3, 1)))
    return (rng.normal(size=(tokens, 3, width)) * size).astype(np.float32)


@pytest.mark.parametrize("format", FORMATS)
def test_reading_what_was_written_is_near(format: str) -> None:
    """No format loses more than its bits explain, on numbers that its scales were made for."""
    x = draw(1, spread=0.2)
    own = {"scales": np.full(3, 0.05, np.float32)} if FORMATS[format].group == "given" else {}
    own |= (
        {"global_scale": np.full(1, 4 / 2688, np.float32)} if "global_scale" in given_scales(format) else {}
    )
    lost = dequantize(quantize(x, format, **own), format) - x
    bits = {"e4m3fn": 0.04, "e4m3fnuz": 0.04, "e5m2": 0.08, "e5m2fnuz": 0.08, "e2m1": 0.16, "int8": 0.02}
    assert np.sqrt((lost**2).mean() / (x**2).mean()) < bits.get(FORMATS[format].element, 0.8)


@pytest.mark.parametrize("format", FORMATS)
def test_readers_round_the_exact_number(format: str) -> None:
    """What a canonical reader gets is within the roundings of its products of what the bytes stand for."""
    q = quantize(draw(2), format, **given_scales(format))
    exact = dequantize(q, format)
    for dtype, u in (("float32", 2.0**-23), ("bfloat16", 2.0**-8), ("float16", 2.0**-10)):
        seen = decoded(q, format, dtype=dtype)
        assert seen.dtype == HALVES[dtype]
        inside = np.abs(exact) < 6e4
        np.testing.assert_allclose(seen[inside].astype(float), exact[inside], rtol=u, atol=1e-5)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("division", ["divide", "reciprocal", "input"])
def test_given_scales_by_the_definition(dtype: str, division: str) -> None:
    """Number by number: the quotient as the path rounds it, then the cast of its definition."""
    x, path = draw(3, tokens=4, width=16).astype(HALVES[dtype]), Path(scale_division=division)
    for format in ("fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "int8"):
        element = FORMATS[format].element
        found = quantize(x, format, scales=SCALES, path=path).codes
        for (token, head, channel), number in np.ndenumerate(x):
            wide, scale = np.float32(number), SCALES[head]
            if division == "divide":
                quotient = np.float32(wide / scale)
            elif division == "reciprocal":
                quotient = np.float32(wide * np.float32(np.float32(1) / scale))
            else:
                quotient = HALVES[dtype](np.float32(wide / scale))
            assert found[token, head, channel] == code_of(float(quotient), element, path)


@pytest.mark.parametrize(
    "format", ["fp8_e4m3_tensor", "fp8_e4m3_token_head", "int8_token_head", "fp8_e4m3_group128"]
)
def test_own_scales_by_the_definition(format: str) -> None:
    """amax / largest of whatever shares the scale, in float32."""
    x, kind = draw(4, tokens=5, width=256), FORMATS[format]
    q = quantize(x, format)
    assert q.scales is not None
    top = np.float32(largest(kind.element))
    for (token, head, channel), number in np.ndenumerate(x):
        if kind.group == "tensor":
            group, scale = x, q.scales[0]
        elif kind.group == "token_head":
            group, scale = x[token, head], q.scales[token, head]
        else:
            start = channel // 128 * 128
            group, scale = x[token, head, start : start + 128], q.scales[token, head, channel // 128]
        assert scale == np.abs(group).max() / top
        if channel % 17 == 0:
            assert q.codes[token, head, channel] == code_of(float(number / scale), kind.element)


@pytest.mark.parametrize("format", ["mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "mxfp4_group16"])
@pytest.mark.parametrize("rule", PATHS["mx_scale"])
def test_microscaling_by_the_definition(format: str, rule: str) -> None:
    """The exponent of each group's amax, and each number over two to that power."""
    kind, path = FORMATS[format], Path(mx_scale=rule)
    x = draw(5, tokens=3, width=64, spread=6.0)
    q = quantize(x, format, path=path)
    assert q.scales is not None
    codes = unpacked(q, format, path=path)
    for token, head in np.ndindex(3, 3):
        for group in range(64 // kind.size):
            part = x[token, head, group * kind.size : (group + 1) * kind.size]
            byte = shared_exponent(np.abs(part).max(keepdims=True), kind.element, path)[0]
            assert q.scales[token, head, group] == byte
            wanted = [code_of(float(n) * 2.0 ** (127 - int(byte)), kind.element) for n in part]
            assert codes[token, head, group * kind.size : (group + 1) * kind.size].tolist() == wanted


@pytest.mark.parametrize("division", ["divide", "reciprocal", "two_reciprocals", "encode"])
def test_nvfp4_by_the_definition(division: str) -> None:
    """Two levels, each step a float32 operation in the order the path names."""
    x, path, one = draw(6, tokens=4, width=32), Path(nvfp4_division=division), np.float32(1)
    q = quantize(x, "nvfp4", global_scale=GLOBAL, path=path)
    assert q.scales is not None
    codes, g = unpacked(q, "nvfp4"), GLOBAL[0]
    for token, head, group in np.ndindex(4, 3, 2):
        part = x[token, head, group * 16 : (group + 1) * 16]
        amax, six = np.abs(part).max(), np.float32(6)
        quotient = {
            "divide": amax / (six * g),
            "reciprocal": amax / (six * g),
            "two_reciprocals": (amax / six) / g,
            "encode": (amax / six) * (one / g),
        }[division]
        byte = code_of(float(quotient), "e4m3fn")
        assert q.scales[token, head, group] == byte
        s = np.float32(value_of(byte, "e4m3fn"))
        for n, code in zip(part, codes[token, head, group * 16 : (group + 1) * 16], strict=True):
            number = {
                "divide": n / (s * g),
                "reciprocal": n * (one / (s * g)),
                "two_reciprocals": n * ((one / g) / s),
                "encode": n / (s / (one / g)),
            }[division]
            assert code == code_of(float(number), "e2m1")


def test_four_over_six_keeps_the_smaller_error() -> None:
    """A group may make its largest number 4 instead of 6, and does so only where that is nearer."""
    x = draw(7, tokens=64, width=16)
    path = Path(nvfp4_largest="four_over_six")
    six, best = (
        quantize(x, "nvfp4", global_scale=GLOBAL),
        quantize(x, "nvfp4", global_scale=GLOBAL, path=path),
    )
    lost_six = ((dequantize(six, "nvfp4") - x) ** 2).sum(axis=-1)
    lost_best = ((dequantize(best, "nvfp4") - x) ** 2).sum(axis=-1)
    assert six.scales is not None and best.scales is not None  # noqa: PT018 - one fact about both
    other = six.scales[..., 0] != best.scales[..., 0]
    assert other.any()
    assert (lost_best[other] < lost_six[other]).all()
    assert (lost_best[~other] == lost_six[~other]).all()


@pytest.mark.parametrize("floor", PATHS["nvfp4_scale_floor"])
@pytest.mark.parametrize("format", ["nvfp4_tensor", "nvfp4_token_head"])
def test_codes_of_zeros_are_zeros(format: str, floor: str) -> None:
    """Where the global scale is derived from zeros and so is zero itself, codes are zeros all the same."""
    path = Path(nvfp4_scale_floor=floor)
    codes = unpacked(quantize(np.zeros((2, 3, 32), np.float32), format, path=path), format, path=path)
    assert not codes.any()


@pytest.mark.parametrize("format", ["fp8_e4m3_tensor", "fp8_e4m3_token_head", "mxfp8_e4m3", "mxfp4", "nvfp4"])
def test_zeros_stay_zeros(format: str) -> None:
    """A group of zeros comes back as zeros under every path, whatever its scale became."""
    x = np.zeros((2, 3, 64), np.float32)
    for path in (Path(), Path(mx_zero_group="1e-10", scale_floor="1e-6", nvfp4_scale_floor="epsilon")):
        q = quantize(x, format, path=path, **given_scales(format))
        np.testing.assert_array_equal(dequantize(q, format, path=path), 0.0)


@pytest.mark.parametrize("format", ["mxfp8_e4m3", "mxfp8_e5m2", "mxfp4"])
def test_one_nan_takes_its_group_and_no_other(format: str) -> None:
    """The scale of the group is NaN, so all of it is; the group next to it is as if nothing were there."""
    x = draw(8, tokens=2, width=64)
    clean = dequantize(quantize(x, format), format)
    x[1, 2, 5] = np.nan
    found = dequantize(quantize(x, format), format)
    assert np.isnan(found[1, 2, :32]).all()
    found[1, 2, :32] = clean[1, 2, :32]
    np.testing.assert_array_equal(found, clean)


def test_smallest_scale_decodes_and_the_last_kills() -> None:
    """Byte 0x00 is 2^-127 and byte 0xFF is NaN, for all 32 elements."""
    codes = np.full((1, 1, 64), 0x38, np.uint8)  # 1.0
    q = Quantized(codes, np.array([[[0x00, 0xFF]]], np.uint8))
    found = decoded(q, "mxfp8_e4m3")
    np.testing.assert_array_equal(found[..., :32], np.float32(2.0**-127))
    assert np.isnan(found[..., 32:]).all()


@given(
    st.integers(0, 2**16),
    st.sampled_from([n for n, f in FORMATS.items() if f.group == "given"]),
    st.fixed_dictionaries({name: st.sampled_from(answers) for name, answers in PATHS.items()}),
)
def test_writing_what_was_read_changes_nothing(seed: int, format: str, answers: dict[str, str]) -> None:
    """Any path: what was read, written again under the same scales, is the same numbers."""
    path = Path.of({**answers, "scale_division": "divide", "int8_lowest": "-128"})
    x = draw(seed, tokens=3, width=8)
    once = quantize(x, format, scales=SCALES, path=path)
    numbers = dequantize(once, format, path=path)
    finite = np.where(np.isfinite(numbers), numbers, 0.0).astype(np.float32)
    again = dequantize(quantize(finite, format, scales=SCALES, path=path), format, path=path)
    np.testing.assert_array_equal(again[np.isfinite(numbers)], numbers[np.isfinite(numbers)])


@given(
    st.integers(0, 2**16),
    st.sampled_from([n for n, f in FORMATS.items() if f.family in ("mx", "nvfp4")]),
    st.fixed_dictionaries(
        {
            name: st.sampled_from(PATHS[name])
            for name in PATHS
            if name.startswith(("mx", "nvfp4", "e2m1", "nibble", "scale_"))
        }
    ),
)
def test_any_path_is_read_by_itself(seed: int, format: str, answers: dict[str, str]) -> None:
    """Whatever order, layout and rule a writer declares, a reader under the same declaration is near."""
    path = Path.of({**answers, "scale_division": "divide"})
    if FORMATS[format].global_scale == "token_head" and path.scale_axis == "tokens":
        return
    x = draw(seed, tokens=32, width=64, spread=0.2)
    g = np.array([1 / 200 if path.nvfp4_operand == "decode" else 200], np.float32)
    own = {"global_scale": g} if FORMATS[format].global_scale == "given" else {}
    if path.nvfp4_global == "unit" and FORMATS[format].global_scale in ("tensor", "token_head"):
        x = x * 64  # where no scale is derived, numbers must be large enough to have scales
    q = quantize(x, format, path=path, **own)
    lost = dequantize(q, format, path=path) - x
    assert np.sqrt((lost**2).mean() / (x**2).mean()) < 0.35


@pytest.mark.parametrize("format", ["fp8_e4m3", "int8"])
def test_band_encloses_every_division(format: str) -> None:
    """Any way to divide in float32 is within the band; the band is a single code nearly everywhere."""
    x = draw(9, tokens=2000, width=16)
    low, high = acceptable(x, format, scales=SCALES, path=Path(scale_division="approximate"))
    assert np.mean(low.codes != high.codes) < 1e-3
    for division in ("divide", "reciprocal"):
        codes = quantize(x, format, scales=SCALES, path=Path(scale_division=division)).codes
        assert ((codes == low.codes) | (codes == high.codes)).all()
    assert len(acceptable(x, format, scales=SCALES)) == 1


def test_tiles_and_nibbles_are_only_an_order() -> None:
    """Packing and layout move bytes: the numbers are the same, and the bytes are not."""
    x = draw(10, tokens=40, width=64)
    plain = dequantize(quantize(x, "nvfp4", global_scale=GLOBAL), "nvfp4")
    for path in (
        Path(nibble_order="high_first"),
        Path(nibble_order="split"),
        Path(scale_layout="tiled_128x4"),
    ):
        q = quantize(x, "nvfp4", global_scale=GLOBAL, path=path)
        np.testing.assert_array_equal(dequantize(q, "nvfp4", path=path), plain)
        assert (
            not np.array_equal(dequantize(replace(q), "nvfp4"), plain)
            if path.scale_layout == "linear"
            else True
        )


def test_flattened_groups_cross_heads() -> None:
    """At 80 channels a group of 32 runs into the next head where the path lets it; else it is refused."""
    x = draw(11, tokens=2, width=80)[:, :2]
    path = Path(mx_span="flattened")
    q = quantize(x, "mxfp8_e4m3", path=path)
    assert q.scales is not None
    assert q.scales.shape == (2, 5)
    np.testing.assert_allclose(dequantize(q, "mxfp8_e4m3", path=path), x, rtol=0.13, atol=0.02)
    with pytest.raises(
        FormatError, match=r"head_dim = 80, expected a multiple of 32, the group of mxfp8_e4m3"
    ):
        quantize(x, "mxfp8_e4m3")


def test_groups_of_tokens_share_a_channel() -> None:
    """Where scales run along tokens, sixteen tokens of one channel share one."""
    x = draw(12, tokens=32, width=16)
    x[:16, 1, 3] *= 64
    path = Path(scale_axis="tokens")
    q = quantize(x, "nvfp4", global_scale=100 * GLOBAL, path=path)
    assert q.scales is not None
    assert q.scales.shape == (2, 3, 16)
    others = np.delete(q.scales[0, 1], 3)
    assert q.scales[0, 1, 3] > others.max()
    with pytest.raises(FormatError, match="num_tokens = 20, expected a multiple of 16"):
        quantize(x[:20], "nvfp4", global_scale=GLOBAL, path=path)


def _refused(match: str, x: Any, format: Any = "fp8_e4m3", error: type = FormatError, **given: Any) -> None:
    with pytest.raises(error, match=match):
        quantize(x, format, **given)


def test_bad_inputs_of_writers_are_named() -> None:
    """Scales that are no scales, shapes, dtypes, names: each says what was found and what was expected."""
    x = np.ones((2, 3, 64), np.float32)
    _refused("scales is missing, expected float32 scales: fp8_e4m3 is given them", x)
    _refused(r"scales\[1\] = 0.0, expected a finite number above zero", x, scales=[1.0, 0.0, 1.0])
    _refused(r"scales\[0\] = -2.0, expected a finite number above zero", x, scales=[-2.0])
    _refused(r"scales\[0\] = inf, expected a finite number above zero", x, scales=[np.inf])
    _refused(r"scales\[2\] = nan, expected", x, scales=[1.0, 1.0, np.nan])
    _refused(r"scales\[0\] = 1e-50, expected a finite number above zero in float32", x, scales=[1e-50])
    _refused(r"scales has shape \[2\], expected \[1\] or \[3\]", x, scales=[1.0, 1.0])
    _refused("scales was passed, expected none: mxfp4 makes its own", x, "mxfp4", scales=[1.0])
    _refused("global_scale is missing", x, "nvfp4")
    _refused(r"global_scale has shape \[3\], expected \[1\]", x, "nvfp4", global_scale=[1.0, 1.0, 1.0])
    _refused("format = 'fp8', expected one of fp8_e4m3", x, "fp8", scales=[1.0])
    _refused(r"x\[1, 0, 2\] = nan, expected a finite number", _with(x, np.nan), "fp8_e4m3_token_head")
    _refused(
        r"x\[1, 0, 2\] is NaN, expected a number: int8 has no NaN", _with(x, np.nan), "int8", scales=[1.0]
    )
    _refused("x has dtype float64", x.astype(np.float64), error=DTypeError, scales=[1.0])
    _refused("x has dtype uint8", x.astype(np.uint8), error=DTypeError, scales=[1.0])
    _refused(
        r"x has shape \[6, 64\], expected \[num_tokens", x.reshape(6, 64), error=ShapeError, scales=[1.0]
    )


def test_bad_inputs_of_readers_are_named() -> None:
    """Codes and scales that another format, another width or another dialect wrote."""
    x = np.ones((2, 3, 64), np.float32)
    q = quantize(x, "nvfp4", global_scale=GLOBAL)
    assert q.scales is not None
    for wrong, match in (
        (replace(q, codes=q.codes[..., :-1]), "codes|bytes|multiple"),
        (replace(q, codes=q.codes.astype(np.int16)), "dtype int16, expected uint8"),
        (replace(q, scales=None), "scales is missing, expected an array of e4m3fn"),
        (replace(q, scales=q.scales.astype(np.float32)), "scales has dtype float32, expected uint8"),
        (replace(q, scales=q.scales[..., :-1]), r"scales has shape \[2, 3, 3\], expected \[2, 3, 4\]"),
        (replace(q, global_scale=None), "global_scale is missing, expected an array of float32"),
        (replace(q, codes=q.codes[0]), r"codes has shape \[3, 32\], expected \[num_tokens"),
    ):
        with pytest.raises((FormatError, ShapeError), match=match):
            dequantize(wrong, "nvfp4")
        with pytest.raises((FormatError, ShapeError), match=match):
            decoded(wrong, "nvfp4")


def _with(x: Array, number: float) -> Array:
    other = x.copy()
    other[1, 0, 2] = number
    return other


def test_a_format_of_ones_own_is_data() -> None:
    """Groups of 8 of a 5-bit exponent: nothing but a record is needed."""
    mine = Format(name="mine", element="e5m2", family="mx", group="channels", size=8, scale_element="e8m0")
    x = draw(13, tokens=2, width=24)
    q = quantize(x, mine)
    assert q.scales is not None
    assert q.scales.shape == (2, 3, 3)
    np.testing.assert_allclose(dequantize(q, mine), x, rtol=0.13, atol=0.05)
    assert format_of(mine) is mine


def test_nvfp4_as_torchao() -> None:
    """torchao's scales, codes and decoded numbers, bit for bit, under the path it takes."""
    nv = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    torch = pytest.importorskip("torch")
    x = draw(14, tokens=64)
    tensor = torch.from_numpy(x.reshape(-1, 128))
    g = nv.per_tensor_amax_to_scale(tensor.abs().max())
    theirs = nv.NVFP4Tensor.to_nvfp4(tensor, per_tensor_scale=g)
    path = Path(
        nvfp4_division="two_reciprocals",
        nvfp4_scale_floor="smallest_normal",
        nvfp4_decode_order="scales_first",
    )
    q = quantize(x, "nvfp4", global_scale=g.numpy().reshape(1), path=path)
    assert q.scales is not None
    np.testing.assert_array_equal(q.scales.ravel(), theirs.scale.view(torch.uint8).numpy().ravel())
    np.testing.assert_array_equal(q.codes.ravel(), theirs.qdata.view(torch.uint8).numpy().ravel())
    back = theirs.dequantize(torch.float32).numpy().reshape(x.shape)
    np.testing.assert_array_equal(decoded(q, "nvfp4", path=path), back)


@pytest.mark.parametrize("mode", ["FLOOR", "CEIL", "EVEN", "RCEIL"])
@pytest.mark.parametrize("format", ["mxfp8_e4m3", "mxfp8_e5m2", "mxfp4"])
def test_microscaling_as_torchao(format: str, mode: str) -> None:
    """torchao's scales and codes in each of its modes."""
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    torch = pytest.importorskip("torch")
    kinds = {"e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e2m1": torch.float4_e2m1fn_x2}
    x = draw(15, tokens=64, spread=6.0)
    scales, data = mx.to_mx(
        torch.from_numpy(x), kinds[FORMATS[format].element], 32, getattr(mx.ScaleCalculationMode, mode)
    )
    q = quantize(x, format, path=Path(mx_scale=mode.lower()))
    assert q.scales is not None
    np.testing.assert_array_equal(q.scales.ravel(), scales.view(torch.uint8).numpy().ravel())
    np.testing.assert_array_equal(q.codes.ravel(), data.view(torch.uint8).numpy().ravel())


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(sorted(FORMATS)),
    st.sampled_from(sorted(HALVES)),
    st.booleans(),
    st.fixed_dictionaries({name: st.sampled_from(answers) for name, answers in PATHS.items()}),
)
def test_any_bits_are_answered_or_refused(
    seed: int, format: str, dtype: str, finite: bool, answers: dict[str, str]
) -> None:
    """Any bits of any dtype under any path: bytes and numbers, or an error that names what is wrong."""
    rng, path = np.random.default_rng(seed), Path.of(answers)
    x = rng.integers(0, 256, (32, 2, 128 * np.dtype(HALVES[dtype]).itemsize), np.uint8).view(HALVES[dtype])
    with np.errstate(invalid="ignore"):
        x = np.where(np.isfinite(x.astype(np.float32)), x, x.dtype.type(0)) if finite else x
    own = {name: scales[:2] for name, scales in given_scales(format).items()}
    try:
        q = quantize(x, format, path=path, **own)
        shape = dequantize(q, format, path=path).shape
        other = replace(q, codes=rng.integers(0, 256, q.codes.shape).astype(np.uint8))
        decoded(other, format, path=path, dtype=dtype)
    except FormatError:
        return
    assert shape == x.shape
    assert len(acceptable(x, format, path=path, **own)) in (1, 2, 4)

"""Asymmetric integers: KIVI against torch, int4 against vLLM's own kernel, the rest against plain loops."""

import json
from dataclasses import replace
from pathlib import Path as File
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kvref.errors import DTypeError, FormatError, ShapeError
from kvref.formats.affine import decoded, int4_scales, int4_token_head, kivi, midpoint, quantize, values
from kvref.formats.format import FORMATS, Quantized
from kvref.formats.packing import pack
from kvref.formats.paths import Path

KIVI = ("kivi_k4", "kivi_k2", "kivi_v4", "kivi_v2")
ALL = (*KIVI, "int4_token_head", "int8_midpoint")
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def numbers(shape: tuple[int, ...] = (64, 2, 64), dtype: str = "float32", seed: int = 0) -> Any:
    """Return numbers as keys have them: channels of unlike magnitude, off centre."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-6, 4, shape[-1])) + rng.integers(-2, 3, shape[-1])
    return x.astype(np.float32).astype(DTYPES[dtype])


def kivi_by_torch(x: Any, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """KIVI's own steps, in torch and in the dtype of x: range, scale, difference, quotient, clamp, round."""
    torch = pytest.importorskip("torch")
    data = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype.itemsize == 2 else None
    data = torch.from_numpy(np.ascontiguousarray(x)) if x.dtype in (np.float32, np.float16) else data
    num_tokens, heads, dim = x.shape
    axis = 1 if name[5] == "k" else 3
    data = data.view(num_tokens // 32, 32, heads, dim) if axis == 1 else data.view(num_tokens, heads, -1, 32)
    top = 2 ** int(name[6]) - 1
    low, high = data.amin(axis, keepdim=True), data.amax(axis, keepdim=True)
    scale = (high - low) / top
    codes = ((data - low) / scale).clamp(0, top).round().to(torch.uint8).view(x.shape)
    return codes.numpy(), scale.squeeze(axis).float().numpy(), low.squeeze(axis).float().numpy()


@pytest.mark.parametrize("name", KIVI)
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_kivi_is_what_its_authors_compute(name: str, dtype: str) -> None:
    """Codes, scales and zeros, bit for bit; KIVI computes in the dtype of the model."""
    x = numbers(dtype=dtype)
    found = quantize(x, FORMATS[name], Path(scale_division="input"))
    for mine, theirs in zip((found.codes, found.scales, found.zeros), kivi_by_torch(x, name), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", KIVI)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_kivi_in_float32_widens_first(name: str, dtype: str) -> None:
    """The canonical path computes in float32 whatever the input is; that is another scale than KIVI's."""
    x = numbers(dtype=dtype)
    found, theirs = quantize(x, FORMATS[name]), kivi_by_torch(x.astype(np.float32), name)
    np.testing.assert_array_equal(found.codes, theirs[0])
    np.testing.assert_array_equal(found.scales, theirs[1])
    assert (found.scales != kivi_by_torch(x, name)[1]).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_kivi_is_read_in_the_dtype_of_the_output(dtype: str) -> None:
    """code · scale + min in torch, where code, scale and min have that dtype already."""
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    q = quantize(numbers(dtype=dtype), FORMATS["kivi_v4"], Path(scale_division="input"))
    assert q.scales is not None
    assert q.zeros is not None
    parts = [torch.from_numpy(np.repeat(part, 32, -1)).to(kind) for part in (q.scales, q.zeros)]
    wanted = (torch.from_numpy(q.codes).to(kind) * parts[0] + parts[1]).float().numpy()
    found = decoded(q, FORMATS["kivi_v4"], Path(decode_dtype="output"), dtype)
    assert found.dtype == DTYPES[dtype]
    np.testing.assert_array_equal(found.astype(np.float32), wanted)


def test_int4_is_what_vllm_stores() -> None:
    """Bytes and scales recorded from vLLM's kernel: ties, zeros, constants, one-sided groups, tiny ones."""
    file = File(__file__).parents[1] / "data" / "int4_token_head_vectors.json"
    for group in json.loads(file.read_text())["groups"]:
        x = np.float32([float.fromhex(n) for n in group["numbers"].split()]).reshape(1, 1, -1)
        q = int4_token_head(x)
        assert q.scales is not None
        assert pack(q.codes).tobytes().hex() == group["bytes"], group["what"]
        assert f"{int(q.scales.view(np.uint32)[0, 0]):08x}" == group["scale"], group["what"]


@given(hnp.arrays(np.float32, 32, elements=st.floats(-1e4, 1e4, width=32)), st.integers(0, 2))
def test_int4_follows_its_definition(x: np.ndarray, decimals: int) -> None:
    """One group, number by number."""
    x = np.round(x, decimals)  # equal numbers and ties
    scale = max((x.max() - x.min()) / np.float32(15), np.float32(1e-6))
    cut = lambda v: min(max(int(v + np.float32(0.5 if v >= 0 else -0.5)), 0), 15)  # noqa: E731
    zero = cut(-x.min() / scale)
    q = int4_token_head(x.reshape(1, 1, 32))
    assert q.codes[0, 0].tolist() == [cut(n * (np.float32(1) / scale) + np.float32(zero)) for n in x]
    assert int(q.scales.view(np.uint32)[0, 0]) == (int(scale.view(np.uint32)) & ~15 | zero)


@given(hnp.arrays(np.float32, 16, elements=st.floats(-1e3, 1e3, width=32)), st.integers(0, 2))
def test_midpoint_follows_its_definition(x: np.ndarray, decimals: int) -> None:
    """One group, number by number: codes under the float32 scale, which is then stored in float16."""
    x = np.round(x, decimals)
    scale, middle = (x.max() - x.min()) / np.float32(255), (x.min() + x.max()) / np.float32(2)
    code = lambda n: 0 if x.max() == x.min() else min(max(round(float((n - middle) / scale)), -128), 127)  # noqa: E731
    q = midpoint(x.reshape(1, 1, 16))
    assert q.codes.view(np.int8)[0, 0].tolist() == [code(n) for n in x]
    assert (q.scales, q.zeros) == (np.float16(scale), np.float16(middle))


def test_midpoint_can_spare_the_lowest_code() -> None:
    """The ends of a range lie at ±127.5: the even tie is −128, unless the path has no such code."""
    x = np.linspace(-127.5, 127.5, 16, dtype=np.float32).reshape(1, 1, 16)
    assert midpoint(x).codes.view(np.int8)[0, 0, [0, -1]].tolist() == [-128, 127]
    spared = midpoint(x, Path(int8_lowest="-127"))
    assert spared.codes.view(np.int8)[0, 0, [0, -1]].tolist() == [-127, 127]


@pytest.mark.parametrize("name", KIVI)
def test_kivi_follows_its_definition(name: str) -> None:
    """Number by number, with the group looked up by hand."""
    x = numbers((32, 1, 32))
    q = quantize(x, FORMATS[name])
    assert q.scales is not None
    assert q.zeros is not None
    top = np.float32(2 ** int(name[6]) - 1)
    for token, channel in [(0, 0), (3, 17), (31, 31), (8, 1)]:
        group = x[:, 0, channel] if name[5] == "k" else x[token, 0, :]
        scale = (group.max() - group.min()) / top
        at = (0, 0, channel) if name[5] == "k" else (token, 0, 0)
        assert (q.scales[at], q.zeros[at]) == (scale, group.min())
        assert q.codes[token, 0, channel] == round(float((x[token, 0, channel] - group.min()) / scale))


@pytest.mark.parametrize(("name", "shape"), [("kivi_k4", (2, 2, 64)), ("kivi_v4", (64, 2, 2))])
def test_groups_run_along_their_axis(name: str, shape: tuple[int, ...]) -> None:
    """One outlier changes the scale of its own 32 tokens of a channel, or 32 channels of a token, alone."""
    x = numbers()
    other = x.copy()
    other[40, 1, 50] = 1000
    one, two = quantize(x, FORMATS[name]).scales, quantize(other, FORMATS[name]).scales
    assert one is not None
    assert two is not None
    assert one.shape == shape
    assert np.argwhere(one != two).tolist() == [[1, 1, 50] if name == "kivi_k4" else [40, 1, 1]]


@pytest.mark.parametrize("name", [*KIVI, "int8_midpoint"])
def test_a_constant_group_is_its_number(name: str) -> None:
    """Codes 0 over a zero that is the number; a path may refuse it, and then says which group it was."""
    x = numbers()
    x[:, 1, :] = 0.75
    q = quantize(x, FORMATS[name])
    assert not q.codes[:, 1, :].any()
    assert (values(q, FORMATS[name])[:, 1, :] == 0.75).all()
    with pytest.raises(FormatError, match="KV-FMT-055 constant-group"):
        quantize(x, FORMATS[name], Path(constant_group="nan"))


def test_int4_loses_groups_without_a_zero() -> None:
    """Its zero is one of 16 codes: numbers between 10 and 25 all lie past the last, which stands for 15."""
    x = np.linspace(10, 25, 16, dtype=np.float32).reshape(1, 1, 16)
    found = values(int4_token_head(x), FORMATS["int4_token_head"])
    assert found.max() == 15
    assert values(int4_token_head(-x), FORMATS["int4_token_head"]).min() == -15


def test_the_zero_is_taken_out_of_the_scale() -> None:
    """x' = (code − z) · scale, z the low four bits and scale the rest; a scale is 16 float32 steps coarse."""
    q = int4_token_head(numbers())
    assert q.scales is not None
    scales, zeros = int4_scales(q.scales)
    bits = q.scales.view(np.uint32)
    np.testing.assert_array_equal(zeros, bits % 16)
    np.testing.assert_array_equal(scales.view(np.uint32), bits - bits % 16)
    wanted = (q.codes.astype(np.float64) - zeros[..., None]) * scales[..., None]
    np.testing.assert_array_equal(values(q, FORMATS["int4_token_head"]), wanted)


@pytest.mark.parametrize("name", KIVI)
@pytest.mark.parametrize("seed", range(3))
def test_no_number_moves_by_more_than_half_a_scale(name: str, seed: int) -> None:
    """And by the roundings of float32 on the way: of the difference, the quotient and the scale."""
    x = numbers(seed=seed).astype(np.float32)
    q = quantize(x, FORMATS[name])
    assert q.scales is not None
    wide = np.repeat(q.scales.astype(np.float64), 32, 0 if name[5] == "k" else 2)
    slack = 2.0**-24 * (np.abs(x).max() * 2 + 4 * 15 * wide)
    assert (np.abs(values(q, FORMATS[name]) - x) <= wide / 2 + slack).all()


@pytest.mark.parametrize("name", ALL)
def test_what_is_read_as_float32_is_the_number_rounded(name: str) -> None:
    """A product and a sum have two roundings, a fused pair one, and the exact number none."""
    q = quantize(numbers(), FORMATS[name])
    exact = values(q, FORMATS[name])
    once = decoded(q, FORMATS[name], Path(multiply_add="fused"))
    np.testing.assert_array_equal(once, exact.astype(np.float32))
    twice = decoded(q, FORMATS[name])
    np.testing.assert_allclose(twice, exact, rtol=0, atol=2.0**-23 * np.abs(exact).max())
    assert (twice != once).any() == (name in KIVI)


def test_a_fused_product_moves_codes() -> None:
    """Where x · (1 / scale) + z is at a tie before or after it is rounded."""
    x = numbers((4096, 1, 32), "bfloat16")
    q, fused = int4_token_head(x), int4_token_head(x, Path(multiply_add="fused"))
    moved = q.codes.astype(int) - fused.codes
    assert set(np.unique(moved)) <= {-1, 0, 1}
    assert 0 < np.count_nonzero(moved) < moved.size / 1000


def test_a_reciprocal_moves_codes() -> None:
    """One code in thousands: two roundings where the quotient has one."""
    x = numbers((4096, 1, 64), "bfloat16")
    q, by = kivi(x, FORMATS["kivi_v4"]), kivi(x, FORMATS["kivi_v4"], Path(scale_division="reciprocal"))
    assert 0 < np.count_nonzero(q.codes != by.codes) < q.codes.size / 100


@pytest.mark.parametrize("name", ALL)
def test_an_empty_batch_is_no_error(name: str) -> None:
    """No token, no code, and scales of no extent."""
    q = quantize(np.zeros((0, 2, 64), np.float32), FORMATS[name])
    assert q.codes.shape == values(q, FORMATS[name]).shape == (0, 2, 64)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("kivi_k4", (33, 1, 64), r"num_tokens = 33, expected a multiple of 32, the group of kivi_k4"),
        ("kivi_v2", (32, 1, 48), r"head_dim = 48, expected a multiple of 32, the group of kivi_v2"),
        ("int8_midpoint", (4, 1, 0), r"head_dim = 0"),
    ],
)
def test_an_axis_without_whole_groups_is_refused(name: str, shape: tuple[int, ...], message: str) -> None:
    """The message names the axis, what it is and what it must be."""
    with pytest.raises(FormatError, match=message):
        quantize(np.zeros(shape, np.float32), FORMATS[name])


@pytest.mark.parametrize("name", ALL)
def test_what_has_no_scale_is_refused(name: str) -> None:
    """A number that is not finite, a range past float32, a dtype wider than float32, another rank."""
    for wrong in (np.nan, np.inf):
        x = np.zeros((32, 1, 32), np.float32)
        x[5, 0, 7] = wrong
        with pytest.raises(FormatError, match=r"x\[5, 0, 7\] is (nan|inf)"):
            quantize(x, FORMATS[name])
    x = np.full((32, 1, 32), -3e38, np.float32)
    x[::2, :, ::2] = 3e38
    with pytest.raises(FormatError, match=r"scales\[0, 0.*is past the largest float"):
        quantize(x, FORMATS[name])
    with pytest.raises(DTypeError):
        quantize(np.zeros((32, 1, 32)), FORMATS[name])
    with pytest.raises(ShapeError):
        quantize(np.zeros((32, 32), np.float32), FORMATS[name])


def test_a_middle_past_float16_is_refused() -> None:
    """Keys of 70000 have a scale of float16 and no zero."""
    with pytest.raises(FormatError, match=r"zeros\[1, 0\] is past the largest float16"):
        midpoint(np.float32([[[1, 2]], [[70000, 70001]]]))


@pytest.mark.parametrize("name", ALL)
def test_parts_that_do_not_fit_are_refused(name: str) -> None:
    """Codes past the element, scales missing, of another shape or dtype."""
    format = FORMATS[name]
    q = quantize(numbers(), format)
    assert q.scales is not None
    with pytest.raises(FormatError, match="scales is missing"):
        values(replace(q, scales=None), format)
    with pytest.raises(FormatError, match="scales has dtype float64"):
        values(replace(q, scales=q.scales.astype(np.float64)), format)
    with pytest.raises(ShapeError, match="scales has shape"):
        values(replace(q, scales=q.scales[:1]), format)
    with pytest.raises(FormatError, match="codes"):
        values(replace(q, codes=q.codes.astype(np.int8)), format)
    if name != "int8_midpoint":
        with pytest.raises(FormatError, match="codes holds 0xff"):
            values(replace(q, codes=np.full_like(q.codes, 255)), format)
    if format.zeros:
        with pytest.raises(FormatError, match="zeros is missing"):
            values(Quantized(q.codes, q.scales), format)

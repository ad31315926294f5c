"""What was published about formats, or seen in libraries, row by row: under the right path it is ours."""

import sys
from math import inf, nan
from pathlib import Path as FilePath

import ml_dtypes
import numpy as np
import pytest

from kvref.formats.casts import encode
from kvref.formats.elements import decode, largest, values
from kvref.formats.exponents import cast, shared_exponent
from kvref.formats.packing import pack, unpack
from kvref.formats.paths import CANONICAL, Path
from kvref.formats.scaled import dequantize, quantize

sys.path.append(str(FilePath(__file__).resolve().parents[2] / "docs" / "_ext"))
from kvref_libraries import CASTS, E8M0_CASTS, WITNESSES

UP = float(np.nextafter(np.float32(2.0**-10), np.float32(1)))

#: Element -> bias, largest and its code, smallest normal and its code, smallest subnormal, infinities, NaN,
#: the code of -0, number of finite codes.
CODE_TABLE = {
    "e4m3fn": (7, 448.0, 0x7E, 2.0**-6, 0x08, 2.0**-9, (), (0x7F, 0xFF), 0x80, 254),
    "e5m2": (
        15, 57344.0, 0x7B, 2.0**-14, 0x04, 2.0**-16,
        (0x7C, 0xFC), (0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF), 0x80, 248,
    ),
    "e4m3fnuz": (8, 240.0, 0x7F, 2.0**-7, 0x08, 2.0**-10, (), (0x80,), None, 255),
    "e5m2fnuz": (16, 57344.0, 0x7F, 2.0**-15, 0x04, 2.0**-17, (), (0x80,), None, 255),
    "e2m1": (1, 6.0, 0x7, 1.0, 0x2, 0.5, (), (), 0x8, 16),
}  # fmt: skip

#: Element -> library -> the codes of the witnesses.
ENCODED = {
    "e4m3fn": {
        "torch 2.13": "7E 7E 7E 7E 7E 7E FE 7F FF 80 00",
        "torch up to 2.11": "7E 7E 7F 7F 7F 7F FF 7F FF 80 00",
        "ml_dtypes 0.6": "7E 7E 7F 7F 7F 7F FF 7F FF 80 00",
        "CUDA 12.9, SATFINITE": "7E 7E 7E 7E 7E 7E FE 7F 7F 80 00",
        "CUDA 12.9, NOSAT": "7E 7E 7F 7F 7F 7F FF 7F 7F 80 00",
        "onnx 1.23, saturate": "7E 7E 7E 7E 7E 7E FE 7F 7F 80 00",
    },
    "e5m2": {
        "torch 2.13": "7B 7C 7C 7C 7F FF",
        "ml_dtypes 0.6": "7B 7C 7C 7C 7E FE",
        "CUDA 12.9, SATFINITE": "7B 7B 7B 7B 7F 7F",
        "CUDA 12.9, NOSAT": "7B 7C 7C 7C 7F 7F",
    },
    "e4m3fnuz": {
        "torch 2.13": "7F 7F 80 80 80 00",
        "ml_dtypes 0.6": "7F 7F 80 80 80 00",
    },
    "e2m1": {
        "CUDA 12.9": "0 2 2 4 4 6 6 7 7 8 8",
        "ml_dtypes 0.6": "0 2 2 4 4 6 6 8 0 8 8",
        "FlashInfer append": "0 2 2 4 4 6 6 0 8 8 8",
        "onnx 1.23": "0 2 2 4 4 6 6 8 8 8 8",
    },
    "e8m0": {
        "torch 2.13": "00 7F 80 80 7F 80 FF FF FF",
        "ml_dtypes 0.6": "FF 7F 80 80 FF FF FF FF FF",
        "CUDA 12.9, RoundZero": "00 7F 7F 7F 7F 80 FE FF FE",
        "CUDA 12.9, RoundPosInf": "00 80 80 80 7F 80 FE FF FE",
    },
}

#: Element -> amax -> exponents by floor, ceil, even, rceil.
SHARED_EXPONENTS = {
    "e2m1": {
        4.0: (0, 0, 0, 0), 5.0: (0, 1, 0, 0), 6.0: (0, 1, 0, 0),
        6.5: (0, 1, 0, 1), 7.0: (0, 1, 1, 1), 7.75: (0, 1, 1, 1), 8.0: (1, 1, 1, 1),
        0.0: (-127, -127, -127, -127), inf: (126, 126, 126, 127),
    },
    "e4m3fn": {
        448.0: (0, 1, 0, 0), 449.0: (0, 1, 0, 1), 495.0: (0, 1, 0, 1), 496.0: (0, 1, 1, 1),
        512.0: (1, 1, 1, 1),
    },
}  # fmt: skip

#: How often a detour changes a code, of normally distributed float32 numbers.
DETOURS = {
    ("e4m3fn", "bfloat16"): 0.0311,
    ("e4m3fn", "float16"): 0.0039,
    ("e5m2", "bfloat16"): 0.0156,
    ("e5m2", "float16"): 0.00195,
}


def hexes(text: str) -> list[int]:
    """Return codes from text."""
    return [int(code, 16) for code in text.split()]


def witnesses(element: str) -> np.ndarray:
    """Return the numbers at which libraries differ; a negative NaN has its sign bit."""
    return np.array(WITNESSES[element], np.float32)


@pytest.mark.parametrize("element", CODE_TABLE)
def test_code_table(element: str) -> None:
    """Every extreme of an element, as the standards list them."""
    bias, top, top_code, normal, normal_code, subnormal, infinities, nans, minus_zero, finite = CODE_TABLE[
        element
    ]
    table = values(element)
    assert largest(element) == top == table[top_code]
    assert table[normal_code] == normal == 2.0 ** (1 - bias)
    assert table[0x1] == subnormal
    assert np.flatnonzero(np.isinf(table)).tolist() == list(infinities)
    assert np.flatnonzero(np.isnan(table)).tolist() == list(nans)
    zeros = np.flatnonzero((table == 0) & np.signbit(table)).tolist()
    assert zeros == ([] if minus_zero is None else [minus_zero])
    assert np.isfinite(table).sum() == finite


def test_code_table_of_scales() -> None:
    """E8M0 has 255 powers of two and NaN; the first is a float32 below the normal numbers."""
    table = values("e8m0")
    assert (table[0xFE], np.isnan(table[0xFF]), np.isfinite(table).sum()) == (2.0**127, True, 255)
    assert table[:1].view(np.uint32).tolist() == [0x00400000]


def test_small_floats_by_name() -> None:
    """The sixteen numbers of E2M1."""
    positive = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert values("e2m1").tolist() == positive + [-x for x in positive]


@pytest.mark.parametrize(("fn", "fnuz"), [("e4m3fn", "e4m3fnuz"), ("e5m2", "e5m2fnuz")])
def test_flavours_differ_by_two(fn: str, fnuz: str) -> None:
    """Each byte that is a number in both flavours is twice as large in the first."""
    one, other = values(fn), values(fnuz)
    both = np.isfinite(one) & np.isfinite(other)
    assert np.array_equal(one[both], 2 * other[both])


@pytest.mark.parametrize(
    ("element", "library"), [(e, name) for e, libraries in CASTS.items() for name in libraries]
)
def test_casts_of_libraries(element: str, library: str) -> None:
    """What a library was seen to return is what its path gives."""
    found = encode(witnesses(element), element, CASTS[element][library])
    assert found.tolist() == hexes(ENCODED[element][library])


@pytest.mark.parametrize("library", E8M0_CASTS)
def test_casts_to_e8m0(library: str) -> None:
    """The same for scales."""
    assert cast(witnesses("e8m0"), **E8M0_CASTS[library]).tolist() == hexes(ENCODED["e8m0"][library])


@pytest.mark.parametrize("library", CASTS["e4m3fn"])
def test_least_numbers(library: str) -> None:
    """Half the smallest subnormal number is a tie and goes to zero, three halves go to two."""
    x = np.array([2.0**-10, UP, 3 * 2.0**-10, 2.0**-11], np.float32)
    assert encode(x, "e4m3fn", CASTS["e4m3fn"][library]).tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("element", ["e4m3fn", "e5m2", "e4m3fnuz", "e2m1"])
def test_ml_dtypes_itself(element: str) -> None:
    """The installed library still returns what is written of it."""
    dtype = "float4_e2m1fn" if element == "e2m1" else f"float8_{element}"
    with np.errstate(invalid="ignore"):
        found = witnesses(element).astype(getattr(ml_dtypes, dtype)).view(np.uint8)
    assert found.tolist() == hexes(ENCODED[element]["ml_dtypes 0.6"])


@pytest.mark.parametrize("element", ["e4m3fn", "e5m2", "e4m3fnuz", "e8m0"])
def test_torch_itself(element: str) -> None:
    """The installed library still returns what is written of its version."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13):
        pytest.skip(f"torch {torch.__version__} is not the version that was tried")
    dtype = "float8_e8m0fnu" if element == "e8m0" else f"float8_{element}"
    found = torch.from_numpy(witnesses(element)).to(getattr(torch, dtype)).view(torch.uint8)
    assert found.tolist() == hexes(ENCODED[element]["torch 2.13"])


@pytest.mark.parametrize(
    ("ties", "codes"),
    [("even", "0 2 2 4 4 6 6"), ("away", "1 2 3 4 5 6 7"), ("toward_zero", "0 1 2 3 4 5 6")],
)
@pytest.mark.parametrize("sign", [0x0, 0x8])
def test_ties_of_small_floats(ties: str, codes: str, sign: int) -> None:
    """CUDA rounds to even; SGLang's 16-wide groups always up; a search for the first nearest always down."""
    x = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32) * (-1 if sign else 1)
    assert encode(x, "e2m1", Path(e2m1_ties=ties)).tolist() == [sign | code for code in hexes(codes)]


@pytest.mark.parametrize("element", SHARED_EXPONENTS)
@pytest.mark.parametrize(("column", "rule"), list(enumerate(["floor", "ceil", "even", "rceil"])))
def test_shared_exponents(element: str, column: int, rule: str) -> None:
    """torchao's four modes, at the magnitudes where they part."""
    rows = SHARED_EXPONENTS[element]
    found = shared_exponent(np.array(list(rows), np.float32), element, Path(mx_scale=rule))
    assert (found.astype(int) - 127).tolist() == [row[column] for row in rows.values()]


@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "rceil", "nearest"])
def test_groups_with_nan(rule: str) -> None:
    """Whatever the rule, NaN in a group is NaN as its scale."""
    found = shared_exponent(np.array([nan], np.float32), "e2m1", Path(mx_scale=rule))
    assert found.tolist() == [0xFF]


def test_logarithm_trap() -> None:
    """One step below a power of two, a float32 logarithm rounds up to it: of 254 such numbers, at 250."""
    powers = np.ldexp(np.float32(1), np.arange(-126, 128, dtype=np.int32))
    below = np.nextafter(powers, np.float32(0))
    trapped = np.floor(np.log2(below.astype(np.float64)).astype(np.float32)) != np.frexp(below)[1] - 1
    assert trapped.sum() == 250
    exponents = [shared_exponent(below, "e2m1", Path(mx_exponent=of)).astype(int) for of in ("field", "log2")]
    assert np.array_equal(exponents[0], np.maximum(np.frexp(below)[1] - 3, -127) + 127)
    assert np.array_equal(exponents[1] - exponents[0], trapped & (np.frexp(below)[1] > -125))
    seven = np.array([7.9999995], np.float32)
    assert shared_exponent(seven, "e2m1").tolist() == [127]
    assert shared_exponent(seven, "e2m1", Path(mx_exponent="log2")).tolist() == [128]


def test_zero_group_of_sglang() -> None:
    """Its least amax / 6 is 1e-10, and 2^-33 the smallest power of two that is no smaller."""
    path = Path(mx_scale="rceil", mx_zero_group="1e-10")
    assert shared_exponent(np.zeros(1, np.float32), "e2m1", CANONICAL).tolist() == [0]
    assert shared_exponent(np.zeros(1, np.float32), "e2m1", path).tolist() == [94]


@pytest.mark.parametrize(("element", "by"), DETOURS)
def test_rates_of_double_rounding(element: str, by: str) -> None:
    """How often a detour changes a code, within five standard deviations of a count of this size."""
    x = np.random.default_rng(0).normal(size=2**20).astype(np.float32)
    narrow = np.float16 if by == "float16" else ml_dtypes.bfloat16
    changed = (encode(x, element) != encode(x.astype(narrow), element)).mean()
    rate = DETOURS[element, by]
    assert abs(changed - rate) < 5 * np.sqrt(rate * (1 - rate) / x.size)


def test_detour_of_one_number() -> None:
    """The example of the chapter: 17.03 is 18, and 16 by way of bfloat16."""
    x = np.array([17.03], np.float32)
    assert decode(encode(x, "e4m3fn"), "e4m3fn").tolist() == [18.0]
    assert decode(encode(x.astype(ml_dtypes.bfloat16), "e4m3fn"), "e4m3fn").tolist() == [16.0]


def test_nibbles() -> None:
    """CUDA's pair of 1 and 6 is 0x72, torchao's codes 1 and 7 are 0x71, breccia's are 0x17."""
    assert pack(encode(np.array([1, 6], np.float32), "e2m1")).tolist() == [0x72]
    pair = np.array([1, 7], np.uint8)
    assert pack(pair).tolist() == [0x71]
    assert pack(pair, "high_first").tolist() == [0x17]


@pytest.mark.parametrize(
    ("path", "scale", "rate"),
    [
        (Path(scale_division="reciprocal"), 0.06, 0.0075),
        (Path(scale_division="reciprocal"), 0.37, 0.0),
        (Path(scale_division="input"), 0.06, 0.030),
        (Path(scale_division="input"), 0.37, 0.032),
        (Path(scale_division="input"), 0.5, 0.0),
    ],
    ids=lambda value: value.scale_division if isinstance(value, Path) else str(value),
)
def test_rates_of_divisions(path: Path, scale: float, rate: float) -> None:
    """How many codes of bfloat16 numbers another division changes; the rate is known to its last digit."""
    x = np.random.default_rng(1).normal(size=(2**13, 1, 128)).astype(np.float32).astype(ml_dtypes.bfloat16)
    scales = np.array([scale], np.float32)
    codes = [quantize(x, "fp8_e4m3", scales=scales, path=p).codes for p in (CANONICAL, path)]
    changed = (codes[0] != codes[1]).mean()
    assert abs(changed - rate) <= 5 * np.sqrt(rate * (1 - rate) / x.size) + (0.0005 if rate else 0)


def test_rate_of_reciprocals_in_nvfp4() -> None:
    """With a global scale of 1, one code of bfloat16 numbers in two thousand, and no scale of a group."""
    x = np.random.default_rng(2).normal(size=(2**13, 1, 128)).astype(np.float32).astype(ml_dtypes.bfloat16)
    one = np.ones(1, np.float32)
    found = [
        quantize(x, "nvfp4", global_scale=one, path=Path(nvfp4_division=d)) for d in ("divide", "reciprocal")
    ]
    assert np.array_equal(found[0].scales, found[1].scales)
    changed = (unpack(found[0].codes) != unpack(found[1].codes)).mean()
    rate = 0.00047
    assert abs(changed - rate) <= 5 * np.sqrt(rate / x.size)


#: amax / 6g -> the byte of the group's scale.
GROUP_SCALES = {
    2.0**-10: 0x00, UP: 0x01, 2.0**-9: 0x01, 2.0**-6: 0x08, 448.0: 0x7E, 465.0: 0x7E, 1e9: 0x7E,
}  # fmt: skip


def one_group(size: float) -> np.ndarray:
    """Return a group of sixteen numbers whose amax / 6 is `size`: the largest, its negative, and zeros."""
    x = np.zeros((1, 1, 16), np.float32)
    x[0, 0, :2] = np.float32(6) * np.float32(size), -np.float32(6) * np.float32(size)
    return x


def nvfp4(x: np.ndarray, path: Path = CANONICAL) -> tuple[int, list[int]]:
    """Return the scale and the codes of one group under a global scale of 1."""
    found = quantize(x, "nvfp4", global_scale=np.ones(1, np.float32), path=path)
    assert found.scales is not None
    return int(found.scales[0, 0, 0]), unpack(found.codes)[0, 0].tolist()


@pytest.mark.parametrize("size", GROUP_SCALES)
def test_scales_of_groups(size: float) -> None:
    """Rounded to E4M3, zero at the tie below its smallest number, 448 from there on."""
    assert nvfp4(one_group(size))[0] == GROUP_SCALES[size]


@pytest.mark.parametrize(
    ("library", "path", "byte"),
    [
        ("CUDA", CANONICAL, 0x00),
        ("torchao", Path(nvfp4_scale_floor="smallest_normal"), 0x08),
        ("compressed-tensors", Path(nvfp4_scale_floor="epsilon"), 0x20),
        ("modelopt", Path(nvfp4_scale_floor="one"), 0x38),
    ],
)
def test_group_of_zeros(library: str, path: Path, byte: int) -> None:
    """Four libraries store four scales for nothing; the codes are zeros in all."""
    assert nvfp4(np.zeros((1, 1, 16), np.float32), path) == (byte, [0] * 16)


@pytest.mark.parametrize(
    ("path", "codes"),
    [
        (CANONICAL, [0] * 16),
        (Path(nvfp4_tiny_group="largest"), [0x7, 0xF] + [0x7] * 14),
    ],
    ids=["guarded", "unguarded"],
)
def test_group_too_small_for_a_scale(path: Path, codes: list[int]) -> None:
    """Without a guard x / 0 is infinite and 0 / 0 is NaN, which CUDA turns into 6; both read as zero."""
    x = one_group(2.0**-11)
    assert nvfp4(x, path) == (0, codes)
    found = quantize(x, "nvfp4", global_scale=np.ones(1, np.float32), path=path)
    assert not dequantize(found, "nvfp4", path=path).any()


@pytest.mark.parametrize(("rule", "top"), [("amax/2688", 2688.0), ("amax/448", 448.0)])
def test_global_scales(rule: str, top: float) -> None:
    """Under the first rule the largest group's scale is 448; under the second it is 74.67, rounded to 72."""
    x = one_group(50.0)
    found = quantize(x, "nvfp4_tensor", path=Path(nvfp4_global=rule))
    assert found.global_scale is not None
    assert found.global_scale.tolist() == [np.float32(300) / np.float32(top)]
    assert found.scales is not None
    assert decode(found.scales, "e4m3fn").ravel().tolist() == [448.0 if top == 2688 else 72.0]

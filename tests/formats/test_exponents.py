"""E8M0: how a group comes to share an exponent, by every rule, held to published tables and to libraries."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.arrays import Array
from kvref.formats.elements import largest
from kvref.formats.exponents import cast, scale_of, shared_exponent
from kvref.formats.paths import PATHS, Path

RULES = PATHS["mx_scale"]
ELEMENTS = ("e2m1", "e4m3fn", "e5m2")
#: The two neighbours of every power of two, powers included, and what lies around their roots.
POWERS = np.ldexp(np.float32(1), np.arange(-149, 128)).astype(np.float32)
AROUND = np.concatenate([POWERS, np.nextafter(POWERS, np.float32(0)), np.nextafter(POWERS, np.float32(3e38))])


def exponents(amax: Array, element: str, rule: str) -> list[int]:
    """Shared exponents without their bias."""
    path = Path(mx_scale=rule)
    return [int(b) - 127 for b in shared_exponent(np.asarray(amax, np.float32), element, path)]


@pytest.mark.parametrize(
    ("element", "amax", "floor", "ceil", "even", "rceil"),
    [
        ("e2m1", [4, 5, 6], [0, 0, 0], [0, 1, 1], [0, 0, 0], [0, 0, 0]),
        ("e2m1", [6.5, 7, 7.75, 8], [0, 0, 0, 1], [1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]),
        ("e4m3fn", [448, 449, 495, 496, 512], [0, 0, 0, 0, 1], [1] * 5, [0, 0, 0, 1, 1], [0, 1, 1, 1, 1]),
        ("e2m1", [0], [-127], [-127], [-127], [-127]),
        ("e2m1", [np.inf], [126], [126], [126], [127]),
        ("e4m3fn", [np.nan], [128], [128], [128], [128]),
    ],
)
def test_published_exponents(
    element: str, amax: list[float], floor: list[int], ceil: list[int], even: list[int], rceil: list[int]
) -> None:
    """The table that tells the rules apart, as four modes of torchao fill it."""
    found = {rule: exponents(np.array(amax), element, rule) for rule in ("floor", "ceil", "even", "rceil")}
    assert found == {"floor": floor, "ceil": ceil, "even": even, "rceil": rceil}


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("mode", ["FLOOR", "CEIL", "EVEN"])
def test_exponents_as_torchao(element: str, mode: str) -> None:
    """Around every power of two, torchao takes the same exponent (RCEIL there goes through a logarithm)."""
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    torch = pytest.importorskip("torch")
    kinds = {
        "e2m1": torch.float4_e2m1fn_x2,
        "e4m3fn": torch.float8_e4m3fn,
        "e5m2": torch.float8_e5m2,
    }
    groups = np.zeros((len(AROUND), 32), np.float32)
    groups[:, 3] = -AROUND
    scales, _ = mx.to_mx(torch.from_numpy(groups), kinds[element], 32, getattr(mx.ScaleCalculationMode, mode))
    ours = shared_exponent(AROUND, element, Path(mx_scale=mode.lower()))
    np.testing.assert_array_equal(ours, scales.view(torch.uint8).numpy().ravel())


@given(
    st.floats(2.0**-140, 2.0**127, width=32),
    st.sampled_from(ELEMENTS),
)
def test_rules_are_their_formulas(amax: float, element: str) -> None:
    """floor and ceil enclose amax by powers of two; under rceil nothing saturates, and no less will do."""
    top, one = largest(element), np.array([amax], np.float32)
    emax = int(np.floor(np.log2(top)))
    floor, ceil, rceil, nearest = (
        exponents(one, element, rule)[0] for rule in ("floor", "ceil", "rceil", "nearest")
    )
    size = float(one[0])
    if floor > -127:
        assert 2.0 ** (floor + emax) <= size < 2.0 ** (floor + emax + 1)
    assert size <= 2.0 ** (ceil + emax) or ceil == 127
    assert size <= top * 2.0**rceil or rceil == 127
    assert rceil == -127 or size > top * 2.0 ** (rceil - 1)
    assert nearest == -127 or 2 * (nearest - 1) + 1 <= 2 * np.log2(size / top) + 1e-9
    assert nearest in (rceil - 1, rceil)


@pytest.mark.parametrize("rule", ["floor", "ceil"])
def test_logarithm_goes_wrong_below_powers_of_two(rule: str) -> None:
    """The float32 logarithm of the number below 2^k is k: for nearly every k the exponent is off by one."""
    below = np.nextafter(np.ldexp(np.float32(1), np.arange(-120, 128)).astype(np.float32), np.float32(0))
    bits = shared_exponent(below, "e2m1", Path(mx_scale=rule)).astype(int)
    log = shared_exponent(below, "e2m1", Path(mx_scale=rule, mx_exponent="log2")).astype(int)
    expected = 1 if rule == "floor" else 0
    assert np.mean(log - bits == expected) > 0.97


def test_halves_never_meet_that_trap() -> None:
    """For every bfloat16 and float16 the logarithm and the bits agree."""
    codes = np.arange(2**15, dtype=np.uint16)
    for dtype in (ml_dtypes.bfloat16, np.float16):
        amax = codes.view(dtype).astype(np.float32)
        amax = amax[np.isfinite(amax)]
        for rule in ("floor", "ceil"):
            bits = shared_exponent(amax, "e2m1", Path(mx_scale=rule))
            np.testing.assert_array_equal(
                bits, shared_exponent(amax, "e2m1", Path(mx_scale=rule, mx_exponent="log2"))
            )


def test_groups_that_are_no_number() -> None:
    """Zero has the smallest scale, or that of 1e-10 where the path says so; NaN has NaN; infinity either."""
    some = np.array([0.0, np.nan, np.inf], np.float32)
    assert shared_exponent(some, "e2m1").tolist() == [0x00, 0xFF, 0xFD]
    clamped = Path(mx_scale="rceil", mx_zero_group="1e-10")
    assert shared_exponent(some[:1], "e2m1", clamped).tolist() == [94]
    assert shared_exponent(some, "e2m1", Path(mx_inf_group="nan")).tolist() == [0x00, 0xFF, 0xFF]


def test_casts_to_e8m0_as_torch() -> None:
    """torch rounds to the nearest power of two; zero is byte 0 and signs are lost."""
    torch = pytest.importorskip("torch")
    some = np.concatenate([AROUND, 1.5 * POWERS[1:], [0.0, 1.4, 1.6, -1, -2, np.inf, np.nan, 3.4e38]])
    some = some.astype(np.float32)
    theirs = torch.from_numpy(some).to(torch.float8_e8m0fnu).view(torch.uint8).numpy()
    normal = np.abs(some) >= 2.0**-126  # torch takes the exponent field of a subnormal number
    ours = cast(some)
    np.testing.assert_array_equal(ours[normal | (some == 0)], theirs[normal | (some == 0)])


def test_casts_to_e8m0_as_ml_dtypes() -> None:
    """ml_dtypes makes NaN of zero and of negative numbers."""
    some = np.array([0.0, 1.4, 1.5, 1.6, -1.0, np.inf, np.nan, 2.0**-127, 3.4e38], np.float32)
    theirs = some.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)
    np.testing.assert_array_equal(cast(some, zero="nan", negative="nan"), theirs)


def test_casts_to_e8m0_as_cuda() -> None:
    """CUDA's two directed roundings, as the host emulation of its headers answers."""
    some = np.array([0.0, 1.4, 1.5, 1.6, -1.0, -2.0, np.inf, np.nan, 3.4e38], np.float32)
    down = cast(some, rounding="down", overflow="largest")
    up = cast(some, rounding="up", overflow="largest")
    assert down.tolist() == [0x00, 0x7F, 0x7F, 0x7F, 0x7F, 0x80, 0xFE, 0xFF, 0xFE]
    assert up.tolist() == [0x00, 0x80, 0x80, 0x80, 0x7F, 0x80, 0xFE, 0xFF, 0xFE]


def test_scales_are_exact() -> None:
    """Every byte but the last is a power of two, the smallest one subnormal in float32."""
    scales = scale_of(np.arange(256, dtype=np.uint8))
    np.testing.assert_array_equal(scales[:255], np.ldexp(1.0, np.arange(-127, 128)))
    assert np.isnan(scales[255])

"""The bound on a rotation: never exceeded by honest float32 angles, and close to what they lose."""

from typing import Any

import numpy as np
import pytest

from kvref.arrays import DTYPES
from kvref.attention.arithmetic import Arithmetic
from kvref.attention.bounds.rope import rope_bound
from kvref.attention.rope import Yarn, apply_rope, channel_pairs

F = np.float32


YARN = Yarn(factor=40.0, original_context=4096, mscale=1.369)


def kernel(
    x: np.ndarray, positions: np.ndarray, base: float, rotary_dim: int, work: Any, yarn: Yarn | None = None
) -> np.ndarray:
    """Rotate with float32 angles, and with tables and products in `work`."""
    theta = F(1) / np.power(F(base), np.arange(0, rotary_dim, 2, dtype=F) / F(rotary_dim))
    if yarn is not None:
        ramp = yarn.interpolated(base, rotary_dim).astype(F)
        theta = theta / F(yarn.factor) * ramp + theta * (F(1) - ramp)
    angle = positions.astype(F)[:, None, None] * theta
    m = F(1 if yarn is None else yarn.magnitude)
    cos, sin = (np.cos(angle) * m).astype(work), (np.sin(angle) * m).astype(work)
    a, b = channel_pairs(x.shape[2], rotary_dim)
    result = x.copy()
    result[..., a] = (x[..., a].astype(work) * cos - x[..., b].astype(work) * sin).astype(x.dtype)
    result[..., b] = (x[..., a].astype(work) * sin + x[..., b].astype(work) * cos).astype(x.dtype)
    return result


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("far", [10, 10_000, 1_000_000])
def test_honest_kernels_stay_within(dtype: str, wide: bool, far: int) -> None:
    """Bell-shaped vectors, a tiny and a huge one, at positions near and far."""
    rng = np.random.default_rng(far)
    x = rng.standard_normal((40, 3, 128)) * np.array([1.0, 1e-3, 200.0])[:, None]
    x = x.astype(DTYPES[dtype])
    positions = rng.integers(0, far, 40)
    out = kernel(x, positions, 5e5, 96, F if wide else x.dtype).astype(np.float64)
    exact, bound = rope_bound(x, positions=positions, base=5e5, rotary_dim=96, arithmetic=Arithmetic())
    share = np.abs(out - exact)[..., :96] / bound[..., :96]
    assert share.max() <= 1
    assert share.max() > 0.1  # and the bound is not a barn door


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("far", [10, 10_000, 1_000_000])
def test_honest_kernels_stay_within_yarn(dtype: str, far: int) -> None:
    """The share of the ramp, the division and the magnitude round as well, and a little room is left."""
    rng = np.random.default_rng(far)
    x = rng.standard_normal((40, 3, 128)).astype(DTYPES[dtype])
    positions = rng.integers(0, far, 40)
    out = kernel(x, positions, 1e4, 128, x.dtype, YARN).astype(np.float64)
    exact, bound = rope_bound(
        x, positions=positions, base=1e4, rotary_dim=128, yarn=YARN, arithmetic=Arithmetic()
    )
    share = np.abs(out - exact) / bound
    assert 0.1 < share.max() <= 1
    plain, _ = rope_bound(x, positions=positions, base=1e4, rotary_dim=128, arithmetic=Arithmetic())
    assert (np.abs(plain - exact) > bound).any()


def test_unrotated_channels_have_no_slack() -> None:
    """What does not turn must come back as it was."""
    x = np.ones((2, 1, 8), F)
    _, bound = rope_bound(x, positions=[3, 900], base=1e4, rotary_dim=4, arithmetic=Arithmetic())
    assert (bound[..., 4:] == 0).all()
    assert (bound[..., :4] > 0).all()


def test_expected_is_the_reference() -> None:
    """The bound lies around `apply_rope`, not around something else."""
    x = np.random.default_rng(0).standard_normal((3, 2, 8))
    for style in ("half", "interleaved"):
        named = {
            "positions": [0, 5, 77],
            "base": 1e4,
            "rotary_dim": 6,
            "style": style,
            "rotated_part": "last",
        }
        exact, _ = rope_bound(x.astype(F), arithmetic=Arithmetic(), **named)
        np.testing.assert_array_equal(exact, apply_rope(x.astype(F), **named))


def test_a_wrong_position_is_far_outside() -> None:
    """One position off moves the fastest pair by a radian, thousands of bounds away."""
    x = np.random.default_rng(1).standard_normal((6, 2, 64)).astype(F)
    exact, bound = rope_bound(
        x, positions=np.arange(6) * 300, base=1e4, rotary_dim=64, arithmetic=Arithmetic()
    )
    off = apply_rope(x, positions=np.arange(6) * 300 + 1, base=1e4, rotary_dim=64)
    assert (np.abs(off - exact) / bound).max() > 1000

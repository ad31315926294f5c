"""Emulated kernels: correct ones never exceed the bound of what they declare, and come near it."""

import os

import numpy as np
import pytest

from kvref.attention.arithmetic import Arithmetic
from kvref.attention.bounds import attention_bound, margin
from kvref.attention.dense import attend
from kvref.attention.merge import State, with_sinks
from kvref_conformance.emulation import KERNELS, Kernel, round_to, run
from kvref_conformance.families import FAMILIES, SIZES, Inputs, draw

SEEDS = range(int(os.environ.get("KVREF_SEEDS", "8")))


def shares(kernel: Kernel, x: Inputs, *, independent: bool = False, **variant: object) -> tuple[float, float]:
    """Return the largest errors of out and lse as shares of their bounds."""
    softcap, sinks = variant.get("softcap"), variant.get("sinks")
    q, k, v = (np.asarray(each, np.float64) for each in (x.q, x.k, x.v))
    exact: State = attend(q, k, v, x.allowed, scale=x.scale, softcap=softcap)  # type: ignore[arg-type]
    if sinks is not None:
        exact = with_sinks(exact, sinks)  # type: ignore[arg-type]
    seen = run(kernel, x.q, x.k, x.v, x.allowed, scale=x.scale, **variant)  # type: ignore[arg-type]
    bound = attention_bound(
        x.q,
        x.k,
        x.v,
        x.allowed,
        scale=x.scale,
        arithmetic=kernel.arithmetic,
        independent=independent,
        **variant,  # type: ignore[arg-type]
    )
    return margin(seen.out, exact.out, bound.out), margin(seen.lse, exact.lse, bound.lse)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", KERNELS)
def test_no_false_alarm(name: str, seed: int) -> None:
    """A seed draws a family, a size, a dtype and a variant; every kernel stays within its own bound."""
    rng = np.random.default_rng(seed)
    family = list(FAMILIES)[rng.integers(len(FAMILIES))]
    n, head_dim = SIZES[rng.integers(len(SIZES))]
    dtype = ("bfloat16", "float32", "float16")[rng.integers(3)]
    variant = ({}, {"softcap": 20.0}, {"sinks": rng.normal(size=4)})[rng.integers(3)]
    kernel = KERNELS[name]
    n = min(n, 300) if kernel.serial else n
    out, lse = shares(kernel, draw(family, n=n, head_dim=head_dim, dtype=dtype, seed=seed), **variant)
    assert out <= 1, f"out of {family}, n = {n}, {dtype}, {variant}"
    assert lse <= 1, f"lse of {family}, n = {n}, {dtype}, {variant}"


@pytest.mark.parametrize(
    ("name", "family", "least"),
    [
        ("P bfloat16, out bfloat16", "uniform weights", 0.4),
        ("P float16, out float16", "tiny", 0.9),
        ("P float8_e4m3fn, out float32", "outlier", 0.5),
        ("8 splits, parts bfloat16", "outlier", 0.4),
        ("bfloat16 naive", "key cancellation", 0.4),
    ],
)
def test_the_bound_is_nearly_reached_where_errors_agree(name: str, family: str, least: float) -> None:
    """A bound that nobody comes near would accept faults: here errors add up, and use it."""
    worst = 0.0
    for seed in range(12):
        n, head_dim = SIZES[seed % 5]
        x = draw(family, n=n, head_dim=head_dim, dtype="bfloat16", seed=seed)
        worst = max(worst, shares(KERNELS[name], x)[0])
    assert least < worst <= 1


@pytest.mark.parametrize("name", ["P bfloat16, out bfloat16", "8 splits, parts float32", "bfloat16 naive"])
def test_the_companion_bound_holds_on_random_data(name: str) -> None:
    """Independent roundings: the smaller bound is not exceeded, and better used than the worst case."""
    x = draw("gauss", n=4096, head_dim=64, dtype="bfloat16", seed=1)
    likely, worst = (shares(KERNELS[name], x, independent=each)[0] for each in (True, False))
    assert worst < likely <= 1


def test_weights_flushed_to_zero_are_covered() -> None:
    """Weights below 2^-126 on values of 1e30: without the flush term this kernel would be a false alarm."""
    x = draw("vanishing weights", n=300, head_dim=64, dtype="float32", seed=0)
    flushed = run(KERNELS["exp flushed"], x.q, x.k, x.v, x.allowed, scale=x.scale)
    kept = run(KERNELS["float32 online"], x.q, x.k, x.v, x.allowed, scale=x.scale)
    assert not np.array_equal(flushed.out, kept.out)
    assert shares(KERNELS["exp flushed"], x)[0] <= 1


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_rounding_by_hand_agrees_with_the_cast(name: str) -> None:
    """Float64 takes the exact path, float32 the cast of ml_dtypes; on float32 numbers both agree."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=5000) * 2.0 ** rng.integers(-30, 4, 5000)).astype(np.float32)
    assert np.array_equal(round_to(x.astype(np.float64), name), round_to(x, name))


def test_rounding_rounds_once() -> None:
    """1 + 2^-8 + 2^-40 is above the midpoint in bfloat16; rounded to float32 first it would be a tie."""
    assert round_to(np.array([1 + 2.0**-8 + 2.0**-40]), "bfloat16")[0] == 1 + 2.0**-7


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn"])
def test_truncating_never_moves_away_from_zero(name: str) -> None:
    """And moves by less than a unit in the last place."""
    x = np.random.default_rng(0).normal(size=2000).astype(np.float32)
    cut = round_to(x, name, "truncate")
    assert (np.abs(cut) <= np.abs(x)).all()
    assert (
        np.abs(cut - x) <= Arithmetic(output=name, rounding="truncate").format("output").rounded(np.abs(x))
    ).all()


def test_an_empty_row_is_zero_and_minus_infinity() -> None:
    """Also split and with a sink."""
    x = draw("gauss", n=9, head_dim=16, dtype="bfloat16", seed=0)
    nothing = np.zeros_like(x.allowed)
    for kernel in KERNELS.values():
        seen = run(kernel, x.q, x.k, x.v, nothing, scale=1.0, sinks=np.zeros(4))
        assert not seen.out.astype(np.float32).any()
        assert np.isneginf(seen.lse).all()

"""Checks of rotary embedding: the reference and honest low precision pass, wrong rotations are seen."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvref.arrays import Array, dtype_of
from kvref.attention.rope import apply_rope, channel_pairs
from kvref_conformance.runner.evaluate import Evidence
from kvref_conformance.subjects.reference import Reference

Failing = Callable[..., list[Evidence]]


F = np.float32


def stretched(theta: Array, base: float, rotary_dim: int, yarn: dict[str, Any]) -> Array:
    """Stretch frequencies by YaRN in float32, as engines do."""
    low, high = (
        rotary_dim * np.log(yarn["original_context"] / (2 * np.pi * yarn[beta])) / (2 * np.log(base))
        for beta in ("beta_fast", "beta_slow")
    )
    low, high = max(np.floor(low), 0), min(np.ceil(high), rotary_dim - 1)
    ramp = np.clip((np.arange(len(theta), dtype=F) - F(low)) / F(high - low), F(0), F(1))
    return np.asarray(theta / F(yarn["factor"]) * ramp + theta * (F(1) - ramp))


def turned(
    x: Array,
    positions: Array,
    base: float,
    rotary_dim: int,
    style: str,
    work: Any,
    magnitude: float = 1.0,
    **yarn: Any,
) -> Array:
    """Rotate as engines do: float32 angles, a table of cosines and sines, all else in `work`."""
    result = x.copy()
    if rotary_dim == 0:
        return result
    exponent = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    theta = np.float32(1) / np.power(np.float32(base), exponent)
    theta = stretched(theta, base, rotary_dim, yarn) if yarn else theta
    angle = positions.astype(np.float32)[:, None] * theta
    cos, sin = ((f(angle) * F(magnitude))[:, None].astype(work) for f in (np.cos, np.sin))
    first, second = channel_pairs(x.shape[2], rotary_dim, style)
    a, b = x[..., first].astype(work), x[..., second].astype(work)
    result[..., first] = (a * cos - b * sin).astype(x.dtype)
    result[..., second] = (a * sin + b * cos).astype(x.dtype)
    return result


class Float32Tables(Reference):
    """Everything in float32, rounded once."""

    def apply_rope(self, x: Array, *, positions: Array, **rest: Any) -> Array:
        return turned(x, positions, work=np.float32, **rest)


class LowPrecisionTables(Reference):
    """Tables, products and sums in the dtype of x, as vLLM and transformers have them."""

    def apply_rope(self, x: Array, *, positions: Array, **rest: Any) -> Array:
        return turned(x, positions, work=x.dtype, **rest)


class LowPrecisionAngles(Reference):
    """Angles in the dtype of x: a bfloat16 position 257 is 256."""

    def apply_rope(self, x: Array, *, positions: Array, **rest: Any) -> Array:
        low = np.minimum(positions, 2**15).astype(x.dtype).astype(np.int64)
        return super().apply_rope(x, positions=low, **rest)


class OtherPairs(Reference):
    """Knows one style."""

    def apply_rope(self, x: Array, *, style: str, **rest: Any) -> Array:
        return super().apply_rope(x, style="half", **rest)


class FrequenciesOfTheWholeHead(Reference):
    """Divides the exponent by head_dim instead of rotary_dim."""

    def apply_rope(self, x: Array, *, rotary_dim: int, base: float, **rest: Any) -> Array:
        wrong = base ** (rotary_dim / x.shape[2]) if rotary_dim else base
        return super().apply_rope(x, rotary_dim=rotary_dim, base=wrong, **rest)


class TurnsBackwards(Reference):
    """Swaps the signs of the sines."""

    def apply_rope(self, x: Array, **rest: Any) -> Array:
        if rest["rotary_dim"] == 0:
            return x.copy()
        _, b = channel_pairs(x.shape[2], rest["rotary_dim"], rest["style"])
        mirrored = x.copy()
        mirrored[..., b] = -x[..., b]
        out = super().apply_rope(mirrored, **rest)
        out[..., b] = -out[..., b]
        return out


class LosesTheRest(Reference):
    """Returns zeros past the rotated part."""

    def apply_rope(self, x: Array, *, rotary_dim: int, **rest: Any) -> Array:
        out = super().apply_rope(x, rotary_dim=rotary_dim, **rest)
        if rotary_dim:
            out[..., rotary_dim:] = 0
        return out


class CountsFromTheFirst(Reference):
    """Takes the first position and counts on."""

    def apply_rope(self, x: Array, *, positions: Array, **rest: Any) -> Array:
        return super().apply_rope(x, positions=positions[:1] + np.arange(len(positions)), **rest)


class StartsAtOne(Reference):
    """Shifts every position by one: invisible in a model, until keys are moved."""

    def apply_rope(self, x: Array, *, positions: Array, **rest: Any) -> Array:
        return super().apply_rope(x, positions=positions + 1, **rest)


class NothingMeansAll(Reference):
    """Takes 0 for a missing argument."""

    def apply_rope(self, x: Array, *, rotary_dim: int, **rest: Any) -> Array:
        return super().apply_rope(x, rotary_dim=rotary_dim or x.shape[2], **rest)


@pytest.mark.parametrize("honest", [Reference, Float32Tables, LowPrecisionTables])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_honest_arithmetic_passes(failing: Failing, honest: type[Reference], dtype: str) -> None:
    """Float32 angles with tables in any dtype up to the output's are what engines do."""
    one_dtype = type("One", (honest,), {"claims": replace(honest.claims, dtypes=(dtype,))})
    assert failing("rope", one_dtype, level="full") == []


def test_angles_in_bfloat16_fail(failing: Failing) -> None:
    """Positions beyond 256 do not fit into bfloat16, and no bound on honest angles admits that."""
    low = type("Low", (LowPrecisionAngles,), {"claims": replace(Reference.claims, dtypes=("bfloat16",))})
    assert failing("rope", low, "KV-ATTN-082")


@pytest.mark.parametrize(
    ("faulty", "requirement"),
    [
        (OtherPairs, "KV-ATTN-080"),
        (FrequenciesOfTheWholeHead, "KV-ATTN-080"),
        (TurnsBackwards, "KV-ATTN-080"),
        (LosesTheRest, "KV-ATTN-081"),
        (CountsFromTheFirst, "KV-ATTN-082"),
        (StartsAtOne, "KV-ATTN-083"),
        (NothingMeansAll, "KV-ATTN-085"),
    ],
)
def test_a_wrong_rotation_is_caught(failing: Failing, faulty: type[Reference], requirement: str) -> None:
    """One small fault, and the check of the rule it breaks sees it."""
    assert failing("rope", faulty, requirement)


@pytest.mark.parametrize("faulty", [LosesTheRest, NothingMeansAll])
def test_rotations_of_the_whole_head_are_not_blamed(failing: Failing, faulty: type[Reference]) -> None:
    """The fault lies in what does not turn, and only the rules about that may fail."""
    assert failing("rope", faulty, "KV-ATTN-082") == []
    assert failing("rope", faulty, "KV-ATTN-083") == []


@pytest.mark.parametrize("faulty", [TurnsBackwards, OtherPairs, FrequenciesOfTheWholeHead])
def test_rotations_that_add_up_are_not_blamed_for_it(failing: Failing, faulty: type[Reference]) -> None:
    """Two backward rotations add up to a backward one: what is wrong is the pair, and 080 says so."""
    assert failing("rope", faulty, "KV-ATTN-083") == []


class PositionsIn16Bits(Reference):
    """Keeps positions in 16 bits: right for the first 65536 tokens."""

    def apply_rope(self, x: Array, *, positions: Array, **rest: Any) -> Array:
        return super().apply_rope(x, positions=positions % 2**16, **rest)


class TableOfAngles(Reference):
    """Has a table of 131072 positions and clamps what lies beyond."""

    def apply_rope(self, x: Array, *, positions: Array, **rest: Any) -> Array:
        return super().apply_rope(x, positions=np.minimum(positions, 2**17 - 1), **rest)


@pytest.mark.parametrize("faulty", [PositionsIn16Bits, TableOfAngles])
@pytest.mark.parametrize("requirement", ["KV-ATTN-080", "KV-ATTN-082"])
def test_far_positions_count(failing: Failing, faulty: type[Reference], requirement: str) -> None:
    """Contexts reach a million tokens, and slow pairs tell their positions even in bfloat16."""
    assert failing("rope", faulty, requirement)


def test_emulated_tables_are_not_the_reference() -> None:
    """The low-precision subject above has to round, or the tests of it say nothing."""
    x = np.linspace(-3, 3, 128).reshape(2, 1, 64).astype(dtype_of("bfloat16"))
    low = turned(x, np.array([9, 100]), 1e4, 64, "half", x.dtype).astype(np.float64)
    exact = apply_rope(x, positions=[9, 100], base=1e4, rotary_dim=64)
    assert (np.abs(low - exact) > 2.0**-9).any()

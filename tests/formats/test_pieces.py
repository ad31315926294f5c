"""What is done for speed changes nothing: pieces, pairs, steps of the processor, and bits in order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.formats import pieces
from kvref.formats.amax import group_amax
from kvref.formats.elements import CHUNK, ELEMENTS, decode, values
from kvref.formats.format import FORMATS, Quantized
from kvref.formats.paths import CANONICAL, Path
from kvref.formats.scaled import quantize
from kvref.formats.steps import operation

NUM_KV_HEADS, HEAD_DIM = 3, 128
WRITTEN = [name for name, format in FORMATS.items() if format.family in ("amax", "mx", "nvfp4")]
PATHS = {
    "canonical": CANONICAL,
    "flattened": Path(mx_span="flattened", scale_layout="tiled_128x4"),
    "input": Path(scale_division="input", nvfp4_largest="four_over_six"),
}


def numbers(num_tokens: int) -> np.ndarray:
    """Tokens that differ much, zeros among them."""
    rng = np.random.default_rng(11)
    size = np.exp2(rng.integers(-30, 30, (num_tokens, NUM_KV_HEADS, 1)))
    x = (rng.standard_normal((num_tokens, NUM_KV_HEADS, HEAD_DIM)) * size).astype(np.float32)
    x[::7] = 0
    return x


def written(x: np.ndarray, name: str, path: Path) -> Quantized:
    """Quantise with scales of which each head has its own where they are given."""
    format = FORMATS[name]
    scales = np.float32([0.3, 1, 7]) if format.group == "given" else None
    return quantize(
        x, name, scales=scales, global_scale=[2.0**-7] if format.global_scale == "given" else None, path=path
    )


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("tokens_of_a_piece", [1, 5])
def test_pieces_are_written_as_the_whole_is(
    name: str, path: str, tokens_of_a_piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Codes and scales do not depend on how many tokens are looked at together."""
    x, way = numbers(64), PATHS[path]
    whole = written(x, name, way)
    monkeypatch.setattr(pieces, "PIECE", tokens_of_a_piece * NUM_KV_HEADS * HEAD_DIM)
    apart = written(x, name, way)
    for part in ("codes", "scales", "zeros", "global_scale"):
        np.testing.assert_array_equal(getattr(apart, part), getattr(whole, part), err_msg=part, strict=True)


@pytest.mark.parametrize("name", WRITTEN)
def test_no_tokens_are_written(name: str) -> None:
    """Nothing has codes of no tokens, and scales of none but where all tokens share them."""
    q = written(numbers(0), name, CANONICAL)
    shared = {"given": NUM_KV_HEADS, "tensor": 1}
    assert len(q.codes) == 0
    assert q.scales is not None
    assert len(q.scales) == shared.get(FORMATS[name].group, 0)


@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1, 2, 3, 16, 24, 32, 128]))
def test_largest_magnitude_by_bits_is_the_largest_magnitude(seed: int, size: int) -> None:
    """On any bit patterns, NaN and infinities among them; a NaN anywhere makes NaN."""
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 2**32, (40, size), dtype=np.uint32).view(np.float32)
    np.testing.assert_array_equal(group_amax(groups), np.abs(groups).max(axis=-1))


@pytest.mark.parametrize("name", [name for name in WRITTEN if FORMATS[name].global_scale != "token_head"])
def test_groups_along_tokens_are_never_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece smaller than a group of tokens would be another group."""
    x, way = numbers(64), Path(scale_axis="tokens")
    whole = written(x, name, way)
    monkeypatch.setattr(pieces, "PIECE", 5 * NUM_KV_HEADS * HEAD_DIM)
    apart = written(x, name, way)
    np.testing.assert_array_equal(apart.codes, whole.codes)
    np.testing.assert_array_equal(apart.scales, whole.scales)


def test_largest_magnitude_of_groups_that_are_no_rows() -> None:
    """Groups along tokens lie apart in memory."""
    x = numbers(32)
    groups = np.moveaxis(x.reshape(2, 16, NUM_KV_HEADS, HEAD_DIM), 1, -1)
    np.testing.assert_array_equal(group_amax(groups), np.abs(groups).max(axis=-1))


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("size", [CHUNK - 1, CHUNK, 2 * CHUNK, 2 * CHUNK + 1])
def test_codes_in_pairs_are_codes_one_by_one(element: str, size: int) -> None:
    """Long arrays are read two codes at a time; what is left over is read too."""
    codes = np.random.default_rng(0).integers(0, len(values(element)), size, dtype=np.uint8)
    np.testing.assert_array_equal(decode(codes, element), values(element)[codes])


@pytest.mark.parametrize("over", [np.multiply, np.divide])
@given(seed=st.integers(0, 2**32 - 1))
def test_one_float32_step_is_the_exact_result_rounded(over: np.ufunc, seed: int) -> None:
    """A float64 product of float32 numbers is exact; for quotients, rounding twice is rounding once."""
    a, b = np.random.default_rng(seed).integers(0, 2**32, (2, 2000), dtype=np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        step = operation(over, a, b, np.dtype(np.float32))
        exact = over(a.astype(np.float64), b.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(step, exact)

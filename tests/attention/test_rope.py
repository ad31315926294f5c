"""Rotary positions: against ONNX's and PyTorch's rotations, the frequencies of real models, and the laws."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.attention.rope import Yarn, apply_rope, channel_pairs, inverse_frequencies, rerotate
from kvref.errors import ArgumentError, DTypeError, KVError, LengthError, ShapeError

#: Twice the unit roundoff of float64: the factor 2 pays for the rounding of the bounds themselves.
U = 2.0**-52

DEEPSEEK_V3 = Yarn(factor=40.0, original_context=4096)
GPT_OSS = Yarn(factor=32.0, original_context=4096, whole_pairs=False)

shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**31),
        "num_tokens": st.integers(0, 5),
        "num_heads": st.integers(1, 3),
        "pairs": st.integers(1, 9),
        "passive": st.integers(0, 5),
        "style": st.sampled_from(["half", "interleaved"]),
        "rotated_part": st.sampled_from(["first", "last"]),
    }
)


def draw(shape: dict, far: int = 100_000) -> tuple[np.ndarray, np.ndarray, dict]:
    """Return x, positions, and the keyword arguments of a rotation."""
    rng = np.random.default_rng(shape["seed"])
    rotary_dim = 2 * shape["pairs"]
    x = rng.standard_normal((shape["num_tokens"], shape["num_heads"], rotary_dim + shape["passive"]))
    named = {"style": shape["style"], "rotated_part": shape["rotated_part"]}
    return x, rng.integers(0, far, shape["num_tokens"]), {"base": 1e4, "rotary_dim": rotary_dim, **named}


@pytest.fixture(scope="module")
def torch() -> Any:
    """Return PyTorch, imported outside the time of any one example."""
    return pytest.importorskip("torch", reason="torch is not installed")


def turn_bound(x: np.ndarray, radians: np.ndarray, rope: dict, *, roundings: int) -> np.ndarray:
    """Bound the error of a rotated component.

    With S = |a| + |b| of its pair, a component is cos·a ∓ sin·b: two trigonometric values (2u each), two
    products and a sum (u each) make at most 4u·S. An angle is off by u times the `radians [num_tokens]` that
    went through a product (every θ is at most 1), and a component moves by at most S per radian.
    """
    a, b = channel_pairs(x.shape[2], rope["rotary_dim"], rope["style"], rope["rotated_part"])
    reach = np.zeros_like(x)
    reach[..., a] = reach[..., b] = np.abs(x[..., a]) + np.abs(x[..., b])
    return U * (roundings + radians[:, None, None]) * reach


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("rotary_dim", [2, 6, 12])
def test_rotation_is_that_of_the_onnx_operator_bit_for_bit(style: str, rotary_dim: int) -> None:
    """Given the same cosines, ONNX's reference pairs the same channels with the same signs."""
    onnx = pytest.importorskip("onnx.reference.ops.op_rotary_embedding", reason="onnx is not installed")
    rng = np.random.default_rng(7)
    x, positions = rng.standard_normal((5, 3, 12)), np.array([0, 1, 9, 1000, 77])
    angles = np.arange(1001)[:, None] * inverse_frequencies(1e4, rotary_dim)
    expected = onnx.rotary_embedding(
        x.reshape(1, 5, 36),
        np.cos(angles),
        np.sin(angles),
        position_ids=positions[None],
        interleaved=int(style == "interleaved"),
        rotary_embedding_dim=rotary_dim,
        num_heads=3,
    ).reshape(5, 3, 12)
    found = apply_rope(x, positions=positions, base=1e4, rotary_dim=rotary_dim, style=style)
    assert found.tobytes() == expected.tobytes()


@given(shapes)
def test_rotation_is_a_complex_product(torch: Any, shape: dict) -> None:
    """PyTorch turns the pairs as complex numbers, from frequencies of its own."""
    x, positions, rope = draw(shape)
    a, b = channel_pairs(x.shape[2], rope["rotary_dim"], rope["style"], rope["rotated_part"])
    exponents = torch.arange(shape["pairs"], dtype=torch.float64) / shape["pairs"]
    angles = torch.outer(torch.tensor(positions, dtype=torch.float64), rope["base"] ** -exponents)
    pairs = torch.complex(torch.tensor(x[..., a]), torch.tensor(x[..., b]))
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None, :]
    expected = x.copy()
    expected[..., a], expected[..., b] = turned.real.numpy(), turned.imag.numpy()
    # Two sides of 4u·S each; on each, an angle carries a division, a power (4u) and a product.
    bound = turn_bound(x, 12.0 * positions, rope, roundings=8)
    assert (np.abs(apply_rope(x, positions=positions, **rope) - expected) <= bound).all()


def test_frequencies_of_a_llama_head() -> None:
    """Base 500000 over 128 channels: the first pair turns by 1, the last by 500000^(−126/128)."""
    theta = inverse_frequencies(500_000.0, 128)
    assert theta.shape == (64,)
    assert theta[0] == 1.0
    assert theta[32] == pytest.approx(500_000.0**-0.5, rel=4 * U)
    assert theta[-1] == pytest.approx(500_000.0 ** (-63 / 64), rel=4 * U)


# What the YaRN rule of transformers gives for these settings, worked out in float32 apart from kvref.
YARN_FREQUENCIES = {
    "deepseek_v3": (DEEPSEEK_V3, 10_000.0, 64, {
        0: 1.0, 9: 0.07498941570520401, 12: 0.026879360899329185, 15: 0.0083345090970397,
        18: 0.002249365206807852, 21: 0.0004149904125370085, 24: 2.499999936844688e-05,
        30: 4.445698323252145e-06,
    }),
    "gpt_oss": (GPT_OSS, 150_000.0, 64, {
        0: 1.0, 6: 0.1070244237780571, 9: 0.031705696135759354, 12: 0.006794959306716919,
        15: 0.00105260219424963, 18: 3.830881178146228e-05, 30: 4.38797854940276e-07,
    }),
    "qwen": (Yarn(factor=4.0, original_context=32768), 1_000_000.0, 128, {
        0: 1.0, 21: 0.010746078565716743, 28: 0.0018482765881344676, 35: 0.0002462583943270147,
        42: 2.8869548259535804e-05, 63: 3.102344408034696e-07,
    }),
}  # fmt: skip


@pytest.mark.parametrize("model", YARN_FREQUENCIES)
def test_yarn_frequencies_are_those_of_the_models(model: str) -> None:
    """A power (4 roundings of float32), two quotients, and a share with three roundings: 12 · 2^−24 · θ."""
    yarn, base, rotary_dim, known = YARN_FREQUENCIES[model]
    pairs = np.array(list(known))
    error = np.abs(inverse_frequencies(base, rotary_dim, yarn)[pairs] - np.array(list(known.values())))
    assert (error <= 12 * 2.0**-24 * inverse_frequencies(base, rotary_dim)[pairs]).all()


def test_yarn_ramp_of_deepseek_v3_runs_from_pair_10_to_pair_23() -> None:
    """Up to pair 10 nothing is interpolated, from pair 23 on everything: both ends bit for bit."""
    plain, long = inverse_frequencies(1e4, 64), inverse_frequencies(1e4, 64, DEEPSEEK_V3)
    share = DEEPSEEK_V3.interpolated(1e4, 64)
    assert (long[:11] == plain[:11]).all()
    assert (long[23:] == plain[23:] / 40).all()
    assert (share[10:24] == np.arange(14) / 13).all()


def test_yarn_magnitudes_of_the_models() -> None:
    """0.1 · ln(40) + 1 and 0.1 · ln(32) + 1, as the model cards print them; 1 where nothing is extended."""
    assert round(DEEPSEEK_V3.magnitude, 4) == 1.3689
    assert round(GPT_OSS.magnitude, 4) == 1.3466
    assert Yarn(factor=1.0, original_context=4096).magnitude == 1.0
    assert Yarn(factor=40.0, original_context=4096, mscale=1.0).magnitude == 1.0


@pytest.mark.parametrize(("context", "share"), [(1, 1.0), (10**9, 0.0)])
def test_yarn_ramp_outside_the_head_is_all_slow_or_all_fast(context: int, share: float) -> None:
    """With a tiny context every later pair is slow, with a huge one all are fast; the ramp never inverts."""
    yarn = Yarn(factor=8.0, original_context=context)
    assert (yarn.interpolated(100.0, 8)[1:] == share).all()


def test_yarn_magnitude_is_applied_once_and_only_to_rotated_channels() -> None:
    """At position 0 the rotated channels are exactly the magnitude times x; moving a key adds no second."""
    x = np.arange(1.0, 13).reshape(1, 1, 12)
    yarn = Yarn(factor=4.0, original_context=64, mscale=2.0)
    at_zero = apply_rope(x, positions=[0], base=1e4, rotary_dim=8, yarn=yarn)
    assert (at_zero == np.concatenate([2 * x[..., :8], x[..., 8:]], axis=-1)).all()
    assert (rerotate(at_zero, delta=[0], base=1e4, rotary_dim=8, yarn=yarn) == at_zero).all()


@given(shapes)
def test_position_zero_changes_nothing(shape: dict) -> None:
    """A turn by no angle is the identity, bit for bit."""
    x, positions, rope = draw(shape)
    assert apply_rope(x, positions=0 * positions, **rope).tobytes() == x.tobytes()


@given(shapes)
def test_layer_without_rope_changes_nothing(shape: dict) -> None:
    """rotary_dim 0 is a NoPE layer: keys are cached as they are."""
    x, positions, rope = draw(shape)
    assert apply_rope(x, positions=positions, **{**rope, "rotary_dim": 0}).tobytes() == x.tobytes()


@given(shapes)
def test_styles_differ_by_the_order_of_channels_alone(shape: dict) -> None:
    """Moving channel 2i to i and 2i + 1 to i + r/2 turns the interleaved form into the half-split one."""
    x, positions, rope = draw({**shape, "passive": 0})
    order = np.concatenate([np.arange(0, x.shape[2], 2), np.arange(1, x.shape[2], 2)])
    half = apply_rope(x[..., order], positions=positions, **{**rope, "style": "half"})
    interleaved = apply_rope(x, positions=positions, **{**rope, "style": "interleaved"})
    assert (half == interleaved[..., order]).all()


@given(shapes)
def test_partial_rotation_is_a_whole_one_beside_untouched_channels(shape: dict) -> None:
    """The rotated part is what a head of that width would be; its frequencies know no other channel."""
    x, positions, rope = draw(shape)
    split = rope["rotary_dim"] if rope["rotated_part"] == "first" else shape["passive"]
    first, last = x[..., :split], x[..., split:]
    found = apply_rope(x, positions=positions, **rope)
    if rope["rotated_part"] == "first":
        first = apply_rope(first, positions=positions, **rope)
    else:
        last = apply_rope(last, positions=positions, **rope)
    assert (found == np.concatenate([first, last], axis=-1)).all()


@given(shapes)
def test_token_depends_on_its_own_position_only(shape: dict) -> None:
    """Reordering the batch reorders the result: no token's row index stands in for its position."""
    x, positions, rope = draw(shape)
    backwards = apply_rope(x[::-1], positions=positions[::-1], **rope)
    assert (backwards[::-1] == apply_rope(x, positions=positions, **rope)).all()


@given(shapes, st.integers(0, 100_000))
def test_scores_depend_on_the_distance_alone(shape: dict, shift: int) -> None:
    """q at m and k at n score as q at m + s and k at n + s do."""
    q, m, rope = draw(shape)
    k, n, _ = draw({**shape, "seed": shape["seed"] + 1})
    near = apply_rope(q, positions=m, **rope) * apply_rope(k, positions=n, **rope)
    far = apply_rope(q, positions=m + shift, **rope) * apply_rope(k, positions=n + shift, **rope)
    # Each product of rotated components errs by |q'|·e_k + |k'|·e_q + (its own and the sum's roundings) ·
    # |q'|·|k'|, where |q'| <= S_q and e <= (4u + u·position)·S; `turn_bound` with u = 1 gives S itself.
    reach_q, reach_k = (np.abs(turn_bound(z, np.zeros(len(z)), rope, roundings=1)) / U for z in (q, k))
    reach_q, reach_k = np.maximum(reach_q, np.abs(q)), np.maximum(reach_k, np.abs(k))
    per_product = U * (2 * (8 + q.shape[2] + 1) + 2 * (m + n + shift))[:, None]
    bound = per_product * (reach_q * reach_k).sum(axis=-1)
    assert (np.abs(near.sum(axis=-1) - far.sum(axis=-1)) <= bound).all()


@given(shapes, st.integers(-100_000, 100_000))
def test_moved_key_is_the_key_rotated_to_its_new_position(shape: dict, step: int) -> None:
    """Both ways to position p + delta agree: 4u·S direct, 4u·S + 2·4u·S·√2 in two turns, below 20u·S."""
    x, positions, rope = draw(shape)
    delta = np.maximum(step, -positions)
    moved = rerotate(apply_rope(x, positions=positions, **rope), delta=delta, **rope)
    direct = apply_rope(x, positions=positions + delta, **rope)
    radians = 2.0 * (positions + np.abs(delta) + (positions + delta))  # a moved pair has S' <= √2·S
    assert (np.abs(moved - direct) <= turn_bound(x, radians, rope, roundings=20)).all()


def test_result_is_new_and_the_input_is_unchanged() -> None:
    """A caller may keep the unrotated keys (a pre-RoPE cache reads them again)."""
    x = np.ones((2, 1, 4), np.float32)
    found = apply_rope(x, positions=[3, 4], base=1e4, rotary_dim=2, dtype=np.float32)
    assert found.dtype == np.float32
    assert not np.shares_memory(found, x)
    assert (x == 1).all()


GOOD = {"positions": [0, 1], "base": 1e4}


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"positions": [0]}, ShapeError, r"positions has shape \[1\], expected \[2\]"),
        ({"positions": [0.5, 1]}, DTypeError, "positions has dtype float64, expected integers"),
        ({"positions": [0, -1]}, LengthError, r"positions\[1\] = -1, expected >= 0 \(KV-ATTN-082"),
        ({"base": 1.0}, ArgumentError, "base = 1.0, expected a number > 1"),
        ({"base": float("nan")}, ArgumentError, "base = nan"),
        ({"rotary_dim": 3}, ArgumentError, r"rotary_dim = 3, expected an even number .* \(KV-ATTN-081"),
        ({"rotary_dim": 10}, ArgumentError, "rotary_dim = 10, expected an even number <= head_dim = 8"),
        ({"rotary_dim": -2}, ArgumentError, "rotary_dim = -2"),
        ({"style": "neox"}, ArgumentError, "style = 'neox', expected one of half, interleaved"),
        ({"rotated_part": "middle"}, ArgumentError, "rotated_part = 'middle', expected one of first, last"),
    ],
)
def test_impossible_rotation_is_refused(change: dict, error: type[KVError], says: str) -> None:
    """The message names the argument, what was found, and what was expected; x is untouched."""
    x = np.ones((2, 1, 8))
    with pytest.raises(error, match=says):
        apply_rope(x, **{**GOOD, **change})
    assert (x == 1).all()


def test_head_of_odd_width_cannot_turn_whole() -> None:
    """Without rotary_dim the whole head turns, which an odd width does not allow."""
    with pytest.raises(ArgumentError, match="rotary_dim = 5"):
        apply_rope(np.ones((1, 1, 5)), positions=[0], base=1e4)
    with pytest.raises(ShapeError, match="x has shape"):
        rerotate(np.ones((1, 5)), delta=[0], base=1e4)
    with pytest.raises(ArgumentError, match="rotary_dim = 3, expected an even number"):
        inverse_frequencies(1e4, 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"factor": 0.5}, "factor = 0.5, expected a number >= 1"),
        ({"original_context": 0}, "original_context = 0"),
        ({"beta_fast": 0.5}, "beta_fast = 0.5, expected at least beta_slow = 1.0"),
        ({"beta_slow": 0.0}, "beta_slow = 0.0"),
        ({"mscale": -1.0}, "mscale = -1.0"),
    ],
)
def test_impossible_yarn_is_refused(change: dict, says: str) -> None:
    """A YaRN record is checked when it is made, not when it is used."""
    with pytest.raises(ArgumentError, match=says):
        Yarn(**{"factor": 2.0, "original_context": 64, **change})

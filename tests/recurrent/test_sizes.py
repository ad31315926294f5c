"""Sizes and layouts of states, held to published models."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.errors import ArgumentError, ShapeError
from kvref.recurrent.layouts import STATE_LAYOUTS, convert_conv_state, convert_state
from kvref.recurrent.sizes import (
    StateShape,
    gdn_state,
    kda_state,
    lightning_state,
    mamba1_state,
    mamba2_state,
    rwkv7_state,
)

KIB, MIB = 2**10, 2**20
K3 = kda_state(num_heads=96, head_k_dim=128, head_v_dim=128, conv_width=4)


@pytest.mark.parametrize(
    ("shape", "recurrent_bytes", "conv_elements"),
    [
        (mamba1_state(num_channels=8192, state_dim=16, conv_width=4), 512 * KIB, 24_576),
        (
            mamba2_state(num_heads=256, head_dim=64, state_dim=128, num_groups=8, conv_width=4),
            8 * MIB,
            (256 * 64 + 2 * 8 * 128) * 3,
        ),
        (
            gdn_state(num_k_heads=16, num_v_heads=64, head_k_dim=128, head_v_dim=128, conv_width=4),
            4 * MIB,
            (2 * 16 * 128 + 64 * 128) * 3,
        ),
        (K3, 6 * MIB, 221_184 // 2),
        (rwkv7_state(num_heads=64, head_dim=64), 1 * MIB, 2 * 4096),
        (lightning_state(num_heads=64, head_dim=128), 4 * MIB, 0),
    ],
    ids=["jamba", "nemotron-3-ultra", "qwen3.5-397b", "kimi-k3", "rwkv-7", "minimax-m1"],
)
def test_state_bytes_of_published_models(shape: StateShape, recurrent_bytes: int, conv_elements: int) -> None:
    """The two parts of a layer's state, counted apart."""
    assert shape.recurrent_bytes() == recurrent_bytes
    assert shape.conv_elements == conv_elements
    assert shape.conv_bytes("bfloat16") == 2 * conv_elements


def test_whole_models() -> None:
    """Kimi K3: 69 layers; Qwen3.6-27B in llama.cpp: 48 layers, four requests, float32 convolutions."""
    assert 69 * K3.recurrent_bytes() == 434_110_464 == 414 * MIB
    assert 69 * K3.conv_bytes() == 15_261_696
    qwen = gdn_state(num_k_heads=16, num_v_heads=48, head_k_dim=128, head_v_dim=128, conv_width=4)
    assert 4 * 48 * qwen.state_bytes(conv="float32") == 598.5 * MIB


def test_conv_bytes_count_redundant_columns() -> None:
    """transformers keeps one column that is never read again."""
    assert 3 * K3.conv_bytes(redundant_columns=1) == 4 * K3.conv_bytes()
    with pytest.raises(ArgumentError, match="redundant_columns = -1"):
        K3.conv_bytes(redundant_columns=-1)
    with pytest.raises(ArgumentError, match="num_heads = 6 and num_groups = 4, expected a multiple"):
        mamba2_state(num_heads=6, head_dim=4, state_dim=4, num_groups=4, conv_width=4)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**16))
def test_layouts_round_trip_every_bit(heads: int, keys: int, values: int, seed: int) -> None:
    """Also of NaN and of negative zero (KV-RNN-021)."""
    bits = np.random.default_rng(seed).integers(0, 2**16, (2, heads, keys, values), dtype=np.uint16)
    state = bits.view(np.float16)
    for source in STATE_LAYOUTS:
        for target in STATE_LAYOUTS:
            there = convert_state(state, source, target)
            assert convert_state(there, target, source).tobytes() == state.tobytes()
    turned = convert_state(state, "key_value", "value_key")
    assert turned[1, heads - 1, values - 1, 0].tobytes() == state[1, heads - 1, 0, values - 1].tobytes()


def test_conv_columns() -> None:
    """What is added is never read; what is dropped was never needed (KV-RNN-002)."""
    state = np.arange(12.0).reshape(1, 4, 3)
    wide = convert_conv_state(state, 4, 4)
    assert wide.shape == (1, 4, 4)
    assert wide[..., 1:].tolist() == state.tolist()
    assert convert_conv_state(wide, 4, 3).tolist() == state.tolist()
    with pytest.raises(ShapeError, match=r"at least conv_width - 1 = 3 columns"):
        convert_conv_state(state, 4, 2)

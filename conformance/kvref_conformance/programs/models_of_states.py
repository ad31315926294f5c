"""Families of models with recurrent layers: a config in the keys of a real one, and what its layers keep.

The convolution of each is four wide and keeps three inputs a channel. Its dtype is that of activations.
"""

from collections.abc import Sequence

from kvref_conformance.programs.model_sizes import Config, Entries, Model, States, places
from kvref_conformance.programs.models_of_attention import VISION, decoder, every_nth, heads_of, present

#: What layers are called, in `layer_types` and by letters: attention, recurrent, experts, dense.
LINEAR = ("full_attention", "linear_attention")
LETTERS = "*ME-"
BLOCKS = ("attention", "mamba", "moe", "mlp")
#: Dtypes of the recurrent part, by number.
DTYPES = ("float32", "bfloat16")


def _gated_delta(
    layers: tuple[int, ...], k_heads: int, group: int, k_dim: int, v_dim: int, dtype: str
) -> States:
    """Return layers of the gated delta rule; `group` value heads read one key head."""
    v_heads = k_heads * group
    conv = ((k_heads, k_dim), (k_heads, k_dim), (v_heads, v_dim))
    return States(layers, v_heads, k_dim * v_dim, conv, dtype=dtype)


def _linear_keys(k_heads: int, group: int, k_dim: int, v_dim: int) -> Config:
    return {
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": k_heads,
        "linear_num_value_heads": k_heads * group,
        "linear_key_head_dim": k_dim,
        "linear_value_head_dim": v_dim,
    }


def interval(
    every: int, layers: int, kv_heads: int, head_dim: int, k_heads: int, group: int, k_dim: int, v_dim: int
) -> Model:
    """`full_attention_interval`: each layer of that number attends, counted from 1; the rest is recurrent."""
    config = decoder("qwen3_next", layers, kv_heads, head_dim) | {"full_attention_interval": every}
    config |= {"use_sliding_window": False, **_linear_keys(k_heads, group, k_dim, v_dim)}
    kinds = every_nth(every, layers)
    states = _gated_delta(places(kinds, 1), k_heads, group, k_dim, v_dim, "float32")
    return _model(config, heads_of(places(kinds, 0), kv_heads, head_dim), states)


def linear(
    dtype: int, kv_heads: int, head_dim: int, k_heads: int, group: int, k_dim: int, v_dim: int, *kinds: int
) -> Model:
    """`layer_types` says which layers attend (0) and which are recurrent (1), and a key in what dtype."""
    text = decoder("qwen3_5_text", len(kinds), kv_heads, head_dim)
    text |= {"layer_types": [LINEAR[kind] for kind in kinds], "mamba_ssm_dtype": DTYPES[dtype]}
    text |= _linear_keys(k_heads, group, k_dim, v_dim)
    config: Config = {"model_type": "qwen3_5", "text_config": text, "vision_config": VISION}
    states = _gated_delta(places(kinds, 1), k_heads, group, k_dim, v_dim, DTYPES[dtype])
    return _model(config, heads_of(places(kinds, 0), kv_heads, head_dim), states, where=("text_config",))


def kimi(rank: int, rope: int, heads: int, head_dim: int, *kinds: int) -> Model:
    """Two lists name the layers that attend (0) and those that are recurrent (1), and count from 1."""
    config = decoder("kimi_linear", len(kinds), 8, 72)
    config |= {"kv_lora_rank": rank, "q_lora_rank": None, "qk_rope_head_dim": rope, "qk_nope_head_dim": 128}
    config |= {"v_head_dim": 128, "model_max_length": 1048576}
    config["linear_attn_config"] = {
        "num_heads": heads,
        "head_dim": head_dim,
        "short_conv_kernel_size": 4,
        "full_attn_layers": [layer + 1 for layer in places(kinds, 0)],
        "kda_layers": [layer + 1 for layer in places(kinds, 1)],
    }
    del config["head_dim"]
    states = States(places(kinds, 1), heads, head_dim * head_dim, ((heads, head_dim),) * 3)
    return _model(config, Entries(places(kinds, 0), rank + rope), states)


def letters(
    kv_heads: int, head_dim: int, heads: int, width: int, groups: int, state_dim: int, *kinds: int
) -> Model:
    """`hybrid_override_pattern`: a letter a layer; experts (2) and dense layers (3) keep nothing."""
    config = decoder("nemotron_h", len(kinds), kv_heads, head_dim)
    config |= {"hybrid_override_pattern": "".join(LETTERS[kind] for kind in kinds), "expand": 2}
    config |= _mamba_keys(heads, width, groups, state_dim)
    states = _mamba(places(kinds, 1), heads, width, groups, state_dim)
    return _model(config, heads_of(places(kinds, 0), kv_heads, head_dim), states)


def blocks(
    kv_heads: int, head_dim: int, heads: int, width: int, groups: int, state_dim: int, *kinds: int
) -> Model:
    """The same in `layers_block_type`, and no count of layers beside it."""
    made = letters(kv_heads, head_dim, heads, width, groups, state_dim, *kinds)
    named = [BLOCKS[kind] for kind in kinds]
    return made.altered(hybrid_override_pattern=None, num_hidden_layers=None, layers_block_type=named)


def jamba(
    period: int, offset: int, layers: int, kv_heads: int, head_dim: int, channels: int, state_dim: int
) -> Model:
    """`attn_layer_period` and `attn_layer_offset` say which layers attend; the others are Mamba-1."""
    config = decoder("jamba", layers, kv_heads, head_dim)
    config |= {"hidden_size": channels, "attn_layer_period": period}
    config |= {"attn_layer_offset": offset, "mamba_expand": 2, "mamba_d_state": state_dim, "mamba_d_conv": 4}
    kinds = [int(layer % period != offset) for layer in range(layers)]
    states = States(places(kinds, 1), 2 * channels, state_dim, ((2 * channels, 1),))
    return _model(config, heads_of(places(kinds, 0), kv_heads, head_dim), states)


def parallel(
    layers: int, kv_heads: int, head_dim: int, heads: int, width: int, groups: int, state_dim: int
) -> Model:
    """Every layer attends and is recurrent."""
    config = decoder("falcon_h1", layers, kv_heads, head_dim)
    config |= {"mamba_n_heads": heads, "mamba_d_head": width, "mamba_n_groups": groups}
    config |= {"mamba_d_state": state_dim, "mamba_d_ssm": heads * width, "mamba_d_conv": 4, "mamba_expand": 2}
    states = _mamba(range(layers), heads, width, groups, state_dim)
    return _model(config, heads_of(range(layers), kv_heads, head_dim), states)


def attentionless(layers: int, heads: int, width: int, groups: int, state_dim: int) -> Model:
    """No layer attends; `head_dim` is that of the recurrent heads."""
    config: Config = {
        "model_type": "mamba2",
        "num_hidden_layers": layers,
        "hidden_size": 2048,
        "num_heads": heads,
        "head_dim": width,
        "state_size": state_dim,
        "n_groups": groups,
        "conv_kernel": 4,
        "expand": 2,
        "vocab_size": 32000,
        "torch_dtype": "bfloat16",
    }
    return Model(config, (), (_mamba(range(layers), heads, width, groups, state_dim),), rule="KV-SIZE-007")


def lightning(heads: int, head_dim: int, *kinds: int) -> Model:
    """`attn_type_list`: 1 attends, 0 keeps a matrix a head and no convolution."""
    config = decoder("minimax_m1", len(kinds), heads, head_dim)
    config |= {"num_attention_heads": 3 * heads, "attn_type_list": list(kinds)}
    states = States(places(kinds, 0), 3 * heads, head_dim * head_dim)
    return _model(config, heads_of(places(kinds, 1), heads, head_dim), states)


def _mamba_keys(heads: int, width: int, groups: int, state_dim: int) -> Config:
    return {
        "mamba_num_heads": heads,
        "mamba_head_dim": width,
        "ssm_state_size": state_dim,
        "n_groups": groups,
        "conv_kernel": 4,
        "chunk_size": 128,
        "mamba_ssm_cache_dtype": "float32",
    }


def _mamba(layers: Sequence[int], heads: int, width: int, groups: int, state_dim: int) -> States:
    """Return layers of Mamba-2; where there is one group, all heads share it."""
    conv = ((heads, width), (groups, state_dim), (groups, state_dim))
    return States(tuple(layers), heads, width * state_dim, conv, copied=True)


def _model(config: Config, entries: Entries, states: States, where: tuple[str, ...] = ()) -> Model:
    return Model(config, present(entries), (states,) if states.layers else (), where=where)

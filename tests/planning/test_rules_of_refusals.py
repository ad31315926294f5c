"""A config that is refused: by which requirement, in which words, and under a key that it has."""

import re
from typing import Any

import pytest
from planning.families_of_models import REFUSED, like

from kvref.errors import ConfigError
from kvref.planning.config_keys import ABSURD, UNDECIDED
from kvref.planning.geometry import geometry_of

#: The fewest keys that say what is kept: two layers, two heads of width 8.
SMALL: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
LLAMA: dict[Any, Any] = {"model_type": "llama", **SMALL}
MAMBA2 = {
    "model_type": "mamba2", "num_hidden_layers": 1, "num_heads": 4, "head_dim": 8, "state_size": 8,
    "conv_kernel": 4, "mamba_n_groups": 3,
}  # fmt: skip
LINEAR = {
    "kda_layers": [1], "full_attn_layers": [2], "num_heads": 2, "head_dim": 8, "short_conv_kernel_size": 4,
}  # fmt: skip


def refused(config: Any) -> str:
    """The message."""
    with pytest.raises(ConfigError) as found:
        geometry_of(config)
    return str(found.value)


def of_llava(**text: Any) -> dict[str, Any]:
    """A part within, which leaves to its class what it does not say."""
    return {"model_type": "llava", "text_config": {"model_type": "llama", **text}}


def nested(depth: int) -> dict[str, Any]:
    """A text model inside text models."""
    return {"text_config": nested(depth - 1)} if depth else LLAMA


@pytest.mark.parametrize(
    "config",
    [
        {**SMALL, "model_type": "novel"},
        {**LLAMA, "layer_types": ["full_attention"]},
        {**LLAMA, "layer_types": ["full_attention", "holographic_attention"]},
        {**LLAMA, "attn_type_list": [1, 2]},
        {**LLAMA, "hybrid_override_pattern": "*?"},
        {**LLAMA, "hybrid_override_pattern": "*"},
        {**LLAMA, "layer_types": ["full_attention"] * 2, "hybrid_override_pattern": "*-"},
        {**LLAMA, "linear_attn_config": {**LINEAR, "full_attn_layers": [1, 2]}},
        {**LLAMA, "compress_ratios": [4]},
        {**LLAMA, "num_kv_shared_layers": 2},
        {**LLAMA, "kv_source_layers": [0, 1, 0]},
        {**LLAMA, "kv_source_layers": [1, 1]},
        {**LLAMA, "attn_layer_period": 2, "attn_layer_offset": 2},
        {**LLAMA, "num_key_value_heads": 3},
        {**LLAMA, "num_kv_heads": 1},
        {**LLAMA, "head_dim": None, "hidden_size": 33},
        {**LLAMA, "kv_share_stride": 4},
        {**LLAMA, "extras": {"kv_share_stride": 4}},
        {**LLAMA, "layer_types": ["sliding_attention"] * 2},
        {**LLAMA, "is_encoder_decoder": True},
        {**LLAMA, "attn_config": {"head_dim": 16}},
        {**LLAMA, "per_layer_config": {"0": {"kv_share_stride": 4}}},
        {**LLAMA, "mtp_layer_types": ["holographic_attention"], "num_mtp_layers": 1},
        {**LLAMA, "text_config": {**LLAMA, "head_dim": 16}},
        *(config for config, _ in REFUSED.values()),
    ],
)
def test_what_is_open_is_refused_as_undecided(config: dict[str, Any]) -> None:
    """Unknown kinds, classes and keys; lists, counts, spellings that part; what nothing says."""
    assert refused(config).endswith(f"({UNDECIDED})")


@pytest.mark.parametrize(
    "config",
    [
        [],
        {},
        {"model_type": "llama"},
        {**LLAMA, 5: 1},
        {**LLAMA, "num_hidden_layers": 0},
        {**LLAMA, "num_hidden_layers": 2.5},
        {**LLAMA, "num_hidden_layers": "2"},
        {**LLAMA, "num_hidden_layers": 10**30},
        {**LLAMA, "head_dim": -1},
        {**LLAMA, "layer_types": "full_attention"},
        {**LLAMA, "layer_types": ["full_attention", 5]},
        {**LLAMA, "block_types": [5]},
        {**LLAMA, "attn_type_list": [1, "1"]},
        {**LLAMA, "kv_source_layers": [0, "0"]},
        {**LLAMA, "kv_source_layers": [0, 2]},
        {**LLAMA, "linear_attn_config": {**LINEAR, "kda_layers": [1, 3]}},
        {**LLAMA, "linear_attn_config": 5},
        {**LLAMA, "attn_config": 5},
        {**LLAMA, "model_type": 5},
        {**LLAMA, "use_mla": "yes"},
        {**LLAMA, "mtp_layer_types": [5], "num_mtp_layers": 1},
        nested(5),
    ],
)
def test_what_describes_no_model_is_refused_as_absurd(config: Any) -> None:
    """No object, no layers, values of another type, numbers beyond all bounds, layers that are not there."""
    assert refused(config).endswith(f"({ABSURD})")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            of_llava(num_attention_heads=4, num_key_value_heads=3),
            "text_config.num_key_value_heads = 3, expected a divisor of 4 query heads (KV",
        ),
        (
            of_llava(num_key_value_heads=5),
            "num_key_value_heads = 5, expected a divisor of 32 query heads (the default of the class)",
        ),
        (
            of_llava(layer_types=["full_attention"]),
            "text_config.layer_types = a list of 1, expected 32 (the default of the class), one a layer",
        ),
        (
            of_llava(num_attention_heads=3),
            "hidden size 4096 (the default of the class) is no multiple of 3 heads (KV",
        ),
        (
            {"model_type": "qwen2", "num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 32},
            "num_key_value_heads is absent, 32 by the class, expected a divisor of 4 query heads (KV",
        ),
        (
            like("chatglm", 1, 4, None, 32, multi_query_attention=True, multi_query_group_num=3),
            "multi_query_group_num = 3, expected a divisor of 4 query heads",
        ),
        (
            like("llama", 1, 4, None, 32, num_kv_heads=3),
            "num_kv_heads = 3, expected a divisor of 4 query heads",
        ),
        (MAMBA2, "mamba_n_groups = 3, expected a divisor of 4 heads"),
    ],
)
def test_a_number_is_cited_as_it_is_said(config: dict[str, Any], said: str) -> None:
    """Under the key that the config has; what the class says and the config does not is no value of a key."""
    assert said in refused(config)


@pytest.mark.parametrize("value", ["missing", "a list of " + "x" * 1000])
def test_a_text_of_a_config_is_not_taken_for_words_of_a_message(value: str) -> None:
    """It is quoted, and cut."""
    message = refused({**LLAMA, "head_dim": value})
    assert re.match(r"head_dim = '.{1,80}', expected a whole number", message)

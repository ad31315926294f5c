"""Models that are put together from parts: the decoder is found and judged, and what is around it let alone.

A config of such a model says of the whole how its parts are joined, in words like layer, head and depth, and
beside the decoder it has objects with layers and heads that are other models.
"""

from typing import Any

import pytest

from kvref.errors import ConfigError
from kvref.planning.geometry import geometry_of
from kvref.planning.indifferent_keys import may_decide_around, of_other_things

#: What older versions of transformers write into every config within another.
GENERATION = dict.fromkeys(
    (
        "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "num_beam_groups", "remove_invalid_values",
        "chunk_size_feed_forward", "is_decoder", "is_encoder_decoder", "add_cross_attention",
        "tie_encoder_decoder", "output_attentions", "output_hidden_states", "return_dict_in_generate",
    ),
    False,
)  # fmt: skip
QWEN = {
    "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "use_sliding_window": False, "sliding_window": None, "max_window_layers": 70,
    "attn_implementation": "flash_attention_2", **GENERATION,
}  # fmt: skip
VISION = {"num_hidden_layers": 24, "num_attention_heads": 16, "window_size": 112}

#: As they are published: a config, and bytes a token by the description of its decoder.
WHOLE: dict[str, tuple[dict[str, Any], int]] = {
    "InternVL3-8B": (
        {"model_type": "internvl_chat", "llm_config": QWEN, "vision_config": VISION, "select_layer": -1,
         "downsample_ratio": 0.5, "use_backbone_lora": 0, "use_llm_lora": 0, "max_dynamic_patch": 12},
        28 * 2 * 4 * 128 * 2,
    ),
    "Qwen2.5-Omni-7B": (
        {"model_type": "qwen2_5_omni", "enable_talker": True,
         "talker_config": {"model_type": "qwen2_5_omni_talker", "num_hidden_layers": 24, "head_dim": 128},
         "token2wav_config": {"dit_config": {"depth": 22, "block_size": 24}, "bigvgan_config": {}},
         "thinker_config": {"model_type": "qwen2_5_omni_thinker", "vision_config": {"depth": 32},
                            "audio_config": {"num_hidden_layers": 32}, "seconds_per_chunk": 2.0,
                            "text_config": {**QWEN, "model_type": "qwen2_5_omni_text"}}},
        28 * 2 * 4 * 128 * 2,
    ),
    "DeepSeek-VL2": (
        {"model_type": "deepseek_vl_v2", "global_view_pos": "head", "vision_config": {"layers": 27},
         "projector_config": {"model_type": "mlp_projector", "depth": 2},
         "language_config": {"model_type": "deepseek_v2", "hidden_size": 2560, "num_hidden_layers": 30,
                             "num_attention_heads": 32, "num_key_value_heads": 32, "kv_lora_rank": 512,
                             "qk_rope_head_dim": 64, "q_lora_rank": None, "lm_head": True, "rm_head": False}},
        30 * 576 * 2,
    ),
    "Janus-Pro-7B": (
        {"model_type": "multi_modality", "gen_head_config": {"params": {"n_embed": 4096}},
         "aligner_config": {"params": {"depth": 2}}, "vision_config": {"cls": "CLIP"},
         "language_config": {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 30,
                             "num_attention_heads": 32, "num_key_value_heads": 32}},
        30 * 2 * 32 * 128 * 2,
    ),
    "Pixtral-12B": (
        {"model_type": "llava", "vision_config": VISION, "vision_feature_layer": -1,
         "text_config": {"model_type": "mistral", "hidden_size": 5120, "head_dim": 128,
                         "num_hidden_layers": 40, "num_key_value_heads": 8, "sliding_window": None}},
        40 * 2 * 8 * 128 * 2,
    ),
    "a text model with another model in it": (
        {**QWEN, "perceiver_config": {"num_key_value_heads": 1}, "connector": {"depth": 6, "num_heads": 16}},
        28 * 2 * 4 * 128 * 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_the_decoder_of_a_whole_is_sized(name: str) -> None:
    """Whatever is said around it of layers, heads and depths."""
    config, due = WHOLE[name]
    found = geometry_of(config, name)
    assert (found.bytes_per_token(), found.window_bytes(), found.snapshot_bytes) == (due, 0, 0)


@pytest.mark.parametrize("key", ["kv_share_stride", "cache_ratio", "sliding_window_extra", "mamba_mixer"])
def test_what_is_said_of_the_cache_is_refused_wherever_it_stands(key: str) -> None:
    """Also around the decoder, where a word on layers is let alone."""
    for name in ("InternVL3-8B", "Qwen2.5-Omni-7B"):
        with pytest.raises(ConfigError, match=f"^{key} = 3 is a key that may decide"):
            geometry_of({**WHOLE[name][0], key: 3})
    assert may_decide_around(key)


def test_a_key_that_both_levels_say_must_be_the_same() -> None:
    """The decoder's decides, and the whole must not say another number."""
    config = WHOLE["InternVL3-8B"][0]
    assert geometry_of({**config, "num_hidden_layers": 28})
    with pytest.raises(ConfigError, match=r"num_hidden_layers = 27, expected the same as llm_config"):
        geometry_of({**config, "num_hidden_layers": 27})


@pytest.mark.parametrize(
    ("name", "value", "due"),
    [
        ("talker_config", {"model_type": "talker"}, True),
        ("connector", {"depth": 2}, True),
        ("rope_scaling", {"kv_stride": 2}, True),
        ("extras", {"kv_stride": 2}, False),
    ],
)
def test_an_object_is_of_other_things_by_its_name_or_as_a_model(
    name: str, value: dict[str, Any], due: bool
) -> None:
    """An object that is neither is looked into."""
    assert of_other_things(name, value) is due

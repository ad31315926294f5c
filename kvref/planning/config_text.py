"""Which part of a config describes the decoder whose cache is asked for.

A model of several parts keeps its text model in an object within. Vision and audio towers add nothing to the
cache of the decoder: their output comes in as tokens. What does add is refused here by name: an encoder whose
output is attended to in every layer, or layers that attend to an image, keep KV of something that is not the
text and whose length no config gives.

Realises: KV-SIZE-002 text-part, KV-SIZE-017 absurd-config-refused.
For porters: the subtree is chosen once; what both levels say must agree.
Source: configs of Hugging Face; `PretrainedConfig.get_text_config` of transformers.
"""

from collections.abc import Mapping
from typing import Any

from kvref.errors import ConfigError, shown
from kvref.planning.config_keys import ABSURD, LAYER_COUNTS, UNDECIDED, Keys
from kvref.planning.indifferent_keys import OTHER_MODELS, may_decide

_TEXT = ("text_config", "language_config", "llm_config", "thinker_config", "lm_config")
_COUNTS = (*LAYER_COUNTS, "layers_block_type", "layer_types")
#: Keys that both levels may carry; the text part's decide, and the other's must not contradict them.
_SAID_TWICE = (
    "num_hidden_layers", "num_key_value_heads", "num_attention_heads", "head_dim", "layer_types",
    "kv_lora_rank", "qk_rope_head_dim", "sliding_window", "linear_attn_config", "hybrid_override_pattern",
)  # fmt: skip

#: Text models of PaliGemma, which attend both ways within the prompt alone.
_BOTH_WAYS = ("gemma", "gemma2", "paligemma")


def text_keys(config: Mapping[str, Any], warnings: list[str]) -> tuple[Keys, list[Keys]]:
    """Return the keys of the decoder, and of the objects around it, from the outermost.

    Raises: ConfigError if the config is no object, has two text models, or describes no decoder alone.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(f"config = {shown(config)}, expected an object ({ABSURD})")
    keys, around = Keys(config, "", warnings), list[Keys]()
    for _ in range(4):
        _refuse_other_models(keys)
        found = [name for name in _TEXT if isinstance(keys.config.get(name), Mapping)]
        if len(found) > 1:
            keys.refuse(UNDECIDED, found[1], f"one text model, and {found[0]} is another")
        if not found:
            return _with_attention(keys), around
        inside = keys.inside(found[0])
        assert inside is not None
        if not any(name in inside for name in (*_COUNTS, *_TEXT)) and any(name in keys for name in _COUNTS):
            return _with_attention(keys), around
        _check_agreement(keys, inside)
        around.append(keys)
        keys = inside
    raise ConfigError(
        f"{keys.path[:-1]} is a text model inside text models, expected at most three levels ({ABSURD})"
    )


def model_type_of(keys: Keys, around: list[Keys]) -> str:
    """Return the model type of the decoder: its own, or that of the whole.

    Raises: ConfigError if it is no text.
    """
    for level in (keys, *reversed(around)):
        word = level.word("model_type")
        if word:
            return word
    return ""


def _refuse_other_models(keys: Keys) -> None:
    reason = OTHER_MODELS.get(str(keys.config.get("model_type")))
    if reason is not None:
        keys.refuse(
            UNDECIDED,
            "model_type",
            f"a decoder that keeps KV or states of its own tokens alone; this is {reason}",
        )
    if keys.flag("is_encoder_decoder"):
        keys.refuse(UNDECIDED, "is_encoder_decoder", "false: a cache of the encoder's output is not sized")
    if keys.flag("add_cross_attention"):
        keys.refuse(UNDECIDED, "add_cross_attention", "false: a cache of another model's output is not sized")
    if keys.get("use_bidirectional_attention") is True and keys.config.get("model_type") not in _BOTH_WAYS:
        keys.refuse(UNDECIDED, "use_bidirectional_attention", "false: an encoder keeps no cache")
    if keys.get("cross_attention_layers"):
        keys.refuse(
            UNDECIDED, "cross_attention_layers", "none: layers that attend to an image keep KV of the image"
        )


def _check_agreement(keys: Keys, inside: Keys) -> None:
    for name in _SAID_TWICE:
        if name in keys and name in inside and keys.get(name) != inside.config[name]:
            keys.refuse(UNDECIDED, name, f"the same as {inside.path}{name} = {shown(inside.config[name])}")


def _with_attention(keys: Keys) -> Keys:
    """Keys of DBRX and MPT lie in an object of their own; they are read as if they did not."""
    inner = keys.config.get("attn_config")
    if inner is None:
        return keys
    if not isinstance(inner, Mapping):
        keys.refuse(ABSURD, "attn_config", "an object")
    for name in inner:
        if name in keys and keys.config[name] != inner[name] and may_decide(str(name)):
            keys.refuse(
                UNDECIDED, str(name), f"the same as {keys.path}attn_config.{name} = {shown(inner[name])}"
            )
    merged = keys.replaced({**inner, **keys.config})
    merged.passed("attn_config")
    kind = merged.word("attn_type")
    if kind not in (None, "multihead_attention", "multiquery_attention", "grouped_query_attention"):
        merged.refuse(
            UNDECIDED, "attn_type", "multihead_attention, multiquery_attention or grouped_query_attention"
        )
    if kind == "multiquery_attention":
        return merged.replaced({"kv_n_heads": 1})
    return merged

"""What the class of a model says where its config leaves a key out.

A config may leave out what its class has a default for, and a part within a config leaves out all that does
not differ from it. A reader that falls back to a rule of its own is then wrong in silence: a head of Qwen3 is
128 wide whatever `hidden_size` is shared out among, and a Mistral without a word about a window has one. So
the defaults of classes are data here, each that is used is a warning, and `null` is no default but a word of
the config.

The counts of layers and heads and the hidden size are defaults only of a part within another config. A whole
config that leaves those out describes no model.

Realises: KV-SIZE-023 absent-key-of-class.
For porters: absent and null are two things.
Source: the fields of the configuration classes of transformers 5.24.0, held by
tests/planning/test_transformers.py.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources

#: Keys without which a whole config is no model, or is refused; a part within another may leave them out.
_OF_PARTS = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "kv_lora_rank", "qk_rope_head_dim",
    "max_window_layers",
)  # fmt: skip
#: Model types of a whole -> that of the text part within, where the part does not say it.
_TEXT_TYPES = {
    "gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text", "llama4": "llama4_text",
    "qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text", "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text",
    "glm4v": "glm4v_text", "glm4v_moe": "glm4v_moe_text", "glm46v": "glm4v_text", "paligemma": "gemma",
    "minimax_m3_vl": "minimax_m3_vl_text", "qwen2_audio": "qwen2", "fuyu": "persimmon", "llava": "llama",
    "llava_next": "llama", "vipllava": "llama",
}  # fmt: skip


def defaults_of(model_type: str, within: bool) -> Mapping[str, int]:
    """Return the defaults of a class by key; `within` if the config is a part of another. Empty if unknown.

    >>> defaults_of("qwen3", False)["head_dim"], "hidden_size" in defaults_of("qwen3", False)
    (128, False)
    """
    known = table()
    found = known.get(_TEXT_TYPES.get(model_type, model_type) if within else model_type, {})
    return found if within else {name: value for name, value in found.items() if name not in _OF_PARTS}


@cache
def table() -> dict[str, dict[str, int]]:
    """Return the defaults of every class, by model type and key."""
    place = resources.files("kvref.planning") / "class_defaults.json"
    found: dict[str, dict[str, int]] = json.loads(place.read_text(encoding="utf-8"))
    return found

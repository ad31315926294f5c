"""Layers that differ from the rest of their model: keys that hold for one layer alone.

A config found by search over architectures has a block of its own for each layer, some of them without any
attention. Others give a list of head counts, or an object of exceptions by layer number. All three become
the same thing here: the model's keys, with a few of them replaced.

Realises: KV-SIZE-003 kv-width, KV-SIZE-021 no-attention-layers.
For porters: a dictionary a layer, laid over the model's.
Source: DeciLM's `block_configs` (Llama-Nemotron); `per_layer_config` of transformers 5.24.0.
"""

from collections.abc import Mapping
from typing import Any

from kvref.planning.config_keys import ABSURD, MAX_HEADS, MISSING, UNDECIDED, Keys
from kvref.planning.entry_widths import is_latent
from kvref.planning.families import Family
from kvref.planning.indifferent_keys import may_decide
from kvref.planning.layer_lists import numbers_of_layers

_REPLACEABLE = {
    "head_dim", "num_key_value_heads", "num_attention_heads", "v_head_dim", "sliding_window",
    "qk_rope_head_dim",
    "kv_lora_rank",
}  # fmt: skip
#: What a search may do to the attention of a block, and nobody here sizes.
_NOT_SIZED = (
    "sparsify", "window_length", "num_sink_tokens", "unshifted_sink", "use_prefill_window_in_sink_attention",
    "is_mamba", "mamba", "llama4",
)  # fmt: skip
_LISTS = ("num_key_value_heads", "num_kv_heads", "num_key_value_heads_per_layer", "num_query_heads")


class Overrides:
    """The keys of each layer."""

    def __init__(self, keys: Keys, replaced: Mapping[int, Mapping[str, Any]]) -> None:
        self._keys = keys
        self._own = {i: keys.replaced(values, f"layer {i}: ") for i, values in replaced.items()}

    def at(self, layer: int) -> Keys:
        """Return the keys that hold for a layer."""
        return self._own.get(layer, self._keys)


def overrides_of(keys: Keys, num_layers: int, family: Family | None = None) -> Overrides:
    """Return the exceptions of a config.

    Raises: ConfigError at a layer that is not there, or a key that no exception may have.
    """
    replaced: dict[int, dict[str, Any]] = {}
    for name, value in (keys.inside("per_layer_config") or Keys({})).config.items():
        if not isinstance(value, Mapping) or not str(name).isdecimal() or not int(name) < num_layers:
            keys.refuse(
                ABSURD,
                f"per_layer_config.{str(name)[:40]}",
                f"an object of one of {num_layers} layers",
                found=value,
            )
        for key in value:
            if key not in _REPLACEABLE and may_decide(str(key)):
                where = f"per_layer_config.{name}.{str(key)[:40]}"
                keys.refuse(UNDECIDED, where, f"one of {', '.join(sorted(_REPLACEABLE))}", found=value[key])
        replaced[int(name)] = {k: v for k, v in value.items() if k in _REPLACEABLE}
    for name in _LISTS:
        if isinstance(keys.config.get(name), list | tuple):
            for i, heads in enumerate(keys.items(name, num_layers) or []):
                replaced.setdefault(i, {})[name] = keys.checked(f"{name}[{i}]", heads, MAX_HEADS)
    for i in _unrotated(keys, num_layers, family):
        replaced.setdefault(i, {})["qk_rope_head_dim"] = 0
    for i, heads in _grouped_heads(keys):
        replaced.setdefault(i, {})["num_key_value_heads"] = heads
    return Overrides(keys, replaced)


def _unrotated(keys: Keys, num_layers: int, family: Family | None) -> list[int]:
    """Layers whose latent vector has no rotated part. Where no key lists them, all are sized with one."""
    if not is_latent(keys, family) or "no_rope_layers" not in keys:
        if family is not None and family.unrotated:
            keys.warn("no_rope_layers is absent: every layer is sized with a rotated part")
        return []
    if family is None or not family.unrotated:
        keys.refuse(
            UNDECIDED,
            "no_rope_layers",
            "none, as nobody here knows what those layers keep of a latent vector",
        )
    rotates = numbers_of_layers(keys, "no_rope_layers", num_layers, ("no", "yes")) or []
    return [i for i, word in enumerate(rotates) if word == "no"]


def block_kinds(keys: Keys, num_layers: int) -> list[str] | None:
    """Return the kind of each layer by its block: `full`, or `none` where attention was left out.

    Raises: ConfigError if a block is none, or has attention of another kind.
    """
    blocks = keys.items("block_configs", num_layers)
    if blocks is None:
        return None
    return ["none" if _left_out(_attention_of(keys, i, block)) else "full" for i, block in enumerate(blocks)]


def _attention_of(keys: Keys, i: int, block: object) -> Keys:
    """The keys of a block's attention, which may ask for nothing but heads, or for no attention."""
    part = keys.part(f"block_configs[{i}]", block)
    attention = part.inside("attention")
    if attention is None:
        part.refuse(UNDECIDED, "attention", "an object", found=MISSING)
    part.passed("ffn")
    for name in _NOT_SIZED:
        if attention.get(name):
            attention.refuse(UNDECIDED, name, "none")
    return attention


def _left_out(attention: Keys) -> bool:
    no_op, linear = attention.flag("no_op"), attention.flag("replace_with_linear")
    if no_op or linear:
        attention.passed("n_heads_in_group", "num_key_value_heads")
        return True
    if attention.get("n_heads_in_group") is attention.get("num_key_value_heads") is None:
        attention.refuse(
            UNDECIDED, "n_heads_in_group", "a whole number, as attention is not left out", found=MISSING
        )
    return False


def _grouped_heads(keys: Keys) -> list[tuple[int, int]]:
    """KV heads of the layers whose blocks have attention."""
    found = []
    for i, block in enumerate(keys.config.get("block_configs") or []):
        attention = _attention_of(keys, i, block)
        if _left_out(attention):
            continue
        group = attention.count("n_heads_in_group", at_most=MAX_HEADS)
        heads = attention.count("num_key_value_heads", at_most=MAX_HEADS)
        if group is not None:
            total = keys.needed("num_attention_heads", at_most=MAX_HEADS)
            if total % group:
                divided = f"{total} query heads{keys.by_class('num_attention_heads')}"
                attention.refuse(UNDECIDED, "n_heads_in_group", f"a divisor of {divided}")
            if heads not in (None, total // group):
                attention.refuse(
                    UNDECIDED, "num_key_value_heads", f"{total // group}, as n_heads_in_group says"
                )
            heads = total // group
        found.append((i, heads or 0))
    return found

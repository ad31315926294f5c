"""How wide an entry is: heads times the dims of key and value, or one latent vector.

Keys and values may differ in width, layers with a window may have heads of their own, and one layer may
differ from the next. A latent vector is `kv_lora_rank + qk_rope_head_dim` wide, and no `head_dim` says
otherwise: configs of latent models carry one for other purposes.

Realises: KV-SIZE-003 kv-width, KV-SIZE-004 latent-width.
For porters: `width_of` is one decision, latent or not, and then a few spellings.
Source: configs of Hugging Face; MLA from DeepSeek-V2 (2024); attention modules of transformers 5.24.0.
"""

from typing import NamedTuple

from kvref.planning.config_keys import MAX_HEADS, MISSING, UNDECIDED, Keys
from kvref.planning.families import Family

_Q_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "num_query_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "num_attention_groups",
             "num_key_value_heads_per_layer")  # fmt: skip
_HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model", "model_dim")


class Width(NamedTuple):
    """Heads and dims of one entry; `v_dim` is 0 where one vector is all."""

    num_heads: int
    k_dim: int
    v_dim: int


def is_latent(keys: Keys, family: Family | None) -> bool:
    """Say whether attention stores a latent vector instead of keys and values.

    Raises: ConfigError if `use_mla` and the family contradict each other.
    """
    if keys.flag("use_mla") is False:
        keys.passed("kv_lora_rank", "qk_rope_head_dim", "v_head_dim")
        return False
    latent = "kv_lora_rank" in keys or (family is not None and family.latent)
    if keys.word("attention_method") not in ((None, "MLA") if latent else (None, "MHA", "GQA")):
        keys.refuse(
            UNDECIDED,
            "attention_method",
            "MLA, as attention stores a latent vector" if latent else "MHA or GQA",
        )
    return latent


def width_of(keys: Keys, family: Family | None, *, windowed: bool, mixed: bool) -> Width:
    """Return the width of a layer's entries; `mixed` if only some layers have a window.

    Raises: ConfigError if a key is missing or impossible, or heads do not divide.
    """
    if is_latent(keys, family):
        keys.passed("head_dim", *_KV_HEADS, *_Q_HEADS, "v_head_dim", "hidden_size")
        return Width(1, keys.needed("kv_lora_rank") + keys.needed("qk_rope_head_dim", minimum=0), 0)
    if family is not None and family.vector:
        keys.passed(*_KV_HEADS, *_Q_HEADS, "hidden_size", "qk_rope_head_dim")
        return Width(1, keys.needed("head_dim"), 0)
    heads, k_dim = kv_heads(keys, family), head_dim(keys, known=family is not None)
    v_dim = k_dim if keys.flag("use_mla") is False else keys.count("v_head_dim")
    if windowed:
        _check_needs(keys, family)
        other = keys.inside("attention_other_setting")
        if other is not None:
            return Width(
                other.needed("num_attention_groups", at_most=MAX_HEADS), *(other.needed("head_dim"),) * 2
            )
        heads = keys.count("swa_num_key_value_heads", at_most=MAX_HEADS) or heads
        own = keys.count("swa_head_dim")
        v_dim = keys.count("swa_v_head_dim") or (v_dim if own is None else own)
        k_dim = own or k_dim
    elif mixed:
        if keys.flag("attention_k_eq_v") is not False:  # else all layers have as many, in Gemma 4
            heads = keys.count("num_global_key_value_heads", at_most=MAX_HEADS) or heads
        own = keys.count("global_head_dim")
        k_dim, v_dim = own or k_dim, own or v_dim
    else:
        keys.passed("num_global_key_value_heads", "global_head_dim")
    keys.passed("swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim", "swa_num_attention_heads")
    keys.passed(
        "num_global_key_value_heads", "global_head_dim", "attention_k_eq_v", "attention_other_setting"
    )
    return Width(heads, k_dim, k_dim if v_dim is None else v_dim)


def pass_widths(keys: Keys) -> None:
    """Count the keys of widths as read, where no layer has entries."""
    keys.passed(
        *_Q_HEADS, *_KV_HEADS, *_HIDDEN, "head_dim", "attention_head_dim", "kv_channels", "v_head_dim"
    )


def _check_needs(keys: Keys, family: Family | None) -> None:
    for name in () if family is None else family.needs:
        if name not in keys and "per_layer_config" not in keys:
            keys.refuse(
                UNDECIDED,
                name,
                "a whole number, as layers with a window have heads of their own",
                found=MISSING,
            )


def q_heads(keys: Keys) -> int | None:
    """Return how many query heads there are, or None.

    Raises: ConfigError.
    """
    return keys.count(*_Q_HEADS, at_most=MAX_HEADS)


def head_dim(keys: Keys, *, known: bool = True) -> int:
    """Return the width of a head: as it is said, or the hidden size shared out among the query heads.

    The second where the family is known, for a class may have another width for what is not said.
    Raises: ConfigError if neither is there, or the heads do not divide the hidden size.
    """
    hidden, heads = keys.count(*_HIDDEN), q_heads(keys)
    said = keys.count("head_dim", "attention_head_dim") or keys.count("kv_channels")
    keys.passed("kv_channels")
    if said is not None:
        return said
    if not known:
        keys.refuse(
            UNDECIDED, "head_dim", "a whole number: model_type is not one that kvref knows", found=MISSING
        )
    if hidden is None or heads is None:
        missing = "head_dim" if heads is not None else _Q_HEADS[0]
        keys.refuse(
            UNDECIDED, missing, "a whole number, as nothing else says how wide a head is", found=MISSING
        )
    if hidden % heads:
        size, by = f"{hidden}{keys.by_class(*_HIDDEN)}", f"{heads} heads{keys.by_class(*_Q_HEADS)}"
        keys.refuse(UNDECIDED, "head_dim", f"a whole number, as hidden size {size} is no multiple of {by}",
                    found=MISSING)  # fmt: skip
    return hidden // heads


def kv_heads(keys: Keys, family: Family | None) -> int:
    """Return how many KV heads there are.

    Raises: ConfigError if no key says it and the family does not, or they do not divide the query heads.
    """
    heads = q_heads(keys)
    found = _shared_heads(keys) if family is not None and family.many_heads else None
    if found is None:
        found = keys.count(*_KV_HEADS, at_most=MAX_HEADS)
    if found is None:
        if heads is None:
            keys.refuse(UNDECIDED, _KV_HEADS[0], "a whole number", found=MISSING)
        if family is None:
            keys.refuse(
                UNDECIDED,
                _KV_HEADS[0],
                "a whole number: model_type is not one that kvref knows",
                found=MISSING,
            )
        if not family.many_heads:
            said = "null" if _KV_HEADS[0] in keys.config else "absent"
            keys.warn(f"{keys.path}{_KV_HEADS[0]} is {said}: as many as query heads, {heads}")
        return heads
    if heads is not None and heads % found:
        name = keys.spelling(found, *_KV_HEADS, "multi_query_group_num")
        divided = f"{heads} query heads{keys.by_class(*_Q_HEADS)}"
        keys.refuse(UNDECIDED, name, f"a divisor of {divided}", found=found)
    return found


def _shared_heads(keys: Keys) -> int | None:
    """Flags of older families that share one KV head, or a few, among all query heads."""
    several, alone = keys.flag("new_decoder_architecture"), keys.flag("multi_query")
    few = keys.flag("multi_query_attention")
    if several:
        return keys.count(*_KV_HEADS, at_most=MAX_HEADS)
    if few:
        return keys.needed("multi_query_group_num", at_most=MAX_HEADS)
    keys.passed("multi_query_group_num")
    if alone:
        keys.passed(*_KV_HEADS)
        return 1
    if several is False or alone is False:
        keys.passed(*_KV_HEADS)
        return q_heads(keys)
    return None

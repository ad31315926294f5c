"""Families of models whose layers keep entries alone: a config in the keys of a real one, and what it keeps.

Head counts are never what a division of other keys gives, and keys that say nothing about the cache stand
beside those that do, with other numbers.
"""

from collections.abc import Sequence
from dataclasses import replace

from kvref_conformance.programs.model_sizes import Config, Entries, Model, places

#: What layers that reuse nothing are called, by number.
KINDS = ("full_attention", "sliding_attention")
#: What the class of Qwen3 has for a head, and that of Mistral for KV heads and a window.
DEFAULT_WIDTH, DEFAULT_HEADS, DEFAULT_WINDOW = 128, 8, 4096
VISION: Config = {
    "model_type": "tower",
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "hidden_size": 1152,
}


def decoder(model_type: str, layers: int, kv_heads: int, head_dim: int) -> Config:
    """Return the keys that hardly any config goes without."""
    heads = 3 * kv_heads
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_size": heads * (head_dim + 8),
        "intermediate_size": 11008,
        "vocab_size": 32000,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "max_position_embeddings": 1048576,
        "torch_dtype": "bfloat16",
    }


def heads_of(layers: Sequence[int], kv_heads: int, head_dim: int, window: int = 0) -> Entries:
    """Return layers that store a key and a value a head."""
    return Entries(tuple(layers), 2 * kv_heads * head_dim, window=window, heads=kv_heads)


def mixed(kinds: Sequence[int], kv_heads: int, head_dim: int, window: int) -> tuple[Entries, ...]:
    """Return layers of which some attend to all (0), and the others to a window (1)."""
    return present(
        heads_of(places(kinds, 0), kv_heads, head_dim), heads_of(places(kinds, 1), kv_heads, head_dim, window)
    )


def present(*found: Entries) -> tuple[Entries, ...]:
    """Return the entries that a layer has."""
    return tuple(one for one in found if one.layers)


def every_nth(every: int, layers: int) -> list[int]:
    """Return 0 for each layer of that number, counted from 1, and 1 for the others."""
    return [0 if at % every == 0 else 1 for at in range(1, layers + 1)]


def llama(layers: int, kv_heads: int, head_dim: int) -> Model:
    """All layers alike, with a head_dim that is not hidden_size / num_attention_heads."""
    config = decoder("llama", layers, kv_heads, head_dim)
    return Model(config, (heads_of(range(layers), kv_heads, head_dim),), rule="KV-SIZE-003")


def undivided(layers: int, heads: int, kv_heads: int, head_dim: int) -> Model:
    """No head_dim, and no count of KV heads where that is 0: then each query head has its own.

    The second is so in a family whose class has no default of its own for that count.
    """
    config = decoder("qwen2" if kv_heads else "llama", layers, kv_heads or heads, head_dim)
    config |= {"num_attention_heads": heads, "hidden_size": heads * head_dim}
    del config["head_dim"]
    if kv_heads:
        config |= {"use_sliding_window": False, "sliding_window": 16, "max_window_layers": 0}
    else:
        del config["num_key_value_heads"]
    return Model(config, (heads_of(range(layers), kv_heads or heads, head_dim),), rule="KV-SIZE-003")


def nested(wrapper: int, layers: int, kv_heads: int, head_dim: int) -> Model:
    """The decoder is a part of the config, beside a tower for images with layers of its own."""
    text = decoder("qwen3", layers, kv_heads, head_dim)
    entries = (heads_of(range(layers), kv_heads, head_dim),)
    if wrapper == 3:
        thinker: Config = {"model_type": "omni_thinker", "text_config": text, "vision_config": VISION}
        config: Config = {"model_type": "omni", "thinker_config": thinker}
        return Model(config, entries, rule="KV-SIZE-002", where=("thinker_config", "text_config"))
    name = ("text_config", "language_config", "llm_config")[wrapper]
    config = {"model_type": "wrapped", "hidden_size": 1152, name: text, "vision_config": VISION}
    return Model(config, entries, rule="KV-SIZE-002", where=(name,))


def types(window: int, kv_heads: int, head_dim: int, *kinds: int) -> Model:
    """`layer_types` says of each layer whether it attends to all (0) or to a window (1)."""
    config = decoder("gemma3_text", len(kinds), kv_heads, head_dim)
    config |= {"sliding_window": window, "layer_types": [KINDS[kind] for kind in kinds]}
    return Model(config, mixed(kinds, kv_heads, head_dim, window))


def pattern(every: int, layers: int, window: int, kv_heads: int, head_dim: int) -> Model:
    """`sliding_window_pattern`: each layer of that number attends to all, counted from 1."""
    config = decoder("gemma3_text", layers, kv_heads, head_dim)
    config |= {"sliding_window": window, "sliding_window_pattern": every}
    return Model(config, mixed(every_nth(every, layers), kv_heads, head_dim, window))


def gemma(layers: int, window: int, kv_heads: int, head_dim: int) -> Model:
    """A window, and not a word about which layers have it: the class says, each sixth attends to all."""
    text = decoder("gemma3_text", layers, kv_heads, head_dim) | {"sliding_window": window}
    config: Config = {"model_type": "gemma3", "text_config": text, "vision_config": VISION}
    return Model(config, mixed(every_nth(6, layers), kv_heads, head_dim, window), where=("text_config",))


def upper(first: int, layers: int, window: int, kv_heads: int, head_dim: int) -> Model:
    """`max_window_layers`: the layers from this one on have the window, those below attend to all."""
    config = decoder("qwen2", layers, kv_heads, head_dim) | {"use_sliding_window": True}
    config |= {"sliding_window": window, "max_window_layers": first}
    return Model(config, mixed([int(at >= first) for at in range(layers)], kv_heads, head_dim, window))


def silent(which: int, layers: int, kv_heads: int, head_dim: int) -> Model:
    """What a class says of a key that is not there (0, 1, 2), and that null is a word as well (3)."""
    config = decoder("mistral" if which else "qwen3", layers, kv_heads, head_dim)
    config |= {"num_attention_heads": 8 * kv_heads, "hidden_size": 8 * kv_heads * (head_dim + 8)}
    config |= {"sliding_window": None} if which != 2 else {}
    if which == 3:
        config["num_key_value_heads"] = None
    elif which < 2:
        del config["num_key_value_heads" if which else "head_dim"]
    heads = (kv_heads, DEFAULT_HEADS, kv_heads, 8 * kv_heads)[which]
    window = DEFAULT_WINDOW if which == 2 else 0
    entries = (heads_of(range(layers), heads, head_dim if which else DEFAULT_WIDTH, window),)
    return Model(config, entries, rule="KV-SIZE-023", window_rule="KV-SIZE-023")


def chunks(layers: int, chunk: int, kv_heads: int, head_dim: int) -> Model:
    """Of four layers the first three attend within a chunk: the class says which."""
    text = decoder("llama4_text", layers, kv_heads, head_dim) | {"attention_chunk_size": chunk}
    config: Config = {"model_type": "llama4", "text_config": text, "vision_config": VISION}
    entries = mixed(every_nth(4, layers), kv_heads, head_dim, chunk)
    return Model(config, entries, rule="KV-SIZE-006", window_rule="KV-SIZE-006", where=("text_config",))


def uneven(window: int, kv_heads: int, k_dim: int, v_dim: int, *kinds: int) -> Model:
    """Keys wider than values, and other heads where layers have a window."""
    config = decoder("mimo_v2_flash", len(kinds), kv_heads, k_dim) | {"v_head_dim": v_dim}
    config |= {"sliding_window": window, "hybrid_layer_pattern": list(kinds)}
    config |= {"swa_num_attention_heads": 6 * kv_heads, "swa_num_key_value_heads": 2 * kv_heads}
    config |= {"swa_head_dim": k_dim, "swa_v_head_dim": v_dim}
    entry = kv_heads * (k_dim + v_dim)
    entries = present(
        Entries(places(kinds, 0), entry, heads=kv_heads),
        Entries(places(kinds, 1), 2 * entry, window=window, heads=2 * kv_heads),
    )
    return Model(config, entries, rule="KV-SIZE-003", window_rule="KV-SIZE-003")


def globally(shared: int, window: int, kv_heads: int, head_dim: int, *kinds: int) -> Model:
    """Layers that attend to all have heads of their own; the last `shared` layers read what others store."""
    config = decoder("gemma4_text", len(kinds), 3 * kv_heads, head_dim)
    config |= {"sliding_window": window, "layer_types": [KINDS[kind] for kind in kinds]}
    config |= {"num_global_key_value_heads": kv_heads, "global_head_dim": 2 * head_dim}
    config |= {"num_kv_shared_layers": shared, "attention_k_eq_v": True}
    own = kinds[: len(kinds) - shared]
    entries = present(
        heads_of(places(own, 0), kv_heads, 2 * head_dim),
        heads_of(places(own, 1), 3 * kv_heads, head_dim, window),
    )
    rule = "KV-SIZE-009" if shared else "KV-SIZE-003"
    stored = {kind: at for at, kind in enumerate(own)}
    reads = tuple((at, stored[kinds[at]]) for at in range(len(own), len(kinds)))
    return Model(config, entries, rule=rule, window_rule=rule, reads=reads)


def skipped(kv_heads: int, head_dim: int, *kept: int) -> Model:
    """`block_configs`: a search has left some layers (0) without attention."""
    config = decoder("nemotron-nas", len(kept), kv_heads, head_dim)
    group = config["num_attention_heads"] // kv_heads
    config["block_configs"] = [_block(group if keep else None) for keep in kept]
    del config["num_key_value_heads"]
    return Model(config, (heads_of(places(kept, 1), kv_heads, head_dim),), rule="KV-SIZE-021")


def latent(layers: int, rank: int, rope: int) -> Model:
    """One vector a token for all heads; how many heads there are, and how wide, says nothing."""
    config = decoder("deepseek_v3", layers, 8, 56) | _latent(rank, rope)
    return Model(config, (Entries(tuple(range(layers)), rank + rope),), rule="KV-SIZE-004")


def indexed(rank: int, rope: int, index_dim: int, *full: int) -> Model:
    """Beside the latent vector a key for the indexer, in the layers (1) that select for themselves."""
    config = decoder("glm_moe_dsa", len(full), 8, 64) | _latent(rank, rope)
    config |= {"index_head_dim": index_dim, "index_n_heads": 32, "index_topk": 2048}
    config["indexer_types"] = ["full" if own else "shared" for own in full]
    entries = (Entries(tuple(range(len(full))), rank + rope), Entries(places(full, 1), index_dim))
    return Model(config, entries, rule="KV-SIZE-011")


def selecting(layers: int, rank: int, rope: int, index_dim: int) -> Model:
    """Every layer selects for itself, and the config does not say so."""
    config = decoder("deepseek_v32", layers, 8, 64) | _latent(rank, rope)
    config |= {"index_head_dim": index_dim, "index_n_heads": 64, "index_topk": 2048}
    every = tuple(range(layers))
    return Model(config, (Entries(every, rank + rope), Entries(every, index_dim)), rule="KV-SIZE-011")


def compressed(head_dim: int, window: int, index_dim: int, *ratios: int) -> Model:
    """One entry for so many tokens, a key for the indexer for each fourth token, a window in every layer."""
    config = decoder("deepseek_v4", len(ratios), 1, head_dim)
    config |= {"q_lora_rank": 1024, "qk_rope_head_dim": 64, "sliding_window": window}
    config |= {"index_head_dim": index_dim, "index_n_heads": 64, "index_topk": 512}
    config["compress_ratios"] = list(ratios)
    entries = present(
        Entries(places(ratios, 4), head_dim, tokens=4),
        Entries(places(ratios, 4), index_dim, tokens=4),
        Entries(places(ratios, 128), head_dim, tokens=128),
        Entries(tuple(range(len(ratios))), head_dim, window=window),
    )
    return Model(config, entries, rule="KV-SIZE-010", window_rule="KV-SIZE-010")


def drafted(model: Model, count: int) -> Model | None:
    """Return a model with layers that draft behind its own; None where its family knows none."""
    kind = model.text["model_type"]
    if count < 1 or kind not in DRAFTING:
        return None
    keys: Config = {DRAFTING[kind]: count}
    if "compress_ratios" in model.text:
        keys["compress_ratios"] = [*model.text["compress_ratios"], *[0] * count]
    found = model.altered(**keys)
    return replace(found, rule="KV-SIZE-012", window_rule="KV-SIZE-012")


#: Type of a model -> the key that says how many layers draft.
DRAFTING = {
    "deepseek_v3": "num_nextn_predict_layers",
    "deepseek_v32": "num_nextn_predict_layers",
    "deepseek_v4": "num_nextn_predict_layers",
    "glm_moe_dsa": "num_nextn_predict_layers",
    "qwen3_5_text": "mtp_num_hidden_layers",
    "nemotron_h": "num_nextn_predict_layers",
}


def _latent(rank: int, rope: int) -> Config:
    return {
        "kv_lora_rank": rank,
        "q_lora_rank": 3 * rank,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    }


def _block(group: int | None) -> Config:
    attention: Config = {"n_heads_in_group": group, "no_op": group is None, "replace_with_linear": False}
    return {"attention": attention, "ffn": {"ffn_mult": 2.5, "no_op": False, "replace_with_linear": False}}

"""What the code of a model decides and its config does not say, by model type.

Most of a config speaks for itself. What is left is data: how layers with a window are chosen where no list
names them, which recurrence a linear layer has, whether attention stores one latent vector. A model type
that is on no list here can still be sized, from keys that leave nothing open.

Realises: KV-SIZE-001 layer-kinds, KV-SIZE-013 undecided-key-refused.
For porters: a row a family; add one, and a config of it to the tests.
Source: the configuration classes of transformers 5.24.0 and vLLM 0.32.0, by model type.
"""

from dataclasses import dataclass

#: How layers with a window are chosen where no key lists them.
RULES = (
    "full",  # none has a window
    "window",  # all have, if a window is set
    "last_of",  # every n-th layer, counted from 1, is full; the others have a window
    "first_of",  # layers 0, n, 2n … are full; the others have a window
    "upper",  # those from max_window_layers on, if use_sliding_window
    "above",  # those from max_window_layers on, if a window is set
    "unrotated",  # those that do not rotate, if use_sliding_window
    "chunks",  # those that rotate, where attention_chunk_size is set
    "linear",  # all are recurrent
    "hybrid",  # all have attention and a recurrence
    "listed",  # a list has to be there
)


@dataclass(frozen=True)
class Family:
    """One row: model types whose code decides alike."""

    model_types: tuple[str, ...]
    rule: str = "full"
    """One of `RULES`."""
    every: int = 0
    """Of rules that count layers: the code's default, where no key gives another."""
    linear: str = ""
    """The recurrence of a linear layer."""
    latent: bool = False
    """Attention stores one latent vector."""
    vector: bool = False
    """Attention stores one vector of head_dim, key and value at once."""
    many_heads: bool = False
    """There is no key for KV heads: each query head has its own."""
    unused: tuple[str, ...] = ()
    """Keys that the configs carry and the code does not read."""
    needs: tuple[str, ...] = ()
    """Keys without which layers with a window are undecided."""
    must: tuple[str, ...] = ()
    """Keys of which one must be there: the class has a default for none that would do."""
    unrotated: bool = False
    """A layer that `no_rope_layers` leaves without rotation has no rotated part in its latent vector."""
    attentions: int = 1
    """Attentions in one layer, each with entries of its own."""


#: Keys of both Zambas that concern the weights of the blocks they share.
_ZAMBA = (
    "attention_hidden_size", "num_query_groups", "num_mem_blocks", "use_shared_attention_adapter",
    "use_shared_attention_lora", "use_shared_mlp_adapter", "use_shared_block_lora",
    "use_shared_mlp_lora", "use_mem_rope",
    "use_long_context",
    "lora_rank", "kv_channels", "shared_block_size",
)  # fmt: skip


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FAMILIES = (
    Family(
        _names(
            "llama llama_text arcee apertus apertus_text seed_oss smollm glm glm4 glm4_moe glm4v glm4v_text "
            "glm4v_moe glm4v_moe_text glm46v nemotron granite granitemoe granitemoeshared olmo olmo2 olmoe "
            "flex_olmo cohere internlm2 internlm3 minicpm minicpm_v yi exaone stablelm jais2 helium "
            "stablelm_epoch bitnet minimax_m2 qwen3_vl qwen3_vl_text qwen3_vl_moe qwen3_vl_moe_text "
            "hyperclovax persimmon fuyu solar aria_text deepseek solar_open sarvam_moe bailing_moe "
            "bailing_moe_v2 phi diffllama nanochat gemma gemma_text paligemma orion xverse skywork aquila "
            "mimo arctic grok-1 molmo jetmoe step3_text step3 laguna hy_v3 iquestcoder"
        )
    ),
    Family(("minimax_m3_vl_text", "minimax_m3_vl", "minimax_m3"), unused=("index_head_dim",)),
    Family(("openelm",), unused=("num_gqa_groups", "share_input_output_layers"), must=("num_kv_heads",)),
    Family(("dbrx",), must=("kv_n_heads",)),
    Family(
        _names("nemotron-nas deci decilm"),
        must=("block_configs", "num_key_value_heads_per_layer", "num_key_value_heads"),
    ),
    Family(
        _names("ernie4_5 ernie4_5_moe ernie4_5_vl_moe ernie4_5_vl_moe_text"), unused=("compression_ratio",)
    ),
    Family(
        _names("hunyuan hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl hunyuan_vl_text"),
        unused=("add_classification_head", "kv_lora_rank", "qk_rope_head_dim", "v_head_dim"),
    ),
    Family(
        _names(
            "gpt2 gptj gpt_neox gpt_neox_japanese codegen bloom opt mpt xglm biogpt gpt-sw3 jais openai-gpt "
            "ctrl qwen baichuan internlm gpt_bigcode falcon RefinedWeb RefinedWebModel chatglm"
        ),
        many_heads=True,
    ),
    Family(("gpt_neo",), many_heads=True, unused=("attention_types",)),
    Family(
        _names("mistral ministral3 mixtral starcoder2 phi3 phimoe phi4mm phi4_multimodal phi3_v"),
        rule="window",
    ),
    Family(
        _names(
            "qwen2 qwen2_moe qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen3 qwen3_moe "
            "qwen2_5_omni_text minicpmv qwen3_omni_moe_text qwen2_audio qwen2_5_omni_thinker"
        ),
        rule="upper",
    ),
    Family(("dots1",), rule="above"),
    Family(("gemma2", "gpt_oss", "vaultgemma"), rule="last_of", every=2),
    Family(("gemma3_text", "gemma3"), rule="last_of", every=6),
    Family(("gemma3n_text", "gemma3n"), rule="last_of", every=5),
    Family(("gemma4_text", "gemma4", "gemma4_unified_text"), rule="listed"),
    Family(_names("cohere2 olmo3 exaone4 exaone_moe afmoe"), rule="last_of", every=4),
    Family(("cohere2_moe",), rule="listed", unused=("prefix_dense_sliding_window_pattern",)),
    Family(("granite_swa", "granitemoe_swa", "cwm"), rule="first_of", every=4),
    Family(("modernbert-decoder",), rule="first_of", every=3),
    Family(("llama4_text", "llama4"), rule="chunks"),
    Family(("smollm3",), rule="unrotated"),
    Family(
        _names(
            "deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 kimi_k25 glm_moe_dsa mistral4 mistral4_text "
            "minicpm3 glm4_moe_lite pangu_ultra_moe axk1 youtu sarvam_mla"
        ),
        latent=True,
    ),
    Family(_names("axk2 hy_v4 dots3_note_text"), rule="listed", latent=True),
    Family(("mistral_large4_text", "mistral_large4"), latent=True, unrotated=True),
    Family(("longcat_flash",), latent=True, attentions=2),
    Family(("deepseek_v4",), rule="listed", vector=True),
    Family(("deepseek_v41_text", "deepseek_v41"), rule="listed", vector=True, must=("kv_source_layer_ids",)),
    Family(_names("kimi_linear kimi_k3 glm5_next_text glm5_next"), rule="listed", linear="kda", latent=True),
    Family(("bailing_hybrid",), rule="listed", linear="kda", latent=True, unused=("layer_group_size",)),
    Family(
        _names("qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text olmo_hybrid lara_mini"),
        rule="listed",
        linear="gated_delta",
    ),
    Family(("mamba", "falcon_mamba"), rule="linear", linear="mamba1"),
    Family(("mamba2",), rule="linear", linear="mamba2"),
    Family(("jamba",), rule="listed", linear="mamba1"),
    Family(_names("nemotron_h bamba granitemoehybrid"), rule="listed", linear="mamba2"),
    Family(
        ("zamba",), rule="listed", linear="mamba1", unused=("attn_layer_period", "attn_layer_offset", *_ZAMBA)
    ),
    Family(("zamba2",), rule="listed", linear="mamba2", unused=_ZAMBA),
    Family(("falcon_h1",), rule="hybrid", linear="mamba2"),
    Family(
        _names("minimax minimax_text_01 minimax_m1 minimax_text01"),
        rule="listed",
        linear="lightning",
        unused=("block_size",),
    ),
    Family(("lfm2", "lfm2_moe", "lfm3"), rule="listed", linear="short_conv"),
    Family(
        _names("inkling_text inkling_mm_model inkling2_text inkling2 inkling2_loop_text inkling2_loop"),
        rule="listed",
        linear="entry_conv",
        unused=("number_of_conv_states",),
    ),
    Family(("recurrent_gemma",), rule="listed", linear="rg_lru"),
    Family(("rwkv",), rule="linear", linear="rwkv"),
    Family(("rwkv7",), rule="linear", linear="rwkv7"),
    Family(
        ("mimo_v2_flash", "mimo_v2"),
        rule="listed",
        unused=("attention_chunk_size",),
        needs=("swa_num_key_value_heads",),
    ),
    Family(
        _names(
            "step3p7 step3p5 step3p5_text ministral muse_spark_text muse_glimmer_text kolibri1 beam flint "
            "mellum"
        ),
        rule="listed",
    ),
)

_BY_TYPE = {name: family for family in FAMILIES for name in family.model_types}


def family_of(model_type: str) -> Family | None:
    """Return the family of a model type, or None if it is on no list."""
    return _BY_TYPE.get(model_type)

"""Configs of families that the catalogue does not have, written from their public descriptions.

Beside each config stands what its layers keep, worked out by hand from the description: bytes a token, of
windows that are full, of recurrent parts and of convolutions, at two bytes an element. Nothing here was read
out of kvref.
"""

from typing import Any, NamedTuple

Config = dict[str, Any]


class Due(NamedTuple):
    """What one request keeps."""

    per_token: int = 0
    windows: int = 0
    recurrent: int = 0
    conv: int = 0


def heads(layers: int, kv_heads: int, head_dim: int) -> int:
    """Bytes a token of layers with a key and a value of two bytes an element for every head."""
    return layers * 2 * kv_heads * head_dim * 2


def like(
    model_type: str, layers: int, q_heads: int, kv_heads: int | None, hidden: int, **keys: Any
) -> Config:
    """The five keys that most configs have, and more; no count of KV heads where there is none."""
    found: Config = {"model_type": model_type, "num_hidden_layers": layers, "num_attention_heads": q_heads}
    found |= {"hidden_size": hidden, "vocab_size": 32000, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-6}
    return found | ({} if kv_heads is None else {"num_key_value_heads": kv_heads}) | keys


def kinds(layers: int, every: int, others: str, own: str = "full_attention") -> list[str]:
    """A word a layer: each one of that number, counted from 1, is of its own kind."""
    return [own if (i + 1) % every == 0 else others for i in range(layers)]


VISION = {"model_type": "siglip_vision_model", "num_hidden_layers": 27, "num_attention_heads": 16}
SLIDING, LINEAR = "sliding_attention", "linear_attention"
MPT_ATTENTION = {
    "alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0, "attn_uses_sequence_id": False,
    "attn_type": "multihead_attention", "clip_qkv": None, "prefix_lm": False, "qk_ln": False,
    "softmax_scale": None,
}  # fmt: skip
ZAMBA_HYBRIDS = [6, 11, 17, 23, 29, 35, 41, 47, 53, 59, 65, 71, 77]
NANO = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"

KNOWN: dict[str, tuple[Config, Due]] = {
    # Decoders whose layers are all alike.
    "Yi-34B": (like("llama", 60, 56, 8, 7168), Due(heads(60, 8, 128))),
    "OLMo-2-7B": (like("olmo2", 32, 32, 32, 4096, attention_bias=False), Due(heads(32, 32, 128))),
    "Granite-3.3-8B": (
        like("granite", 40, 32, 8, 4096, attention_multiplier=0.0078125, residual_multiplier=0.22),
        Due(heads(40, 8, 128)),
    ),
    "Seed-OSS-36B": (like("seed_oss", 64, 80, 8, 5120, head_dim=128), Due(heads(64, 8, 128))),
    "Apertus-8B": (like("apertus", 32, 32, 8, 4096, qk_norm=True), Due(heads(32, 8, 128))),
    "InternLM2-20B": (like("internlm2", 48, 48, 8, 6144, rope_theta=1e6), Due(heads(48, 8, 128))),
    "Baichuan2-13B": (like("baichuan", 40, 40, None, 5120, z_loss_weight=0), Due(heads(40, 40, 128))),
    "Persimmon-8B": (
        like("persimmon", 36, 64, None, 4096, qk_layernorm=True, partial_rotary_factor=0.5),
        Due(heads(36, 64, 64)),
    ),
    "StableLM-3B": (
        like("stablelm", 32, 32, 32, 2560, use_qkv_bias=False, partial_rotary_factor=0.25),
        Due(heads(32, 32, 80)),
    ),
    "ERNIE-4.5-21B-A3B": (
        like("ernie4_5_moe", 28, 20, 4, 2560, moe_num_experts=64, moe_layer_start_index=1, moe_k=6),
        Due(heads(28, 4, 128)),
    ),
    "Ling-flash-2.0": (
        like("bailing_moe_v2", 32, 32, 4, 4096, head_dim=128, n_group=8, num_nextn_predict_layers=0),
        Due(heads(32, 4, 128)),
    ),
    "Arctic": (
        like("arctic", 35, 56, 8, 7168, num_local_experts=128, parallel_attn_mlp_res=True),
        Due(heads(35, 8, 128)),
    ),
    "DBRX": (
        {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768,
         "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000},
         "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16}},
        Due(heads(40, 8, 128)),
    ),
    # Older decoders, with spellings of their own.
    "GPT-2-XL": (
        {"model_type": "gpt2", "n_layer": 48, "n_head": 25, "n_embd": 1600, "n_positions": 1024},
        Due(heads(48, 25, 64)),
    ),
    "GPT-J-6B": (
        {"model_type": "gptj", "n_layer": 28, "n_head": 16, "n_embd": 4096, "rotary_dim": 64},
        Due(heads(28, 16, 256)),
    ),
    "GPT-NeoX-20B": (
        like("gpt_neox", 44, 64, None, 6144, rotary_pct=0.25, use_parallel_residual=True),
        Due(heads(44, 64, 96)),
    ),
    "BLOOM-176B": (
        {"model_type": "bloom", "n_layer": 70, "num_attention_heads": 112, "hidden_size": 14336,
         "offset_alibi": 100, "seq_length": 2048, "skip_bias_add": True, "attention_softmax_in_fp32": True,
         "masked_softmax_fusion": True, "slow_but_exact": False},
        Due(heads(70, 112, 128)),
    ),
    "OPT-13B": (
        like("opt", 40, 40, None, 5120, ffn_dim=20480, word_embed_proj_dim=5120, do_layer_norm_before=True),
        Due(heads(40, 40, 128)),
    ),
    "MPT-7B": (
        {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4,
         "max_seq_len": 2048, "attn_config": MPT_ATTENTION, "no_bias": True},
        Due(heads(32, 32, 128)),
    ),
    "Falcon-7B": (
        like("falcon", 32, 71, None, 4544, multi_query=True, new_decoder_architecture=False, alibi=False,
             num_kv_heads=71, parallel_attn=True),
        Due(heads(32, 1, 64)),
    ),
    "Falcon-40B": (
        like("falcon", 60, 128, None, 8192, multi_query=True, new_decoder_architecture=True, num_kv_heads=8),
        Due(heads(60, 8, 64)),
    ),
    "Falcon-180B": (
        like("falcon", 80, 232, None, 14848, multi_query=True, new_decoder_architecture=True, num_kv_heads=8),
        Due(heads(80, 8, 64)),
    ),
    "StarCoder": (
        {"model_type": "gpt_bigcode", "n_layer": 40, "n_head": 48, "n_embd": 6144, "n_positions": 8192,
         "multi_query": True, "scale_attn_weights": True, "attention_softmax_in_fp32": True},
        Due(heads(40, 1, 128)),
    ),
    "ChatGLM2-6B": (
        {"model_type": "chatglm", "num_layers": 28, "num_attention_heads": 32, "hidden_size": 4096,
         "kv_channels": 128, "multi_query_attention": True, "multi_query_group_num": 2, "seq_length": 32768,
         "apply_query_key_layer_scaling": True, "add_qkv_bias": True, "post_layer_norm": True},
        Due(heads(28, 2, 128)),
    ),
    "GLM-4-9B": (
        {"model_type": "chatglm", "num_layers": 40, "num_attention_heads": 32, "hidden_size": 4096,
         "kv_channels": 128, "multi_query_attention": True, "multi_query_group_num": 2, "rope_ratio": 500,
         "num_hidden_layers": 40, "original_rope": True},
        Due(heads(40, 2, 128)),
    ),
    "Qwen-7B": (
        like("qwen", 32, 32, None, 4096, kv_channels=128, use_logn_attn=True, use_dynamic_ntk=True,
             attn_dropout_prob=0.0, seq_length=8192),
        Due(heads(32, 32, 128)),
    ),
    # Heads that differ from layer to layer.
    "DeciLM-7B": (
        like("deci", 32, 32, None, 4096, num_key_value_heads_per_layer=[4] * 7 + [2, 1] + [4] * 23),
        Due(heads(1, 30 * 4 + 2 + 1, 128)),
    ),
    "OpenELM-270M": (
        {"model_type": "openelm", "num_transformer_layers": 16, "model_dim": 1280, "head_dim": 64,
         "num_gqa_groups": 4, "num_kv_heads": [3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 5, 5, 5, 5],
         "num_query_heads": [12, 12, 12, 12, 12, 16, 16, 16, 16, 16, 16, 16, 20, 20, 20, 20],
         "share_input_output_layers": True, "normalize_qk_projections": True, "max_context_length": 2048},
        Due(heads(1, 5 * 3 + 7 * 4 + 4 * 5, 64)),
    ),
    # Windows.
    "Phi-3-mini-4k": (
        like("phi3", 32, 32, 32, 3072, sliding_window=2047), Due(0, 2047 * heads(32, 32, 96))
    ),
    "Phi-3-medium-4k": (
        like("phi3", 40, 40, 10, 5120, sliding_window=2047), Due(0, 2047 * heads(40, 10, 128))
    ),
    "Phi-4-mini": (
        like("phi3", 32, 24, 8, 3072, sliding_window=262144, partial_rotary_factor=0.75, full_attn_mod=1,
             interpolate_factor=1),
        Due(0, 262144 * heads(32, 8, 128)),
    ),
    "StarCoder2-15B": (
        like("starcoder2", 40, 48, 4, 6144, sliding_window=4096), Due(0, 4096 * heads(40, 4, 128))
    ),
    "Gemma-2-9B": (
        like("gemma2", 42, 16, 8, 3584, head_dim=256, sliding_window=4096, sliding_window_size=4096,
             query_pre_attn_scalar=256, cache_implementation="hybrid", attn_logit_softcapping=50.0),
        Due(heads(21, 8, 256), 4096 * heads(21, 8, 256)),
    ),
    "Gemma-3-4B": (
        {"model_type": "gemma3", "mm_tokens_per_image": 256, "vision_config": VISION,
         "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34,
                         "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}},
        Due(heads(5, 4, 256), 1024 * heads(29, 4, 256)),
    ),
    "Gemma-3n-E4B": (
        {"model_type": "gemma3n", "vision_config": VISION, "audio_config": {"conf_num_attention_heads": 8},
         "text_config": like("gemma3n_text", 35, 8, 2, 2048, head_dim=256, sliding_window=512,
                             layer_types=kinds(35, 5, SLIDING), num_kv_shared_layers=15, laurel_rank=64,
                             altup_num_inputs=4, hidden_size_per_layer_input=256)},
        Due(heads(4, 2, 256), 512 * heads(16, 2, 256)),
    ),
    "Command-R7B": (
        like("cohere2", 32, 32, 8, 4096, head_dim=128, sliding_window=4096, sliding_window_pattern=4,
             layer_switch=4, order_of_interleaved_layers="local_attn_first", use_parallel_block=True),
        Due(heads(8, 8, 128), 4096 * heads(24, 8, 128)),
    ),
    "OLMo-3-7B": (
        like("olmo3", 32, 32, 32, 4096, sliding_window=4096, layer_types=kinds(32, 4, SLIDING)),
        Due(heads(8, 32, 128), 4096 * heads(24, 32, 128)),
    ),
    "EXAONE-4.0-32B": (
        like("exaone4", 64, 40, 8, 5120, head_dim=128, sliding_window=4096, sliding_window_pattern="LLLG",
             layer_types=kinds(64, 4, SLIDING)),
        Due(heads(16, 8, 128), 4096 * heads(48, 8, 128)),
    ),
    "SmolLM3-3B": (
        like("smollm3", 36, 16, 4, 2048, sliding_window=None, use_sliding_window=False, max_window_layers=28,
             no_rope_layers=[1, 1, 1, 0] * 9, no_rope_layer_interval=4,
             layer_types=["full_attention"] * 36),
        Due(heads(36, 4, 128)),
    ),
    "Trinity-Mini": (
        like("afmoe", 32, 32, 4, 2048, head_dim=128, sliding_window=2048, global_attn_every_n_layers=4,
             layer_types=kinds(32, 4, SLIDING), num_dense_layers=2),
        Due(heads(8, 4, 128), 2048 * heads(24, 4, 128)),
    ),
    "dots.llm1": (
        like("dots1", 62, 32, 32, 4096, head_dim=128, max_window_layers=62, sliding_window=None),
        Due(heads(62, 32, 128)),
    ),
    "Qwen2.5-VL-7B": (
        like("qwen2_5_vl", 28, 28, 4, 3584, use_sliding_window=False, sliding_window=32768,
             max_window_layers=28, vision_config={"depth": 32, "num_heads": 16, "window_size": 112}),
        Due(heads(28, 4, 128)),
    ),
    "Qwen2-57B-A14B": (
        like("qwen2_moe", 28, 28, 4, 3584, use_sliding_window=False, sliding_window=65536,
             max_window_layers=28, decoder_sparse_step=1, shared_expert_intermediate_size=20480),
        Due(heads(28, 4, 128)),
    ),
    # Another model's decoder within.
    "LLaVA-1.5-7B": (
        {"model_type": "llava", "vision_config": VISION, "image_seq_length": 576,
         "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064}},
        Due(heads(32, 32, 128)),
    ),
    "PaliGemma-2-3B": (
        {"model_type": "paligemma", "vision_config": VISION, "projection_dim": 2304, "hidden_size": 2304,
         "text_config": {"model_type": "gemma2", "hidden_size": 2304, "num_hidden_layers": 26,
                         "num_attention_heads": 8, "num_key_value_heads": 4}},
        Due(heads(13, 4, 256), 4096 * heads(13, 4, 256)),
    ),
    "Kimi-VL-A3B": (
        {"model_type": "kimi_vl", "vision_config": VISION,
         "text_config": like("deepseek_v3", 27, 16, 16, 2048, kv_lora_rank=512, q_lora_rank=None,
                             qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)},
        Due(27 * 576 * 2),
    ),
    # Latent attention, and layers that share.
    "DeepSeek-V2-Lite": (
        like("deepseek_v2", 27, 16, 16, 2048, kv_lora_rank=512, q_lora_rank=None, qk_nope_head_dim=128,
             qk_rope_head_dim=64, v_head_dim=128, n_shared_experts=2, num_experts_per_tok=6),
        Due(27 * 576 * 2),
    ),
    "Mistral-Large-4 as a list says": (
        like("mistral_large4_text", 72, 64, 64, 6144, kv_lora_rank=512, qk_rope_head_dim=64, v_head_dim=128,
             qk_nope_head_dim=64, index_head_dim=128, index_n_heads=32, index_topk=2048,
             no_rope_layers=[1, 1, 1, 0] * 18),
        Due((54 * 576 + 18 * 512 + 72 * 128) * 2),
    ),
    "MiniCPM3-4B": (
        like("minicpm3", 62, 40, 40, 2560, kv_lora_rank=256, q_lora_rank=768, qk_nope_head_dim=64,
             qk_rope_head_dim=32, dim_model_base=256, scale_depth=1.4),
        Due(62 * 288 * 2),
    ),
    "LongCat-Flash": (
        {"model_type": "longcat_flash", "num_layers": 28, "hidden_size": 6144, "num_attention_heads": 64,
         "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
         "v_head_dim": 128, "ffn_hidden_size": 12288, "zero_expert_num": 256, "attention_method": "MLA",
         "mla_scale_q_lora": True, "mla_scale_kv_lora": True},
        Due(2 * 28 * 576 * 2),
    ),
    "Hunyuan-Large": (
        like("hunyuan", 64, 80, 8, 6400, attention_head_dim=128, use_cla=True, cla_share_factor=2,
             num_shared_expert=1, use_mixed_mlp_moe=True),
        Due(heads(32, 8, 128)),
    ),
    # States.
    "Mamba-2.8B": (
        {"model_type": "mamba", "num_hidden_layers": 64, "hidden_size": 2560, "state_size": 16, "expand": 2,
         "conv_kernel": 4, "intermediate_size": 5120, "time_step_rank": 160, "torch_dtype": "float32"},
        Due(0, 0, 64 * 5120 * 16 * 4, 64 * 5120 * 3 * 4),
    ),
    "Falcon-Mamba-7B": (
        {"model_type": "falcon_mamba", "num_hidden_layers": 64, "hidden_size": 4096, "state_size": 16,
         "expand": 16, "conv_kernel": 4, "intermediate_size": 8192, "mixer_rms_eps": 1e-6,
         "torch_dtype": "bfloat16"},
        Due(0, 0, 64 * 8192 * 16 * 4, 64 * 8192 * 3 * 2),
    ),
    "Jamba-v0.1": (
        like("jamba", 32, 32, 8, 4096, attn_layer_period=8, attn_layer_offset=4, expert_layer_period=2,
             expert_layer_offset=1, mamba_d_conv=4, mamba_d_state=16, mamba_dt_rank=256, mamba_expand=2),
        Due(heads(4, 8, 128), 0, 28 * 8192 * 16 * 4, 28 * 8192 * 3 * 2),
    ),
    "Zamba2-7B": (
        like("zamba2", 81, 32, 32, 3584, attention_head_dim=224, attention_hidden_size=7168, mamba_expand=2,
             n_mamba_heads=112, mamba_headdim=64, mamba_d_state=64, mamba_ngroups=2, mamba_d_conv=4,
             hybrid_layer_ids=ZAMBA_HYBRIDS, num_mem_blocks=2, use_shared_mlp_adapter=True,
             layers_block_type=["hybrid" if i in ZAMBA_HYBRIDS else "mamba" for i in range(81)]),
        Due(heads(13, 32, 224), 0, 81 * 112 * 64 * 64 * 4, 81 * (112 * 64 + 2 * 2 * 64) * 3 * 2),
    ),
    "Bamba-9B": (
        like("bamba", 32, 32, 8, 4096, attn_layer_indices=[9, 18, 27], attn_rotary_emb=64, mamba_d_conv=4,
             mamba_d_head=64, mamba_d_state=128, mamba_expand=2, mamba_n_groups=1, mamba_n_heads=128),
        Due(heads(3, 8, 128), 0, 29 * 128 * 64 * 128 * 4, 29 * (128 * 64 + 2 * 128) * 3 * 2),
    ),
    "Granite-4.0-H-Tiny": (
        like("granitemoehybrid", 40, 12, 4, 1536, mamba_n_heads=48, mamba_d_head=64, mamba_d_state=128,
             mamba_n_groups=1, mamba_d_conv=4, mamba_expand=2, position_embedding_type="nope",
             layer_types=["attention" if i % 10 == 5 else "mamba" for i in range(40)]),
        Due(heads(4, 4, 128), 0, 36 * 48 * 64 * 128 * 4, 36 * (48 * 64 + 2 * 128) * 3 * 2),
    ),
    "Nemotron-Nano-9B-v2": (
        like("nemotron_h", 56, 40, 8, 4480, head_dim=128, hybrid_override_pattern=NANO, mamba_num_heads=128,
             mamba_head_dim=80, ssm_state_size=128, n_groups=8, conv_kernel=4, expand=2, chunk_size=128),
        Due(heads(4, 8, 128), 0, 27 * 128 * 80 * 128 * 4, 27 * (128 * 80 + 2 * 8 * 128) * 3 * 2),
    ),
    "LFM2-1.2B": (
        like("lfm2", 16, 32, 8, 2048, conv_L_cache=3, conv_bias=False, conv_dim=2048, block_ff_dim=12288,
             full_attn_idxs=[2, 5, 8, 10, 12, 14],
             layer_types=["full_attention" if i in (2, 5, 8, 10, 12, 14) else "conv" for i in range(16)]),
        Due(heads(6, 8, 64), 0, 0, 10 * 2048 * 2 * 2),
    ),
    "RecurrentGemma-2B": (
        like("recurrent_gemma", 26, 10, 1, 2560, attention_window_size=2048, conv1d_width=4, lru_width=2560,
             block_types=["recurrent", "recurrent", "attention"], w_init_variance_scale=0.01),
        Due(0, 2048 * heads(8, 1, 256), 18 * 2560 * 4, 18 * 2560 * 3 * 2),
    ),
    "MiniMax-Text-01": (
        like("minimax_text_01", 80, 64, 8, 6144, head_dim=128, attn_type_list=([0] * 7 + [1]) * 10,
             layernorm_linear_attention_alpha=3.5, rotary_dim=64, postnorm=True, shared_moe_mode="sigmoid"),
        Due(heads(10, 8, 128), 0, 70 * 64 * 128 * 128 * 4),
    ),
    "RWKV-7-1.5B": (
        {"model_type": "rwkv7", "num_hidden_layers": 24, "hidden_size": 2048, "head_dim": 64, "attn": None,
         "attn_mode": "chunk", "num_heads": 32, "value_dim": [2048] * 24, "decay_low_rank_dim": 96,
         "fuse_norm": False, "torch_dtype": "bfloat16"},
        Due(0, 0, 24 * 32 * 64 * 64 * 4, 24 * 2 * 2048 * 2),
    ),
    "OLMo-Hybrid-7B": (
        like("olmo_hybrid", 32, 30, 30, 3840, layer_types=kinds(32, 4, LINEAR), linear_num_key_heads=30,
             linear_num_value_heads=30, linear_key_head_dim=96, linear_value_head_dim=192,
             linear_conv_kernel_dim=4, linear_allow_neg_eigval=True),
        Due(heads(8, 30, 128), 0, 24 * 30 * 96 * 192 * 4, 24 * (2 * 30 * 96 + 30 * 192) * 3 * 2),
    ),
}  # fmt: skip

#: Of these the description leaves something open, or they are no decoder: each with the key that says so.
REFUSED: dict[str, tuple[Config, str]] = {
    "Phi-4-mini-flash": (
        like("phi4flash", 32, 40, 20, 2560, mb_per_layer=2, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2,
             sliding_window=[512] * 15 + [None] * 17, attention_bias=True),
        "model_type",
    ),
    "Llama-3.2-11B-Vision": (
        {"model_type": "mllama", "vision_config": VISION,
         "text_config": like("mllama_text_model", 40, 32, 8, 4096, cross_attention_layers=[3, 8, 13])},
        "model_type",
    ),
    "T5-3B": ({"model_type": "t5", "d_model": 1024, "num_layers": 24}, "model_type"),
    "Whisper-large": ({"model_type": "whisper", "encoder_layers": 32, "decoder_layers": 32}, "model_type"),
    "Mamba-2.8B of its authors": (
        {"d_model": 2560, "n_layer": 64, "ssm_cfg": {"layer": "Mamba2"}, "residual_in_fp32": True},
        "num_key_value_heads",
    ),
    "Pangu-Ultra-MoE": (
        like("pangu_ultra_moe", 61, 128, 128, 7680, attention_kv_lora_dim=512, attention_q_lora_dim=1536,
             attention_qk_rope_dim=64, attention_qk_dim=128, attention_v_dim=128, num_mtp_layers=1),
        "kv_lora_rank",
    ),
    "Gemma-4 without a word on layers": (
        like("gemma4_text", 30, 8, 4, 2304, head_dim=256, sliding_window=512), "layer_types",
    ),
    "Qwen3-Next without a word on layers": (
        like("qwen3_next", 48, 16, 2, 2048, head_dim=256, linear_num_value_heads=32), "layer_types",
    ),
    "a latent decoder that rotates here and there": (
        like("deepseek_v3", 4, 8, 8, 1024, kv_lora_rank=64, qk_rope_head_dim=16, no_rope_layers=[1, 0, 1, 0]),
        "no_rope_layers",
    ),
    "a decoder of two caches": (like("llama", 32, 32, 8, 4096, kv_reuse_every=2), "kv_reuse_every"),
    "a decoder that loops": (like("llama", 12, 16, 8, 2048, num_loops=4), "num_loops"),
}  # fmt: skip

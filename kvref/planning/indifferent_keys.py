"""Keys that leave the cache alone, and how a key that is on no list is judged by its name.

A config has hundreds of possible keys, and next month has new ones. A key that is not read may be passed over
only if it is known to say nothing about what is stored, or if its name speaks of other things: of norms,
experts, vocabularies. A name that speaks of layers, heads, windows, states or sharing may decide, and whoever
passes over it sizes another model.

Realises: KV-SIZE-013 undecided-key-refused.
For porters: `may_decide` is the rule; the lists only shorten what it refuses.
Source: the configs and classes of transformers 5.24.0, key by key.
"""

import re
from collections.abc import Mapping
from typing import Any


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Words of a name that speak of what is stored, whatever else the name says.
_STORED = _words(
    "kv cache cached caches state states window windows sliding slide swa compress compressed compression "
    "compressor ssm mamba recurrent recurrence yoco cla latent lora kda gdn dsa csa hca mla mqa gqa mha "
    "rwkv lightning delta retention memory mem mems share shared sharing reuse"
)
#: Words that may speak of it, unless the name says that it is about something else.
_LAYERS = _words(
    "layer layers attn attention attentions head heads headdim conv conv1d convolution linear index indexer "
    "chunk chunked local global block blocks pattern hybrid mtp nextn draft cross interval period offset "
    "query key value keys values group groups depth stride kernel sparse full lru hyena loop loops repeat "
    "num_layers qk qkv causal bidirectional encoder decoder topk sink sinks"
)
#: Words of other things.
_OTHER = _words(
    "norm norms normalization layernorm rmsnorm dropout drop pdrop layerdrop eps epsilon init initializer "
    "bias rope rotary expert experts moe router routed routing vocab softcap softcapping act activation "
    "loss multiplier multipliers mlp ffn ff embd embed embedding embeddings token tokens prob std "
    "multimodal vision visual audio video image images speech quant quantization generation jitter theta "
    "scoring aux projector spatial resampler perceiver qformer aligner protein seconds deepstack vq dit "
    "rotation"
)
#: What is said of these says nothing of the decoder's cache, whatever its name.
_ELSEWHERE = _words(
    "vision visual audio video image speech expert experts moe projector resampler perceiver qformer"
)
#: Objects whose own keys are names of classes, of labels, of tasks.
_TABLES = frozenset({"auto_map", "label2id", "id2label", "task_specific_params", "custom_pipelines"})
#: Keys by which an object is a model of its own, beside the decoder.
_OF_MODELS = ("model_type", "num_hidden_layers", "num_layers", "n_layer", "depth", "dit_config")
#: Keys known to leave the cache alone, though their names do not say so.
INDIFFERENT = _words("""
    adapter_reduction_factor attention_dropout attention_in_multiplier attention_multiplier attention_out_bias
    attention_out_multiplier attention_probs_dropout_prob attention_softmax_in_fp32 attention_value_scale
    attn_implementation attn_logit_softcapping attn_output_gate attn_res_block_size attn_scale
    attn_temperature_tuning attn_temperature_scale attn_pdrop block_auto_adjust_ff_dim
    block_ffn_dim_multiplier
    block_multiple_of chunk_size_feed_forward decoder_sparse_step dense_attention_output depth_scale
    enable_attention_fp32_softmax expert_layer_offset expert_layer_period fused_qkv full_attn_alpha_factor
    full_attn_beta_factor head_bias ffn_hidden_size first_k_dense_replace key_multiplier value_multiplier
    layer_norm_eps layer_scale layernorm_epsilon layer_rope_theta layer_group_norm linear_attn_alpha_factor
    linear_attn_beta_factor linear_bias linear_a_log_max linear_a_log_min linear_allow_neg_eigval
    linear_dt_init_floor linear_dt_max linear_dt_min linear_lower_bound kda_lower_bound kda_safe_gate
    gate_lower_bound use_full_rank_gate mamba_bias mamba_chunk_size mamba_conv_bias mamba_dt_rank
    mamba_hidden_act
    mamba_norm_before_gate mamba_proj_bias mamba_rms_norm mamba_step_rank mamba_use_mlp
    max_sequence_length_scale
    mla_use_nope mlp_layer_types mlp_only_layers moe_layers n_group topk_group topk_method
    num_expert_group num_experts_per_layer num_ln_in_parallel_attn num_logits_to_keep num_shared_experts
    n_shared_experts moe_num_shared_experts o_groups o_lora_rank q_lora_rank qk_nope_head_dim qk_head_dim
    rotary_dim prefix_dense_intermediate_size query_pre_attn_scalar qk_l2_clip_threshold qk_layernorm
    qk_layer_norms qk_norm qk_norm_type qk_scale_factor qkv_bias qkv_proj_bias reorder_and_upcast_attn
    attention_qkv_bias attention_bias add_qkv_bias use_qk_norm use_qkv_bias residual_dropout
    scale_attention_softmax_in_fp32 scale_attn_by_inverse_layer_idx scale_attn_weights scale_depth
    shared_expert_combination_strategy shared_expert_intermediate_size shared_expert_sink
    shared_experts_intermediate_size shared_intermediate_size share_expert_dim
    moe_shared_expert_intermediate_size
    moe_shared_expert_overlap share_embeddings share_input_output_embed tie_word_embeddings
    ssm_in_multiplier ssm_multipliers ssm_out_multiplier time_step_floor time_step_init_scheme time_step_limit
    time_step_max time_step_min time_step_rank time_step_scale use_cache use_cache_quantization use_flash_attn
    use_associative_scan use_attention_gate use_conv_bias conv_bias use_mamba_kernels use_mambapy
    use_cache_kernel use_parallel_residual use_triton_kernels
    mamba_ssm_kernel rope_interleave rope_scaling_layers no_rope_layers no_rope_layer_interval
    index_topk index_n_heads index_local_blocks index_topk_blocks index_block_size
    index_kpool_always_select_tail
    indexer_budget indexer_n_heads indexer_rope_interleave index_rope_interleave
    learnable_sink_init softmax_scale sparse_attention_block_size
    output_attentions output_hidden_states is_decoder prune_heads pruned_heads return_dict
    cross_attention_bias
    fuse_cross_entropy fuse_norm embedding_fraction parallel_attn alibi attention_type_embeddings
    laurel_rank gate_rank gated_norm_rank adapter_rank loop_gate_rank hc_lowrank residual_in_fp32
    moe_layer_freq moe_layer_start_index moe_layer_end_index moe_layer_interval interleave_moe_layer_step
    dense_intermediate_size dense_layers num_dense_layers moe_latent_size ple_layer_ids
    n_layers_per_attn_res_block layer_output_scale attention_temperature log_scaling_alpha model_parallel_size
    activation_sparsity_pattern hidden_size_per_layer_input vocab_size_per_layer_input use_double_wide_mlp
    pretraining_tp chunk_size attn_output_bias sequence_parallel use_head_wise_attn_gate head_wise_attn_gate
    use_moe_router_bias use_attn_output_gate attention_output_gate use_output_gate output_gate_type
    add_full_attention_sink_bias add_swa_attention_sink_bias attention_sink_bias attention_projection_layout
    use_bias_in_attn use_learned_position_embeddings qk_norm_before_rope
    dspark_block_size dspark_target_layer_ids
    use_decoder_only_language_model is_encoder_decoder add_cross_attention tie_encoder_decoder num_beam_groups
    encoder_no_repeat_ngram_size cross_attention_hidden_size compress_rope_theta use_mem_eff_path query_num
    insert_layer_id cache_implementation use_parallel_block use_embedding_sharing for_llm_compressor
    mamba_inner_layernorms use_grouped_topk num_hash_layers share_q_dim apply_query_key_layer_scaling
    use_logn_attn attn_mode block_dim block_ff_dim block_use_swiglu block_use_xavier_init conv_use_xavier_init
    num_attention_heads_per_layer num_sliding_attention_heads post_layer_norm pre_layer_norm
    swa_rope_theta deepstack_layers layer_norm_type attn_dropout_prob use_attn_qk_norm attention_rope_scaling
    attn_residual use_attn_res mup_attn_scale calc_logits_for_entire_prompt indexer_kv_heads
    mtp_hidden_states_first merge_kernel_size hidden_mamba_act attn_impl attn_uses_sequence_id
    max_attn_value llm_attn_implementation clip_qkv normalize_qk_projections offset_alibi qk_ln
    no_repeat_ngram_size lm_head rm_head scale_qk_dot_by_d mla_scale_q_lora mla_scale_kv_lora
    gated_linear_unit ft_lora ignored_index ignore_index compression_config remove_invalid_values
    interleaved_qkv
    linear_num_norm_groups group_norm_size gating attention_function keep_query_dtype max_inference_chunksize
    """)


def may_decide(name: str) -> bool:
    """Say whether a key that nobody read may decide what is cached.

    >>> may_decide("rms_norm_eps"), may_decide("kv_share_stride"), may_decide("num_anchor_layers")
    (False, True, True)
    """
    if name in INDIFFERENT or name.startswith("_"):
        return False
    words = _words_of(name)
    if words & _STORED:
        return not words & _ELSEWHERE
    return bool(words & _LAYERS) and not words & _OTHER


def may_decide_around(name: str) -> bool:
    """Say the same of a key beside the decoder, where a model is put together from parts.

    What is said there of layers and heads is said of how the parts are joined.

    >>> may_decide_around("select_layer"), may_decide_around("use_llm_lora"), may_decide_around("kv_share")
    (False, False, True)
    """
    return may_decide(name) and bool(_words_of(name) & (_STORED - {"lora"}))


def of_other_things(name: str, value: Mapping[str, Any] | None = None) -> bool:
    """Say whether all that an object holds is about something else, by its name, or as it is another model.

    >>> of_other_things("rope_scaling"), of_other_things("vision_config"), of_other_things("extras")
    (True, True, False)
    >>> of_other_things("talker_config", {"model_type": "talker", "num_hidden_layers": 24})
    True
    """
    if name in _TABLES or name.startswith("_") or _words_of(name) & (_OTHER | _ELSEWHERE):
        return True
    return value is not None and any(key in value for key in _OF_MODELS)


def _words_of(name: str) -> set[str]:
    spaced = re.sub(r"([a-z\d])([A-Z])", r"\1_\2", name)
    return set(re.findall(r"[a-z]+|\d+", spaced.lower()))


#: Model types that are no decoder of their own tokens, or whose memory is none of the spec's kinds.
OTHER_MODELS: dict[str, str] = {
    **dict.fromkeys(
        _words(
            "bert roberta camembert electra ernie rembert roformer xlm-roberta xlm-roberta-xl xlm xmod "
            "megatron-bert "
            "data2vec-text roberta-prelayernorm roc_bert big_bird bert-generation modernbert distilbert "
            "albert deberta "
            "deberta-v2 mpnet nomic_bert"
        ),
        "an encoder",
    ),
    **dict.fromkeys(
        _words(
            "t5 mt5 umt5 bart mbart marian pegasus blenderbot blenderbot-small bigbird_pegasus plbart "
            "prophetnet mvp "
            "whisper m2m_100 nllb-moe led longt5 udop pix2struct t5gemma t5gemma2 florence2 speech_to_text "
            "trocr musicgen "
            "musicgen_melody vision-encoder-decoder encoder-decoder seamless_m4t fsmt"
        ),
        "a decoder beside an encoder",
    ),
    "mllama": "a decoder whose layers attend to images",
    "mllama_text_model": "a decoder whose layers attend to images",
    "reformer": "a model of hashed attention",
    "xlnet": "a model of segment memory",
    "transfo-xl": "a model of segment memory",
    "xlstm": "a model whose state has three arrays, which the spec does not name",
    "idefics": "a decoder whose layers attend to images",
    "flamingo": "a decoder whose layers attend to images",
}

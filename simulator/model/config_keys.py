"""The verdict on every key of a model's config.json: modelled, left out, without effect on cost, or refused.

`simulator.model.architecture` reads what is modelled and refuses; `simulator.model.omissions` says what follows from
what no field counts. The meanings of keys and the defaults of model classes are written from general knowledge of
Hugging Face transformers and vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

FREE = ("source", "published", "reported", "harness", "x_", "completed", "failed")
"""Prefixes of keys that may stand anywhere in an experiments file, and are carried along."""


class KeyVerdict(Enum):
    """The effect of a key."""

    MODELLED = "modelled"
    OMITTED = "a warning"
    FREE = "no effect"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Key:
    """Keys that are judged together, most under alternative names, and the consequence for the figures."""

    verdict: KeyVerdict
    names: tuple[str, ...]
    follows: str


_JUDGED = """
modelled num_hidden_layers n_layers n_layer num_layers: layers
modelled hidden_size d_model n_embd: width
modelled num_attention_heads n_heads n_head: attention heads
modelled num_key_value_heads num_kv_heads kv_n_heads multi_query_group_num num_attention_groups: KV heads; default:
    one per head
modelled multi_query new_decoder_architecture: a single KV head, but in Falcon's newer form
modelled head_dim attention_head_dim: width of a head; default: `hidden_size` / `num_attention_heads`
modelled swa_head_dim swa_v_head_dim swa_num_attention_heads swa_num_key_value_heads attention_other_setting: heads of
    layers with a sliding window (MiMo-V2, Step-3.5)
modelled global_head_dim num_global_key_value_heads attention_k_eq_v: heads of layers without a window (Gemma 4)
modelled attn_output_gate attention_output_gate mla_use_output_gate: a gate as wide as the output of attention
modelled intermediate_size ffn_hidden_size n_inner ffn_dim intermediate_size_mlp dense_intermediate_size: width of
    dense layers
modelled block_ff_dim block_auto_adjust_ff_dim block_ffn_dim_multiplier block_multiple_of: width of dense layers (LFM2)
modelled vocab_size padded_vocab_size: logits, sampler, embedding
modelled max_position_embeddings max_seq_len n_positions seq_length max_sequence_length: the longest sequence
modelled rope_scaling rope_parameters: the longest sequence, if of type yarn, linear or dynamic
modelled tie_word_embeddings tie_embedding: a single table of embeddings in memory; default: as the model's class has it
modelled num_experts moe_num_experts n_routed_experts num_local_experts: routed experts
modelled num_experts_per_tok moe_top_k moe_k experts_per_token top_k_experts num_experts_per_token moe_topk: experts
    that a token uses
modelled moe_intermediate_size expert_ffn_hidden_size: width of an expert; default: `intermediate_size`
modelled moe_latent_size routed_expert_hidden_size: width that routed experts read and write; default: `hidden_size`
modelled n_shared_experts num_shared_experts moe_num_shared_experts num_shared_expert: shared experts, as wide as routed
    ones
modelled shared_expert_intermediate_size shared_intermediate_size share_expert_dim: width of the shared expert
modelled moe_shared_expert_intermediate_size: width of each shared expert (Nemotron 3, Ling)
modelled enable_moe_block residual_moe: a dense MLP beside the experts of every layer, counted as a shared expert
modelled first_k_dense_replace moe_layer_freq: which layers are dense (DeepSeek, GLM); a list has 0 for each of them
modelled num_dense_layers moe_layer_num_skipped moe_layer_start_index moe_layer_end_index moe_layer_interval
    mlp_layer_types moe_layers_enum is_moe_layer expert_layer_period expert_layer_offset: which layers are dense (LFM2,
    Hunyuan, Ernie, GLM-5, Step, K-EXAONE, Jamba)
modelled decoder_sparse_step mlp_only_layers: which layers are dense (Qwen)
modelled interleave_moe_layer_step: which layers are dense (Llama 4)
modelled torch_dtype dtype: a warning for float32, which is served and counted in 16 bits
modelled quantization_config compression_config quantization: types of the weights, part by part, and of the KV cache
modelled text_config llm_config language_config thinker_config attn_config ffn_config: their keys count as if at the top
modelled generation_config: `top_p`, `top_k` and `repetition_penalty`: sort and penalties of the sampler
modelled extra_weights_gib: our own key: memory of weights that the formulas leave out
modelled model_type: rules of a model's class: gated or not, defaults, dense layers
modelled hidden_act hidden_activation activation_function mlp_hidden_act: relu2 and xielu: two matrices in an MLP
modelled layer_types layers_block_type block_types hybrid_override_pattern: the kind of every layer: attention, window,
    chunk, linear attention, state space, convolution; in Nemotron-H also feed-forward blocks
modelled sliding_window sliding_window_size attention_window_size use_sliding_window max_window_layers
    sliding_window_pattern _sliding_window_pattern global_attn_every_n_layers hybrid_layer_pattern: windows, layer by
    layer; a warning that room in the KV cache is under-estimated, if a request is longer than the window
modelled attention_chunk_size no_rope_layers no_rope_layer_interval: chunks, layer by layer; a warning as for windows
modelled kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim qk_head_dim v_head_dim: latent attention (MLA)
modelled index_topk index_n_heads index_head_dim indexer_types: sparse attention over latent vectors and its indexer
modelled linear_num_value_heads linear_num_key_heads linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim
    linear_attn_config full_attention_interval attn_type_list: linear attention (Qwen3-Next, Kimi-Linear, MiniMax-01); a
    warning about the memory of its states
modelled ssm_state_size state_size mamba_d_state mamba_d_ssm mamba_d_conv mamba_d_head mamba_n_heads mamba_n_groups
    mamba_expand mamba_dt_rank mamba_num_heads mamba_head_dim n_groups conv_kernel expand attn_layer_indices
    attn_layer_period attn_layer_offset: state-space layers (Nemotron-H, Granite 4, Jamba, Bamba, Falcon-H1); a warning
    about the memory of their states
modelled conv_L_cache conv_dim full_attn_idxs lru_width conv1d_width: short convolutions (LFM2), gated recurrences
    (RecurrentGemma)
omitted num_nextn_predict_layers mtp_num_hidden_layers num_mtp_modules: multi-token prediction: used
    with `speculative_method: mtp` only, which counts them
omitted attn_logit_softcapping: attention is under-estimated a little, most in prefill
omitted final_logit_softcapping logits_soft_cap: the sampler is under-estimated by a pass over the logits
omitted vision_config audio_config: encoders: their weights take memory (give `extra_weights_gib`), and images and
    sound in prompts take time; prompts of text are not affected otherwise
omitted cross_attention_layers: counted as plain attention: over-estimated for prompts of text
omitted num_kv_shared_layers: layers that share a KV cache have one each: room in it is under-estimated
omitted hc_mult: hyper-connections: every step is under-estimated by the mixing of so many residual streams
omitted attn_res_block_size: attention over earlier blocks' residuals: every step is under-estimated
omitted sparse_attention_config: attention to chosen blocks: over-estimated in long requests, its indexer left out
omitted hidden_size_per_layer_input: embeddings for each layer: their memory and time are left out
omitted altup_num_inputs altup_active_idx altup_coef_clip altup_correct_scale laurel_rank activation_sparsity_pattern:
    alternating updates of several residual streams: every step is under-estimated
omitted use_double_wide_mlp: layers that share a KV cache have an MLP of twice the width, which is left out
omitted index_kpool: scores of the indexer over pooled keys: its work is over-estimated
omitted zero_expert_num: a token's choices that fall on zero experts are left out, on average
omitted use_parallel_residual parallel_attn: with tensor parallelism, one all-reduce a layer instead of two:
    over-estimated
refused is_encoder_decoder: encoder-decoder models
refused ssm_cfg: models without attention
refused layer_group_size: linear attention of Ling and Ring
refused block_configs: layers of different sizes
refused compress_ratios: keys and values that are compressed layer by layer (DeepSeek-V4)
free architectures auto_map transformers_version torchscript torch_compile name_or_path use_bfloat16 is_decoder
    _name_or_path add_cross_attention cross_attention_hidden_size tie_encoder_decoder pretraining_tp ep_size
    gradient_checkpointing use_cache use_flash_attn attn_implementation cache_implementation return_dict
    output_attentions output_hidden_states use_return_dict chunk_size_feed_forward problem_type task_specific_params
    tokenizer_class prefix pruned_heads finetuning_task id2label label2id: of the file and the library
free bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id image_token_id
    image_token_index audio_token_id video_token_id boi_token_index eoi_token_index boi_token_id eoi_token_id
    vision_start_token_id vision_end_token_id vision_token_id mm_tokens_per_image boa_token_id eoa_token_id
    eoa_token_index image_start_token_id image_end_token_id video_start_token_id video_end_token_id video_token_index
    media_placeholder_token_id image_placeholder video_placeholder ignore_index vision_soft_tokens_per_image
    forced_bos_token_id forced_eos_token_id bad_words_ids suppress_tokens begin_suppress_tokens model_max_length:
    tokens
free rope_theta rope_local_base_freq rope_interleave rope_ratio rope_base rotary_dim rotary_pct
    partial_rotary_factor partial_rotary_factors original_max_position_embeddings use_rope position_embedding_type
    alibi mrope_section attn_temperature_tuning attn_scale floor_scale initial_context_length rope_scaling_factor
    rope_ntk_alpha rope_ntk_beta layer_rope_theta swa_rope_theta use_mrope mla_use_nope indexer_rope_interleave:
    positions: the same work for any value
free rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps norm_epsilon layernorm_epsilon norm_type use_qk_norm
    qk_layernorm use_rms_norm rmsnorm apply_residual_connection_post_layernorm post_layer_norm do_layer_norm_before
    query_pre_attn_scalar attention_multiplier embedding_multiplier residual_multiplier logits_scaling logit_scale
    qk_norm_type use_gemma_norm post_norm_eps qk_scale_factor output_multiplier attention_value_scale swiglu_alpha
    activation_situ_beta activation_situ_linear_beta latent_moe_use_norm rescale_prenorm_residual residual_in_fp32
    hc_eps hc_sinkhorn_iters mhc clip_qkv swiglu_limit scale_attn_weights scale_emb scale_depth dim_model_base
    mup_width_multiplier: norms and scales: fused, or shorter than a launch
free attention_bias mlp_bias qkv_bias use_bias bias add_bias_linear add_qkv_bias attn_bias use_qkv_bias lm_head_bias
    attention_out_bias mlp_hidden_bias no_bias mamba_proj_bias mamba_conv_bias use_conv_bias conv_bias
    add_swa_attention_sink_bias add_full_attention_sink_bias multimodal_projector_bias: biases: below 0.1 % of the
    weights
free attention_dropout hidden_dropout hidden_dropout_prob attention_probs_dropout_prob resid_pdrop embd_pdrop
    attn_pdrop dropout activation_dropout layerdrop classifier_dropout summary_type summary_use_proj
    summary_activation summary_proj_to_labels summary_first_dropout initializer_range initializer_factor
    output_router_logits router_aux_loss_coef router_jitter_noise router_z_loss_coef aux_loss_alpha seq_aux
    aux_loss_coef moe_loss_weight input_jitter_noise: of training alone
free norm_topk_prob scoring_func topk_method n_group topk_group routed_scaling_factor use_routing_bias
    router_score_func norm_expert_weight moe_normalize_expert_weights moe_renormalize moe_router_activation_func
    moe_router_dtype moe_router_scaling_factor use_moe_router_bias num_expert_group use_grouped_topk
    moe_shared_expert_overlap: how experts are chosen, not how many
free mamba_hidden_act mamba_ssm_dtype mamba_ssm_cache_dtype mamba_chunk_size chunk_size use_mamba_kernels
    num_logits_to_keep time_step_floor time_step_limit time_step_max time_step_min time_step_rank output_gate_type
    conv_use_xavier_init block_dim block_mlp_init_scale block_use_swiglu block_use_xavier_init: of recurrent layers:
    the same work for any value
free mtp_hybrid_override_pattern mtp_layers_block_type mtp_transformer_layers mtp_use_dedicated_embeddings use_mtp
    index_share_for_mtp_iteration: of layers that predict further tokens, see num_nextn_predict_layers
free index_topk_freq index_topk_pattern index_skip_topk_offset index_kpool_always_select_tail index_kpool_compress
    linear_num_heads linear_head_dim linear_lower_bound expert_intermediate_size vocab_size_per_layer_input: other
    keys say the same
free image_processor_config image_grid_pinpoints image_seq_length img_token_compression_config process_image_mode
    projector_hidden_act projector_hidden_size out_hidden_size vision_feature_layer vision_feature_select_strategy
    use_unified_vision_chunk use_bidirectional_attention language_model_only base_model_ep_plan tf_legacy_loss
    num_reward_heads: of images, and of training
free normalization_function init_method mamba_inner_layernorms mamba_rms_norm mamba_norm_before_gate mamba_use_mlp
    ssm_multipliers ssm_in_multiplier ssm_out_multiplier mlp_multipliers mlp_expansion_factor key_multiplier
    attention_in_multiplier attention_out_multiplier lm_head_multiplier projectors_bias attn_rotary_emb
    layernorm_full_attention_alpha layernorm_full_attention_beta layernorm_linear_attention_alpha
    layernorm_linear_attention_beta layernorm_mlp_alpha layernorm_mlp_beta postnorm embeddings_scale_by_sqrt_dim
    w_init_variance_scale final_w_init_variance_scale theta mla_scale_q_lora mla_scale_kv_lora swiglu_limits
    swiglu_limits_shared use_rope_layers use_head_wise_attn_gate: norms, scales and positions of hybrids and of
    attention
free use_expert_bias zero_expert_type router_bias need_fp32_gate shared_moe_mode moe_capacity moe_gate
    moe_use_aux_free use_moe moe_every_n_layer order_of_interleaved_layers layer_switch use_gated_activation
    use_embedding_sharing use_parallel_block use_parallel_embedding attention_method att_impl_type: said by the class
    or by other keys
free do_sample temperature top_k top_p typical_p num_beams num_beam_groups max_length min_length length_penalty
    repetition_penalty diversity_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size early_stopping
    num_return_sequences output_scores return_dict_in_generate remove_invalid_values
    exponential_decay_length_penalty: generation: the engine reads generation_config.json instead
"""  # verdict, keys, and after the colon what follows


def _key(line: str) -> Key:
    about, follows = " ".join(line.split()).split(": ", 1)
    verdict, *names = about.split()
    return Key(KeyVerdict[verdict.upper()], tuple(names), follows)


JUDGED = tuple(map(_key, re.split(r"\n(?=\S)", _JUDGED.strip())))
VERDICTS: Mapping[str, KeyVerdict] = {name: key.verdict for key in JUDGED for name in key.names}

_GEMMA3 = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208}
_LATENT = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
_MINICPM3 = {"kv_lora_rank": 256, "q_lora_rank": 768, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64}
_JAMBA = {"attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2, "expert_layer_offset": 1}
CLASS_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "gemma2": {"sliding_window_pattern": 2},
    "gemma3": {"sliding_window_pattern": 6},
    "gemma3_text": {**_GEMMA3, "max_position_embeddings": 131072, "sliding_window_pattern": 6},
    "cohere2": {"sliding_window_pattern": 4},
    "gpt_oss": {"sliding_window_pattern": 2},
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v32": _LATENT,
    "kimi_k2": _LATENT,
    "minicpm3": _MINICPM3,
    "qwen3_next": {"full_attention_interval": 4},
    "jamba": _JAMBA,
}
"""By model_type, what published config.json files leave to the model's class."""

EVERY = ("_sliding_window_pattern", "sliding_window_pattern", "global_attn_every_n_layers")
"""The keys that say every which layer attends to everything, in the order in which they are tried."""

OUTPUT_GATE = ("qwen3_next", "qwen3_5", "afmoe", "muse_glimmer")
"""Beginnings of model types whose attention has an output gate."""

_TIED = """gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text gemma4 gemma4_text recurrent_gemma cohere cohere2 gpt2
    gpt_neo gpt_bigcode opt bloom falcon starcoder2 mpt lfm2 lfm2_moe minicpm3"""
TIED = frozenset(_TIED.split())
"""The model types whose embeddings are tied unless config.json says otherwise."""

_TWO = "gpt2 gpt_neo gpt_neox gptj gpt_bigcode opt bloom falcon mpt phi starcoder2 nemotron persimmon arcee apertus"
UNGATED = frozenset(_TWO.split())
"""The model types whose MLP has two matrices. All others have three: gate, up and down."""

NORMED = frozenset(("minimax_m2", "olmo2", "olmo3"))
"""The model types with a norm of queries and keys across all heads, in place of one for each."""

ENCODERS = frozenset(("bert", "roberta", "distilbert", "xlm-roberta", "modernbert", "electra", "deberta-v2"))
RECURRENT = frozenset(("mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv6", "rwkv7", "xlstm"))
"""The model types without any attention."""

DECODER = "choose a model that decodes by attention"
HYBRID = "choose a hybrid model, such as Nemotron-H or Granite 4"
REFUSALS: Mapping[str, tuple[str, str]] = {
    "is_encoder_decoder": ("is true, and no encoder is modelled", DECODER),
    "ssm_cfg": ("is of a model without attention, which every formula needs", HYBRID),
    "layer_group_size": ("is of linear attention whose projections are not modelled", "choose Qwen3-Next"),
    "block_configs": (
        "gives every layer a size of its own, which is not modelled",
        "choose the model that it was cut from, such as Llama-3.3-70B",
    ),
    "compress_ratios": (
        "compresses keys and values layer by layer, which is not modelled",
        "choose DeepSeek-V3.2, whose attention is the nearest",
    ),
}
"""Keys that are refused if they say anything: the problem, and the nearest that is modelled."""

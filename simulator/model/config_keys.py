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
modelled num_key_value_heads num_kv_heads kv_n_heads multi_query_group_num: KV heads; default: one per head
modelled multi_query new_decoder_architecture: a single KV head, but in Falcon's newer form
modelled head_dim: width of a head; default: `hidden_size` / `num_attention_heads`
modelled intermediate_size ffn_hidden_size n_inner ffn_dim intermediate_size_mlp: width of dense layers
modelled vocab_size padded_vocab_size: logits, sampler, embedding
modelled max_position_embeddings max_seq_len n_positions seq_length max_sequence_length: the longest sequence
modelled rope_scaling rope_parameters: the longest sequence, if of type yarn, linear or dynamic
modelled tie_word_embeddings: a single table of embeddings in memory; default: as the model's class has it
modelled num_experts moe_num_experts n_routed_experts num_local_experts: routed experts
modelled num_experts_per_tok moe_top_k moe_k experts_per_token top_k_experts: experts that a token uses
modelled moe_intermediate_size: width of an expert; default: `intermediate_size`
modelled n_shared_experts num_shared_experts moe_num_shared_experts: shared experts, as wide as routed ones
modelled shared_expert_intermediate_size shared_intermediate_size: width of the shared expert
modelled first_k_dense_replace moe_layer_freq: which layers are dense (DeepSeek, GLM); a list has 0 for each of them
modelled decoder_sparse_step mlp_only_layers: which layers are dense (Qwen)
modelled interleave_moe_layer_step: which layers are dense (Llama 4)
modelled torch_dtype dtype: a warning for float32, which is served and counted in 16 bits
modelled quantization_config compression_config quantization: types of the weights, part by part, and of the KV cache
modelled text_config llm_config language_config attn_config ffn_config: their keys count as if at the top
modelled generation_config: `top_p`, `top_k` and `repetition_penalty`: sort and penalties of the sampler
modelled extra_weights_gib: our own key: memory of weights that the formulas leave out
modelled model_type: rules of a model's class: gated or not, defaults, dense layers
modelled hidden_act hidden_activation activation_function: relu2 and xielu: two matrices in an MLP
omitted sliding_window sliding_window_size use_sliding_window max_window_layers layer_types sliding_window_pattern
    _sliding_window_pattern attention_chunk_size no_rope_layers no_rope_layer_interval: for requests longer than the
    window: attention is over-estimated, room in the KV cache under-estimated; no warning if no request is as long
omitted kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim qk_head_dim v_head_dim: latent attention (MLA):
    its KV cache is modelled; its projections and the FLOPs of prefill are counted as plain attention's, and the
    warning says how far off that is
omitted index_topk index_n_heads index_head_dim: sparse attention: attention to more than `index_topk` tokens is
    over-estimated, the indexer left out
omitted num_nextn_predict_layers mtp_num_hidden_layers num_mtp_modules: multi-token prediction: used with
    speculative decoding only, which is not modelled
omitted attn_logit_softcapping: attention is under-estimated a little, most in prefill
omitted final_logit_softcapping: the sampler is under-estimated by a pass over the logits
omitted vision_config audio_config: encoders: their weights take memory (give `extra_weights_gib`), and images and
    sound in prompts take time; prompts of text are not affected otherwise
omitted cross_attention_layers: counted as plain attention: over-estimated for prompts of text
omitted num_kv_shared_layers: layers that share a KV cache have one each: room in it is under-estimated
omitted use_parallel_residual parallel_attn: with tensor parallelism, one all-reduce a layer instead of two:
    over-estimated
refused is_encoder_decoder: encoder-decoder models
refused ssm_state_size state_size ssm_cfg mamba_d_state mamba_d_ssm mamba_d_conv mamba_d_head mamba_n_heads
    mamba_n_groups mamba_expand mamba_chunk_size mamba_conv_bias mamba_proj_bias mamba_dt_rank mamba_num_heads
    mamba_head_dim linear_num_value_heads linear_num_key_heads linear_key_head_dim linear_value_head_dim
    linear_conv_kernel_dim linear_attn_config conv_L_cache lru_width hybrid_override_pattern attn_type_list:
    state-space, linear-attention and hybrid models, unless `layer_types` names attention alone, or `attn_type_list` has
    only 1
refused layers_block_type block_types: layers that are not all attention
refused block_configs: layers of different sizes
free architectures auto_map transformers_version torchscript torch_compile name_or_path use_bfloat16 is_decoder
    _name_or_path add_cross_attention cross_attention_hidden_size tie_encoder_decoder pretraining_tp ep_size
    gradient_checkpointing use_cache use_flash_attn attn_implementation cache_implementation return_dict
    output_attentions output_hidden_states use_return_dict chunk_size_feed_forward problem_type task_specific_params
    tokenizer_class prefix pruned_heads finetuning_task id2label label2id: of the file and the library
free bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id image_token_id
    image_token_index audio_token_id video_token_id boi_token_index eoi_token_index boi_token_id eoi_token_id
    vision_start_token_id vision_end_token_id vision_token_id mm_tokens_per_image forced_bos_token_id
    forced_eos_token_id bad_words_ids suppress_tokens begin_suppress_tokens model_max_length: tokens
free rope_theta rope_local_base_freq rope_interleave rope_ratio rope_base rotary_dim rotary_pct
    partial_rotary_factor partial_rotary_factors original_max_position_embeddings use_rope position_embedding_type
    alibi mrope_section attn_temperature_tuning attn_scale floor_scale initial_context_length rope_scaling_factor
    rope_ntk_alpha rope_ntk_beta: positions: the same work for any value
free rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps norm_epsilon layernorm_epsilon norm_type use_qk_norm
    qk_layernorm use_rms_norm rmsnorm apply_residual_connection_post_layernorm post_layer_norm do_layer_norm_before
    query_pre_attn_scalar attention_multiplier embedding_multiplier residual_multiplier logits_scaling logit_scale
    clip_qkv swiglu_limit scale_attn_weights scale_emb scale_depth dim_model_base mup_width_multiplier: norms and
    scales: fused, or shorter than a launch
free attention_bias mlp_bias qkv_bias use_bias bias add_bias_linear add_qkv_bias attn_bias use_qkv_bias lm_head_bias
    attention_out_bias mlp_hidden_bias no_bias: biases: below 0.1 % of the weights
free attention_dropout hidden_dropout hidden_dropout_prob attention_probs_dropout_prob resid_pdrop embd_pdrop
    attn_pdrop dropout activation_dropout layerdrop classifier_dropout summary_type summary_use_proj
    summary_activation summary_proj_to_labels summary_first_dropout initializer_range initializer_factor
    output_router_logits router_aux_loss_coef router_jitter_noise router_z_loss_coef aux_loss_alpha seq_aux
    aux_loss_coef moe_loss_weight input_jitter_noise: of training alone
free norm_topk_prob scoring_func topk_method n_group topk_group routed_scaling_factor use_routing_bias
    router_score_func norm_expert_weight moe_normalize_expert_weights: how experts are chosen, not how many
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
CLASS_DEFAULTS: Mapping[str, Mapping[str, int]] = {"gemma3_text": {**_GEMMA3, "max_position_embeddings": 131072}}
"""By model_type, what published config.json files leave to the model's class."""

_TIED = "gemma gemma2 gemma3 gemma3_text cohere cohere2 gpt2 gpt_neo gpt_bigcode opt bloom falcon starcoder2 mpt"
TIED = frozenset(_TIED.split())
"""The model types whose embeddings are tied unless config.json says otherwise."""

_TWO = "gpt2 gpt_neo gpt_neox gptj gpt_bigcode opt bloom falcon mpt phi starcoder2 nemotron persimmon arcee apertus"
UNGATED = frozenset(_TWO.split())
"""The model types whose MLP has two matrices. All others have three: gate, up and down."""

ENCODERS = frozenset(("bert", "roberta", "distilbert", "xlm-roberta", "modernbert", "electra", "deberta-v2"))
RECURRENT = frozenset(("mamba", "mamba2", "falcon_mamba", "rwkv", "recurrent_gemma"))
ATTENTION = frozenset(("full_attention", "sliding_attention", "chunked_attention", "attention"))
"""The kinds of layers in `layer_types` and its like that are attention."""

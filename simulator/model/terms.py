"""The terms of a config.json at one level, and each quantity under any of its keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.common.errors import Section, shown
from simulator.common.json import JsonObject
from simulator.model import config_keys

KEYS = {
    "layers": ("num_hidden_layers", "n_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "d_model", "n_embd"),
    "heads": ("num_attention_heads", "n_heads", "n_head"),
    "kv_heads": (
        *("num_key_value_heads", "num_kv_heads", "kv_n_heads", "multi_query_group_num"),
        "num_attention_groups",
    ),
    "head_dim": ("head_dim", "attention_head_dim"),
    "ffn": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim"),
    "moe_ffn": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "experts": ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts"),
    "active": (
        *("num_experts_per_tok", "moe_top_k", "moe_k", "experts_per_token", "top_k_experts", "num_experts_per_token"),
        *("moe_topk",),
    ),
    "shared": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    "shared_ffn": ("shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim"),
    "expert_hidden": ("moe_latent_size", "routed_expert_hidden_size"),
    "longest": ("max_position_embeddings", "max_seq_len", "n_positions", "seq_length", "max_sequence_length"),
    "window": ("sliding_window", "sliding_window_size", "attention_window_size"),
    "ssm_heads": ("mamba_num_heads", "mamba_n_heads"),
    "ssm_head_dim": ("mamba_head_dim", "mamba_d_head"),
    "ssm_state": ("ssm_state_size", "mamba_d_state"),
    "ssm_groups": ("n_groups", "mamba_n_groups"),
    "ssm_conv": ("conv_kernel", "mamba_d_conv"),
    "ssm_expand": ("expand", "mamba_expand"),
}
"""The keys of each quantity in the order in which they are tried: Llama and Mixtral, Qwen-MoE, DeepSeek, DBRX, ..."""

MOST_KEYS = 1_000  # of a config.json; real ones have about fifty
MOST_LAYERS = 1_000
MOST_SIZE = 1_000_000_000  # of any other quantity

REMEDY = "copy the key from the model's config.json"
NESTED_CONFIGS = ("attn_config", "ffn_config", "thinker_config", "text_config", "llm_config", "language_config")
MAY_BE_ZERO = ("experts", "shared", "shared_ffn", "expert_hidden", "window")


def flat_config(config: Mapping[str, Any]) -> JsonObject:
    """The terms of a config.json at one level, with those that it leaves to the model's class."""
    flat = _flat(config)
    return {**config_keys.CLASS_DEFAULTS.get(str(flat.get("model_type")), {}), **flat}


def _flat(config: Mapping[str, Any]) -> JsonObject:
    flat: JsonObject = dict(config)
    for nested in NESTED_CONFIGS:
        if isinstance(config.get(nested), Mapping):
            flat |= _flat(config[nested]) if nested == "thinker_config" else config[nested]
    return flat


def model_type(c: Section) -> str:
    """The model's class by its short name, "" if it is not given."""
    return str(c.raw.get("model_type") or "")


def activation(c: Section) -> str:
    """The activation of the MLP, "" if it is not given."""
    given = (c.raw.get(key) for key in ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act"))
    return next((str(name) for name in given if name), "")


def first(c: Section, name: str, default: int | None = None) -> int:
    """The quantity under the first of its keys that is present. Without a default it is required."""
    key = next((key for key in KEYS[name] if c.has(key)), KEYS[name][0])
    if default is not None and not c.has(key):
        return default
    most, others = MOST_LAYERS if name == "layers" else MOST_SIZE, ", ".join(KEYS[name][1:])
    remedy = REMEDY if c.has(key) or not others else f"{REMEDY}, which may call it {others}"
    return alike(c, key).whole(key, remedy, least=0 if name in MAY_BE_ZERO else 1, most=most)


def whole(c: Section, key: str, default: int) -> int:
    """The whole number under a key, `default` if it is left out."""
    return alike(c, key).whole(key, REMEDY, most=MOST_SIZE) if c.has(key) else default


def alike(c: Section, key: str) -> Section:
    """The section, with the one value of a list that gives every layer the same. Raises InputError if they differ."""
    given = c.raw.get(key)
    if not isinstance(given, list) or not given:
        return c
    if any(one != given[0] for one in given):
        raise c.error(key, "gives layers different sizes, which is not modelled", "choose a model with layers alike")
    return Section(c.where, c.path, {key: given[0]})


def numbers(c: Section, key: str) -> list[int]:
    """A list of whole numbers, [] if it is not given; Step writes it as text with commas. Raises InputError."""
    given = c.raw.get(key)
    if isinstance(given, str):
        given = [int(one) if one.strip().isdigit() else one for one in given.split(",")]
    given = [] if given is None else given
    if not isinstance(given, list) or len(given) > MOST_LAYERS or not all(isinstance(n, int) for n in given):
        raise c.error(key, f"must be a list of whole numbers, got {shown(c.raw[key])}", REMEDY)
    return [int(n) for n in given]


def words(c: Section, key: str) -> list[str]:
    """A list of names, [] if it is not given. Raises InputError."""
    given = [] if c.raw.get(key) is None else c.raw[key]
    if not isinstance(given, list) or len(given) > MOST_LAYERS:
        raise c.error(key, f"must be a list of at most {MOST_LAYERS:,} names, got {shown(given)}", REMEDY)
    return [str(one) for one in given]

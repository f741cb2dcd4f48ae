"""A model's architecture, read from the terms of its config.json as the engine's loaders read them.

Keys are those of Hugging Face config.json files. A `text_config` (and DBRX's `attn_config`, `ffn_config`) overrides the
top level.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.errors import InputError, Section, shown
from simulator.json import JsonObject

KEYS = {
    "layers": ("num_hidden_layers", "n_layers"),
    "hidden": ("hidden_size", "d_model"),
    "heads": ("num_attention_heads", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "kv_n_heads", "multi_query_group_num"),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "ffn_hidden_size"),
    "moe_ffn": ("moe_intermediate_size",),
    "vocab": ("vocab_size",),
    "experts": ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts"),
    "active": ("num_experts_per_tok", "moe_top_k"),
    "longest": ("max_position_embeddings", "max_seq_len"),
}
"""The keys of each quantity in the order in which they are tried: Llama and Mixtral, Qwen-MoE, DeepSeek, DBRX, ..."""

ESSENTIAL = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "vocab_size", "num_local_experts", "num_experts_per_tok"),
)
"""Keys for which a misspelling must not silently give the default."""

MOST_KEYS = 1_000  # of a config.json; real ones have about fifty
MOST_LAYERS = 1_000
MOST_SIZE = 1_000_000_000  # of any other quantity

REMEDY = "copy the key from the model's config.json"


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model's config.json as the engine loads it. FFN widths are those of one expert or dense layer.

    `mla_width` is the number of cached scalars per token and layer of multi-head latent attention, else 0; `longest` is
    the most tokens of prompt and answer together, 0 if the config does not give it.
    """

    layers: int
    moe_layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    moe_ffn: int
    shared_ffn: int
    vocab: int
    experts: int
    active: int
    mla_width: int
    longest: int
    tied: bool
    weight_bits: int
    attention_bits: int
    is_fp8: bool
    kv_bytes: int


def architecture(config: Mapping[str, Any], where: str) -> Architecture:
    """The architecture in config.json terms. Raises InputError at a missing, malformed or inconsistent key."""
    flat: JsonObject = dict(config)
    for part in ("attn_config", "ffn_config", "text_config"):
        if isinstance(config.get(part), Mapping):
            flat |= config[part]
    c = Section(where, "model_config", flat)
    if len(flat) > MOST_KEYS:
        raise InputError(f"{where}: model_config has {len(flat):,} keys, at most {MOST_KEYS:,} are read: {REMEDY}")
    for key in flat:
        near = difflib.get_close_matches(str(key), ESSENTIAL, n=1, cutoff=0.93)
        if near and key not in ESSENTIAL:
            raise c.error(key, "is not a key of config.json", f"did you mean '{near[0]}'?")

    layers, hidden, heads, vocab = (_first(c, name) for name in ("layers", "hidden", "heads", "vocab"))
    experts = _first(c, "experts", 0)
    moe = experts >= 2
    moe_layers = sum(_is_moe_layer(c, i) for i in range(layers)) if moe else 0
    llama4 = moe and (c.has("interleave_moe_layer_step") or str(flat.get("model_type")).startswith("llama4"))
    ffn = _first(c, "ffn", 0) if moe else _first(c, "ffn")
    moe_ffn = _first(c, "moe_ffn", ffn) if moe else 0
    if moe and not moe_ffn:
        raise c.error("moe_intermediate_size", "is missing", REMEDY)
    if llama4:
        shared = moe_ffn
    elif c.has("shared_expert_intermediate_size"):
        shared = _whole(c, "shared_expert_intermediate_size", 0)
    else:
        shared = _whole(c, "n_shared_experts", 0) * moe_ffn
    head_dim = _first(c, "head_dim", hidden // heads)
    if not head_dim:
        raise c.error("num_attention_heads", f"must be <= hidden_size, got {heads}", REMEDY)
    latent = _whole(c, "kv_lora_rank", 0)
    bits, is_fp8 = _weights(c)
    return Architecture(
        layers=layers,
        moe_layers=moe_layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_first(c, "kv_heads", heads),
        head_dim=head_dim,
        ffn=_whole(c, "intermediate_size_mlp", ffn) if llama4 else ffn,
        moe_ffn=moe_ffn,
        shared_ffn=shared if moe else 0,
        vocab=vocab,
        experts=experts if moe else 0,
        active=_first(c, "active") if moe else 0,
        mla_width=latent + _whole(c, "qk_rope_head_dim", 0) if latent else 0,
        longest=_first(c, "longest", 0),
        tied=c.flag("tie_word_embeddings", False),
        weight_bits=bits,
        attention_bits=16 if llama4 and is_fp8 else bits,  # vLLM's fp8 checkpoints of Llama-4 leave attention in bf16
        is_fp8=is_fp8,
        kv_bytes=4 if _dtype(c) == "float32" else 2,
    )


def _first(c: Section, name: str, default: int | None = None) -> int:
    """The quantity under the first of its keys that is present. Without a default it is required."""
    key = next((key for key in KEYS[name] if c.has(key)), KEYS[name][0])
    if default is not None and not c.has(key):
        return default
    most = MOST_LAYERS if name == "layers" else MOST_SIZE
    return c.whole(key, REMEDY, least=0 if name == "experts" else 1, most=most)


def _whole(c: Section, key: str, default: int) -> int:
    return c.whole(key, REMEDY, most=MOST_SIZE) if c.has(key) else default


def _is_moe_layer(c: Section, i: int) -> bool:
    """Whether layer i of a mixture-of-experts model has routed experts, by the rules of vLLM's loaders."""
    if c.has("first_k_dense_replace"):  # DeepSeek, GLM
        return i >= _whole(c, "first_k_dense_replace", 0) and i % max(_whole(c, "moe_layer_freq", 1), 1) == 0
    if c.has("interleave_moe_layer_step"):  # Llama-4
        step = _whole(c, "interleave_moe_layer_step", 1)
        return step > 0 and (i + 1) % step == 0
    sparse = max(_whole(c, "decoder_sparse_step", 1), 1)  # Qwen
    dense = c.raw.get("mlp_only_layers") or []
    if not isinstance(dense, list) or len(dense) > MOST_LAYERS:
        raise c.error("mlp_only_layers", f"must be a list, got {shown(dense)}", REMEDY)
    return (i + 1) % sparse == 0 and i not in dense


def _dtype(c: Section) -> str:
    return str(c.raw.get("torch_dtype") or c.raw.get("dtype") or "bfloat16").removeprefix("torch.")


def _weights(c: Section) -> tuple[int, bool]:
    """Bits per layer weight, and whether they are fp8: from the quantization config, else the name, else the dtype."""
    given: Any = c.raw.get("quantization_config") or c.raw.get("quantization")
    details = given if isinstance(given, Mapping) else {}
    weights = _group_weights(details)
    named = f"{details.get('quant_method')} {details.get('quant_algo')}" if details else given
    words = str(named or c.raw.get("_name_or_path")).lower()
    bits = weights.get("num_bits") or details.get("bits")
    if "fp8" in words or (bits == 8 and weights.get("type") == "float"):
        return 8, True
    if bits in (2, 3, 4, 8):
        return int(bits), False
    if any(mark in words for mark in ("w4a16", "awq", "gptq", "int4", "fp4")):
        return 4, False
    if given:
        key = "quantization_config" if details else "quantization"
        raise c.error(key, f"is not understood, got {shown(given)}", "write quantization: fp8 or w4a16")
    return (32 if _dtype(c) == "float32" else 16), False


def _group_weights(quantization: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `weights` entry of the first group of a compressed-tensors configuration."""
    groups = quantization.get("config_groups")
    group: Any = next(iter(groups.values()), {}) if isinstance(groups, Mapping) else {}
    weights = group.get("weights") if isinstance(group, Mapping) else None
    return weights if isinstance(weights, Mapping) else {}

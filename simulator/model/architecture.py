"""A model's architecture, read from the terms of its config.json as the engine's loaders read them.

Keys are those of Hugging Face config.json files. A `text_config` (and DBRX's `attn_config`, `ffn_config`) overrides the
top level. `simulator.model.config_keys` judges every key.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.common.errors import InputError, Section, shown
from simulator.common.json import JsonObject
from simulator.model import config_keys
from simulator.model.config_keys import VERDICTS, KeyVerdict
from simulator.model.formats import IN_16, Format, Formats
from simulator.model.layers import Attention, Latent, Recurrent
from simulator.model.quantization import cache_asked_by, formats

KEYS = {
    "layers": ("num_hidden_layers", "n_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "d_model", "n_embd"),
    "heads": ("num_attention_heads", "n_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "kv_n_heads", "multi_query_group_num"),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim"),
    "moe_ffn": ("moe_intermediate_size",),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "experts": ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts"),
    "active": ("num_experts_per_tok", "moe_top_k", "moe_k", "experts_per_token", "top_k_experts"),
    "shared": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "shared_ffn": ("shared_expert_intermediate_size", "shared_intermediate_size"),
    "longest": ("max_position_embeddings", "max_seq_len", "n_positions", "seq_length", "max_sequence_length"),
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
NESTED_CONFIGS = ("attn_config", "ffn_config", "text_config", "llm_config", "language_config")
MAY_BE_ZERO = ("experts", "shared", "shared_ffn")
TWO_MATRICES = ("relu2", "xielu")  # activations that no gated MLP has
STRETCHED = ("yarn", "linear", "dynamic")  # types of rope_scaling by which the engine lengthens the longest sequence


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling that generation_config asks for."""

    sorts: bool = False  # top_p or top_k: the vocabulary of every request is sorted, to keep the likeliest tokens only
    penalises: bool = False  # repetition_penalty: tokens that occurred before become less likely


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model's config.json as the engine loads it. FFN widths are those of one expert or dense layer.

    attention, recurrent: its layers by kind; a layer may have neither. dense_layers, moe_layers: those with a dense
    feed-forward block and with routed experts. longest: the most tokens of prompt and answer together, 0 if the config
    does not give it. kv_bytes: of a cached scalar, as the checkpoint asks. mlp_matrices: gate, up and down; 2 without
    a gate.
    """

    layers: int
    hidden: int
    vocab: int
    tied: bool
    longest: int
    attention: tuple[Attention, ...]
    dense_layers: int
    ffn: int
    moe_layers: int = 0
    experts: int = 0
    active: int = 0
    moe_ffn: int = 0
    shared_ffn: int = 0
    recurrent: tuple[Recurrent, ...] = ()
    formats: Formats = IN_16
    kv_bytes: int = 2
    mlp_matrices: int = 3

    @property
    def main(self) -> Attention:
        """The attention of most reach: to the whole context, where there is one."""
        return self.attention[0]

    @property
    def heads(self) -> int:
        return self.main.heads

    @property
    def kv_heads(self) -> int:
        return self.main.kv_heads

    @property
    def head_dim(self) -> int:
        return self.main.head_dim

    @property
    def is_latent(self) -> bool:
        return self.main.latent is not None

    @property
    def weights(self) -> Format:
        """The type of most weights."""
        return self.formats.experts if self.moe_layers else self.formats.dense

    @property
    def weight_bits(self) -> int:
        return int(self.weights.bits)

    @property
    def is_fp8(self) -> bool:
        return self.weights.is_fp8


def architecture(config: Mapping[str, Any], where: str) -> Architecture:
    """The architecture in config.json terms. Raises InputError at a missing, malformed or inconsistent key."""
    c = Section(where, "model_config", flat_config(config))
    if len(c.raw) > MOST_KEYS:
        raise InputError(f"{where}: model_config has {len(c.raw):,} keys, at most {MOST_KEYS:,} are read: {REMEDY}")
    for key in c.raw:
        if key not in VERDICTS and (near := difflib.get_close_matches(str(key), ESSENTIAL, n=1, cutoff=0.93)):
            raise c.error(key, "is not a key of config.json", f"did you mean '{near[0]}'?")
    if unlike := _unlike(c):
        raise unlike

    layers, hidden, heads, vocab = (_first(c, name) for name in ("layers", "hidden", "heads", "vocab"))
    experts = _first(c, "experts", 0)
    moe = experts >= 2
    routed = [moe and _is_moe_layer(c, i) for i in range(layers)]
    moe_layers = sum(routed)
    llama4 = moe and (c.has("interleave_moe_layer_step") or model_type(c).startswith("llama4"))
    gated = model_type(c) not in config_keys.UNGATED and activation(c) not in TWO_MATRICES
    ffn = _first(c, "ffn", 0 if moe else None if gated else 4 * hidden)
    moe_ffn = _first(c, "moe_ffn", ffn) if moe else 0
    if moe and not moe_ffn:
        raise c.error("moe_intermediate_size", "is missing", REMEDY)
    shared = moe_ffn if llama4 else _first(c, "shared_ffn", _first(c, "shared", 0) * moe_ffn)
    latent = _whole(c, "kv_lora_rank", 0)
    head_dim = _first(c, "head_dim", hidden // heads)
    if not c.has("head_dim") and (heads > hidden or (hidden % heads and not latent)):  # latent heads have own widths
        problem = f"must divide hidden_size ({hidden}) where head_dim is not given, got {heads}"
        raise c.error("num_attention_heads", problem, "copy both keys, and head_dim, from the model's config.json")
    return Architecture(
        layers=layers,
        hidden=hidden,
        vocab=vocab,
        tied=c.flag("tie_word_embeddings", model_type(c) in config_keys.TIED),
        longest=_longest(c),
        attention=(_attention(c, layers, heads, head_dim),),
        dense_layers=layers - moe_layers,
        ffn=_whole(c, "intermediate_size_mlp", ffn) if llama4 else ffn,
        moe_layers=moe_layers,
        experts=experts if moe else 0,
        active=_first(c, "active") if moe else 0,
        moe_ffn=moe_ffn,
        shared_ffn=shared if moe else 0,
        formats=formats(c, routed, llama4),
        kv_bytes=1 if cache_asked_by(c) else 2,  # also if published in float32, see `formats`
        mlp_matrices=3 if gated else 2,
    )


def _attention(c: Section, layers: int, heads: int, head_dim: int) -> Attention:
    latent = None
    if rank := _whole(c, "kv_lora_rank", 0):
        rope = _whole(c, "qk_rope_head_dim", 0)
        latent = Latent(rank, rope, _whole(c, "qk_nope_head_dim", head_dim), _whole(c, "v_head_dim", head_dim))
    return Attention(layers, heads, _kv_heads(c, heads), head_dim, head_dim, latent=latent)


def flat_config(config: Mapping[str, Any]) -> JsonObject:
    """The terms of a config.json at one level, with those that it leaves to the model's class."""
    flat: JsonObject = dict(config)
    for nested in NESTED_CONFIGS:
        if isinstance(config.get(nested), Mapping):
            flat |= config[nested]
    return {**config_keys.CLASS_DEFAULTS.get(str(flat.get("model_type")), {}), **flat}


def model_type(c: Section) -> str:
    """The model's class by its short name, "" if it is not given."""
    return str(c.raw.get("model_type") or "")


def activation(c: Section) -> str:
    """The activation of the MLP, "" if it is not given."""
    given = (c.raw.get(key) for key in ("hidden_act", "hidden_activation", "activation_function"))
    return next((str(name) for name in given if name), "")


def layer_types(c: Section) -> list[str]:
    """The kind of every layer, [] if it is not given. Raises InputError if it is not a list."""
    key = next((key for key in ("layer_types", "layers_block_type", "block_types") if c.has(key)), None)
    if key is None:
        return []
    if not isinstance(c.raw[key], list):
        raise c.error(key, f"must be a list, got {shown(c.raw[key])}", REMEDY)
    return [str(kind) for kind in c.raw[key]]


def _unlike(c: Section) -> InputError | None:
    """The error about a model that the formulas do not fit at all; None if they do."""
    remedy = "choose a model that decodes by attention, with layers of one size"
    kind, kinds = model_type(c), layer_types(c)
    if c.raw.get("is_encoder_decoder") is True:
        return c.error("is_encoder_decoder", "is true, and no encoder is modelled", remedy)
    if kind in config_keys.ENCODERS:
        return c.error("model_type", f"{shown(kind)} is an encoder, which generates no text", remedy)
    if kind in config_keys.RECURRENT:
        return c.error("model_type", f"{shown(kind)} has state-space layers, which are not modelled", remedy)
    if other := next((kind for kind in kinds if kind not in config_keys.ATTENTION), None):
        return c.error("layer_types", f"has layers of type {shown(other)}, which are not modelled", remedy)
    if kinds and len(kinds) < (layers := _first(c, "layers")):
        return c.error("layer_types", f"names {len(kinds)} layers of {layers}", REMEDY)
    if c.raw.get("block_configs"):
        return c.error("block_configs", "gives every layer a size of its own, which is not modelled", remedy)
    for key in c.raw:
        full = key == "attn_type_list" and isinstance(c.raw[key], list) and all(kind == 1 for kind in c.raw[key])
        if VERDICTS.get(key) is KeyVerdict.REFUSED and c.raw[key] and not kinds and not full:
            return c.error(key, "is of state-space or linear-attention layers, which are not modelled", remedy)
    return None


def _first(c: Section, name: str, default: int | None = None) -> int:
    """The quantity under the first of its keys that is present. Without a default it is required."""
    key = next((key for key in KEYS[name] if c.has(key)), KEYS[name][0])
    if default is not None and not c.has(key):
        return default
    most, others = MOST_LAYERS if name == "layers" else MOST_SIZE, ", ".join(KEYS[name][1:])
    remedy = REMEDY if c.has(key) or not others else f"{REMEDY}, which may call it {others}"
    return c.whole(key, remedy, least=0 if name in MAY_BE_ZERO else 1, most=most)


def _whole(c: Section, key: str, default: int) -> int:
    return c.whole(key, REMEDY, most=MOST_SIZE) if c.has(key) else default


def _kv_heads(c: Section, heads: int) -> int:
    if c.raw.get("multi_query") and not c.raw.get("new_decoder_architecture"):  # Falcon, StarCoder
        return 1
    kv_heads = _first(c, "kv_heads", heads)
    if heads % kv_heads:
        problem = f"must divide the {heads} heads, got {kv_heads}"
        raise c.error(next(key for key in KEYS["kv_heads"] if c.has(key)), problem, REMEDY)
    return kv_heads


def _longest(c: Section) -> int:
    """The longest sequence, lengthened as vLLM does by the factor of rope_scaling."""
    longest = _first(c, "longest", 0)
    given: Any = c.raw.get("rope_scaling") or c.raw.get("rope_parameters")
    kind = str(given.get("rope_type") or given.get("type")) if isinstance(given, Mapping) else ""
    if kind not in STRETCHED or model_type(c).startswith("gemma3"):  # Gemma 3 gives the length after scaling
        return longest
    scaling = Section(c.where, c.at("rope_scaling"), given)
    if kind == "yarn" and scaling.has("original_max_position_embeddings"):
        longest = scaling.whole("original_max_position_embeddings", REMEDY)
    return int(longest * scaling.number("factor", REMEDY, above=0, most=1e6)) if scaling.has("factor") else longest


def _is_moe_layer(c: Section, i: int) -> bool:
    """True if layer i of a mixture-of-experts model has routed experts, by the rules of vLLM's loaders."""
    if c.has("first_k_dense_replace") or c.has("moe_layer_freq"):  # DeepSeek, GLM, MiMo
        by_layer = c.raw.get("moe_layer_freq")
        if not isinstance(by_layer, list):
            routed = i % max(_whole(c, "moe_layer_freq", 1), 1) == 0
        elif i < len(by_layer) and by_layer[i] in (0, 1):
            routed = by_layer[i] == 1
        else:
            raise c.error("moe_layer_freq", f"does not say 0 or 1 of layer {i}, got {shown(by_layer)}", REMEDY)
        return i >= _whole(c, "first_k_dense_replace", 0) and routed
    if c.has("interleave_moe_layer_step"):  # Llama-4
        step = _whole(c, "interleave_moe_layer_step", 1)
        return step > 0 and (i + 1) % step == 0
    sparse = max(_whole(c, "decoder_sparse_step", 1), 1)  # Qwen
    dense = c.raw.get("mlp_only_layers") or []
    if not isinstance(dense, list) or len(dense) > MOST_LAYERS:
        raise c.error("mlp_only_layers", f"must be a list, got {shown(dense)}", REMEDY)
    return (i + 1) % sparse == 0 and i not in dense

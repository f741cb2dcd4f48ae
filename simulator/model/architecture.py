"""A model's architecture, read from the terms of its config.json as the engine's loaders read them.

Keys are those of Hugging Face config.json files. The text part of a multimodal config (and DBRX's `attn_config`,
`ffn_config`) overrides the top level. `simulator.model.config_keys` judges every key.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.common.errors import InputError, Section, shown
from simulator.model import config_keys
from simulator.model.config_keys import VERDICTS
from simulator.model.formats import IN_16, Format, Formats
from simulator.model.layers import Attention, Recurrent
from simulator.model.mixers import Kind, attention, layer_kinds, recurrent
from simulator.model.quantization import cache_asked_by, formats
from simulator.model.terms import (
    MOST_KEYS,
    MOST_LAYERS,
    REMEDY,
    activation,
    first,
    flat_config,
    model_type,
    numbers,
    whole,
    words,
)

ESSENTIAL = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "vocab_size", "num_local_experts", "num_experts_per_tok"),
)
"""Keys for which a misspelling must not silently give the default."""

TWO_MATRICES = ("relu2", "xielu")  # activations that no gated MLP has
STRETCHED = ("yarn", "linear", "dynamic")  # types of rope_scaling by which the engine lengthens the longest sequence
DENSE_FIRST = ("first_k_dense_replace", "num_dense_layers", "moe_layer_num_skipped", "moe_layer_start_index")
"""The keys of the number of dense layers before the first with experts: DeepSeek, LFM2, Hunyuan, Ernie."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling that generation_config asks for."""

    sorts: bool = False  # top_p or top_k: the vocabulary of every request is sorted, to keep the likeliest tokens only
    penalises: bool = False  # repetition_penalty: tokens that occurred before become less likely


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model's config.json as the engine loads it. FFN widths are those of one expert or dense layer.

    attention, recurrent: its layers by kind; a layer may have neither or both. dense_layers, moe_layers: those with a
    dense feed-forward block and with routed experts; a layer may have none. expert_hidden: the narrower width that
    routed experts read and write, 0 where it is `hidden`. longest: the most tokens of prompt and answer together, 0 if
    the config does not give it. kv_bytes: of a cached scalar, as the checkpoint asks. mlp_matrices: gate, up and down;
    2 without a gate.
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
    expert_hidden: int = 0
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
    def mixing_layers(self) -> int:
        """Blocks of attention and recurrent ones; a layer may have two."""
        return sum(of.layers for of in self.attention) + sum(of.layers for of in self.recurrent)

    @property
    def blocks(self) -> int:
        """Blocks with a norm before and an all-reduce behind: two a layer in most models."""
        return self.mixing_layers + self.dense_layers + self.moe_layers

    @property
    def state_bytes(self) -> int:
        """Memory of a request's states in recurrent layers, over all GPUs."""
        return sum(of.layers * of.state_bytes for of in self.recurrent)

    @property
    def mixing_parameters(self) -> int:
        """Parameters of attention and of recurrent layers, in all layers."""
        groups: tuple[Attention | Recurrent, ...] = (*self.attention, *self.recurrent)
        others = sum(of.layers * of.others for of in self.recurrent)
        return others + sum(of.layers * m.n * m.k for of in groups for m in of.matrices(self.hidden))

    @property
    def weights(self) -> Format:
        """The type of most weights."""
        return self.formats.experts if self.moe_layers else self.formats.dense

    @property
    def stored(self) -> Mapping[str, Format]:
        """The type of each part that the model has, see `Formats`."""
        shared = bool(self.moe_layers and self.shared_ffn)
        has = {"attention": True, "dense": self.dense_layers > 0, "shared": shared, "experts": self.moe_layers > 0}
        return {part: getattr(self.formats, part) for part, there in has.items() if there}

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

    kinds, hidden, vocab = layer_kinds(c), first(c, "hidden"), first(c, "vocab")
    experts = first(c, "experts", 0)
    moe = experts >= 2
    blocks = 2 if model_type(c).startswith("longcat_flash") else 1  # of attention and MLP in a layer
    routed = _routed(c, kinds, moe)
    llama4 = moe and (c.has("interleave_moe_layer_step") or model_type(c).startswith("llama4"))
    gated = model_type(c) not in config_keys.UNGATED and activation(c) not in TWO_MATRICES
    ffn = first(c, "ffn", 0 if moe else None if gated else 4 * hidden)
    moe_ffn = first(c, "moe_ffn", ffn) if moe else 0
    if moe and not moe_ffn:
        raise c.error("moe_intermediate_size", "is missing", REMEDY)
    shared = (moe_ffn if llama4 else _shared_ffn(c, moe_ffn, ffn)) if moe else 0
    return Architecture(
        layers=len(kinds),
        hidden=hidden,
        vocab=vocab,
        tied=_tied(c),
        longest=_longest(c),
        attention=attention(c, kinds * blocks, hidden),
        dense_layers=_dense_layers(kinds, sum(routed), blocks),
        ffn=_dense_ffn(c, ffn, moe, llama4),
        moe_layers=sum(routed),
        experts=experts if moe else 0,
        active=_active(c, experts) if moe else 0,
        moe_ffn=moe_ffn,
        shared_ffn=shared,
        expert_hidden=first(c, "expert_hidden", 0) if moe else 0,
        recurrent=recurrent(c, kinds, hidden),
        formats=formats(c, routed, llama4),
        kv_bytes=1 if cache_asked_by(c) else 2,  # also if published in float32, see `formats`
        mlp_matrices=3 if gated else 2,
    )


def _unlike(c: Section) -> InputError | None:
    """The error about a model that the formulas do not fit at all; None if they do."""
    kind = model_type(c)
    if kind in config_keys.ENCODERS:
        return c.error("model_type", f"{shown(kind)} is an encoder, which generates no text", config_keys.DECODER)
    if kind in config_keys.RECURRENT:
        return c.error("model_type", f"{shown(kind)} has no attention, which every formula needs", config_keys.HYBRID)
    for key, (problem, nearest) in config_keys.REFUSALS.items():
        if c.raw.get(key):
            return c.error(key, problem, nearest)
    return None


def _tied(c: Section) -> bool:
    key = "tie_embedding" if c.has("tie_embedding") else "tie_word_embeddings"  # LFM2
    return c.flag(key, model_type(c) in config_keys.TIED)


def _routed(c: Section, kinds: Sequence[Kind], moe: bool) -> list[bool]:
    """Of every layer, whether it has routed experts."""
    if Kind.MOE in kinds:  # layers of their own
        return [kind is Kind.MOE for kind in kinds]
    return [moe and _is_moe_layer(c, i) for i in range(len(kinds))]


def _dense_layers(kinds: Sequence[Kind], moe_layers: int, blocks: int) -> int:
    """The number of dense feed-forward blocks."""
    if Kind.MLP in kinds or Kind.MOE in kinds:  # layers of their own
        return kinds.count(Kind.MLP)
    return len(kinds) * blocks if blocks > 1 else len(kinds) - moe_layers


def _dense_ffn(c: Section, ffn: int, moe: bool, llama4: bool) -> int:
    if model_type(c) == "granitemoehybrid" and not moe:  # then the shared expert is its only MLP
        return first(c, "shared_ffn", ffn)
    if model_type(c) == "recurrent_gemma":  # gives the width of gate and up together
        return ffn // 2
    if c.raw.get("block_auto_adjust_ff_dim"):  # LFM2, as its class does
        width = int(whole(c, "block_ff_dim", ffn) * 2 / 3)
        if c.has("block_ffn_dim_multiplier"):
            width = int(width * c.number("block_ffn_dim_multiplier", REMEDY, above=0, most=100))
        multiple = max(whole(c, "block_multiple_of", 256), 1)
        return -(-width // multiple) * multiple
    return whole(c, "intermediate_size_mlp" if llama4 else "dense_intermediate_size", ffn)


def _shared_ffn(c: Section, moe_ffn: int, ffn: int) -> int:
    """The width of all shared experts of a layer together."""
    if c.raw.get("enable_moe_block") or c.raw.get("residual_moe"):  # Gemma 4, Grok: a dense MLP beside the experts
        return ffn
    if c.has("moe_shared_expert_intermediate_size"):  # Nemotron 3, Ling
        return first(c, "shared", 1) * whole(c, "moe_shared_expert_intermediate_size", 0)
    return first(c, "shared_ffn", first(c, "shared", 0) * moe_ffn)


def _active(c: Section, experts: int) -> int:
    """Experts that a token uses; of LongCat's choices the share that is no zero expert, on average."""
    active, zero = first(c, "active"), whole(c, "zero_expert_num", 0)
    return max(round(active * experts / (experts + zero)), 1)


def _longest(c: Section) -> int:
    """The longest sequence, lengthened as vLLM does by the factor of rope_scaling."""
    longest = first(c, "longest", 0)
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
    if c.has("mlp_layer_types"):  # GLM-5
        return words(c, "mlp_layer_types")[i : i + 1] == ["sparse"]
    if c.has("moe_layers_enum"):  # Step
        return i in numbers(c, "moe_layers_enum")
    if c.has("is_moe_layer"):  # K-EXAONE
        return numbers(c, "is_moe_layer")[i : i + 1] == [1]
    if c.has("expert_layer_period"):  # Jamba
        return (i - whole(c, "expert_layer_offset", 0)) % max(whole(c, "expert_layer_period", 1), 1) == 0
    dense = next((key for key in DENSE_FIRST if c.has(key)), None)
    if dense or c.has("moe_layer_freq"):  # DeepSeek, GLM, MiMo
        by_layer = c.raw.get("moe_layer_freq")
        if not isinstance(by_layer, list):
            routed = i % max(whole(c, "moe_layer_freq", 1), 1) == 0
        elif i < len(by_layer) and by_layer[i] in (0, 1):
            routed = by_layer[i] == 1
        else:
            raise c.error("moe_layer_freq", f"does not say 0 or 1 of layer {i}, got {shown(by_layer)}", REMEDY)
        if c.has("moe_layer_interval"):  # Ernie
            routed = (i + 1) % max(whole(c, "moe_layer_interval", 1), 1) == 0
            routed = routed and i <= whole(c, "moe_layer_end_index", i)
        return i >= (whole(c, dense, 0) if dense else 0) and routed
    if c.has("interleave_moe_layer_step"):  # Llama-4
        step = whole(c, "interleave_moe_layer_step", 1)
        return step > 0 and (i + 1) % step == 0
    sparse = max(whole(c, "decoder_sparse_step", 1), 1)  # Qwen
    only = c.raw.get("mlp_only_layers") or []
    if not isinstance(only, list) or len(only) > MOST_LAYERS:
        raise c.error("mlp_only_layers", f"must be a list, got {shown(only)}", REMEDY)
    return (i + 1) % sparse == 0 and i not in only

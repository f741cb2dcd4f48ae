"""How the layers of a config.json mix tokens: the kind of every layer, and the layers of a kind as values.

The rules are those of vLLM's model classes; the states those of its `MambaStateShapeCalculator`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum

from simulator.common.errors import Section, shown
from simulator.model import config_keys
from simulator.model.layers import Attention, Latent, Recurrent
from simulator.model.terms import KEYS, REMEDY, first, model_type, numbers, whole, words


class Kind(Enum):
    """What a layer does with its tokens."""

    FULL = "attention"
    SLIDING = "attention in a sliding window"
    CHUNKED = "attention in chunks"
    LINEAR = "linear attention"
    MAMBA = "state space"
    BOTH = "attention and state space side by side"
    CONV = "short convolution"
    RGLRU = "gated linear recurrence"
    MLP = "feed-forward block alone"
    MOE = "routed experts alone"


_NAMES = {
    Kind.FULL: "full_attention attention deepseek_sparse_attention *",
    Kind.SLIDING: "sliding_attention",
    Kind.CHUNKED: "chunked_attention",
    Kind.LINEAR: "linear_attention",
    Kind.MAMBA: "mamba mamba2 M",
    Kind.CONV: "conv",
    Kind.RGLRU: "recurrent",
    Kind.MLP: "mlp -",
    Kind.MOE: "moe E",
}
KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
LISTS = ("layer_types", "layers_block_type", "block_types")
ATTENTION = (Kind.FULL, Kind.SLIDING, Kind.CHUNKED, Kind.BOTH)
STATES = (
    *("ssm_state_size", "state_size", "mamba_d_state", "linear_num_value_heads", "linear_attn_config"),
    *("conv_L_cache", "lru_width"),
)
"""Keys that no model without recurrent layers has."""


def layer_kinds(c: Section) -> tuple[Kind, ...]:
    """The kind of every layer in order. Raises InputError for a kind that is not modelled."""
    named = _named(c)
    layers = first(c, "layers", len(named) or None)
    if named:
        if c.has("block_types"):  # RecurrentGemma repeats them, and all its attention is local
            repeated = (named[i % len(named)] for i in range(layers))
            return tuple(Kind.SLIDING if kind is Kind.FULL else kind for kind in repeated)
        if len(named) < layers:
            raise c.error("layer_types", f"names {len(named)} layers of {layers}", REMEDY)
        return tuple(named[:layers])
    kinds = _by_rule(c, layers)
    if kinds is None:
        if key := next((key for key in STATES if c.raw.get(key)), None):
            problem = "is of recurrent layers, and no key says which layers these are"
            raise c.error(key, problem, "copy layer_types, or the pattern of the model's class, from its config.json")
        return tuple(_windows(c, layers))
    return tuple(kinds)


def _named(c: Section) -> list[Kind]:
    """The kinds that the config names layer by layer, [] if it does not."""
    if pattern := c.raw.get("hybrid_override_pattern"):
        key, names = "hybrid_override_pattern", list(str(pattern))
    else:
        key = next((key for key in LISTS if c.has(key)), LISTS[0])
        names = words(c, key)
    if other := next((name for name in names if name not in KINDS), None):
        nearest = "choose a model with layers of attention, mamba, linear_attention or conv"
        raise c.error(key, f"has layers of type {shown(other)}, which are not modelled", nearest)
    return [KINDS[name] for name in names]


def _by_rule(c: Section, layers: int) -> list[Kind] | None:
    """The kinds by the rule of a hybrid model's class, None if it is none."""
    kind = model_type(c)

    def where(attends: Iterable[int], other: Kind) -> list[Kind]:
        full = frozenset(attends)
        return [Kind.FULL if i in full else other for i in range(layers)]

    if c.has("linear_attn_config"):  # Kimi-Linear counts from 1
        details = c.section("linear_attn_config", REMEDY)
        return where((i - 1 for i in numbers(details, "full_attn_layers")), Kind.LINEAR)
    if c.has("attn_type_list"):  # MiniMax
        by_layer = numbers(c, "attn_type_list")
        if len(by_layer) < layers or not set(by_layer) <= {0, 1}:
            raise c.error("attn_type_list", f"must say 0 or 1 of {layers} layers, got {shown(by_layer)}", REMEDY)
        return where((i for i, one in enumerate(by_layer) if one), Kind.LINEAR)
    if c.has("hybrid_layer_pattern"):  # MiMo-V2
        by_layer = numbers(c, "hybrid_layer_pattern")
        if len(by_layer) < layers:
            raise c.error("hybrid_layer_pattern", f"names {len(by_layer)} layers of {layers}", REMEDY)
        return where((i for i, one in enumerate(by_layer) if not one), Kind.SLIDING)
    if c.has("attn_layer_indices"):  # Bamba
        return where(numbers(c, "attn_layer_indices"), Kind.MAMBA)
    if c.has("full_attn_idxs"):  # LFM2
        return where(numbers(c, "full_attn_idxs"), Kind.CONV)
    if c.has("full_attention_interval"):  # Qwen3-Next
        every = max(whole(c, "full_attention_interval", 1), 1)
        return where(range(every - 1, layers, every), Kind.LINEAR)
    if c.has("attn_layer_period"):  # Jamba
        every = max(whole(c, "attn_layer_period", 1), 1)
        return where(range(whole(c, "attn_layer_offset", 0), layers, every), Kind.MAMBA)
    return [Kind.BOTH] * layers if kind == "falcon_h1" else None


def _windows(c: Section, layers: int) -> list[Kind]:
    """The kinds of a model of attention alone: which layers attend to a window or a chunk."""
    if not _window(c):
        if first(c, "window", 0) or not whole(c, "attention_chunk_size", 0):
            return [Kind.FULL] * layers
        rotary = numbers(c, "no_rope_layers")  # Llama 4: 0 where a layer sees everything
        every = whole(c, "no_rope_layer_interval", 4) or 4
        return [
            Kind.CHUNKED if (rotary[i] if i < len(rotary) else (i + 1) % every) else Kind.FULL for i in range(layers)
        ]
    if c.has("use_sliding_window") and c.has("max_window_layers"):  # Qwen: the first layers attend to everything
        wide = min(whole(c, "max_window_layers", layers), layers)
        return [Kind.FULL] * wide + [Kind.SLIDING] * (layers - wide)
    key = next((key for key in config_keys.EVERY if c.has(key)), None)
    if key and isinstance(c.raw[key], str):  # EXAONE 4: LLLG
        pattern = c.raw[key].upper() or "L"
        return [Kind.FULL if pattern[i % len(pattern)] == "G" else Kind.SLIDING for i in range(layers)]
    every = whole(c, key, 0) if key else 0
    return [Kind.FULL if every and (i + 1) % every == 0 else Kind.SLIDING for i in range(layers)]


def _window(c: Section) -> int:
    """Tokens of a sliding window, 0 if there is none or it is switched off."""
    width = first(c, "window", 0)
    if c.has("use_sliding_window") and not c.flag("use_sliding_window", True):
        return 0
    return width


def attention(c: Section, kinds: Sequence[Kind], hidden: int) -> tuple[Attention, ...]:
    """The layers with attention, those alike together; those that see the whole context first, then the widest."""
    found = Counter(_attention(c, kind, i, hidden) for i, kind in enumerate(kinds) if kind in ATTENTION)
    if not found:
        kind = next(key for key in (*LISTS, *STATES, "model_type") if c.has(key) or key == "model_type")
        raise c.error(kind, "leaves no layer with attention", config_keys.HYBRID)
    order = sorted(found, key=lambda one: -(one.window or math.inf))
    return tuple(replace(one, layers=found[one]) for one in order)


def _attention(c: Section, kind: Kind, i: int, hidden: int) -> Attention:
    """One layer with attention, the `i`-th."""
    heads = first(c, "heads")
    if whole(c, "kv_lora_rank", 0):
        return _latent(c, i, heads, _head_dim(c, heads, hidden, True))
    head_dim = _head_dim(c, heads, hidden, False)
    kv_heads, gated = _kv_heads(c, heads), _gated(c)
    value = whole(c, "v_head_dim", head_dim)
    window = {Kind.SLIDING: _window(c), Kind.CHUNKED: whole(c, "attention_chunk_size", 0)}.get(kind, 0)
    if kind is Kind.SLIDING and window:
        if isinstance(c.raw.get("attention_other_setting"), Mapping):  # Step-3.5
            other = c.section("attention_other_setting", REMEDY)
            heads, head_dim = first(other, "heads", heads), first(other, "head_dim", head_dim)
            kv_heads, value = first(other, "kv_heads", kv_heads), head_dim
        head_dim = whole(c, "swa_head_dim", 0) or head_dim  # MiMo-V2
        value = whole(c, "swa_v_head_dim", 0) or value
        heads = whole(c, "swa_num_attention_heads", 0) or heads
        kv_heads = whole(c, "swa_num_key_value_heads", 0) or kv_heads
    elif c.has("global_head_dim"):  # Gemma 4
        head_dim = value = whole(c, "global_head_dim", 0) or head_dim
        if c.raw.get("attention_k_eq_v"):
            kv_heads = whole(c, "num_global_key_value_heads", 0) or kv_heads
    if heads % kv_heads:
        problem = f"has {heads} heads in layers with {kind.value}, which their {kv_heads} KV heads must divide"
        raise c.error("num_attention_heads", problem, REMEDY)
    chunked, normed = kind is Kind.CHUNKED and window > 0, model_type(c) in config_keys.NORMED
    return Attention(1, heads, kv_heads, head_dim, value, window, chunked, gated, normed=normed)


def _latent(c: Section, i: int, heads: int, width: int) -> Attention:
    """Latent attention; `width` of a head where the config gives none."""
    nope, rope = whole(c, "qk_nope_head_dim", width), whole(c, "qk_rope_head_dim", 0)
    value = whole(c, "v_head_dim", width)
    latent = Latent(whole(c, "kv_lora_rank", 0), rope, nope, value, whole(c, "q_lora_rank", 0))
    if topk := whole(c, "index_topk", 0):
        latent = replace(latent, topk=topk)
        shared = words(c, "indexer_types")[i : i + 1] == ["shared"]
        if not shared:
            of_index = whole(c, "index_n_heads", 0), whole(c, "index_head_dim", 0)
            latent = replace(latent, index_heads=of_index[0], index_dim=of_index[1])
    gated = c.raw.get("mla_use_output_gate") is True
    return Attention(1, heads, _kv_heads(c, heads), nope + rope, value, gated=gated, latent=latent)


def _head_dim(c: Section, heads: int, hidden: int, latent: bool) -> int:
    """The width of a head; latent heads have widths of their own, and only their default is checked."""
    given = any(c.has(key) for key in KEYS["head_dim"])
    if not given and (heads > hidden or (hidden % heads and not latent)):
        problem = f"must divide hidden_size ({hidden}) where head_dim is not given, got {heads}"
        raise c.error("num_attention_heads", problem, "copy both keys, and head_dim, from the model's config.json")
    return hidden // heads if latent else first(c, "head_dim", hidden // heads)


def _kv_heads(c: Section, heads: int) -> int:
    if c.raw.get("multi_query") and not c.raw.get("new_decoder_architecture"):  # Falcon, StarCoder
        return 1
    kv_heads = first(c, "kv_heads", heads)
    if heads % kv_heads:
        problem = f"must divide the {heads} heads, got {kv_heads}"
        raise c.error(next(key for key in KEYS["kv_heads"] if c.has(key)), problem, REMEDY)
    return kv_heads


def _gated(c: Section) -> bool:
    """True if a gate as wide as the query multiplies the output of attention."""
    by_class = model_type(c).startswith(config_keys.OUTPUT_GATE)
    return c.flag("attn_output_gate", by_class) or c.raw.get("attention_output_gate") is True


def recurrent(c: Section, kinds: Sequence[Kind], hidden: int) -> tuple[Recurrent, ...]:
    """The layers that keep a state, by kind."""
    found = []
    if n := kinds.count(Kind.LINEAR):
        if c.has("linear_attn_config"):
            found.append(_kda(c.section("linear_attn_config", REMEDY), n))
        elif model_type(c).startswith("minimax"):
            found.append(_lightning(c, n, hidden))
        else:
            found.append(_gdn(c, n))
    if n := kinds.count(Kind.MAMBA) + kinds.count(Kind.BOTH):
        found.append(_mamba2(c, n, hidden) if any(c.has(key) for key in KEYS["ssm_heads"]) else _mamba(c, n, hidden))
    if n := kinds.count(Kind.CONV):
        width = whole(c, "conv_dim", hidden)
        taps = whole(c, "conv_L_cache", 3)
        found.append(Recurrent("conv", n, 0, 1, 0, width, taps, 3 * width, width, taps * width))
    if n := kinds.count(Kind.RGLRU):
        width = whole(c, "lru_width", hidden)
        taps = whole(c, "conv1d_width", 4)
        gates = 2 * width * width // first(c, "heads")  # both in blocks, one a head
        found.append(Recurrent("rglru", n, 0, 1, 1, width, taps, 2 * width, width, taps * width + gates))
    return tuple(found)


def _gdn(c: Section, n: int) -> Recurrent:
    """Gated delta nets of Qwen3-Next: queries, keys, values and gates, and two scalars a value head."""
    keys, values = whole(c, "linear_num_key_heads", 16), whole(c, "linear_num_value_heads", 32)
    key_dim, value_dim = whole(c, "linear_key_head_dim", 128), whole(c, "linear_value_head_dim", 128)
    taps = whole(c, "linear_conv_kernel_dim", 4)
    key, value = keys * key_dim, values * value_dim
    inputs = 2 * key + 2 * value + 2 * values
    return Recurrent("gdn", n, keys, values, key_dim, value_dim, taps, inputs, value, taps * (2 * key + value))


def _kda(c: Section, n: int) -> Recurrent:
    """Kimi delta attention: as above, with a decay for each channel; decay and gate come through a narrow layer."""
    heads, dim = whole(c, "num_heads", 32), whole(c, "head_dim", 128)
    taps, width = whole(c, "short_conv_kernel_size", 4), heads * dim
    narrow = 1 if c.raw.get("use_full_rank_gate") else 2
    inputs = 3 * width + heads + narrow * dim + (2 - narrow) * width
    return Recurrent("kda", n, heads, heads, dim, dim, taps, inputs, width, narrow * dim * width + 3 * taps * width)


def _lightning(c: Section, n: int, hidden: int) -> Recurrent:
    """Linear attention of MiniMax-01: queries, keys, values and the gate of the output."""
    heads = first(c, "heads")
    dim = first(c, "head_dim", hidden // heads)
    return Recurrent("lightning", n, heads, heads, dim, dim, 0, 4 * heads * dim, heads * dim)


def _mamba2(c: Section, n: int, hidden: int) -> Recurrent:
    """Mamba-2: gate and inner width, keys and queries a group, a time step a head."""
    heads, state = first(c, "ssm_heads"), first(c, "ssm_state")
    groups, taps = first(c, "ssm_groups", 1), first(c, "ssm_conv", 4)
    inner = whole(c, "mamba_d_ssm", 0) or first(c, "ssm_expand", 2) * hidden
    key = next((key for key in KEYS["ssm_head_dim"] if c.has(key) and c.raw[key] != "auto"), None)
    dim = whole(c, key, 0) if key else inner // heads
    inner = heads * dim
    mixed = inner + 2 * groups * state
    return Recurrent("mamba2", n, groups, heads, state, dim, taps, inner + mixed + heads, inner, taps * mixed)


def _mamba(c: Section, n: int, hidden: int) -> Recurrent:
    """Mamba-1 (Jamba): a state for each channel; time steps, keys and queries come from the inner width."""
    inner, state = first(c, "ssm_expand", 2) * hidden, first(c, "ssm_state", 16)
    taps = first(c, "ssm_conv", 4)
    given = c.has("mamba_dt_rank") and c.raw["mamba_dt_rank"] != "auto"
    rank = whole(c, "mamba_dt_rank", 0) if given else math.ceil(hidden / 16)
    others = inner * (2 * rank + 2 * state) + inner * state + taps * inner
    return Recurrent("mamba", n, 0, inner, state, 1, taps, 2 * inner, inner, others)

"""What a model's config.json asks for and the formulas leave out, each with what follows for the figures."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from simulator.common.errors import Section
from simulator.common.text import visible
from simulator.model.architecture import (
    REMEDY,
    Architecture,
    activation,
    architecture,
    flat_config,
    layer_types,
    model_type,
)
from simulator.model.config_keys import UNGATED, VERDICTS
from simulator.model.quantization import dtype, quantization, unquantized

GIB = 2.0**30
CLOSE = 0.85  # similarity of an unknown key to a known one, from which it is taken for a misspelling
MTP = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
# Activations that MLPs of two matrices use, and few gated ones but Gemma's.
PLAIN_ACTIVATIONS = ("relu", "gelu", "gelu_new", "gelu_fast", "quick_gelu")


@dataclass(frozen=True, slots=True)
class Omission:
    """Something that is left out, in words. It affects requests of more than `beyond` tokens, prompt and answer."""

    text: str
    beyond: int = 0


@dataclass(frozen=True, slots=True)
class _Model:
    """A model's config.json at one level, and what is read from it."""

    c: Section
    a: Architecture

    def whole(self, key: str) -> int:
        """A whole number, 0 if the key is left out."""
        return self.c.whole(key, REMEDY) if self.c.has(key) else 0


def omissions(config: Mapping[str, Any], where: str, free: Sequence[str] = ()) -> tuple[Omission, ...]:
    """All that is left out of a model's figures. Keys that begin with a `free` prefix are not judged.

    Raises InputError like `architecture`.
    """
    model = _Model(Section(where, "model_config", flat_config(config)), architecture(config, where))
    found = [omission for rule in RULES for omission in rule(model)]
    unknown = [_unknown(str(k)[:40]) for k in model.c.raw if k not in VERDICTS and not str(k).startswith((*free, "_"))]
    if unknown:
        keys = f"key{'s' * (len(unknown) > 1)} {', '.join(unknown[:8])}{', ...' * (len(unknown) > 8)}"
        found.append(Omission(f"unknown {keys} of config.json ignored: check whether the cost of a step depends on it"))
    return tuple(found)


@cache
def _unknown(key: str) -> str:
    """The key as a note names it, with the key of config.json that it may be a misspelling of."""
    near = difflib.get_close_matches(key, VERDICTS, n=1, cutoff=CLOSE)
    return visible(key) + "".join(f" (did you mean '{name}'?)" for name in near)


def affecting(found: Sequence[Omission], longest: float) -> tuple[Omission, ...]:
    """Those that affect requests of up to `longest` tokens, prompt and answer."""
    return tuple(o for o in found if o.beyond < longest)


def _windows(m: _Model) -> list[Omission]:
    name = "sliding_window" if m.c.has("sliding_window") else "attention_chunk_size"
    width = m.whole(name)
    layers = _windowed_layers(m, name)
    if not width or not layers:
        return []
    text = (
        f"{name} = {width} in {layers} of {m.a.layers} layers is not modelled: in requests of more tokens, "
        "attention is over-estimated there, and the room in the KV cache under-estimated"
    )
    return [Omission(text, width)]


def _windowed_layers(m: _Model, name: str) -> int:
    """How many layers attend to a window, by the rules of the models' classes."""
    layers, kinds = m.a.layers, layer_types(m.c)
    if name == "sliding_window" and m.c.has("use_sliding_window") and not m.c.flag("use_sliding_window", True):
        return 0
    if kinds:
        return sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
    every = 0  # every so many layers, one attends to everything
    if name == "attention_chunk_size":  # Llama 4
        every = m.whole("no_rope_layer_interval") or 4
    elif m.c.has("sliding_window_pattern"):  # Gemma 3, Cohere 2
        every = m.whole("sliding_window_pattern")
    elif m.c.has("_sliding_window_pattern"):
        every = m.whole("_sliding_window_pattern")
    elif model_type(m.c) in ("gemma2", "gpt_oss"):
        every = 2
    elif model_type(m.c).startswith("gemma3"):
        every = 6
    elif m.c.has("use_sliding_window") and m.c.has("max_window_layers"):  # Qwen: the first layers attend to everything
        return max(layers - m.whole("max_window_layers"), 0)
    return layers - layers // every if every else layers


def _latent_attention(m: _Model) -> list[Omission]:
    latent, rope = m.whole("kv_lora_rank"), m.whole("qk_rope_head_dim")
    if not latent:
        return []
    if not m.c.has("qk_nope_head_dim"):
        return [
            Omission(
                "latent attention (MLA): its projections and prefill are counted as plain attention's; give "
                "qk_nope_head_dim, v_head_dim and q_lora_rank to see how far off that is"
            )
        ]
    a, nope, query = m.a, m.whole("qk_nope_head_dim"), m.whole("q_lora_rank")
    value = m.whole("v_head_dim") or a.head_dim
    heads = a.heads * (nope + rope)
    true = query * (a.hidden + heads) if query else a.hidden * heads
    true += a.hidden * (latent + rope) + latent * a.heads * (nope + value) + a.heads * value * a.hidden
    counted = _attention_parameters(a)
    way = "over" if counted >= true else "under"
    share = 2 * a.head_dim / (nope + rope + value)
    text = (
        f"latent attention (MLA): its projections are counted as plain attention's, {counted / 1e6:.0f} million "
        f"parameters a layer instead of {true / 1e6:.0f} million ({way}-estimated), and prefill attention with "
        f"{share:.2f} of its FLOPs ({'under' if share < 1 else 'over'}-estimated); the KV cache is modelled"
    )
    return [Omission(text)]


def _attention_parameters(a: Architecture) -> int:
    """Attention's parameters in a layer, as the formulas of a deployment count them."""
    return 2 * a.hidden * a.head_dim * (a.heads + a.kv_heads)


def _sparse_attention(m: _Model) -> list[Omission]:
    most = m.whole("index_topk")
    text = (
        f"sparse attention (index_topk = {most}) is not modelled: in requests of more tokens, attention is "
        "over-estimated; the indexer is left out"
    )
    return [Omission(text, most)] if most else []


def _next_tokens(m: _Model) -> list[Omission]:
    key = next((key for key in MTP if m.whole(key)), None)
    if key is None:
        return []
    text = (
        f"{key} = {m.whole(key)}: the layers that predict further tokens are left out; the engine uses them for "
        "speculative decoding alone, with which ITL and E2E are over-estimated"
    )
    return [Omission(text)]


def _softcapping(m: _Model) -> list[Omission]:
    found = []
    if m.c.has("attn_logit_softcapping"):
        found.append(Omission("attn_logit_softcapping is left out: attention is under-estimated, most in prefill"))
    if m.c.has("final_logit_softcapping"):
        text = "final_logit_softcapping is left out: every step is under-estimated by a pass over the logits"
        found.append(Omission(f"{text}, {8 * m.a.vocab / 1e6:.1f} MB a request"))
    return found


def _encoders(m: _Model) -> list[Omission]:
    kinds = [key.removesuffix("_config") for key in ("vision_config", "audio_config") if m.c.has(key)]
    if not kinds:
        return []
    weights = ", and their weights take memory from the KV cache (give extra_weights_gib in model_config)"
    text = f"{' and '.join(kinds)} encoders are left out: prompts are taken as text alone"
    return [Omission(text + weights * (not m.c.has("extra_weights_gib")))]


def _cross_attention(m: _Model) -> list[Omission]:
    if not m.c.raw.get("cross_attention_layers"):
        return []
    return [Omission("cross_attention_layers are counted as plain attention: over-estimated for prompts of text")]


def _shared_cache(m: _Model) -> list[Omission]:
    sharing = m.whole("num_kv_shared_layers")
    text = (
        f"num_kv_shared_layers = {sharing} of {m.a.layers} layers are counted with a KV cache each: room in it is "
        "under-estimated"
    )
    return [Omission(text)] if sharing else []


def _parallel_layers(m: _Model) -> list[Omission]:
    if not (m.c.raw.get("use_parallel_residual") or m.c.raw.get("parallel_attn")):
        return []
    return [
        Omission(
            "attention and MLP in parallel need one all-reduce a layer, and two are counted: with tensor "
            "parallelism, all-reduces are over-estimated"
        )
    ]


def _activation(m: _Model) -> list[Omission]:
    name, kind = activation(m.c), model_type(m.c)
    if name not in PLAIN_ACTIVATIONS or kind in UNGATED or kind.startswith("gemma"):
        return []
    return [
        Omission(
            f"{name} is taken as the activation of a gated MLP of three matrices: if the model has two, its "
            "MLP is over-estimated by half"
        )
    ]


def _dtype(m: _Model) -> list[Omission]:
    if dtype(m.c) != "float32":
        return []
    return [
        Omission(
            "torch_dtype float32: published in float32; vLLM's default (--dtype auto) serves it in 16 bits, and that "
            "is counted"
        )
    ]


def _quantization(m: _Model) -> list[Omission]:
    a, details = m.a, quantization(m.c)
    texts = []
    if a.weight_bits < 8:
        texts.append(
            f"{a.weight_bits}-bit weights: kernels for them were not measured; their bytes are modelled "
            "at the efficiency and peak of 16 bits, without scales and dequantization: "
            "steps are under-estimated"
        )
    if a.weight_bits == 8 and not a.is_fp8:
        texts.append(
            "8-bit integer weights: measured kernels are timed as fp8 (prefill under-estimated if "
            "activations stay in 16 bits), and datasheet fields at the 16-bit peak "
            "(over-estimated if they do not)"
        )
    if details.get("quant_method") == "bitsandbytes":
        texts.append("bitsandbytes widens its weights before every matrix product: steps are under-estimated")
    kept = unquantized(m.c)
    if "attention" in kept and a.attention_bits > a.weight_bits:
        gib = a.layers * _attention_parameters(a) * (a.attention_bits - a.weight_bits) / 8 / GIB
        memory = (
            " nor in the memory of weights, so that the KV cache is over-estimated (give extra_weights_gib: "
            f"{gib:.1f} in model_config)"
        )
        texts.append(
            "attention is left in 16 bits: measured kernels count that, but it is not in s.shared_weights_us"
            + memory * (not m.c.has("extra_weights_gib"))
        )
    if "other" in kept:
        texts.append(
            "quantization_config leaves some layers in 16 bits, which are counted as quantized: weights are "
            "under-estimated"
        )
    if details.get("kv_cache_scheme") or details.get("kv_cache_quant_algo"):
        texts.append(
            "the KV cache is counted in 16 bits: if the engine keeps it in 8, decode attention is "
            "over-estimated and the room in it under-estimated, both up to twofold"
        )
    return [Omission(text) for text in texts]


RULES: tuple[Callable[[_Model], list[Omission]], ...] = (
    _windows,
    _latent_attention,
    _sparse_attention,
    _quantization,
    _dtype,
    _activation,
    _encoders,
    _cross_attention,
    _shared_cache,
    _parallel_layers,
    _softcapping,
    _next_tokens,
)

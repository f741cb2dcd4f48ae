"""Parts of a model that config.json asks for and the formulas leave out, with the consequences for the figures."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from simulator.common.errors import Section
from simulator.common.text import visible
from simulator.model.architecture import REMEDY, Architecture, activation, flat_config, layer_types, model_type
from simulator.model.config_keys import FREE, UNGATED, VERDICTS
from simulator.model.quantization import cache_asked_by, dtype, quantization

MOST_UNKNOWN = 8  # unknown keys that a note names
CLOSE = 0.85  # similarity of an unknown key to a known one, from which it is taken for a misspelling
QUANTIZED = re.compile(r"fp8|fp4|int4|int8|w4a16|w8a8|awq|gptq", re.IGNORECASE)  # in a name: a note, no more
MTP = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
# Activations that MLPs of two matrices use, and few gated ones but Gemma's.
PLAIN_ACTIVATIONS = ("relu", "gelu", "gelu_new", "gelu_fast", "quick_gelu")


@dataclass(frozen=True, slots=True)
class Omission:
    """Something that is left out, in words. It affects requests of more than `beyond` tokens, prompt and answer."""

    text: str
    beyond: int = 0


KV_IN_16 = Omission(
    "the KV cache is counted in 16 bits: if the engine keeps it in 8, decode attention is over-estimated and the room "
    "in it under-estimated, both up to twofold: say so with kv_cache_dtype"
)


@dataclass(frozen=True, slots=True)
class _Model:
    """A model's config.json at one level, and what is read from it."""

    c: Section
    a: Architecture

    def whole(self, key: str) -> int:
        """A whole number, 0 if the key is left out."""
        return self.c.whole(key, REMEDY) if self.c.has(key) else 0


def omissions(config: Mapping[str, Any], a: Architecture, where: str) -> tuple[Omission, ...]:
    """Everything that is left out of the figures of a model with this architecture.

    Raises InputError for a malformed key; every message begins with `where`.
    """
    model = _Model(Section(where, "model_config", flat_config(config)), a)
    found = [omission for rule in RULES for omission in rule(model)]
    unknown = [_unknown(str(k)[:40]) for k in model.c.raw if k not in VERDICTS and not str(k).startswith((*FREE, "_"))]
    if unknown:
        noun = "key" if len(unknown) == 1 else "keys"
        more = ", ..." if len(unknown) > MOST_UNKNOWN else ""
        text = f"unknown {noun} {', '.join(unknown[:MOST_UNKNOWN])}{more} of config.json ignored"
        found.append(Omission(f"{text}: check whether the cost of a step depends on it"))
    return tuple(found)


@cache
def _unknown(key: str) -> str:
    """The key as a note names it, with the key of config.json that was perhaps meant."""
    near = difflib.get_close_matches(key, VERDICTS, n=1, cutoff=CLOSE)
    return f"{visible(key)} (did you mean '{near[0]}'?)" if near else visible(key)


def affecting(found: Sequence[Omission], longest: float) -> tuple[Omission, ...]:
    """Those that affect requests of up to `longest` tokens, prompt and answer."""
    return tuple(o for o in found if o.beyond < longest)


def _windows(m: _Model) -> Iterator[Omission]:
    name = "sliding_window" if m.c.has("sliding_window") else "attention_chunk_size"
    width, layers = m.whole(name), _windowed_layers(m, name)
    if width and layers:
        text = (
            f"{name} = {width} in {layers} of {m.a.layers} layers is not modelled: in requests of more tokens, "
            "attention is over-estimated there, and the room in the KV cache under-estimated"
        )
        yield Omission(text, width)


def _windowed_layers(m: _Model, name: str) -> int:
    """The number of layers that attend to a window, by the rules of the models' classes."""
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


def _latent_attention(m: _Model) -> Iterator[Omission]:
    a, latent, rope = m.a, m.whole("kv_lora_rank"), m.whole("qk_rope_head_dim")
    if not latent:
        return
    if not m.c.has("qk_nope_head_dim"):
        yield Omission(
            "latent attention (MLA): its projections and prefill are counted as plain attention's; give "
            "qk_nope_head_dim, v_head_dim and q_lora_rank to see how far off that is"
        )
        return
    nope, query = m.whole("qk_nope_head_dim"), m.whole("q_lora_rank")
    value = m.whole("v_head_dim") or a.head_dim
    heads = a.heads * (nope + rope)
    true = query * (a.hidden + heads) if query else a.hidden * heads
    true += a.hidden * (latent + rope) + latent * a.heads * (nope + value) + a.heads * value * a.hidden
    counted = _attention_parameters(a)
    way = "over" if counted >= true else "under"
    share = 2 * a.head_dim / (nope + rope + value)
    yield Omission(
        f"latent attention (MLA): its projections are counted as plain attention's, {counted / 1e6:.0f} million "
        f"parameters a layer instead of {true / 1e6:.0f} million ({way}-estimated), and prefill attention with "
        f"{share:.2f} of its FLOPs ({'under' if share < 1 else 'over'}-estimated); the KV cache is modelled"
    )


def _attention_parameters(a: Architecture) -> int:
    """Attention's parameters in a layer, as the formulas of a deployment count them."""
    return 2 * a.hidden * a.head_dim * (a.heads + a.kv_heads)


def _sparse_attention(m: _Model) -> Iterator[Omission]:
    if most := m.whole("index_topk"):
        text = (
            f"sparse attention (index_topk = {most}) is not modelled: in requests of more tokens, attention is "
            "over-estimated; the indexer is left out"
        )
        yield Omission(text, most)


def _quantization(m: _Model) -> Iterator[Omission]:
    a, details = m.a, quantization(m.c)
    if a.weight_bits == 16 and (mark := QUANTIZED.search(str(m.c.raw.get("_name_or_path")))):
        yield Omission(
            f"the name says {mark.group()}, but config.json has no quantization_config: weights are counted in 16 "
            "bits, unless the engine's `quantization` says otherwise"
        )
    if a.weights.name == "int8":
        yield Omission(
            "8-bit integer weights: measured kernels are timed as fp8 (prefill under-estimated if activations stay in "
            "16 bits), and datasheet fields at the 16-bit peak (over-estimated if they do not)"
        )
    if details.get("quant_method") == "bitsandbytes":
        yield Omission("bitsandbytes widens its weights before every matrix product: steps are under-estimated")
    if a.formats.mixed:
        yield Omission(
            f"quantization_config stores some layers of {' and '.join(a.formats.mixed)} in another type, which are "
            "counted as most of them are"
        )
    if (details.get("kv_cache_scheme") or details.get("kv_cache_quant_algo")) and not cache_asked_by(m.c):
        yield KV_IN_16


def _types(m: _Model) -> Iterator[Omission]:
    if dtype(m.c) == "float32":
        yield Omission(
            "torch_dtype float32: published in float32; vLLM's default (--dtype auto) serves it in 16 bits, and that "
            "is counted"
        )
    name, kind = activation(m.c), model_type(m.c)
    if name in PLAIN_ACTIVATIONS and kind not in UNGATED and not kind.startswith("gemma"):
        yield Omission(
            f"{name} is taken as the activation of a gated MLP of three matrices: if the model has two, its MLP is "
            "over-estimated by half"
        )


def _layers(m: _Model) -> Iterator[Omission]:
    if kinds := [key.removesuffix("_config") for key in ("vision_config", "audio_config") if m.c.has(key)]:
        text = f"{' and '.join(kinds)} encoders are left out: prompts are taken as text alone"
        memory = ", and their weights take memory from the KV cache (give extra_weights_gib in model_config)"
        yield Omission(text if m.c.has("extra_weights_gib") else text + memory)
    if m.c.raw.get("cross_attention_layers"):
        yield Omission("cross_attention_layers are counted as plain attention: over-estimated for prompts of text")
    if sharing := m.whole("num_kv_shared_layers"):
        yield Omission(
            f"num_kv_shared_layers = {sharing} of {m.a.layers} layers are counted with a KV cache each: room in it is "
            "under-estimated"
        )
    if m.c.raw.get("use_parallel_residual") or m.c.raw.get("parallel_attn"):
        yield Omission(
            "attention and MLP in parallel need one all-reduce a layer, and two are counted: with tensor parallelism, "
            "all-reduces are over-estimated"
        )


def _after_the_layers(m: _Model) -> Iterator[Omission]:
    if m.c.has("attn_logit_softcapping"):
        yield Omission("attn_logit_softcapping is left out: attention is under-estimated, most in prefill")
    if m.c.has("final_logit_softcapping"):
        text = "final_logit_softcapping is left out: every step is under-estimated by a pass over the logits"
        yield Omission(f"{text}, {8 * m.a.vocab / 1e6:.1f} MB a request")
    if key := next((key for key in MTP if m.whole(key)), None):
        yield Omission(
            f"{key} = {m.whole(key)}: the layers that predict further tokens are left out; the engine uses them for "
            "speculative decoding alone, with which ITL and E2E are over-estimated"
        )


RULES = (_windows, _latent_attention, _sparse_attention, _quantization, _types, _layers, _after_the_layers)

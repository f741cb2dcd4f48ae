"""Parts of a model that config.json asks for and the formulas leave out, with the consequences for the figures."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from simulator.common.errors import Section, shown
from simulator.common.text import visible
from simulator.model.architecture import Architecture
from simulator.model.config_keys import FREE, UNGATED, VERDICTS
from simulator.model.quantization import cache_asked_by, dtype, quantization
from simulator.model.terms import activation, flat_config, model_type, whole

MOST_UNKNOWN = 8  # unknown keys that a note names
CLOSE = 0.85  # similarity of an unknown key to a known one, from which it is taken for a misspelling
QUANTIZED = re.compile(r"fp8|fp4|int4|int8|w4a16|w8a8|awq|gptq", re.IGNORECASE)  # in a name: a note, no more
WIDE = 2_048  # tokens of a window that may take more memory than is set aside for it
WITH_MTP = "speculative_method: mtp"
MTP = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
# Activations that MLPs of two matrices use, and few gated ones but Gemma's.
PLAIN_ACTIVATIONS = ("relu", "gelu", "gelu_new", "gelu_fast", "quick_gelu")


LEFT_OUT = {
    "hc_mult": "the mixing of residual streams (hyper-connections) is left out: steps are under-estimated",
    "attn_res_block_size": "attention over earlier residuals is left out: steps are under-estimated",
    "hidden_size_per_layer_input": "embeddings for each layer are left out, their memory and their time",
    "altup_num_inputs": "alternating updates of residual streams are left out: steps are under-estimated",
    "use_double_wide_mlp": "MLPs of twice the width in layers that share a KV cache are left out",
    "index_kpool": "the indexer of sparse attention reads pooled keys, and is counted as if it read all of them",
    "zero_expert_num": "a token is taken to use the mean number of experts that are not zero experts",
}
"""What follows from keys that say more than 0 or false."""


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
        return whole(self.c, key, 0)


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


def _cache(m: _Model) -> Iterator[Omission]:
    for of in m.a.attention:
        if of.window >= WIDE or (of.window and len(m.a.attention) == 1):
            layers = f"in {of.layers} of {m.a.layers} layers"
            text = (
                f"a window of {of.window} tokens {layers}: in longer requests, room in the KV cache is under-estimated"
            )
            if of.chunked:
                text = (
                    f"chunks of {of.window} tokens {layers} are counted as windows of that size: in longer requests, "
                    "attention is over-estimated, up to twofold, and room in the KV cache under-estimated"
                )
            yield Omission(text, of.window)
    if model_type(m.c) == "minicpm3":
        yield Omission(
            "minicpm3: the engine caches every head of its latent attention, and one latent vector is counted: decode "
            "attention is under-estimated, and room in the KV cache over-estimated"
        )


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
    if isinstance(sparse := m.c.raw.get("sparse_attention_config"), Mapping):
        details = Section(m.c.where, m.c.at("sparse_attention_config"), sparse)
        kept = whole(details, "sparse_topk_blocks", 0) * whole(details, "sparse_block_size", 0)
        text = "sparse_attention_config: attention is counted in full: over-estimated in requests of more than"
        yield Omission(f"{text} {kept} tokens; its indexer is left out", kept)
    for key, consequence in LEFT_OUT.items():
        if m.c.raw.get(key):
            yield Omission(f"{key} = {shown(m.c.raw[key])}: {consequence}")
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
    if key := next((key for key in ("final_logit_softcapping", "logits_soft_cap") if m.c.has(key)), None):
        text = f"{key} is left out: every step is under-estimated by a pass over the logits"
        yield Omission(f"{text}, {8 * m.a.vocab / 1e6:.1f} MB a request")
    if key := next((key for key in MTP if m.whole(key)), None):
        yield Omission(
            f"{key} = {m.whole(key)}: the layers that predict further tokens are left out: the engine loads them with "
            f"{WITH_MTP} alone"
        )


RULES = (_cache, _quantization, _types, _layers, _after_the_layers)

"""The types of a model's weights, part by part, and of its KV cache, from the quantization config of its checkpoint.

A config names a type for all linear layers, and modules that have another one or 16 bits: by name, by a glob, or after
`re:` by a regular expression. Its patterns are tried on the names that the layers have in checkpoints and in vLLM. A
part has the type of most of its matrices.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from simulator.common.errors import InputError, Section, shown
from simulator.common.json import JsonObject
from simulator.model.formats import BF16, FP8, FP8_BLOCK, IN_16, MXFP4, NVFP4, Format, Formats, integers

CONFIGS = ("quantization_config", "compression_config", "quantization")  # keys of a config.json; the first counts
QUANT_FILE = "hf_quant_config.json"  # beside the config.json of ModelOpt's checkpoints
LISTS = (
    *("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules", "exclude"),
    *("llm_int8_skip_modules",),
)
"""Keys that list modules in 16 bits."""

REMEDY = "copy it from the model's config.json"
MXFP8 = replace(FP8_BLOCK, bits=8.0 + 8.0 / 32)
NO_DECODER = re.compile(r"vision|visual|audio|image|projector|encoder|mtp|eagle|draft")  # modules of other towers
NAMED_LAYER = re.compile(r"^(?:.*\.)?(?:layers|layer|blocks|h)\.")
ONE_LAYER = re.compile(r"layers\.(\d+)(?=\.|$)")
FURTHER_EXPERT = re.compile(r"experts\.[1-9]")  # the first one stands for all
ENDLESS = re.compile(r"[*+}]\)[*+{]")  # a repeated group with a repetition: its search may take for ever
LONGEST_PATTERN = 500  # characters
MOST_PATTERNS = 1_000  # of those that name no layer: each is tried on all of them

# The names of the matrices of a layer, alternatives together: some fuse them.
PLAIN = (
    ("q_proj", "qkv_proj", "query_key_value", "W_pack"),
    ("k_proj", "qkv_proj", "query_key_value", "W_pack"),
    ("v_proj", "qkv_proj", "query_key_value", "W_pack"),
    ("o_proj", "out_proj", "dense"),
)
LATENT = (
    ("q_a_proj", "q_proj", "fused_qkv_a_proj"),
    ("q_b_proj", "q_proj"),
    ("kv_a_proj_with_mqa", "fused_qkv_a_proj"),
    ("kv_b_proj",),
    ("o_proj",),
)
LINEAR = (("in_proj_qkvz", "in_proj_qkv", "in_proj"), ("out_proj",))
BLOCK = (
    ("gate_proj", "gate_up_proj", "w1", "w13"),
    ("up_proj", "gate_up_proj", "w3", "w13"),
    ("down_proj", "w2"),
)
ATTENTIONS = ("self_attn", "attention", "attn", "self_attention", "mixer")
BLOCKS = ("mlp", "feed_forward", "block_sparse_moe", "ffn", "mixer")
EXPERTS = tuple(f"{block}.{name}" for block in BLOCKS for name in ("experts.0", "experts"))
SHARED = tuple(f"{block}.{name}" for block in BLOCKS for name in ("shared_experts", "shared_expert", "shared_mlp"))
PREFIXES = ("model.", "language_model.model.", "model.language_model.")


@dataclass(frozen=True, slots=True)
class _Rule:
    """A type of the modules that a pattern names, of one layer or, with None, of all."""

    pattern: str
    stored: Format
    layer: int | None = None


def dtype(c: Section) -> str:
    """The type in which the model was published, by its name in torch."""
    return str(c.raw.get("torch_dtype") or c.raw.get("dtype") or "bfloat16").removeprefix("torch.")


def with_quant_file(config: Mapping[str, Any], quant_file: Mapping[str, Any]) -> JsonObject:
    """A config.json with the quantization of the hf_quant_config.json beside it, unless it has its own, as in vLLM."""
    given = quant_file.get("quantization")
    if is_quantized(config) or not isinstance(given, Mapping):
        return dict(config)
    return {**config, "quantization_config": {"quant_method": "modelopt", **given}}


def is_quantized(config: Mapping[str, Any]) -> bool:
    """True if a config.json, or that of its text model, says how weights are quantized."""
    levels = (config, *(value for value in config.values() if isinstance(value, Mapping)))
    return any(level.get(key) for level in levels for key in CONFIGS)


def formats(c: Section, moe: Sequence[bool], llama4: bool = False) -> Formats:
    """The types of a model's parts, as the quantization config says; a name says nothing of them.

    moe: of every layer, whether it has routed experts. Without a config weights have 16 bits: by default
    (`--dtype auto`), vLLM serves a model published in float32 in 16 bits too. Raises InputError for a config that is
    not understood.
    """
    usual, rules = quantized(c), _rules(c)
    details = quantization(c)
    if details.get("quant_method") == "mxfp4":  # vLLM's method of this name leaves linear layers as they are
        return replace(IN_16, experts=usual)
    found = Formats.all(usual)
    if rules:
        found = _by_part(c, moe, usual, rules)
    # vLLM's fp8 checkpoints of Llama 4 leave attention in bf16
    return replace(found, attention=BF16) if llama4 and usual.is_fp8 else found


def quantized(c: Section) -> Format:
    """The type that a quantization config names for all linear layers, whatever it leaves out."""
    details, key = quantization(c), next((key for key in CONFIGS if c.raw.get(key)), None)
    if key is None:
        return BF16
    if details.get("quantized_layers"):
        return BF16  # what is not listed
    found = _of_details(details) if details else _of_words(str(c.raw[key]), {})
    if found is None:
        raise c.error(key, f"is not understood, got {shown(c.raw[key])}", "write quantization: fp8 or w4a16")
    return found


def quantization(c: Section) -> Mapping[str, Any]:
    """The quantization config, {} without one."""
    given: Any = next((c.raw[key] for key in CONFIGS if c.raw.get(key)), None)
    if isinstance(given, Mapping) and isinstance(inner := given.get("quantization"), Mapping):
        return {**given, **inner}  # a hf_quant_config.json that was copied as it is
    return given if isinstance(given, Mapping) else {}


def cache_asked_by(c: Section) -> str:
    """The method (`modelopt`, `compressed-tensors`) of a checkpoint that asks for a KV cache in fp8, "" if none does.

    vLLM heeds it with `--kv-cache-dtype auto` (vllm/utils/torch_utils.py, vllm/model_executor/layers/attention): only
    of these two methods, and since which version is in `simulator.serving.defaults`.
    """
    details = quantization(c)
    method = str(details.get("quant_method") or ("modelopt" if details.get("quant_algo") else "")).lower()
    scheme: Any = details.get("kv_cache_scheme")
    fp8 = isinstance(scheme, Mapping) and scheme.get("num_bits") == 8 and scheme.get("type") == "float"
    if method.startswith("modelopt") and (fp8 or str(details.get("kv_cache_quant_algo")).upper() == "FP8"):
        return "modelopt"
    return "compressed-tensors" if fp8 and method == "compressed-tensors" else ""


def _of_details(details: Mapping[str, Any]) -> Format | None:
    """The type of all linear layers that a quantization config names, None if it is not understood."""
    method, algorithm = (str(details.get(key) or "").lower() for key in ("quant_method", "quant_algo"))
    if algorithm:
        return _of_words(algorithm, details)
    if groups := _groups(details):
        usual = [group for group in groups if "targets" not in group or "Linear" in _names(group["targets"])]
        return _of_weights(usual[0].get("weights")) if usual else BF16
    if isinstance(quark := details.get("global_quant_config"), Mapping):
        return _of_weights(quark.get("weight"))
    if method == "bitsandbytes":  # blocks of 64 with a scale in 32 bits, or in 8
        nested = 8 if details.get("bnb_4bit_use_double_quant") else 32
        return Format("int4", 4.0 + nested / 64) if details.get("load_in_4bit") else integers(8)
    if details.get("weight_block_size"):
        return FP8_BLOCK
    bits = next((details[key] for key in ("bits", "w_bit", "wbits") if key in details), None)
    if bits in (2, 3, 4, 8) and not isinstance(bits, bool):
        return integers(bits, _group_size(details), _has_zero_points(details))
    return _of_words(method, details)


def _of_words(words: str, details: Mapping[str, Any]) -> Format | None:
    """The type that words such as `w4a16`, `NVFP4` or `FP8_PB_WO` name."""
    words = words.lower()
    if "mxfp4" in words:
        return MXFP4
    if "fp4" in words:
        return NVFP4
    if "mxfp8" in words:
        return MXFP8
    if "fp8" in words and not words.startswith("w4a8"):
        return FP8_BLOCK if "block" in words or "fp8_pb" in words else FP8
    if any(mark in words for mark in ("w4a", "awq", "gptq", "int4")):
        return integers(4, _group_size(details), _has_zero_points(details))
    if any(mark in words for mark in ("int8", "w8a8", "w8a16")):
        return integers(8)
    return None


def _of_weights(weights: object) -> Format | None:
    """The type of a compressed-tensors or Quark description of weights; 16 bits without one."""
    if isinstance(weights, list):  # Quark's scales that are quantized again
        weights = weights[0] if weights else None
    if weights is None:
        return BF16
    if not isinstance(weights, Mapping):
        return None
    named = str(weights.get("dtype") or "")  # in Quark
    bits, size = weights.get("num_bits"), _group_size(weights)
    if not bits and (digit := re.search(r"\d", named)):
        bits = int(digit.group())
    if weights.get("type") == "float" or named.startswith(("fp", "mx")):
        if bits == 8:
            return MXFP8 if size == 32 else FP8_BLOCK if weights.get("strategy") == "block" else FP8
        return (MXFP4 if size == 32 else NVFP4) if bits == 4 else None
    if bits in (2, 3, 4, 5, 6, 7, 8) and not isinstance(bits, bool):
        return integers(bits, size, _has_zero_points(weights))
    return BF16 if bits == 16 else None


def _group_size(details: Mapping[str, Any]) -> int:
    """Weights that share a scale, 0 for a channel or more."""
    size = details.get("group_size", details.get("q_group_size"))
    return size if isinstance(size, int) and size > 0 else 0


def _has_zero_points(details: Mapping[str, Any]) -> bool:
    symmetric = details.get("symmetric", details.get("sym"))
    return details.get("zero_point") is True or symmetric is False


def _groups(details: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The groups of a compressed-tensors configuration."""
    groups = details.get("config_groups")
    return [group for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []


def _names(given: object) -> list[str]:
    return [str(name) for name in given] if isinstance(given, list) else []


def _rules(c: Section) -> list[_Rule]:
    """The modules with a type of their own. The first rule that names a module counts."""
    details, found = quantization(c), []
    for place, pattern, stored in _patterns(c, details):
        if FURTHER_EXPERT.search(pattern):
            continue
        if pattern.startswith("re:"):
            _check(c, place, pattern.removeprefix("re:"))
            found.append(_Rule(pattern, stored))
        elif not NO_DECODER.search(pattern):
            name = NAMED_LAYER.sub("layers.", pattern)
            if one := ONE_LAYER.match(name):
                found.append(_Rule(f"layers.0{name[one.end() :]}", stored, int(one.group(1)[:9])))
            else:
                found.append(_Rule(name, stored))
    return found


def _patterns(c: Section, details: Mapping[str, Any]) -> Iterator[tuple[str, str, Format]]:
    """(key, pattern, type) of everything that a config says of some modules only."""
    for key in LISTS:
        if (listed := details.get(key)) is not None:
            if not isinstance(listed, list):
                raise _error(c, key, f"must be a list of modules, got {shown(listed)}")
            yield from ((key, name, BF16) for name in _names(listed))
    for key in ("quantized_layers", "layer_quant_config", "extra_config", "dynamic"):
        each = details.get(key)
        for name, own in each.items() if isinstance(each, Mapping) else ():
            if key == "dynamic":  # of GPTQModel: regular expressions, after `-:` of what is left out
                pattern = str(name).removeprefix("+:")
                left_out = pattern.startswith("-:")
                yield key, f"re:{pattern.removeprefix('-:')}", BF16 if left_out else _own(c, key, own, details)
            else:
                yield key, str(name), _own(c, key, own, details)
    if not details.get("quant_algo"):
        for group in _groups(details):
            for target in _names(group.get("targets")):
                if "." in target or target.startswith("re:"):  # else a class, of which `Linear` alone matters
                    yield "config_groups", target, _own(c, "config_groups", group, details)


def _own(c: Section, key: str, own: object, details: Mapping[str, Any]) -> Format:
    """The type of modules that a config describes apart."""
    stored = None
    if isinstance(own, Mapping):
        if own.get("bits") == 16:
            return BF16
        described = next((own[name] for name in ("weights", "weight") if name in own), None)
        if described is not None or key in ("config_groups", "layer_quant_config"):
            stored = _of_weights(described)
        else:
            usual = {k: v for k, v in details.items() if k not in ("quant_algo", "config_groups")}
            stored = _of_details({**usual, **own})
    if stored is None:
        raise _error(c, key, f"has a type that is not understood, got {shown(own)}")
    return stored


def _error(c: Section, key: str, problem: str) -> InputError:
    return c.error(f"{next(key for key in CONFIGS if c.raw.get(key))}.{key}", problem, REMEDY)


def _check(c: Section, key: str, pattern: str) -> None:
    """Raises InputError for an invalid regular expression, and for one whose search may never end."""
    wrong = len(pattern) > LONGEST_PATTERN or ENDLESS.search(pattern)
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        wrong = True
    if wrong:
        raise _error(c, key, f"has a pattern that cannot be used, {shown(pattern)}")


def _by_part(c: Section, moe: Sequence[bool], usual: Format, rules: Sequence[_Rule]) -> Formats:
    """The types of the parts by most of their matrices, of those that the rules leave the `usual` one."""
    by_layer: dict[int, list[tuple[int, _Rule]]] = {}
    everywhere = [(i, rule) for i, rule in enumerate(rules) if rule.layer is None]
    if len(everywhere) > MOST_PATTERNS:
        key = next(key for key in CONFIGS if c.raw.get(key))
        raise c.error(key, f"has {len(everywhere):,} patterns, at most {MOST_PATTERNS:,} are read", REMEDY)
    for i, rule in enumerate(rules):
        if rule.layer is not None:
            by_layer.setdefault(rule.layer, []).append((i, rule))
    votes: dict[str, Counter[Format]] = {}
    for layer, routed in enumerate(moe):
        own = [rule for _, rule in sorted((*everywhere, *by_layer.get(layer, ())), key=lambda x: x[0])]
        for part, modules in _modules(c, layer, routed):
            for names in modules:
                stored = next((rule.stored for rule in own if _named(rule.pattern, names, layer)), usual)
                votes.setdefault(part, Counter())[stored] += 1
    parts = {part: counter.most_common(1)[0][0] for part, counter in votes.items()}
    mixed = tuple(part for part, counter in votes.items() if len(counter) > 1)
    return replace(Formats.all(usual), **parts, mixed=mixed)  # type: ignore[arg-type]


def _modules(c: Section, layer: int, routed: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The parts of a layer, each with its matrices: the names that one may have, a line each, as if of layer 0."""
    kinds: Any = c.raw.get("layer_types")
    kind = str(kinds[layer]) if isinstance(kinds, list) and layer < len(kinds) else ""
    every = c.raw.get("full_attention_interval")
    if "linear" in kind or (not kind and isinstance(every, int) and every > 0 and (layer + 1) % every):
        yield "attention", _lines(("linear_attn",), LINEAR)
    else:
        yield "attention", _lines(ATTENTIONS, LATENT if c.raw.get("kv_lora_rank") else PLAIN)
    if routed:
        yield "experts", _lines(EXPERTS, BLOCK)
        yield "shared", _lines(SHARED, BLOCK)
    else:
        yield "dense", _lines(BLOCKS, BLOCK)


@lru_cache
def _lines(owners: tuple[str, ...], matrices: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    return tuple(
        "\n".join(f"{prefix}layers.0.{owner}.{name}" for prefix in PREFIXES for owner in owners for name in names)
        for names in matrices
    )


def _named(pattern: str, names: str, layer: int) -> bool:
    """True if a pattern names one of the modules in the lines of `names`."""
    if re.search(r"\d", pattern) if pattern.startswith("re:") else re.match(r"layers\.(\d+[*?]|\?)", pattern):
        return _found(pattern, names.replace("layers.0.", f"layers.{layer}."))
    return _found(pattern, names)


@lru_cache(10_000)
def _found(pattern: str, names: str) -> bool:
    """True if the pattern names a line or a module that contains it: a name from a point to a point, with `*` and `?`.

    A regular expression is matched from the beginning of a line.
    """
    if pattern.startswith("re:"):
        return any(re.match(pattern.removeprefix("re:"), name) for name in names.split("\n"))
    text = re.escape(pattern).replace(r"\*", r"[^\n]*").replace(r"\?", r"[^\n]")
    return re.search(rf"(?m)(?:^|\.){text}(?=\.|$)", names) is not None

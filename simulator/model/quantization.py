"""The types of a model's weights, part by part, from its quantization_config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simulator.common.errors import Section, shown
from simulator.model.formats import BF16, FP8, INT8, Format, Formats

# These count as 16 bits, or not at all, so that leaving them unquantized changes nothing.
NEVER_QUANTIZED = re.compile(r"lm_head|embed|norm|router|gate(?!_)|vision|visual|projector")
LISTS = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")


def dtype(c: Section) -> str:
    """The type in which the model was published, by its name in torch."""
    return str(c.raw.get("torch_dtype") or c.raw.get("dtype") or "bfloat16").removeprefix("torch.")


def formats(c: Section, llama4: bool = False) -> Formats:
    """The types of a model's parts, as the quantization config says. A name says nothing of them.

    Without a config they have 16 bits: by default (`--dtype auto`), vLLM serves a model published in float32 in 16 bits
    too.
    """
    main = _main(c)
    # vLLM's fp8 checkpoints of Llama 4 leave attention in bf16
    kept = main != BF16 and ((llama4 and main.is_fp8) or "attention" in unquantized(c))
    return replace(Formats.all(main), attention=BF16) if kept else Formats.all(main)


def _main(c: Section) -> Format:
    """The type of the weights that a quantization config names."""
    details = quantization(c)
    given: Any = details or c.raw.get("quantization")
    of_group = group(details, "weights")
    named = f"{details.get('quant_method')} {details.get('quant_algo')}" if details else given
    words = str(named or "").lower()
    bits = of_group.get("num_bits") or details.get("bits")
    if details.get("quant_method") == "bitsandbytes":
        bits = 4 if details.get("load_in_4bit") else 8
    if "fp8" in words or (bits == 8 and of_group.get("type") == "float"):
        return FP8
    if bits == 8:
        return INT8
    if bits in (2, 3, 4):
        return Format(f"int{bits}", float(bits))
    if any(mark in words for mark in ("w4a16", "awq", "gptq", "int4", "fp4")):
        return Format("int4", 4.0)
    if given:
        key = "quantization_config" if details else "quantization"
        raise c.error(key, f"is not understood, got {shown(given)}", "write quantization: fp8 or w4a16")
    return BF16


def quantization(c: Section) -> Mapping[str, Any]:
    """The quantization_config, {} without one."""
    given: Any = c.raw.get("quantization_config") or c.raw.get("quantization")
    return given if isinstance(given, Mapping) else {}


def group(details: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """A part (`weights`, `input_activations`) of the first group of a compressed-tensors configuration, {} without."""
    groups = details.get("config_groups")
    first: Any = next(iter(groups.values()), {}) if isinstance(groups, Mapping) else {}
    entry = first.get(part) if isinstance(first, Mapping) else None
    return entry if isinstance(entry, Mapping) else {}


def unquantized(c: Section) -> frozenset[str]:
    """The parts that a quantization_config leaves in 16 bits: `attention`, or `other` matrices of the layers."""
    details = quantization(c)
    parts = set()
    for key in LISTS:
        names = details.get(key)
        for name in names if isinstance(names, list) else ():
            text = str(name).lower()
            if "attn" in text or "attention" in text:
                parts.add("attention")
            elif not NEVER_QUANTIZED.search(text):
                parts.add("other")
    return frozenset(parts)

"""The serving engine's settings, under vLLM's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args, get_type_hints

from simulator.common.errors import LARGEST_WHOLE, Section
from simulator.common.json import JsonObject
from simulator.serving.limits import MOST_BLOCK, MOST_BLOCKS, MOST_GPUS, MOST_SEQS, MOST_TOKENS

Setting = bool | int | float | str  # the value of a setting


@dataclass(frozen=True, slots=True)
class Declared:
    """What is known of a setting besides its name and default.

    unit: of a number. replay: what a replay makes of it; "" if it changes no latency. least, most: of a whole number.
    """

    meaning: str
    unit: str = ""
    replay: str = ""
    least: int = 1
    most: int = LARGEST_WHOLE


def setting(
    default: Any, meaning: str, unit: str = "", replay: str = "", *, least: int = 1, most: int = LARGEST_WHOLE
) -> Any:
    """A setting of `Engine` with vLLM's default; if that is None, null leaves the setting out."""
    return field(default=default, metadata={"declared": Declared(meaning, unit, replay, least, most)})


@dataclass(frozen=True, slots=True)
class Engine:
    """The settings that were given, and vLLM's defaults for the others, in the order of an experiments file.

    `given` names the settings that were given. Reader, limits, documentation and the report's table follow from here.
    """

    name: str = setting("vllm", "for information")
    version: str | None = setting(None, "for information")
    tensor_parallel: int = setting(
        1,
        "tensor parallelism",
        "GPU",
        "widths, heads and vocabulary are split, two all-reduces a layer",
        most=MOST_GPUS,
    )
    max_num_seqs: int = setting(
        128,
        "most requests in a batch",
        "request",
        "scheduler's limit, and the largest captured CUDA graph",
        most=MOST_SEQS,
    )
    max_num_batched_tokens: int = setting(
        2048,
        "most new tokens in a step; default without chunked prefill: `max_model_len` if that is more",
        "token",
        "scheduler's budget of a step",
        most=MOST_TOKENS,
    )
    max_model_len: int | None = setting(
        None,
        "longest sequence; default: the model's own limit",
        "token",
        "longer requests are refused",
        most=2 * MOST_TOKENS,
    )
    block_size: int = setting(16, "tokens in a KV block", "token", "KV blocks, prefix cache", most=MOST_BLOCK)
    gpu_memory_utilization: float = setting(
        0.9, "share of the GPU's memory that the engine may use", "share", "KV blocks"
    )
    chunked_prefill: bool = setting(
        True,
        "`false`: see Whole prompts in docs/ingest.md",
        "",
        "scheduler: without it prompts are computed whole or wait",
    )
    prefix_caching: bool = setting(True, "reuse the KV blocks of shared prompts", "", "by blocks, with eviction")
    long_prefill_token_threshold: int = setting(
        0, "largest prompt chunk in a step; 0: no limit", "token", "scheduler", least=0, most=MOST_TOKENS
    )
    kv_cpu_offload: bool = setting(
        False, "KV offload to CPU memory; not replayed", "", "read by programs; what is evicted is prefilled again"
    )
    total_kv_blocks: int | None = setting(
        None, "KV capacity; default: computed from memory", "block", "KV blocks, if given", most=MOST_BLOCKS
    )
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def to_entry(self) -> JsonObject:
        """The settings that were given or are no defaults, as an experiments file has them."""
        values = {name: getattr(self, name) for name in SETTINGS}
        return {name: value for name, value in values.items() if name in self.given or value != getattr(STANDARD, name)}


DECLARED: Mapping[str, Declared] = {f.name: f.metadata["declared"] for f in fields(Engine) if f.name != "given"}
SETTINGS = tuple(DECLARED)
TYPES: Mapping[str, type] = {  # without None
    name: next(iter(get_args(hint)), hint) for name, hint in get_type_hints(Engine).items() if name in DECLARED
}
LARGEST = {name: declared.most for name, declared in DECLARED.items() if TYPES[name] is int}
STANDARD = Engine()  # vLLM's defaults


def read_setting(e: Section, key: str) -> Setting | None:
    """The value of a setting in a mapping, None if it is left out. Raises InputError for a value of the wrong kind."""
    kind, declared = TYPES[key], DECLARED[key]
    if not e.has(key) if getattr(STANDARD, key) is None else key not in e.raw:
        return None
    if kind is bool:
        return e.flag(key, False)
    if kind is int:
        return e.whole(key, "give a whole number", least=declared.least, most=declared.most)
    if kind is float:  # gpu_memory_utilization, the only one
        return e.number(key, "give a fraction of the GPU's memory, as 0.9", above=0, most=1)
    return e.name(key)


def unsplit_tokens(longest: int) -> int:
    """vLLM's default for max_num_batched_tokens, in tokens, without chunked prefill: a step has room for the `longest`
    request, which is max_model_len (vllm/engine/arg_utils.py)."""
    return max(longest, STANDARD.max_num_batched_tokens)

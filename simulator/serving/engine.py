"""The serving engine's settings, under vLLM's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args, get_type_hints

from simulator.common.errors import LARGEST_WHOLE, Section, shown
from simulator.common.json import JsonObject
from simulator.kernels.matrices import ROUTINGS, UNIFORM
from simulator.model.draft import METHODS
from simulator.model.formats import BF16, FP8, FP8_BLOCK, INT4, MXFP4, NVFP4, Format
from simulator.serving.limits import (
    GPU,
    MOST_BLOCK,
    MOST_BLOCKS,
    MOST_DRAFTS,
    MOST_GIB,
    MOST_GPUS,
    MOST_RANKS,
    MOST_SEQS,
    MOST_TOKENS,
    MOST_US,
)

Setting = bool | int | float | str  # the value of a setting


@dataclass(frozen=True, slots=True)
class Declared:
    """What is known of a setting besides its name and default.

    unit: of a number. replay: what a replay makes of it; "" if it changes no latency. least, most: of a number, which
    is above 0 unless `least` is 0. choices: the values that a text may have, in lower case; () for any.
    """

    meaning: str
    unit: str = ""
    replay: str = ""
    least: int = 1
    most: int = LARGEST_WHOLE
    choices: tuple[str, ...] = ()


def setting(
    default: Any,
    meaning: str,
    unit: str = "",
    replay: str = "",
    *,
    least: int = 1,
    most: int = LARGEST_WHOLE,
    choices: tuple[str, ...] = (),
) -> Any:
    """A setting of `Engine` with vLLM's default; if that is None, null leaves the setting out."""
    return field(default=default, metadata={"declared": Declared(meaning, unit, replay, least, most, choices)})


AUTO = "auto"
KV_CACHE_BYTES = {AUTO: None, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""Bytes of an element of the KV cache by its type; None: the checkpoint's."""
WEIGHTS: Mapping[str, Format] = {f.name: f for f in (BF16, FP8, FP8_BLOCK, NVFP4, MXFP4, INT4)}
"""Types of weights in which a checkpoint of 16 bits can be served."""
GRAPHS = ("none", "piecewise", "full", "full_decode_only", "full_and_piecewise")


@dataclass(frozen=True, slots=True)
class Engine:
    """The settings that were given, and vLLM's defaults for the others, in the order of an experiments file.

    `given` names the settings that were given. Reader, limits, documentation and the report's table follow from here.
    """

    name: str = setting("vllm", "for information")
    version: str | None = setting(None, "of vLLM: decides the defaults that its versions changed")
    tensor_parallel: int = setting(
        1,
        "tensor parallelism",
        "GPU",
        "widths, heads and vocabulary are split, two all-reduces a layer",
        most=MOST_GPUS,
    )
    data_parallel: int = setting(
        1,
        "ranks, each with a scheduler and a KV cache of its own and `tensor_parallel` GPUs; limits hold for each",
        "",
        "by rank; those of a mixture of experts step together",
        most=MOST_RANKS,
    )
    expert_parallel: int = setting(
        1,
        "GPUs over which whole experts are spread: `tensor_parallel` x `data_parallel`, or 1, which splits each expert",
        "GPU",
        "experts that a GPU holds",
        most=MOST_GPUS,
    )
    expert_routing: str = setting(
        UNIFORM,
        "how tokens are spread over experts: "
        + ", ".join(f"`{name}`" for name in ROUTINGS)
        + "; all but the first are those of the measured kernels",
        "",
        "kernels of routed experts",
        choices=ROUTINGS,
    )
    pipeline_parallel: int = setting(
        1,
        "stages of layers, each on GPUs of its own",
        "",
        "as many batches in flight, each with its share of the limits; see docs/concepts.md",
        most=MOST_GPUS,
    )
    max_num_seqs: int = setting(
        128,
        "most requests in a batch; with a `version`, that version's default on this GPU",
        "request",
        "scheduler's limit, and by default the largest captured CUDA graph",
        most=MOST_SEQS,
    )
    max_num_batched_tokens: int = setting(
        2048,
        "most new tokens in a step; with a `version`, that version's default on this GPU; without chunked prefill "
        "`max_model_len` if that is more",
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
        0.9, "share of the GPU's memory that the engine may use", "share", "KV blocks", most=1
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
    prefill_schedule_interval: int = setting(
        1,
        "prompts are computed in every n-th step, unless requests are left over there or nothing decodes; heeded by "
        "data-parallel ranks of a mixture of experts alone",
        "step",
        "scheduler",
        most=MOST_TOKENS,
    )
    kv_cpu_offload: bool = setting(
        False,
        "KV offload to CPU memory; without `kv_offloading_size` not replayed",
        "",
        "read by programs; what is evicted is prefilled again",
    )
    kv_offloading_size: float | None = setting(
        None,
        "host memory for KV blocks, of all GPUs of a data-parallel rank together, as vLLM counts it; 0: none. See KV "
        "offload in docs/concepts.md",
        "GiB",
        "blocks that the GPU evicted are loaded from there; implies `kv_cpu_offload`",
        least=0,
        most=int(MOST_GIB),
    )
    kv_offload_gb_per_s: float | None = setting(
        None,
        "rate of a GPU's link to host memory, in each direction; default: by GPU",
        "GB/s",
        "loads and stores of `kv_offloading_size`",
        most=int(GPU["link_gb_per_s"][1]),
    )
    kv_offload_latency_us: int = setting(
        0, "shortest time of a transfer", "us", "loads and stores of `kv_offloading_size`", least=0, most=MOST_US
    )
    offload_prompt_only: bool = setting(
        True,
        "blocks of prompts alone are stored in `kv_offloading_size`; `false`: those of answers too, which later "
        "turns of a conversation find",
        "",
        "what host memory holds",
    )
    total_kv_blocks: int | None = setting(
        None, "KV capacity; default: computed from memory", "block", "KV blocks, if given", most=MOST_BLOCKS
    )
    kv_cache_dtype: str = setting(
        AUTO,
        "type of the KV cache: " + ", ".join(f"`{name}`" for name in KV_CACHE_BYTES) + "; `auto`: the checkpoint's",
        "",
        "KV blocks, bytes that decode attention reads",
        choices=tuple(KV_CACHE_BYTES),
    )
    quantization: str | None = setting(
        None,
        "type in which a checkpoint of 16 bits is served: "
        + ", ".join(f"`{name}`" for name in WEIGHTS)
        + "; of all linear layers but embeddings, lm_head and routers: `fp8` is vLLM's own `--quantization fp8`, the "
        "others are as a checkpoint of that type; default: the checkpoint's",
        "",
        "weights, their kernels, KV blocks",
        choices=tuple(WEIGHTS),
    )
    cudagraph_capture_max: int | None = setting(
        None,
        "largest captured CUDA graph, vLLM's `max_cudagraph_capture_size`; default: by version, from 0.10 on twice "
        "`max_num_seqs` but at most 512",
        "token",
        "padding of a step, and which steps have no graph",
        most=MOST_TOKENS,
    )
    cudagraph_mode: str | None = setting(
        None,
        "what is captured: " + ", ".join(f"`{mode}`" for mode in GRAPHS) + "; default: by version",
        "",
        "padding of a step, and which steps have no graph",
        choices=GRAPHS,
    )
    enforce_eager: bool = setting(
        False, "no CUDA graphs: `cudagraph_mode: none`; kernels are counted as compiled", "", "no step has a graph"
    )
    async_scheduling: bool | None = setting(
        None, "schedule a step while the one before runs; read by programs; default: by version"
    )
    stream_interval: int = setting(
        1, "tokens of an answer that are sent together, after the first; read by programs", "token", most=MOST_TOKENS
    )
    allreduce_rms_fusion: bool | None = setting(
        None, "all-reduce and norm in one kernel; read by programs; default: by version and GPU"
    )
    speculative_method: str | None = setting(
        None,
        "drafter of speculative decoding: "
        + ", ".join(f"`{name}`" for name in METHODS)
        + "; see Speculative decoding in docs/concepts.md",
        "",
        "kernels and memory of the draft",
        choices=METHODS,
    )
    num_speculative_tokens: int = setting(
        0,
        "tokens drafted for each decode of a step, K; 0: no speculative decoding",
        "token",
        "a decode is computed K + 1 tokens wide",
        least=0,
        most=MOST_DRAFTS,
    )
    speculative_acceptance: float | None = setting(
        None,
        "accepted share of the drafted tokens, vLLM's draft acceptance rate; has to be given, or an E2E measured with "
        "it, from which `evolve predict` finds it",
        "share",
        "a decode emits 1 + acceptance x K tokens in a step on average",
        least=0,
    )
    draft_model: str | None = setting(
        None, "known model that drafts with `speculative_method: draft_model`", "", "kernels and memory of the draft"
    )
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    @property
    def offloads(self) -> bool:
        """True if KV blocks are kept in host memory, replayed or not."""
        return self.kv_cpu_offload or bool(self.kv_offloading_size)

    @property
    def gpus(self) -> int:
        """The GPUs of the deployment."""
        return self.tensor_parallel * self.data_parallel * self.pipeline_parallel

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
    if kind is float and key == "speculative_acceptance":
        return e.number(key, "give a share, as 0.7", least=0, most=1)
    if kind is float:
        remedy = "give a fraction of the GPU's memory, as 0.9" if declared.unit == "share" else f"give {declared.unit}"
        least = {"above": 0.0} if declared.least else {"least": 0.0}
        return e.number(key, remedy, most=declared.most, **least)
    value = e.name(key)
    if not declared.choices:
        return value
    if value.lower() not in declared.choices:
        raise e.error(key, f"must be one of {', '.join(declared.choices)}, got {shown(value)}", "choose one")
    return value.lower()


def unsplit_tokens(longest: int) -> int:
    """vLLM's default for max_num_batched_tokens, in tokens, without chunked prefill: a step has room for the `longest`
    request, which is max_model_len (vllm/engine/arg_utils.py)."""
    return max(longest, STANDARD.max_num_batched_tokens)

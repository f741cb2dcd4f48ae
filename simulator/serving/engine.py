"""The serving engine's settings, under vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from simulator.common.json import JsonObject

Setting = bool | int | float | str  # the value of a setting


@dataclass(frozen=True, slots=True)
class Engine:
    """The settings that were given, and vLLM's defaults for the others, in the order of an experiments file.

    `max_model_len` (tokens) None is the model's own limit, `total_kv_blocks` None is computed from memory.
    `max_num_batched_tokens` and `long_prefill_token_threshold` are tokens per step (threshold 0: none), `block_size` is
    tokens per KV block. `given` names the settings that were given.
    """

    name: str = "vllm"
    version: str | None = None
    tensor_parallel: int = 1
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    chunked_prefill: bool = True
    prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    kv_cpu_offload: bool = False
    total_kv_blocks: int | None = None
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def to_entry(self) -> JsonObject:
        """The settings that were given or are no defaults, as an experiments file has them."""
        values = {name: getattr(self, name) for name in SETTINGS}
        return {name: value for name, value in values.items() if name in self.given or value != getattr(STANDARD, name)}


SETTINGS = tuple(f.name for f in fields(Engine) if f.name != "given")
STANDARD = Engine()  # vLLM's defaults


def unsplit_tokens(longest: int) -> int:
    """vLLM's default for max_num_batched_tokens, in tokens, without chunked prefill: a step has room for the `longest`
    request, which is max_model_len (vllm/engine/arg_utils.py)."""
    return max(longest, STANDARD.max_num_batched_tokens)

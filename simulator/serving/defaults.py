"""vLLM's defaults of the settings that its versions changed, for the OpenAI server on NVIDIA GPUs.

Learned from vLLM's source and the pull requests named below; a version is the first release that has the change.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from simulator.model.draft import NGRAM
from simulator.serving.engine import Engine, Setting
from simulator.serving.gpu import Gpu

Version = tuple[int, int, int]

SHIPPED: Version = (0, 15, 1)  # of the runs that ship: its defaults hold where no version is given
BATCH_LIMITS = ("max_num_seqs", "max_num_batched_tokens")  # without a version `Engine` has their defaults
LARGE_GIB = 70.0  # memory of a GPU, as CUDA reports it, from which vLLM takes larger batches
_ARGS, _CONFIG, _COMPILATION = "vllm/engine/arg_utils.py", "vllm/config/vllm.py", "vllm/config/compilation.py"


def _named(gpu: Gpu, *names: str) -> bool:
    return any(name in gpu.name.lower() for name in names)


def _hopper(gpu: Gpu) -> bool:
    return _named(gpu, "h100", "h200")


def is_blackwell(gpu: Gpu) -> bool:
    """True for those of data centres, compute capability 10."""
    return _named(gpu, "b200", "b300")


def _large(gpu: Gpu) -> bool:
    return (gpu.usable_gib or 0.0) >= LARGE_GIB


def _large_but_a100(gpu: Gpu) -> bool:
    return _large(gpu) and not _named(gpu, "a100")


def _fusing(gpu: Gpu) -> bool:
    return _hopper(gpu) or is_blackwell(gpu)


@dataclass(frozen=True, slots=True)
class Default:
    """A default from one version to the next change.

    there: the value on the GPUs `on`, None if all have the same. source: the file of vLLM, and the pull request.
    """

    setting: str
    since: Version
    value: Setting
    source: str
    pull: int | None = None
    there: Setting | None = None
    on: Callable[[Gpu], bool] = _hopper

    def of(self, gpu: Gpu) -> Setting:
        return self.value if self.there is None or not self.on(gpu) else self.there


DEFAULTS = (
    Default("max_num_seqs", (0, 8, 0), 256, _ARGS, 12369, there=1024, on=_hopper),
    Default("max_num_seqs", (0, 8, 5), 256, _ARGS, 17073, there=1024, on=_large),
    Default("max_num_seqs", (0, 9, 0), 256, _ARGS, 17885, there=1024, on=_large_but_a100),
    Default("max_num_batched_tokens", (0, 8, 0), 2048, _ARGS, 12369, there=8192, on=_hopper),
    Default("max_num_batched_tokens", (0, 8, 5), 2048, _ARGS, 17073, there=8192, on=_large),
    Default("max_num_batched_tokens", (0, 9, 0), 2048, _ARGS, 17885, there=8192, on=_large_but_a100),
    Default("max_num_batched_tokens", (0, 28, 0), 2048, _ARGS, 51726, there=16384, on=_large_but_a100),
    # From 0.10 on the most that twice max_num_seqs may reach.
    Default("cudagraph_capture_max", (0, 8, 0), 512, _CONFIG),
    Default("cudagraph_capture_max", (0, 10, 0), 512, _CONFIG, 20628),
    Default("cudagraph_capture_max", (0, 28, 0), 512, _CONFIG, 49390, there=1024, on=is_blackwell),
    Default("cudagraph_mode", (0, 8, 0), "piecewise", _COMPILATION),
    Default("cudagraph_mode", (0, 11, 0), "full_and_piecewise", _COMPILATION, 25444),
    Default("async_scheduling", (0, 8, 0), False, _CONFIG),
    Default("async_scheduling", (0, 14, 0), True, _CONFIG, 27614),
    Default("allreduce_rms_fusion", (0, 8, 0), False, _CONFIG),
    Default("allreduce_rms_fusion", (0, 17, 0), False, _CONFIG, 34299, there=True, on=_fusing),
)
KEYS = tuple(dict.fromkeys(default.setting for default in DEFAULTS))
CACHE_SINCE: dict[str, Version] = {"modelopt": (0, 14, 0), "compressed-tensors": (0, 15, 0)}
"""By a checkpoint's quantization method, since when `kv_cache_dtype: auto` is the type of KV cache that it asks for.

vllm/engine/arg_utils.py (30785), vllm/attention/layer.py (30141).
"""
TWICE_SINCE: Version = (0, 10, 0)  # the largest captured graph has at most twice the tokens of max_num_seqs decodes


def version_of(engine: Engine) -> Version | None:
    """The version of vLLM; None if it is not given, is no release, or is older than the table."""
    found = (
        re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?![\d])", engine.version or "") if engine.name.lower() == "vllm" else None
    )
    if found is None:
        return None
    major, minor, patch = found.groups(default="0")
    version = int(major), int(minor), int(patch)
    return version if version >= DEFAULTS[0].since else None


def default_of(setting: str, version: Version) -> Default:
    """The default of a setting of KEYS in a version."""
    return max((d for d in DEFAULTS if d.setting == setting and d.since <= version), key=lambda d: d.since)


def settled(engine: Engine, gpu: Gpu) -> Engine:
    """The engine with the defaults of its version on this GPU in place of the settings that were not given.

    Without a version the limits of the batch stay as they are, and the others are those of `SHIPPED`.
    """
    given, version = engine.to_entry(), version_of(engine)
    asked = [key for key in KEYS if key not in given and (version or key not in BATCH_LIMITS)]
    values = {key: default_of(key, version or SHIPPED).of(gpu) for key in asked}
    engine = replace(engine, **values)  # type: ignore[arg-type]
    if engine.speculative_method == NGRAM and "async_scheduling" in values:  # vllm/config/vllm.py, as the next
        engine = replace(engine, async_scheduling=False)
    if "cudagraph_capture_max" in values and (version or SHIPPED) >= TWICE_SINCE:
        most = 2 * engine.max_num_seqs * (1 + engine.num_speculative_tokens)
        return replace(engine, cudagraph_capture_max=min(most, int(values["cudagraph_capture_max"])))
    if engine.cudagraph_capture_max is not None and "cudagraph_capture_max" in given:
        return replace(engine, cudagraph_capture_max=captured(engine.cudagraph_capture_max))
    return engine


def captured(most: int) -> int:
    """The largest captured size, in tokens, of at most `most`: of 1, 2, 4, multiples of 8 to 256, of 16 above."""
    if most < 8:
        return 4 if most >= 4 else min(most, 2)
    step = 8 if most < 256 else 16
    return most // step * step


def by_version(engine: Engine, gpu: Gpu) -> list[str]:
    """The settings, besides the limits of the batch, whose default in the engine's version is not that of `SHIPPED`."""
    own = settled(engine, gpu)
    limits = {key: getattr(own, key) for key in BATCH_LIMITS}
    shipped = settled(replace(engine, version=None, **limits), gpu)
    return [key for key in KEYS if getattr(own, key) != getattr(shipped, key)]


# The host's part of a step. A captured step is never faster than the host can issue it: Qwen3 of 0.6 and 1.7 billion
# parameters take 4.2 to 4.6 ms a token alone on an A100, by public reports; the shortest step of public runs on newer
# GPUs is 2.96 ms. Without asynchronous scheduling the GPU waits while the host schedules: 0.34 ms, by which
# engines before 0.14 were longer in the same runs. Priors, and chosen with these runs in sight.
ISSUE_US, ISSUE_EARLIER_US = 2500.0, 4200.0
SCHEDULE_US = 340.0


# One direction of the link between a GPU and the memory of its host, GB/s. 50 is what vLLM measured in either direction
# alone on an H100, PCIe 5 x16 of nominally 64 (blog.vllm.ai, "Inside vLLM's new KV offloading connector", January 2026;
# both at once 83 together). Others are that share of their nominal rates: PCIe 4 x16 of 32, NVLink-C2C of 450. Priors.
HOST_LINK, HOST_LINK_PCIE4, HOST_LINK_C2C = 50.0, 25.0, 350.0


def host_link_gb_per_s(gpu: Gpu) -> float:
    """The rate of a GPU's link to host memory in one direction, in GB/s, if it is not given."""
    if _named(gpu, "a100", "l40s"):
        return HOST_LINK_PCIE4
    return HOST_LINK_C2C if _named(gpu, "gb200", "gb300") else HOST_LINK


def issue_us(gpu: Gpu) -> float:
    """The time that the host needs to issue a captured step, in us."""
    return ISSUE_EARLIER_US if _named(gpu, "a100", "l40s") else ISSUE_US


def facts_of_engine(engine: Engine) -> dict[str, float]:
    """The `s.` fields of a step's launches and of the ranks, of an engine that is `settled`."""
    mode = "none" if engine.enforce_eager else engine.cudagraph_mode
    fused = bool(engine.allreduce_rms_fusion) and engine.tensor_parallel > 1 and not engine.enforce_eager
    return {
        "dp": float(engine.data_parallel),
        "ep": float(engine.expert_parallel),
        "is_spread": float(engine.expert_parallel > 1),
        "pp": float(engine.pipeline_parallel),
        "gpus": float(engine.gpus),
        "draft_tokens": float(engine.num_speculative_tokens),
        "cudagraph_capture_max": float(engine.cudagraph_capture_max or 0),
        "graph_decode": float(mode != "none"),
        "graph_mixed": float(mode not in ("none", "full_decode_only")),
        "graph_piecewise": float(mode == "piecewise"),
        "async_scheduling": float(bool(engine.async_scheduling)),
        "schedule_us": 0.0 if engine.async_scheduling else SCHEDULE_US,
        "stream_interval": float(engine.stream_interval),
        "allreduce_rms_fusion": float(fused),
    }

"""The static side of a deployment: the `s.` fields that a program may read, from model, GPU and engine.

Every field is a float. The formulas count matrices only: norms, biases, routers and vision towers are left out, and
attention is counted by its four projections even where a model compresses them (MLA).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from simulator.common.documents import shipped
from simulator.common.errors import Section
from simulator.kernels.curves import Deployed
from simulator.kernels.roofline import Gpu
from simulator.kernels.sampler import Sampling
from simulator.model.architecture import Architecture, architecture, flat_config
from simulator.model.omissions import affecting, omissions
from simulator.serving.experiment import Engine
from simulator.serving.facts import Facts
from simulator.serving.hardware import OWN
from simulator.serving.host_form import host_form
from simulator.serving.keys import FREE
from simulator.serving.limits import GPU, MOST_BLOCKS, MOST_GIB

GIB = 2.0**30

# What a rank needs in addition to weights and KV cache: CUDA context, NCCL buffers, peak activations while profiling.
# Calibrated, not derived: this value explains both known capacities (see kv_blocks).
RESERVED_GIB = 0.8


def deployment_facts(config: Mapping[str, Any], hardware: Mapping[str, Any], engine: Engine, where: str) -> Facts:
    """Every static `s.` field except `reference_step_us`, which depends on the program.

    `config` is in config.json terms and may have `generation_config` and `_name_or_path`; `hardware` has the keys of an
    entry of configs/hardware.yaml. Units are us, bytes, FLOPs and tokens, per GPU where tensor parallelism splits.
    Raises InputError for a missing or impossible key, and if `tensor_parallel` does not divide the heads.
    """
    a = architecture(config, where)
    e = Section(where, "engine", {"tensor_parallel": engine.tensor_parallel})
    tp = engine.tensor_parallel
    if a.heads % tp or (a.kv_heads % tp and tp % a.kv_heads):
        raise e.error(
            "tensor_parallel",
            f"must divide the model's {a.heads} attention heads and fit its {a.kv_heads} KV heads, got {tp}",
            "choose a number of GPUs that splits the heads evenly",
        )
    gpu = Section(where, "hardware", hardware)
    flops_per_us, bytes_per_us, link_bytes_per_us = _peaks(gpu, a, tp)
    longest = max_model_len(a, engine, where)
    n = _parameters(a)
    weight_bytes = a.weight_bits / 8
    kv_heads_per_gpu = max(a.kv_heads / tp, 1.0)
    kv_bytes_per_token = 2 * a.layers * kv_heads_per_gpu * a.head_dim * a.kv_bytes
    if a.mla_width:
        kv_bytes_per_token = float(a.layers * a.mla_width * a.kv_bytes)
    shared_weights_us = (n.unrouted * weight_bytes / tp + a.vocab * a.hidden * 2 / tp) / bytes_per_us
    experts_us = n.routed * weight_bytes / tp / bytes_per_us
    logits_us_per_row = 2 * a.hidden * a.vocab / tp / flops_per_us + a.vocab * 4 * 2 / bytes_per_us
    allreduce_us_per_token = 0.0
    if tp > 1:
        allreduce_us_per_token = 2 * a.layers * a.hidden * 2 * 2 * (tp - 1) / tp / link_bytes_per_us

    blocks = engine.total_kv_blocks
    if blocks is None:
        extra = _extra_weights_gib(Section(where, "model_config", config))
        held = ((n.unrouted + n.routed) * weight_bytes + n.tables * 2 + extra * GIB) / tp
        blocks = kv_blocks(gpu, engine, held, kv_bytes_per_token)
    sampling = sampling_of(config, where)
    host_peak = flops_per_us
    if a.weight_bits == 8 and not a.is_fp8 and gpu.has("fp8_tflops"):  # the host takes 8 bits of any kind for fp8
        host_peak = _figure(gpu, "fp8_tflops", "give TFLOP/s") * 1e6
    facts = {
        "layers": a.layers,
        "dense_layers": a.layers - a.moe_layers,
        "moe_layers": a.moe_layers,
        "hidden": a.hidden,
        "heads": a.heads,
        "kv_heads": a.kv_heads,
        "kv_heads_per_gpu": kv_heads_per_gpu,
        "head_dim": a.head_dim,
        "ffn": a.ffn,
        "moe_ffn": a.moe_ffn,
        "vocab": a.vocab,
        "experts": a.experts,
        "active_experts": a.active,
        "tp": tp,
        "tp_log2": math.log2(tp),
        "is_moe": a.moe_layers > 0,
        "is_fp8": a.is_fp8,
        "sampling_sort": sampling.sorts,
        "repetition_penalty": sampling.penalises,
        "kv_blocks": blocks,
        "kv_cpu_offload": engine.kv_cpu_offload,
        "model_params_b": (n.unrouted + n.routed + n.tables) / 1e9,
        "active_params_b": (n.active + n.tables) / 1e9,
        "max_num_seqs": engine.max_num_seqs,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_model_len": longest,
        "block_size": engine.block_size,
        "flops_per_us": flops_per_us,
        "bytes_per_us": bytes_per_us,
        "link_bytes_per_us": link_bytes_per_us,
        "kv_bytes_per_token": kv_bytes_per_token,
        "shared_weights_us": shared_weights_us,
        "experts_us": experts_us,
        "weights_us": shared_weights_us + experts_us,
        "kv_us_per_token": kv_bytes_per_token / bytes_per_us,
        "gemm_us_per_token": 2 * n.active / tp / flops_per_us,
        "attention_us_per_pair": 4 * a.heads / tp * a.head_dim * a.layers / flops_per_us,
        "logits_us_per_row": logits_us_per_row,
        "allreduce_us_per_token": allreduce_us_per_token,
        **host_form(a, Section(where, "model_config", flat_config(config)), tp, host_peak, bytes_per_us),
    }
    deployed, scaled = None, ""
    if not gpu.has("kernels"):
        scaled = _scaled(gpu, bytes_per_us)
    else:
        deployed = Deployed(a, _kernels_of(gpu, bytes_per_us, link_bytes_per_us), tp, sampling)
    left_out = affecting(omissions(config, where, FREE), longest)
    fields = {name: float(value) for name, value in facts.items()}
    return Facts(fields, deployed, left_out, a.mla_width > 0, where, scaled)


def _peaks(gpu: Section, a: Architecture, tp: int) -> tuple[float, float, float]:
    """(FLOPs, bytes of memory, bytes of the link to other GPUs) in a us at the peak of a datasheet."""
    peak = "fp8_tflops" if a.is_fp8 and gpu.has("fp8_tflops") else "bf16_tflops"
    flops_per_us = _figure(gpu, peak, "give the dense peak in TFLOP/s") * 1e6
    bytes_per_us = _figure(gpu, "memory_tb_per_s", "give the memory bandwidth in TB/s") * 1e6
    link_bytes_per_us = 0.0  # a single GPU needs no link
    if tp > 1 or gpu.has("link_gb_per_s"):
        link_bytes_per_us = _figure(gpu, "link_gb_per_s", "give the link's GB/s in one direction") * 1e3
    return flops_per_us, bytes_per_us, link_bytes_per_us


class _Parameters(NamedTuple):
    """The parameters of a model: `routed` in the experts among which tokens are routed, `unrouted` in the other weights
    of its layers, `active` for a single token in the layers, and `tables` in embedding and lm_head."""

    unrouted: int
    routed: int
    active: int
    tables: int


def _parameters(a: Architecture) -> _Parameters:
    attention = a.hidden * a.heads * a.head_dim * 2 + 2 * a.hidden * a.kv_heads * a.head_dim
    shared = a.moe_layers * a.mlp_matrices * a.hidden * a.shared_ffn
    unrouted = a.layers * attention + (a.layers - a.moe_layers) * a.mlp_matrices * a.hidden * a.ffn + shared
    expert = a.moe_layers * a.mlp_matrices * a.hidden * a.moe_ffn  # one expert, over all layers
    routed = a.moe_layers * a.experts * a.mlp_matrices * a.hidden * a.moe_ffn
    tables = a.vocab * a.hidden * (1 if a.tied else 2)  # a single table if tied
    return _Parameters(unrouted, routed, unrouted + expert * a.active, tables)


def _extra_weights_gib(given: Section) -> float:
    """What the user says that weights take besides those of the architecture."""
    if not given.has("extra_weights_gib"):
        return 0.0
    return given.number("extra_weights_gib", "give GiB, or leave it out", least=0.0, most=MOST_GIB)


def max_model_len(a: Architecture, engine: Engine, where: str) -> int:
    """The most tokens of prompt and answer: the engine's setting, else the model's own. InputError if there is none."""
    longest = engine.max_model_len or a.longest
    if not longest:
        problem = "is missing and model_config has no max_position_embeddings"
        raise Section(where, "engine", {}).error("max_model_len", problem, "give one of them")
    return longest


def _figure(gpu: Section, key: str, remedy: str) -> float:
    """A figure of a datasheet. Raises InputError for one that no GPU has."""
    least, most = GPU[key]
    return gpu.number(key, remedy, above=0, least=least, most=most)


def _kernels_of(gpu: Section, bytes_per_us: float, link_bytes_per_us: float) -> Gpu:
    """The GPU, with the one on which its kernels were measured if that is another one, with other peaks.

    By its name it is the same, whatever its figures: then the measurements are its own, and stay what they are.
    """
    own = _gpu(gpu, bytes_per_us, link_bytes_per_us)
    names, timed_on = _measured_on(own.tables)
    if timed_on is None or (gpu.has("name") and gpu.text("name") in names):
        return own
    if not link_bytes_per_us:  # a single GPU, whose link is not given
        timed_on = replace(timed_on, link_bytes=0.0)
    return own if timed_on == own else replace(own, timed_on=timed_on)


def _scaled(gpu: Section, bytes_per_us: float) -> str:
    """A GPU without kernels as a line of an experiments file, with those of the GPU whose peaks are nearest to its; ""
    without a peak for 16 bits."""
    if not gpu.has("bf16_tflops"):
        return ""

    def farness(entry: Mapping[str, Any]) -> float:
        ours = _figure(gpu, "bf16_tflops", "give TFLOP/s"), bytes_per_us / 1e6
        theirs = entry["bf16_tflops"], entry["memory_tb_per_s"]
        return sum(abs(math.log(a / b)) for a, b in zip(ours, theirs, strict=True))

    near = min((entry for entry in shipped("hardware.yaml")["hardware"] if entry.get("kernels")), key=farness)
    given = {key: gpu.raw[key] for key in OWN if key != "aliases" and gpu.has(key)} | {"kernels": near["kernels"]}
    return f"hardware: {{{', '.join(f'{key}: {json.dumps(value, default=str)}' for key, value in given.items())}}}"


def _gpu(gpu: Section, bytes_per_us: float, link_bytes_per_us: float) -> Gpu:
    fp8 = _figure(gpu, "fp8_tflops", "give TFLOP/s") * 1e6 if gpu.has("fp8_tflops") else None
    bf16 = _figure(gpu, "bf16_tflops", "give TFLOP/s") * 1e6
    return Gpu(gpu.text("kernels"), bf16, fp8, bytes_per_us, link_bytes_per_us)


@cache
def _measured_on(tables: str) -> tuple[frozenset[str], Gpu | None]:
    """The GPU of configs/hardware.yaml that these kernels were measured on, with its names; None if there is none."""
    for entry in shipped("hardware.yaml")["hardware"]:
        if entry.get("kernels") == tables:
            gpu = Section("configs/hardware.yaml", str(entry["name"]), entry)
            peaks = _gpu(gpu, gpu.number("memory_tb_per_s", "") * 1e6, gpu.number("link_gb_per_s", "") * 1e3)
            return frozenset((entry["name"], *entry.get("aliases", ()))), peaks
    return frozenset(), None


def kv_blocks(gpu: Section, engine: Engine, held: float, kv_bytes_per_token: float) -> int:
    """The number of KV blocks that fit on a GPU together with its `held` bytes of weights.

        floor(((gpu_memory_utilization * usable_gib - RESERVED_GIB) * 2**30 - held)
              / (block_size * kv_bytes_per_token)) - 1

    The budget is vLLM's (vllm/v1/worker/gpu_worker.py: requested share of total memory, less weights, peak activations
    and non-torch memory). The block subtracted is the null block that its pool sets aside. RESERVED_GIB covers
    activations and non-torch memory: 0.8 GiB gives 31,357 blocks for Llama-2-70B on 4 H100, where the engine had
    31,356, and 26,604 for CodeLlama-34B on 2, where it had 26,602. It was calibrated on these two, the only known
    capacities. Other models, GPUs and step budgets may be off by a few percent, so give total_kv_blocks if the engine's
    log is available. Raises InputError if nothing fits.
    """
    usable = _figure(gpu, "usable_gib", "give memory_gb, or engine.total_kv_blocks")
    free = (engine.gpu_memory_utilization * usable - RESERVED_GIB) * GIB - held
    blocks = math.floor(free / (engine.block_size * kv_bytes_per_token)) - 1
    if blocks < 1:
        problem = f"leaves no room for KV cache, {held / GIB:.1f} GiB of weights per GPU of {usable:g} GiB"
        raise Section(gpu.where, "engine", {}).error("tensor_parallel", problem, "use more or larger GPUs")
    if blocks > MOST_BLOCKS:
        problem = f"is {usable:g} GiB, room for {blocks:.3g} KV blocks, at most {MOST_BLOCKS:.0e} are replayed"
        raise gpu.error("usable_gib", problem, "correct memory_gb or model_config")
    return blocks


def sampling_of(config: Mapping[str, Any], where: str) -> Sampling:
    """The sampling that generation_config asks of the engine by default."""
    g = Section(where, "model_config", config)
    if not g.has("generation_config"):
        return Sampling()
    g = g.section("generation_config", "give a mapping, {} for none")
    settings = {
        key: g.number(key, "copy it from the model's generation_config.json") if g.has(key) else default
        for key, default in (("top_p", 1.0), ("top_k", 0.0), ("repetition_penalty", 1.0))
    }
    return Sampling(settings["top_p"] < 1 or settings["top_k"] > 0, settings["repetition_penalty"] != 1)

"""The static side of a deployment: the `s.` fields that a program may read, from model, GPU and engine.

Every field is a float. The formulas count matrices only: norms, biases, routers and vision towers are left out.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from simulator.common.errors import Section
from simulator.kernels.curves import Deployed
from simulator.kernels.matrices import UNIFORM
from simulator.kernels.roofline import KernelGpu
from simulator.model.architecture import Architecture
from simulator.model.draft import OWN_LAYERS
from simulator.model.formats import FP8_BLOCK, IN_16, Formats
from simulator.model.omissions import KV_IN_16, WITH_MTP, affecting
from simulator.model.quantization import cache_asked_by
from simulator.model.terms import REMEDY, flat_config
from simulator.serving.defaults import (
    CACHE_SINCE,
    SHIPPED,
    facts_of_engine,
    is_blackwell,
    issue_us,
    settled,
    version_of,
)
from simulator.serving.engine import KV_CACHE_BYTES, STANDARD, WEIGHTS, Engine
from simulator.serving.facts import Facts
from simulator.serving.gpu import Gpu, gpu_names, measured_gpus
from simulator.serving.limits import MOST_BLOCKS
from simulator.serving.model import Model
from simulator.serving.speculation import drafted

GIB = 2.0**30

# Memory of a rank besides weights and KV cache: CUDA context, NCCL buffers, peak activations while profiling.
# Calibrated, not derived: this value explains both known capacities (see kv_blocks).
RESERVED_GIB = 0.8
HOST_KV_BYTES = 2  # of an element of the KV cache, as the host counts
HOST_ACTIVATION_BYTES = 2
WINDOWS_MOST = 8.0 * GIB  # bytes set aside for windows; more is counted by the token
FEW_BITS = 8.0  # of a weight with its share of the scales; types of 4 bits have at most 5
BLOCK = 128  # rows and columns of a block of weights in fp8 (vllm/model_executor/layers/quantization/fp8.py)
INTERLEAVE = "interleave_moe_layer_step"


def deployment_facts(model: Model, gpu: Gpu, engine: Engine, where: str) -> Facts:
    """Every static `s.` field except `reference_step_us`, which depends on the program.

    Units are us, bytes, FLOPs and tokens, per GPU where tensor parallelism splits. Raises InputError, which begins with
    `where`, for a missing figure, for a `tensor_parallel` that does not divide the heads, and without room for weights.
    """
    engine = settled(engine, gpu)
    a, tp = served(model, engine, where), engine.tensor_parallel
    _check_parallelism(a, engine, where)
    draft = drafted(model, a, engine, where)
    own = draft.architecture if draft else None
    for of in (*a.attention, *(own.attention if own else ())):
        if of.heads % tp or (of.kv_heads % tp and tp % of.kv_heads and not of.latent):
            raise Section(where, "engine", {}).error(
                "tensor_parallel",
                f"must divide the model's {of.heads} attention heads and fit its {of.kv_heads} KV heads, got {tp}",
                "choose a number of GPUs that splits the heads evenly",
            )
    flops_per_us, bytes_per_us, link_bytes_per_us = _peaks(gpu, a, tp, where)
    longest = max_model_len(a, engine, where)
    n = _parameters(a)
    kv_heads_per_gpu = max(a.kv_heads / tp, 1.0)
    kv_bytes_per_token, reserved = _cache(a, tp, engine.max_num_seqs, longest)
    unrouted_bytes = n.unrouted_bytes(a.formats)
    routed_bytes = n.routed_bytes(a.formats, engine.data_parallel)
    shared_weights_us = (unrouted_bytes / tp + a.vocab * a.hidden * 2 / tp) / bytes_per_us
    experts_us = routed_bytes / tp / bytes_per_us
    gemm_flops, pair_flops, blocks_reduced = 2 * n.active / tp, _pair_flops(a, tp), a.blocks
    kv_read_bytes = kv_bytes_per_token
    reserved += engine.num_speculative_tokens * engine.max_num_seqs * a.state_bytes / tp  # a state for each position
    if draft and own:  # the first pass has all tokens of the step, and every pass reads weights and KV cache
        drafting = _parameters(own)
        once_bytes = drafting.unrouted_bytes(own.formats) + (draft.joined * own.hidden + own.vocab) * own.hidden * 2
        shared_weights_us += draft.tokens * once_bytes / tp / bytes_per_us
        experts_us += draft.tokens * drafting.routed_bytes(own.formats, engine.data_parallel) / tp / bytes_per_us
        gemm_flops += 2 * (drafting.active + draft.joined * own.hidden**2) / tp
        pair_flops += _pair_flops(own, tp)
        blocks_reduced += own.blocks
        pass_bytes, pass_reserved = _cache(own, tp, engine.max_num_seqs, longest)
        reserved += pass_reserved
        kv_read_bytes += draft.tokens * pass_bytes
        kv_bytes_per_token += draft.modules * pass_bytes
    logits_us_per_row = 2 * a.hidden * a.vocab / tp / flops_per_us + a.vocab * 4 * 2 / bytes_per_us
    allreduce_us_per_token = 0.0
    if tp > 1:
        allreduce_us_per_token = blocks_reduced * a.hidden * 2 * 2 * (tp - 1) / tp / link_bytes_per_us

    blocks = engine.total_kv_blocks
    if blocks is None:
        stages = engine.pipeline_parallel  # each holds its share of the layers, and their KV cache
        held = weights_bytes(model, a, engine) + reserved / stages
        blocks = kv_blocks(gpu, engine, held, kv_bytes_per_token / stages, where)
    host_peak = flops_per_us
    if a.weights.name == "int8" and gpu.fp8_tflops:  # the host takes 8 bits of any kind for fp8
        host_peak = gpu.fp8_tflops * 1e6
    facts = {
        "layers": a.layers,
        "dense_layers": a.dense_layers,
        "moe_layers": a.moe_layers,
        "hidden": a.hidden,
        "heads": a.heads,
        "kv_heads": a.kv_heads,
        "kv_heads_per_gpu": kv_heads_per_gpu,
        "head_dim": a.head_dim,
        "window": max((of.window for of in a.attention), default=0),
        "ffn": a.ffn,
        "moe_ffn": a.moe_ffn,
        "vocab": a.vocab,
        "experts": a.experts,
        "active_experts": a.active,
        "tp": tp,
        "tp_log2": math.log2(tp),
        "is_moe": a.moe_layers > 0,
        "is_fp8": a.is_fp8,
        "is_4bit": a.weights.bits < FEW_BITS,
        "is_widened": a.weights.bits < FEW_BITS and (a.weights.name.startswith("int") or not gpu.fp4_tflops),
        "is_blackwell": is_blackwell(gpu),
        "sampling_sort": model.sampling.sorts,
        "repetition_penalty": model.sampling.penalises,
        "kv_blocks": blocks,
        "kv_cpu_offload": engine.offloads,
        "model_params_b": (n.unrouted + n.routed + n.tables) / 1e9,
        "active_params_b": (n.active + n.tables) / 1e9,
        "max_num_seqs": engine.max_num_seqs,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_model_len": longest,
        "block_size": engine.block_size,
        **facts_of_engine(engine),
        "issue_us": issue_us(gpu),
        "flops_per_us": flops_per_us,
        "bytes_per_us": bytes_per_us,
        "link_bytes_per_us": link_bytes_per_us,
        "kv_bytes_per_token": kv_bytes_per_token,
        "shared_weights_us": shared_weights_us,
        "experts_us": experts_us,
        "weights_us": shared_weights_us + experts_us,
        "kv_us_per_token": kv_read_bytes / bytes_per_us,
        "gemm_us_per_token": gemm_flops / flops_per_us,
        "attention_us_per_pair": pair_flops / flops_per_us,
        "logits_us_per_row": logits_us_per_row,
        "allreduce_us_per_token": allreduce_us_per_token,
        **_host_form(a, Section(where, "model_config", flat_config(model.config)), tp, host_peak, bytes_per_us),
    }
    deployed, scaled = None, ""
    if gpu.kernels:
        deployed = Deployed(
            a,
            _kernels_of(gpu, bytes_per_us, link_bytes_per_us, where),
            tp,
            model.sampling,
            *_ranks(engine),
            draft=draft,
        )
    else:
        scaled = _scaled(gpu, bytes_per_us)
    fields = {name: float(value) for name, value in facts.items()}
    omitted = [o for o in model.omitted if o != KV_IN_16 or KV_CACHE_BYTES[engine.kv_cache_dtype] is None]
    if draft and engine.speculative_method == OWN_LAYERS:
        omitted = [o for o in omitted if WITH_MTP not in o.text]
    return Facts(fields, deployed, affecting(tuple(omitted), longest), a.is_latent, where, scaled)


def weights_bytes(model: Model, a: Architecture, engine: Engine) -> float:
    """Memory of the weights on each GPU, those of the draft included; `a` as `served`."""
    n = _parameters(a)
    every = n.unrouted_bytes(a.formats) + n.routed_bytes(a.formats, engine.data_parallel) + n.tables * 2
    draft = drafted(model, a, engine, "")
    if draft and draft.architecture:
        own = draft.architecture
        of = _parameters(own)
        module = of.unrouted_bytes(own.formats) + of.routed_bytes(own.formats, engine.data_parallel)
        every += draft.modules * (module + draft.joined * own.hidden**2 * 2)
        every += draft.tables * own.vocab * own.hidden * 2
    return (every + model.extra_weights_gib * GIB) / engine.tensor_parallel / engine.pipeline_parallel


def _cache(a: Architecture, tp: int, requests: int, longest: int) -> tuple[float, float]:
    """Bytes of a token in a GPU's KV cache, and bytes that are set aside for `requests`.

    Set aside are the states of recurrent layers, and the windows of sliding layers where these take less than a share
    of every token would, for a longest request each. The engine gives both out as they are needed.
    """
    whole, windowed, windows = 0.0, 0.0, 0.0
    for of in a.attention:
        layers_bytes = of.layers * of.cached(tp) * a.kv_bytes
        if of.window and len(a.attention) > 1:
            windowed += layers_bytes
            windows += layers_bytes * min(of.window, longest)
        else:
            whole += layers_bytes
    states = requests * a.state_bytes / tp
    if windowed and requests * windows < WINDOWS_MOST:
        return whole, states + requests * windows
    return whole + windowed, states


def _pair_flops(a: Architecture, tp: int) -> float:
    """FLOPs of attention for a token pair on a GPU, as if no layer had a window."""
    return sum(2 * of.heads / tp * (of.head_dim + of.value_dim) * of.layers for of in a.attention)


def served(model: Model, engine: Engine, where: str) -> Architecture:
    """The architecture with the types of weights and KV cache that the engine makes of the checkpoint.

    Raises InputError, which begins with `where`, if it is to quantize a checkpoint that is quantized otherwise.
    """
    a, kv_bytes = model.architecture, KV_CACHE_BYTES[engine.kv_cache_dtype]
    if kv_bytes is None:
        asker = cache_asked_by(Section(where, "model_config", flat_config(model.config)))
        heeded = not asker or (version_of(engine) or SHIPPED) >= CACHE_SINCE[asker]
        kv_bytes = a.kv_bytes if heeded else 2
    a = replace(a, kv_bytes=kv_bytes)
    wanted = WEIGHTS[engine.quantization] if engine.quantization else a.weights
    if a.formats == IN_16:
        return replace(a, formats=Formats.all(wanted))
    if a.weights.name == wanted.name or (a.is_fp8 and wanted.is_fp8):
        return a
    problem = f"is {wanted.name}, but the weights of {model.called} are stored in {a.weights.name}"
    remedy = "leave it out, give a model of 16 bits, or add such a checkpoint: evolve model add"
    raise Section(where, "engine", {}).error("quantization", problem, remedy)


def _ranks(engine: Engine) -> tuple[int, int, int, str]:
    return engine.data_parallel, engine.expert_parallel, engine.pipeline_parallel, engine.expert_routing


def _check_parallelism(a: Architecture, engine: Engine, where: str) -> None:
    """Raise InputError for degrees that vLLM has not."""
    e = Section(where, "engine", {})
    every, ep = engine.tensor_parallel * engine.data_parallel, engine.expert_parallel
    if ep not in (1, every):
        problem = f"must be 1 or tensor_parallel x data_parallel, {every}, got {ep}"
        raise e.error("expert_parallel", problem, f"give {every}: vLLM spreads experts over all GPUs or none")
    if ep > 1 and not a.experts:
        raise e.error("expert_parallel", f"is {ep}, and the model has no routed experts", "leave it out")
    width, odd = divmod(a.moe_ffn, every) if ep == 1 else (0, 0)
    if a.formats.experts.name == FP8_BLOCK.name and (odd or width % BLOCK):
        problem = f"splits experts {a.moe_ffn} wide in blocks of {BLOCK} weights among {every} GPUs, which vLLM refuses"
        raise e.error("tensor_parallel", problem, f"give engine.expert_parallel: {every}, or fewer GPUs")
    if engine.expert_routing != UNIFORM and not a.experts:
        problem = f"is {engine.expert_routing}, and the model has no routed experts"
        raise e.error("expert_routing", problem, "leave it out")
    if engine.pipeline_parallel > 1 and engine.num_speculative_tokens:
        problem = f"is {engine.pipeline_parallel}, and drafts are made on one stage alone, which is not modelled"
        raise e.error("pipeline_parallel", problem, "leave out num_speculative_tokens, or give tensor_parallel")
    if engine.pipeline_parallel > a.layers:
        problem = f"is {engine.pipeline_parallel}, and the model has {a.layers} layers"
        raise e.error("pipeline_parallel", problem, "give at most as many stages")


def _peaks(gpu: Gpu, a: Architecture, tp: int, where: str) -> tuple[float, float, float]:
    """(FLOPs, bytes of memory, bytes of the link to other GPUs) in a us at the peak of a datasheet."""
    peak = "fp8_tflops" if a.is_fp8 and gpu.fp8_tflops else "bf16_tflops"
    flops_per_us = gpu.figure(peak, where, "give the dense peak in TFLOP/s") * 1e6
    bytes_per_us = gpu.figure("memory_tb_per_s", where, "give the memory bandwidth in TB/s") * 1e6
    link_bytes_per_us = 0.0  # a single GPU needs no link
    if tp > 1 or gpu.link_gb_per_s:
        link_bytes_per_us = gpu.figure("link_gb_per_s", where, "give the link's GB/s in one direction") * 1e3
    return flops_per_us, bytes_per_us, link_bytes_per_us


class _Parameters(NamedTuple):
    """The parameters of a model: in attention, dense feed-forward blocks and shared experts of its layers, `routed` in
    the experts among which tokens are routed, `active` for a single token in the layers, `tables` in embedding and
    lm_head."""

    attention: int
    dense: int
    shared: int
    routed: int
    active: int
    tables: int

    @property
    def unrouted(self) -> int:
        return self.attention + self.dense + self.shared

    def unrouted_bytes(self, formats: Formats) -> float:
        """Memory of the weights of all layers but the routed experts."""
        parts = (self.attention, formats.attention), (self.dense, formats.dense), (self.shared, formats.shared)
        return sum(count * stored.bytes for count, stored in parts)

    def routed_bytes(self, formats: Formats, ranks: int) -> float:
        """Memory of the routed experts of a data-parallel rank: all ranks share them."""
        return self.routed * formats.experts.bytes / ranks


def _parameters(a: Architecture) -> _Parameters:
    attention = a.mixing_parameters
    dense = a.dense_layers * a.mlp_matrices * a.hidden * a.ffn
    narrow = 2 * a.hidden * a.expert_hidden  # into and out of the width of experts that have one of their own
    shared = a.moe_layers * (a.mlp_matrices * a.hidden * a.shared_ffn + narrow)
    expert = a.moe_layers * a.mlp_matrices * (a.expert_hidden or a.hidden) * a.moe_ffn  # one expert, over all layers
    routed = a.experts * expert
    tables = a.vocab * a.hidden * (1 if a.tied else 2)  # a single table if tied
    active = attention + dense + shared + expert * a.active
    return _Parameters(attention, dense, shared, routed, active, tables)


def max_model_len(a: Architecture, engine: Engine, where: str) -> int:
    """The most tokens of prompt and answer: the engine's setting, else the model's own. InputError if there is none."""
    longest = engine.max_model_len or a.longest
    if not longest:
        problem = "is missing and model_config has no max_position_embeddings"
        raise Section(where, "engine", {}).error("max_model_len", problem, "give one of them")
    return longest


def _kernels_of(gpu: Gpu, bytes_per_us: float, link_bytes_per_us: float, where: str) -> KernelGpu:
    """The GPU, with the one on which its kernels were measured if that is another one, with other peaks.

    A GPU of the same name is the same, whatever its figures: then the measurements are its own, and not scaled.
    """
    own = _kernel_gpu(gpu, bytes_per_us, link_bytes_per_us, where)
    names, timed_on = _measured_on(own.tables)
    if timed_on is None or gpu.name in names:
        return own
    if not link_bytes_per_us:  # a single GPU, whose link is not given
        timed_on = replace(timed_on, link_bytes=0.0)
    return own if timed_on == own else replace(own, timed_on=timed_on)


def _scaled(gpu: Gpu, bytes_per_us: float) -> str:
    """A GPU without kernels as a line of an experiments file, with the kernels of the GPU with the nearest peaks; ""
    without a peak for 16 bits."""
    if gpu.bf16_tflops is None:
        return ""
    ours = gpu.bf16_tflops, bytes_per_us / 1e6

    def distance(other: Gpu) -> float:
        theirs = other.bf16_tflops or 1.0, other.memory_tb_per_s or 1.0
        return sum(abs(math.log(a / b)) for a, b in zip(ours, theirs, strict=True))

    figures = replace(gpu, kernels=min(measured_gpus(), key=distance).kernels).figures()
    return f"hardware: {{{', '.join(f'{key}: {json.dumps(value)}' for key, value in figures.items())}}}"


def _kernel_gpu(gpu: Gpu, bytes_per_us: float, link_bytes_per_us: float, where: str) -> KernelGpu:
    fp8 = gpu.fp8_tflops * 1e6 if gpu.fp8_tflops else None
    bf16 = gpu.figure("bf16_tflops", where, "give TFLOP/s") * 1e6
    fp4 = gpu.fp4_tflops * 1e6 if gpu.fp4_tflops else None
    return KernelGpu(gpu.kernels, bf16, fp8, bytes_per_us, link_bytes_per_us, fp4_flops=fp4)


@cache
def _measured_on(tables: str) -> tuple[frozenset[str], KernelGpu | None]:
    """The GPU of configs/hardware.yaml that these kernels were measured on, with its names; None if there is none."""
    for gpu in measured_gpus():
        if gpu.kernels == tables:
            peaks = (gpu.memory_tb_per_s or 0.0) * 1e6, (gpu.link_gb_per_s or 0.0) * 1e3
            return frozenset((gpu.name, *gpu_names(gpu.name))), _kernel_gpu(gpu, *peaks, "configs/hardware.yaml")
    return frozenset(), None


def kv_blocks(gpu: Gpu, engine: Engine, held: float, kv_bytes_per_token: float, where: str) -> int:
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
    usable = gpu.figure("usable_gib", where, "give memory_gb, or engine.total_kv_blocks")

    def room(utilization: float) -> int:
        free = (utilization * usable - RESERVED_GIB) * GIB - held
        return math.floor(free / (engine.block_size * kv_bytes_per_token)) - 1

    blocks = room(engine.gpu_memory_utilization)
    if blocks < 1:
        share = f"{engine.gpu_memory_utilization:g} of {usable:g} GiB"
        problem = (
            f"leaves no room for KV cache, {held / GIB:.1f} GiB of weights and states per GPU, which may use {share}"
        )
        key, remedy = "tensor_parallel", "use more or larger GPUs"
        if engine.data_parallel > 1:
            remedy += ", or fewer ranks: each has all weights but those of experts"
        if room(STANDARD.gpu_memory_utilization) >= 1:
            key, remedy = "gpu_memory_utilization", f"give more, as {STANDARD.gpu_memory_utilization:g}"
        raise Section(where, "engine", {}).error(key, problem, remedy)
    if blocks > MOST_BLOCKS:
        problem = f"is {usable:g} GiB, room for {blocks:.3g} KV blocks, at most {MOST_BLOCKS:.0e} are replayed"
        raise Section(where, "hardware", {}).error("usable_gib", problem, "correct memory_gb or model_config")
    return blocks


def _host_form(a: Architecture, c: Section, tp: int, flops_per_us: float, bytes_per_us: float) -> dict[str, float]:
    """The static `s.host_*` fields of a model on `tp` GPUs, counted as the host's trained-physics form counts them.

    The form (dense models and mixtures of experts, without data parallelism) is in the host's sim/latency. Its facts
    differ from the other fields where the host reads or counts otherwise:

    - a head is `hidden / heads` wide, whatever `head_dim` says
    - with `interleave_moe_layer_step` N, one layer in N + 1 has experts, and the others are dense; else all have them
    - Llama 4's shared experts are not read
    - a feed-forward block has three matrices, and all of a model's weights have the type of the quantized ones
    - the all-reduce goes over memory bandwidth

    `c` has the terms of its config.json. `flops_per_us` is the peak that the host takes: the one for fp8 where weights
    have a byte each and the GPU has one, else that of bf16.
    """
    moe_layers, dense_layers = _host_layers(a, c)
    kv = a.kv_heads * (a.hidden // a.heads)
    projections = a.layers * a.hidden * (2 * a.hidden + 2 * kv)
    matrix = 3 * a.hidden  # a feed-forward block's weights for each unit of its width
    shared_ffn = 0 if c.has(INTERLEAVE) else a.shared_ffn
    dense = dense_layers * matrix * a.ffn + moe_layers * matrix * shared_ffn
    expert = moe_layers * matrix * a.moe_ffn
    weight_bytes = a.weight_bits / 8
    units = 2 * a.layers  # all-reduces: after attention, and after the feed-forward block of either kind
    return {
        "host_gemm_us_per_token": 2 * (projections + dense + expert * a.active) / tp / flops_per_us,
        "host_attention_us_per_pair": a.layers * 4 * (a.heads / tp) * (a.hidden // a.heads) / flops_per_us,
        "host_kv_us_per_token": a.layers * 2 * (kv / tp) * HOST_KV_BYTES / bytes_per_us,
        "host_weights_us": (projections + dense + expert * a.experts) * weight_bytes / tp / bytes_per_us,
        "host_allreduce_us_per_token": units * a.hidden * HOST_ACTIVATION_BYTES * 2 * ((tp - 1) / tp) / bytes_per_us,
        "host_interleaved_moe_layers": moe_layers if c.has(INTERLEAVE) else 0,
    }


def _host_layers(a: Architecture, c: Section) -> tuple[int, int]:
    """The numbers of layers with routed experts and of dense ones, as the host counts them."""
    if not a.experts:
        return 0, a.layers
    step = c.whole(INTERLEAVE, REMEDY, least=0) if c.has(INTERLEAVE) else 0
    moe_layers = a.layers // (step + 1) if step else a.layers
    return moe_layers, a.layers - moe_layers

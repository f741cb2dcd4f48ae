"""A GPU of a deployment as the newest host's kernel describes it: memory, links, and the settings of its engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from simulator.common.errors import InputError
from simulator.kernels.allreduce import NO_NVLINK
from simulator.serving.defaults import host_link_gb_per_s
from simulator.serving.deployment import served, weights_bytes
from simulator.serving.engine import Engine
from simulator.serving.gpu import Gpu
from simulator.serving.model import Model
from simulator.serving.pools import NODE


@dataclass(frozen=True, slots=True)
class Source:
    """What a deployment is made of."""

    model: Model
    gpu: Gpu
    engine: Engine


@dataclass(frozen=True, slots=True)
class Rank:
    """A GPU of a deployment. Memory is in bytes, rates are in bytes a us, 0 where not known.

    usable: memory that the engine may share out. weights: those of the draft included. other: what weights and KV
    blocks leave of the engine's share: activations, CUDA context, buffers, recurrent states and windows of
    `max_num_seqs` requests, the null block. block_bytes: its part of a KV block of `block` tokens. token_bytes: the
    same of a token, unrounded. link: to the other GPUs of its node, in one direction. host_link, host_least_us: to the
    host's memory, and the least time of a transfer. custom_reduce: True if the engine's own kernel reduces.
    """

    usable: int
    weights: int
    other: int
    block_bytes: int
    block: int
    blocks: int
    token_bytes: float
    link: float
    host_link: float
    host_least_us: int
    custom_reduce: bool
    nodes: int

    @property
    def fixed(self) -> int:
        """Memory that holds no KV block."""
        return self.weights + self.other


def rank_of(source: Source, facts: Mapping[str, float], where: str) -> Rank:
    """A GPU of the deployment with these facts.

    The host counts KV blocks as (memory x gpu_memory_utilization - fixed) / block_bytes, in whole bytes. `other` makes
    that the deployment's own number, whether it was computed from memory or given. Raises InputError, which begins with
    `where`, without the GPU's memory, and if these blocks leave no room for the weights.
    """
    gpu, engine = source.gpu, source.engine
    usable = int(gpu.figure("usable_gib", where, "give memory_gb") * 2**30)
    stages = engine.pipeline_parallel
    token_bytes = facts["kv_bytes_per_token"] / stages
    block_bytes, blocks = math.ceil(engine.block_size * token_bytes), int(facts["kv_blocks"])
    weights = math.ceil(weights_bytes(source.model, served(source.model, engine, where), engine))
    other = int(usable * engine.gpu_memory_utilization) - blocks * block_bytes - weights
    if other < 0:
        beyond = f"{blocks} KV blocks and the weights need {-other / 2**30:.2f} GiB more than the engine may use"
        raise InputError(f"{where}: {beyond}. Correct total_kv_blocks, extra_weights_gib or the GPU's usable_gib.")
    link, tp = (gpu.link_gb_per_s or 0.0) * 1e3, engine.tensor_parallel
    return Rank(
        usable=usable,
        weights=weights,
        other=other,
        block_bytes=block_bytes,
        block=engine.block_size,
        blocks=blocks,
        token_bytes=token_bytes,
        link=link,
        host_link=(engine.kv_offload_gb_per_s or host_link_gb_per_s(gpu)) * 1e3,
        host_least_us=engine.kv_offload_latency_us,
        custom_reduce=link >= NO_NVLINK or tp <= 2,
        nodes=-(-engine.gpus // NODE),
    )

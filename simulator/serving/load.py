"""A load ready for the clock: requests, engine limits, and what follows from both for any program."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from simulator.common.streams import stream
from simulator.serving.engine import Engine
from simulator.serving.experiment import Experiment
from simulator.serving.requests import THINKING, requests, requests_of
from simulator.serving.speculation import check_acceptance
from simulator.serving.trace import Chains, Requests, again
from simulator.serving.workload import DUE, HOST, Workload, phases

NEVER = np.iinfo(np.int64).max  # a time that never comes


@dataclass(frozen=True)
class TierLimits:
    """Host memory that keeps KV blocks: KV offload, see clock/tier.py."""

    blocks: int  # KV blocks of a rank
    block_us: float  # of a transfer in either direction, for each block
    least_us: int  # of a transfer
    prompt_only: bool = True  # blocks of answers are not stored


@dataclass(frozen=True)
class EngineLimits:
    """The limits of the engine.

    Without chunked prefill a step must have room for the longest prompt, or that prompt would wait for ever: ValueError
    if `budget` is below `max_model_len`, or if there is no such limit. A tier needs prefix caching: ValueError.
    """

    max_seqs: int  # requests in a batch
    budget: int  # tokens in a step
    threshold: int  # prompt tokens of a request in a step, 0 for no limit
    block: int  # tokens in a KV block
    blocks: int  # KV blocks
    caching: bool = True  # prefix caching
    max_model_len: int = 0  # tokens of prompt and output, 0 for no limit
    horizon_us: int = int(NEVER)
    chunked: bool = True  # chunked prefill
    ranks: int = 1  # data parallelism: the limits are those of each rank
    together: bool = False  # all ranks step together, as those of a mixture of experts
    stages: int = 1  # pipeline parallelism: as many batches in flight share the limits of a rank
    interval: int = 1  # ranks that step together compute prompts in every so many steps
    tier: TierLimits | None = None  # KV offload
    ahead: bool = False  # a step is composed as the one before begins (clock/exact.py); the host never does so
    drafts: int = 0  # tokens that speculative decoding drafts for a decode in a step
    acceptance: float = 0.0  # the share of these that are accepted
    busy: bool = False  # until the end of a step in which all requests end; the host is idle from its beginning on

    @property
    def lanes(self) -> int:
        """The batches in flight."""
        return self.ranks * self.stages

    def __post_init__(self) -> None:
        if not self.chunked and not 0 < self.max_model_len <= self.budget:
            raise ValueError(f"without chunked prefill, {self.budget} tokens in a step are too few for any prompt")
        if self.tier and not self.caching:
            raise ValueError("KV offload is not replayed without prefix caching")


@dataclass(frozen=True)
class Clients:
    """Clients that wait for the answer to a request before they send the next one; times in microseconds.

    A stage's clients send its requests in order, each when one is free and the request is due. Stages follow each
    other: one begins when all requests of the one before have ended. `at_engine`: a client is free at the engine's
    completion, and is gone once it gives up or is refused, as in the host; else at the last token that it sees.
    """

    first: np.ndarray  # int64[stages + 1]: the first request of each stage, and the number of requests
    users: np.ndarray  # int64[stages]: clients
    spread_us: np.ndarray  # int64[stages]: over which they begin, evenly
    think_us: np.ndarray  # int64[requests]: from the k-th end of a request until its client is free
    at_engine: bool = False
    capped: bool = False  # requests are due at their times, and held back while all clients wait
    from_due: bool = False  # then latencies and patience count from when a request is due, not from when it is sent


@dataclass(frozen=True)
class PoolLimits:
    """Pools of instances (simulator.serving.pools), each instance with a pool's limits; None: there is no such pool.

    A transfer takes `bytes_per_token` for every token of a prompt's blocks at `bytes_per_us`, and at least `least_us`.
    `where` begins errors.
    """

    prefill: EngineLimits | None
    decode: EngineLimits | None
    instances: tuple[int, int]  # of prefill and of decode
    bytes_per_token: float = 0.0
    bytes_per_us: float = float("inf")
    least_us: float = 0.0
    where: str = ""


@dataclass(frozen=True)
class Load:
    """Requests under limits. Arrays are per request, in order of arrival.

    With `clients`, `requests.arrival_us` is when each is due; when it is sent follows from what ends before it. With
    `pools`, `limits` are those of an instance that decodes, or of one that prefills if none decodes. Of several
    `replicas`, which take turns, they are those of each.
    """

    requests: Requests
    limits: EngineLimits
    clients: Clients | None = None
    pools: PoolLimits | None = None
    replicas: int = 1

    @property
    def lanes(self) -> int:
        """The batches in flight, of all replicas."""
        return self.limits.lanes * self.replicas

    @property
    def prompt_limits(self) -> EngineLimits:
        """The limits under which prompts are computed."""
        return self.pools.prefill if self.pools and self.pools.prefill else self.limits

    @cached_property
    def accepted(self) -> np.ndarray:
        """bool: requests that the host does not drop when they are queued (blis-des-semantics 3.1).

        It drops those too long for the model, and prompts larger than the whole KV cache. An output length of 0 asks
        for as many tokens as the model allows.
        """
        r, most = self.requests, self.limits.max_model_len
        fits: np.ndarray = -(-r.input_len // self.limits.block) <= self.limits.blocks // self.limits.stages
        if most > 0:
            fits &= (r.input_len < most) & (r.input_len + r.output_len.astype(np.int64) <= most)
        if self.prompt_limits is not self.limits:
            fits &= Load(r, self.prompt_limits).accepted
        return fits

    @cached_property
    def all_accepted(self) -> bool:
        return bool(self.accepted.all())

    @cached_property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """The distinct prompt lengths in tokens, and the index of each request's length among them."""
        lengths, which = np.unique(self.requests.input_len, return_inverse=True)
        return lengths, which.astype(np.int32)

    @cached_property
    def shared_blocks(self) -> np.ndarray:
        """int32: whole KV blocks of the prefix that the request shares with its group."""
        r = self.requests
        shared: np.ndarray = np.where(r.group >= 0, np.minimum(r.shared_len, r.input_len), 0).astype(np.int32)
        blocks: np.ndarray = shared // np.int32(self.limits.block)
        return blocks

    @cached_property
    def prompt_blocks(self) -> np.ndarray:
        """int32: whole KV blocks of the prompt, which are those that can be found in the cache."""
        blocks: np.ndarray = self.requests.input_len // np.int32(self.limits.block)
        return blocks

    @cached_property
    def turns(self) -> bool:
        """True if answers are found in the cache, as a later prompt of their text has them."""
        r = self.requests
        return r.turns and self.limits.caching and self.chains is None and self.prompts > 0

    @cached_property
    def text_blocks(self) -> np.ndarray:
        """int32: whole KV blocks of the request that can be found: those of its prompt, and of its answer as many as
        the longest prompt of its text has that is not refused."""
        r = self.requests
        if not self.turns:
            return self.prompt_blocks
        known, own = r.prompt >= 0, self.prompt_blocks - self.shared_blocks
        sent, longest = known & self.accepted, np.zeros(self.prompts, np.int32)
        np.maximum.at(longest, r.prompt[sent], own[sent])
        whole = (r.input_len.astype(np.int64) + r.output_len) // self.limits.block
        blocks = np.minimum(whole, self.shared_blocks + longest[r.prompt])
        return np.where(known, blocks, self.prompt_blocks).astype(np.int32)

    @cached_property
    def all_blocks(self) -> np.ndarray:
        """int32: KV blocks of prompt and output together, when all tokens are stored."""
        r = self.requests
        blocks: np.ndarray = (r.input_len.astype(np.int64) + r.output_len - 1) // self.limits.block + 1
        return blocks.astype(np.int32)

    @cached_property
    def chains(self) -> Chains | None:
        """The pieces of the prompts; None if prompt and group say it, or without caching."""
        return self.requests.chains if self.limits.caching else None

    @cached_property
    def columns(self) -> tuple[np.ndarray, ...]:
        """The columns of clock.queue.Queue from `input_len` to `deadline_us`."""
        r = self.requests
        prompt, group, shared = r.prompt, r.group, self.shared_blocks
        if not self.limits.caching:  # no two prompts share anything
            prompt = group = np.full(len(r), -1, np.int32)
            shared = np.zeros(len(r), np.int32)
        blocks = self.prompt_blocks, self.text_blocks, self.all_blocks
        return r.input_len, r.output_len, prompt, group, shared, *blocks, r.deadline_us

    @cached_property
    def longest_output(self) -> int:
        return int(self.requests.output_len.max(initial=1))

    @cached_property
    def ample(self) -> bool:
        """True if the KV cache holds every block ever written: nothing is evicted and no allocation fails."""
        return self.written <= self.limits.blocks // self.limits.stages

    @cached_property
    def written(self) -> int:
        """KV blocks of all requests together, as if none were found in the cache."""
        return int(self.all_blocks.sum(dtype=np.int64))

    @cached_property
    def regular(self) -> bool:
        """True if a group always shares the same length, and a prompt always has the same group and length.

        The fast clock relies on it.
        """
        r = self.requests
        if self.chains:
            return False
        return _same(r.group, r.shared_len) and _same(r.prompt, r.group) and _same(r.prompt, r.input_len)

    @cached_property
    def roomy(self) -> bool:
        """True if, served in order of arrival, no cached block is evicted between two uses and no allocation fails.

        A released block is taken once those before it in the free list are gone. When it is released, at most max_seqs
        requests hold blocks. Until the next use of the same content, only these requests and those between the two uses
        take or claim blocks. So (2 max_seqs + requests between two uses) times the most blocks of a request are enough.
        A prompt that is cached whole claims no blocks, so they are not renewed: then this proves nothing.
        """
        r = self.requests
        again = (r.prompt >= 0) | (r.group >= 0)
        if not self.regular or (again & (r.input_len % self.limits.block == 0)).any():
            return False
        between = max(_longest_gap(r.prompt), _longest_gap(r.group))
        return (2 * self.limits.max_seqs + between) * int(self.all_blocks.max(initial=0)) <= self.limits.blocks

    @cached_property
    def patient(self) -> bool:
        """True if no client gives up."""
        return not self.requests.deadline_us.any()

    @cached_property
    def prompts(self) -> int:
        """The number of distinct prompts, without those of a single request."""
        return int(self.requests.prompt.max(initial=-1)) + 1

    @cached_property
    def groups(self) -> int:
        """The number of groups of requests that share a prefix."""
        return int(self.requests.group.max(initial=-1)) + 1


def _same(key: np.ndarray, value: np.ndarray) -> bool:
    """True if `value` is a function of `key` where key >= 0."""
    keys, values = key[key >= 0], value[key >= 0]
    if not len(keys):
        return True
    seen = np.zeros(int(keys.max()) + 1, values.dtype)
    seen[keys] = values
    return bool((seen[keys] == values).all())


def _longest_gap(key: np.ndarray) -> int:
    """The largest distance in rows between a key >= 0 and its next occurrence."""
    later, before = again(key)
    return int((later - before).max(initial=0))


def load_of(experiment: Experiment, seed: int, host_rules: bool = False) -> Load:
    """The experiment's requests with arrival seed `seed` under its engine's limits; `host_rules`: as the host has
    them."""
    sent, pools = requests(experiment, seed), pool_limits(experiment)
    if pools and not pools.decode:  # the host's prefill pool is asked for no tokens
        sent = replace(sent, output_len=np.zeros_like(sent.output_len))
    clients = _clients(experiment.workload, experiment.id, len(sent), seed)
    return Load(sent, limits_of(experiment, host_rules), clients, pools, experiment.replicas)


def load_under(workload: Workload, name: str, seed: int, limits: EngineLimits, replicas: int) -> Load:
    """A load that has no experiment under an engine's limits; `name` stands for the experiment's id."""
    sent = requests_of(workload, name, seed)
    return Load(sent, limits, _clients(workload, name, len(sent), seed), replicas=replicas)


def _clients(workload: Workload, name: str, count: int, seed: int) -> Clients | None:
    """What sends the `count` requests of a load if not the clock alone."""
    of = workload.clients
    if of is None:
        return None
    if not workload.closed:
        none = np.zeros(count, np.int64)
        users = np.array([of.max_in_flight])
        rules = of.release == HOST, True, of.measured_from == DUE
        return Clients(np.array([0, count]), users, none[:1], none, *rules)
    stages = phases(workload)
    ends = np.cumsum([round(stage.offered) for stage in stages])
    ends[-1] = count  # of a trace, whose requests may be more than those that count
    rng = stream(seed, zlib.crc32(name.encode()), THINKING)
    think = (of.think_time_s.draw(rng, count) * 1e6).astype(np.int64)
    spread_s = of.ramp_s or ((of.think_time_s.fixed or 0.0) if of.release == HOST else 0.0)
    return Clients(
        first=np.array([0, *ends]),
        users=np.array([stage.users for stage in stages]),
        spread_us=np.full(len(stages), int(spread_s * 1e6)),
        think_us=think,
        at_engine=of.release == HOST,
    )


def tier_limits(engine: Engine, facts: Mapping[str, float]) -> TierLimits | None:
    """The host memory of a rank, if it is given. Every GPU keeps its own part of a block there
    (vllm/v1/kv_offload/cpu/spec.py): all parts share the memory, and go over the GPUs' own links at once."""
    if not engine.kv_offloading_size or not engine.kv_offload_gb_per_s:
        return None
    block_bytes = facts["kv_bytes_per_token"] * engine.block_size  # of a tensor-parallel GPU, all stages together
    blocks = int(engine.kv_offloading_size * 2**30 // (block_bytes * engine.tensor_parallel))
    block_us = block_bytes / engine.pipeline_parallel / (engine.kv_offload_gb_per_s * 1e3)
    return TierLimits(blocks, block_us, engine.kv_offload_latency_us, engine.offload_prompt_only)


def limits_of(experiment: Experiment, host_rules: bool = False) -> EngineLimits:
    """The limits of the experiment's engine, the same ones for any load; `host_rules`: the host composes every step as
    it begins, and so do the instances of pools here."""
    check_acceptance(experiment.engine, f"experiment {experiment.id!r}")
    return _limits(experiment.engine, experiment.facts, host_rules or experiment.pools is not None)


def pool_limits(experiment: Experiment) -> PoolLimits | None:
    """The limits of the experiment's pools; None if one engine does all.

    A transfer is as long as that of the GPU, of either pool, that has the most bytes of a token: each sends or receives
    its part over a link of its own.
    """
    pools, facts = experiment.pools, experiment.facts
    if pools is None:
        return None
    own = limits_of(experiment)
    counts = pools.instances
    if pools.prefill is None or pools.decode is None or facts.prefill is None:
        alone = None if pools.decode else replace(own, busy=True)
        return PoolLimits(alone, own if pools.decode else None, counts, where=facts.where)
    engines = (pools.prefill.engine, facts.prefill), (pools.decode.engine, facts)
    return PoolLimits(
        prefill=replace(_limits(*engines[0], host_rules=True), busy=True),
        decode=own,
        instances=counts,
        bytes_per_token=max(f["kv_bytes_per_token"] / engine.pipeline_parallel for engine, f in engines),
        bytes_per_us=(pools.link_gb_per_s or 0.0) * 1e3,
        least_us=pools.latency_us,
        where=facts.where,
    )


def _limits(engine: Engine, facts: Mapping[str, float], host_rules: bool) -> EngineLimits:
    return EngineLimits(
        max_seqs=engine.max_num_seqs,
        budget=engine.max_num_batched_tokens,
        threshold=engine.long_prefill_token_threshold,
        block=engine.block_size,
        blocks=int(facts["kv_blocks"]),
        caching=engine.prefix_caching,
        max_model_len=int(facts["max_model_len"]),
        chunked=engine.chunked_prefill,
        ranks=engine.data_parallel,
        together=bool(facts["is_moe"]) and engine.data_parallel > 1,
        stages=engine.pipeline_parallel,
        interval=engine.prefill_schedule_interval,
        tier=tier_limits(engine, facts),
        ahead=bool(facts["async_scheduling"]) and engine.pipeline_parallel == 1 and not host_rules,
        drafts=engine.num_speculative_tokens,
        acceptance=engine.speculative_acceptance or 0.0,
    )

"""One serving experiment: a deployment that an engine can run, its facts, its load, and what was measured.

`deploy` makes it of a Spec. The workload is in seconds and requests per second, observed latencies are milliseconds,
lengths tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from simulator.common.errors import Section
from simulator.common.text import counted
from simulator.kernels.attention import kv_type
from simulator.model.names import note_on_model
from simulator.model.omissions import affecting
from simulator.serving import limits
from simulator.serving.defaults import (
    BATCH_LIMITS,
    by_version,
    default_of,
    host_link_gb_per_s,
    settled,
    version_of,
)
from simulator.serving.deployment import deployment_facts, max_model_len, served
from simulator.serving.engine import KV_CACHE_BYTES, Engine, unsplit_tokens
from simulator.serving.facts import Facts
from simulator.serving.gpu import DEFAULT_MFU, Mfu
from simulator.serving.model import known_models
from simulator.serving.observations import (
    NOT_MEASURED,
    Components,
    Observation,
    Observed,
    doubts,
    filled,
    measured,
    stamped,
)
from simulator.serving.pools import DECODE, NODE, PREFILL, Pool, Pools
from simulator.serving.spec import Spec
from simulator.serving.speculation import check_acceptance
from simulator.serving.trace import Trace
from simulator.serving.workload import Profile, Workload, gaps_of, longest_request, offered_requests, prompt_lengths
from simulator.serving.workload_entry import check_size

ALIKE = (
    "all requests of its clients are alike, so those that begin together end together, and prompts come in bursts, "
    "which raise TTFT: give lengths as they were in an experiments file, such as {uniform: {min: 800, max: 1000}}"
)

TURNS = "{0} replicas behind a router that takes turns: request i, as they are sent, goes to replica i mod {0}"

PIPELINE = (
    "an approximation: the batches in flight share requests and KV blocks evenly, and a step takes equally long in "
    "every stage; sending activations from stage to stage is not counted"
)

DRAFTS = (
    "no measured run with speculative decoding stands behind the corrections of kernels; the host's work between "
    "passes of the draft is not counted, and every step accepts the mean share, so latencies spread more in truth"
)


@dataclass(frozen=True, slots=True)
class Experiment:
    """One run of a load on a deployment."""

    id: str
    model: str  # the Hugging Face id, if the model is known
    hardware: str  # the canonical name of the GPU
    engine: Engine
    workload: Workload
    observed: Observed | None
    quality: str  # CLEAN, OVERLOADED, or what else a user calls a run that is not to be fitted
    facts: Facts  # the static deployment fields (simulator.serving.deployment)
    notes: tuple[str, ...] = field(default=())  # for the reader of the results
    components: Components | None = None  # observed parts of the E2E, if there were request traces
    mfu: Mfu = DEFAULT_MFU
    weight_bits: int = 16  # of a weight of the layers
    spec: Spec | None = field(default=None, compare=False, repr=False)  # its source, if it was made of one
    pools: Pools | None = None  # for prefill and decode; then engine and facts are those of the one that decodes
    replicas: int = 1  # of the engine, which take turns at the requests

    def __hash__(self) -> int:
        """The hash of the id: its facts are a mapping, which has none."""
        return hash(self.id)

    @property
    def gpus(self) -> int:
        """The GPUs of all replicas, or of both pools."""
        return self.pools.gpus if self.pools else self.replicas * self.engine.gpus

    @property
    def simulated(self) -> bool:
        """True if its notes say that the observed times are themselves a simulation's."""
        return any(NOT_MEASURED in note for note in self.notes)

    @property
    def observed_stages(self) -> tuple[Observation, ...]:
        """The observations of each load stage; of a single stage also where only the run has figures. Empty where
        nothing was observed per stage."""
        if self.observed is None:
            return ()
        if self.observed.stages or self.observed.summary is None or len(self.workload.stages) != 1:
            return self.observed.stages
        return (self.observed.summary,)


def simulated(experiments: Iterable[Experiment]) -> tuple[str, ...]:
    """The ids of those whose observed times are themselves a simulation's."""
    return tuple(e.id for e in experiments if e.simulated)


def deploy(spec: Spec) -> Experiment:
    """The experiment that a spec asks for, with the facts of its deployment.

    Raises InputError for what no engine can run; every message begins with `spec.where`.
    """
    if spec.pools:
        return _with_pools(spec, spec.pools)
    model, workload, where = spec.model, spec.workload, spec.where
    engine = _with_room(spec)
    _check_replicas(spec)
    facts = deployment_facts(model, spec.gpu, engine, where)
    _check_offload(where, engine, facts)
    _check_room(where, engine, workload, facts)
    observed = filled(spec.observed, workload) if spec.observed else None
    if spec.observed is None and isinstance(workload.source, Trace):
        observed = measured(workload.source, len(workload.stages))
    if observed is None or observed.summary is None:
        check_acceptance(engine, where)
    return Experiment(
        id=spec.id,
        model=model.name,
        hardware=spec.gpu.name,
        engine=engine,
        workload=workload,
        observed=observed,
        quality=spec.quality,
        facts=facts,
        notes=(
            *(o.text for o in affecting(facts.omitted, longest_request(workload))),
            *_notes_on_load(spec),
            *([TURNS.format(spec.replicas)] if spec.replicas > 1 else ()),
            *doubts(observed, spec.observed, workload),
            *(_assumed(spec, engine) if observed is None else ()),
            *spec.notes,
        ),
        components=spec.components or (stamped(workload.source) if isinstance(workload.source, Trace) else None),
        mfu=spec.gpu.mfu,
        weight_bits=served(model, engine, where).weight_bits,
        spec=spec,
        replicas=spec.replicas,
    )


def _check_replicas(spec: Spec) -> None:
    """Raises InputError for replicas whose clocks would have to run together, and several clocks in each of them."""
    if spec.replicas == 1 or not spec.workload.clients:
        return
    for key in ("data_parallel", "pipeline_parallel"):
        if (count := getattr(spec.engine, key)) > 1:
            client = "concurrency" if spec.workload.closed else "max_in_flight"
            problem = f"is {spec.replicas}, and {key} {count} with {client} is not replayed in several replicas"
            raise Section(spec.where, "", {}).error("replicas", problem, f"give a rate alone, or leave {key} out")


def _with_pools(spec: Spec, pools: Pools) -> Experiment:
    """`deploy` of separate pools. Raises InputError for what is not replayed, and for pools that do not fit."""
    where, workload = spec.where, spec.workload
    if spec.replicas > 1:
        problem = "and separate pools exclude each other"
        raise Section(where, "", {}).error("replicas", problem, "give each pool its instances")
    if workload.clients:
        key = "concurrency" if workload.closed else "max_in_flight"
        problem = "cannot be predicted with separate pools: when a client asks again depends on both"
        raise Section(where, "workload", {}).error(key, problem, "give a rate alone, or leave prefill and decode out")
    ranks = pools.decode.engine.data_parallel * pools.decode.engine.pipeline_parallel if pools.decode else 1
    if ranks > 1:
        problem = f"makes {ranks} schedulers of a decode instance, which are not replayed"
        remedy = "give as many instances, or tensor_parallel"
        key = "data_parallel" if pools.decode and pools.decode.engine.data_parallel > 1 else "pipeline_parallel"
        raise Section(where, "decode.engine", {}).error(key, problem, remedy)
    if pools.decode and pools.decode.engine.num_speculative_tokens:
        problem = "is not replayed in a decode instance, whose prompts come computed"
        raise Section(where, "decode.engine", {}).error("num_speculative_tokens", problem, "leave it out")
    for name, pool in ((PREFILL, pools.prefill), (DECODE, pools.decode)):
        if pool and pool.engine.kv_offloading_size:
            e = Section(where, f"{name}.engine", {})
            raise e.error("kv_offloading_size", "is not replayed in separate pools", "leave it out")
    prefill = deploy(_alone(spec, pools.prefill, PREFILL)) if pools.prefill else None
    decode = deploy(_alone(spec, pools.decode, DECODE)) if pools.decode else None
    main, notes = decode or prefill, []
    assert main, "one pool is given"
    if prefill and decode:
        for key in ("block_size", "kv_cache_dtype"):
            ours, theirs = (getattr(e.engine, key) for e in (prefill, decode))
            if ours != theirs:
                problem = f"differs between prefill, {ours}, and decode, {theirs}"
                raise Section(where, "engine", {}).error(key, problem, "give both the same, as blocks are transferred")
        link = _link(spec, pools)
        pools, main.facts.prefill = replace(pools, link_gb_per_s=link), prefill.facts
        text = "however many transfers there are; requests take turns among the instances of a pool"
        notes.append(f"separate pools: a GPU sends and receives KV blocks at {link:g} GB/s, {text}")
    settled = Pools(
        prefill=replace(pools.prefill, engine=prefill.engine) if pools.prefill and prefill else None,
        decode=replace(pools.decode, engine=decode.engine) if pools.decode and decode else None,
        link_gb_per_s=pools.link_gb_per_s,
        latency_us=pools.latency_us,
    )
    return replace(main, pools=settled, notes=(*notes, *main.notes), spec=spec)


def _alone(spec: Spec, pool: Pool, name: str) -> Spec:
    return replace(spec, engine=pool.engine, pools=None, where=f"{spec.where}: {name}")


def _link(spec: Spec, pools: Pools) -> float:
    """GB/s of the link between pools. Raises InputError if it is not that of one node and not given."""
    if pools.link_gb_per_s is not None:
        return pools.link_gb_per_s
    t = Section(spec.where, "transfer", {})
    remedy = "give a GPU's GB/s in one direction"
    if pools.gpus > NODE:
        raise t.error("link_gb_per_s", f"is missing, and {pools.gpus} GPUs are more than a node's {NODE}", remedy)
    if spec.gpu.link_gb_per_s is None:
        raise t.error("link_gb_per_s", "is missing, and the GPU has none", remedy)
    return spec.gpu.link_gb_per_s


def under(experiment: Experiment, workload: Workload, where: str) -> Experiment:
    """The experiment under another load, without measurements.

    Raises InputError for a load that the engine cannot run; every message begins with `where`.
    """
    check_size(Section(where, "workload", {}), workload)
    _check_room(where, experiment.engine, workload, experiment.facts)
    if experiment.pools and experiment.pools.prefill and experiment.facts.prefill:
        _check_room(where, experiment.pools.prefill.engine, workload, experiment.facts.prefill)
    return replace(experiment, workload=workload, observed=None, components=None, spec=None)


def _with_room(spec: Spec) -> Engine:
    """The engine with the batch limits of its version, with room for whole prompts in a step if it does not split them.

    As in vLLM (vllm/engine/arg_utils.py, vllm/config/scheduler.py): without chunked prefill, max_num_batched_tokens is
    at least max_model_len if it is not given, and must be if it is. Raises InputError otherwise.
    """
    full = settled(spec.engine, spec.gpu)
    engine = replace(spec.engine, **{key: getattr(full, key) for key in BATCH_LIMITS})
    if engine.kv_offloading_size and engine.kv_offload_gb_per_s is None:
        engine = replace(engine, kv_offload_gb_per_s=host_link_gb_per_s(spec.gpu))
    if engine.chunked_prefill:
        return engine
    longest = max_model_len(spec.model.architecture, engine, spec.where)
    if "max_num_batched_tokens" not in engine.given:
        return replace(engine, max_num_batched_tokens=max(engine.max_num_batched_tokens, unsplit_tokens(longest)))
    if engine.max_num_batched_tokens < longest:
        budget = engine.max_num_batched_tokens
        problem = f"must be at least max_model_len, {longest}, with chunked_prefill: false, got {budget}"
        e = Section(spec.where, "engine", {})
        raise e.error("max_num_batched_tokens", problem, "raise it, or lower max_model_len, as vLLM demands")
    return engine


def _check_offload(where: str, engine: Engine, facts: Facts) -> None:
    """Raises InputError for host memory that holds no KV block, or that other settings contradict."""
    size, key, e = engine.kv_offloading_size, "kv_offloading_size", Section(where, "engine", {})
    if not size:
        return
    if "kv_cpu_offload" in engine.given and not engine.kv_cpu_offload:
        raise e.error(key, f"is {size:g}, and kv_cpu_offload is false", "leave one of them out")
    if not engine.prefix_caching:
        problem = f"is {size:g}, and prefix_caching is false: KV offload is not replayed without it"
        raise e.error(key, problem, "leave one of them out")
    least = facts["kv_bytes_per_token"] * engine.block_size * engine.tensor_parallel / 2**30
    if size < least:
        raise e.error(key, f"is {size:g}, and a KV block has {least:.3g} GiB", "give more, or 0 for none")


def _check_room(where: str, engine: Engine, workload: Workload, facts: Facts) -> None:
    """Raises InputError unless the KV cache can hold a request, one that does not fit would be preempted for ever, and
    the sums over a batch stay exact."""
    e = Section(where, "engine", {})
    longest = min(longest_request(workload), int(facts["max_model_len"]))  # a longer one is refused
    together = min(engine.max_num_seqs, round(offered_requests(workload)))
    if together * longest > limits.MOST_CONTEXT:
        tokens = f"{together * longest:.3g} tokens in a batch, at most {limits.MOST_CONTEXT:.0e} are exact"
        problem = f"of {together} requests of {longest} tokens makes {tokens}"
        raise e.error("max_num_seqs", problem, "give fewer or shorter requests")
    room = facts["kv_blocks"] // engine.pipeline_parallel * engine.block_size
    if room < longest - 1:
        problem = f"= {facts['kv_blocks']:.0f} holds {room:.0f} tokens, and one request needs {longest}"
        if engine.total_kv_blocks is None:
            raise e.error(
                "total_kv_blocks", f"computed from memory {problem}", "use more or larger GPUs, or shorter requests"
            )
        raise e.error("total_kv_blocks", problem, "give more blocks or shorter requests")


def _notes_on_load(spec: Spec) -> list[str]:
    """Notes on what the replay assumes or leaves out."""
    model, workload = spec.model, spec.workload
    notes = []
    if isinstance(trace := workload.source, Trace):
        names = model.called, model.name, str(model.config["_name_or_path"])
        if note := note_on_model(trace.file, trace.model, names, known_models()):
            notes.append(note)
        notes += trace.notes
    if not model.sampling_known:
        # A shipped model has one, so without a model_config this is a model of the user's own.
        remedy = "keep the model again with `evolve model add CONFIG --generation-config FILE --replace`"
        if model.given is not None:
            remedy = "give it inside model_config"
        notes.append(f"generation_config is unknown: taken as without top_p, top_k and repetition penalty; {remedy}")
    kv_bytes, tables = served(model, spec.engine, spec.where).kv_bytes, spec.gpu.kernels
    if kv_bytes == 1 and tables and kv_type(tables, "decode_attention", kv_bytes) != "fp8":
        dtype = spec.engine.kv_cache_dtype
        dtype = "fp8, as the checkpoint asks" if KV_CACHE_BYTES[dtype] is None else dtype
        text = "decode attention is measured in 16 bits here and taken as half as long for a token of context"
        notes.append(f"kv_cache_dtype {dtype}: {text}; prompts take as long as in 16 bits")
    match workload.source:
        case Profile(groups=groups, prompt_len_mean=None, session=None, question_len=question):
            if groups > 0 and question.fixed is not None:
                notes.append("prompt length taken as system_prompt_len + question_len")
    if (stages := spec.engine.pipeline_parallel) > 1:
        notes.append(f"pipeline_parallel {stages}: {PIPELINE}")
    if spec.engine.kv_offloading_size and spec.engine.kv_offload_gb_per_s is None:
        rate = f"kv_offload_gb_per_s {host_link_gb_per_s(spec.gpu):g} is assumed for {spec.gpu.name}"
        notes.append(f"{rate}, as a share of the link's nominal rate: give it if it was measured")
    if drafts := spec.engine.num_speculative_tokens:
        notes.append(f"{spec.engine.speculative_method}, {counted(drafts, 'drafted token')} a step: {DRAFTS}")
    if workload.closed and max(s.users or 1 for s in workload.stages) > 1 and _alike(workload):
        notes.append(ALIKE)
    if not workload.ignore_eos:
        notes.append("ignore_eos: false is not replayed: every request generates output_len tokens")
    return notes


def _alike(workload: Workload) -> bool:
    """True if all requests have the same lengths."""
    lengths = prompt_lengths(workload)
    return gaps_of(workload) is not None and bool((lengths == lengths[0]).all())


def _assumed(spec: Spec, engine: Engine) -> list[str]:
    """A note on the defaults that a plan rests on: the limits of the batch, which decide when a queue grows, and what
    the engine's version changed."""
    version, full = version_of(spec.engine), settled(engine, spec.gpu)
    changed = [*(key for key in BATCH_LIMITS if key not in engine.given), *by_version(spec.engine, spec.gpu)]
    if not changed:
        return []
    why = "vLLM's own defaults depend on its version and on the GPU"
    if version:
        files = dict.fromkeys(default_of(key, version).source for key in changed)
        why = f"defaults of vLLM {engine.version} on this GPU, from {', '.join(files)}"
    values = ", ".join(f"{key} {str(getattr(full, key)).lower()}" for key in changed)
    return [f"assumed, as `engine` does not say: {values} ({why})"]

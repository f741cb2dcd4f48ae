"""The host's documents as experiments: a scenario with its deployment, under a closed load.

What a key means is in the host's schemas (blis-schemas, spec/). A key that changes latencies and is not replayed is an
error, whatever the host makes of it. Keys of the host's own cost model, such as `coefficients`, change nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evolve.run.program import Source
from simulator.clock.bind import bind
from simulator.clock.replay import Replay, replay_bound
from simulator.clock.run import NeverEnds
from simulator.common.documents import parse_documents, read_bytes
from simulator.common.errors import InputError, Section, nearest, nearest_listed, shown, unreadable
from simulator.common.json import JsonObject
from simulator.language.opcodes import assemble
from simulator.model.formats import FP8, FP8_BLOCK, MXFP4, NVFP4, Format
from simulator.model.quantization import CONFIGS, LISTS, is_quantized, quantization, quantized
from simulator.model.terms import flat_config
from simulator.serving.defaults import version_of
from simulator.serving.engine import WEIGHTS, Engine
from simulator.serving.experiment import Experiment, deploy
from simulator.serving.gpu import hardware_table
from simulator.serving.known import read_config
from simulator.serving.load import load_of
from simulator.serving.model import known_models
from simulator.serving.spec import NOTE, read_spec
from simulator.serving.traces.workload_spec import read_workload_spec
from simulator.serving.workload import Profile, Workload

SCENARIO = ("kind", "name", "model", "coefficients", "workload", "engine_version", "cluster")
CLUSTER = ("hardware", "fabric", "nodes", "gpus_per_node", "gpus_per_rack", "storage")
DEPLOYMENT = ("kind", "name", "pools", "offload", "pd_transfer")
POOL = ("role", "nodes", "parallel", "engine")
DEGREES = {"tp": "tensor_parallel", "pp": "pipeline_parallel", "dp": "data_parallel"}
SETTINGS = {
    "block_size": "block_size",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "max_model_len": "max_model_len",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "enable_prefix_caching": "prefix_caching",
    "async_scheduling": "async_scheduling",
    "cudagraph_mode": "cudagraph_mode",
    "cache_dtype": "kv_cache_dtype",
}
"""Settings of the host's engine by ours."""
REPLAYED: Mapping[str, tuple[object, ...]] = {
    "disable_custom_all_reduce": (False,),
    "allreduce_backend": ("custom",),
    "all2all_backend": ("allgather_reducescatter",),
    "scheduling_policy": ("fcfs",),
    "mamba_cache_dtype": ("auto",),
    "mamba_ssm_cache_dtype": ("auto",),
    "mamba_cache_mode": ("none",),
    "dbo": ({"enable_dbo": False}, {}),
    "eplb": ({"enable_eplb": False}, {}),
}
"""Settings with one value that is replayed, vLLM's default."""
# No program knows cascade attention; without decode-context parallelism the others change nothing.
IDLE = ("disable_cascade_attn", "dcp_comm_backend", "dcp_q_replicate", "cp_kv_cache_interleave_size")
WEIGHT_NAMES = {"modelopt_fp4": NVFP4.name, "gpt_oss_mxfp4": MXFP4.name}
ALGORITHMS = {FP8.name: "FP8", FP8_BLOCK.name: "FP8_PB_WO", NVFP4.name: "NVFP4", MXFP4.name: "MXFP4"}
FAMILIES = ((FP8.name, FP8_BLOCK.name), (NVFP4.name, MXFP4.name))  # of which a checkpoint has one variety
LEFT_OUT = dict.fromkeys(("admission", "routing", "scheduler", "preemption", "saturation", "lora"), "leave it out")
"""What to do with keys of a deployment that change latencies and are not replayed."""
BUNDLE = "write two YAML documents, `kind: Scenario` and `kind: Deployment`"


@dataclass(frozen=True)
class Scenario:
    """A scenario and its deployment.

    entry: model, hardware and engine as an experiments file has them, and notes. documents: both as they were read.
    where: how messages name it.
    """

    name: str
    entry: JsonObject
    documents: tuple[JsonObject, JsonObject]
    where: str


def point_id(scenario: str, load: Workload) -> str:
    """The id of a scenario's experiment, from which its lengths are drawn: the same wherever the point comes from."""
    return f"{scenario}-{_label(load)}-c{load.stages[0].users}".replace(",", "_").replace("/", "_")


def _label(load: Workload) -> str:
    """The longest prompt and answer in tokens."""
    assert isinstance(load.source, Profile), "it is no trace"
    return f"{load.source.question_len.most:.0f}-{load.source.output_len.most:.0f}"


def experiment_of(scenario: Scenario, load: Workload, observed: JsonObject | None = None) -> Experiment:
    """The experiment of a scenario under a closed load. Raises InputError for what no engine can run."""
    entry: JsonObject = {"id": point_id(scenario.name, load), **scenario.entry}
    if observed:
        entry["observed"] = {"summary": observed}
    return deploy(read_spec(entry, scenario.where, workload=replace(load, name=_label(load))))


def replayed(experiment: Experiment, source: Source, seed: int) -> Replay:
    """The replay of an experiment, with the account that the host's figures need. Raises InputError for a request that
    never ends."""
    program = source.complete
    bound = bind(assemble(program), program.theta, experiment.facts)
    try:
        return replay_bound(load_of(experiment, seed), bound, account=True)
    except NeverEnds as e:
        raise InputError(f"experiment {experiment.id!r}: {e}: give the engine more memory for KV blocks") from None


def read_scenario(path: Path, catalog: Path | None, acceptance: float | None = None) -> Scenario:
    """The scenario of a file, with its model from the `catalog`, if that has its config.json, else by name.

    acceptance: the share of drafted tokens that are accepted, which no scenario says. Raises InputError.
    """
    where = str(path)
    documents = parse_documents(_bytes(path), where, BUNDLE)
    kinds = [each.get("kind") if isinstance(each, dict) else None for each in documents]
    if kinds != ["Scenario", "Deployment"] or "pools" in documents[0]:
        raise InputError(f"{where}: is not a scenario with its deployment: {BUNDLE}")
    s, d = (Section(where, "", document) for document in documents)
    s.only(SCENARIO)
    engine_version = s.name("engine_version", "give the release of vLLM, in quotes")
    if version_of(Engine(version=engine_version)) is None:
        raise s.error("engine_version", f"{shown(engine_version)} is no known release of vLLM", 'give one, as "0.29.0"')
    cluster = s.section("cluster", "give hardware, nodes and gpus_per_node")
    cluster.only(CLUSTER)
    pool = _pool(d)
    settings: JsonObject = {"version": engine_version, **_parallel(pool, cluster)}
    engine = pool.section("engine", "give a mapping of settings") if pool.has("engine") else Section(where, "", {})
    settings |= _engine(engine)
    settings |= _speculative(engine, acceptance)
    entry = {**_model(s, catalog), "hardware": _hardware(cluster), "engine": settings}
    if _given(engine, "quantization"):
        _serve(engine, entry)
    return Scenario(s.name("name", "name the scenario"), entry, (documents[0], documents[1]), where)


def _bytes(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise unreadable(path, error, "name a file that can be read") from None


def _pool(d: Section) -> Section:
    """The one pool of a deployment."""
    d.only(DEPLOYMENT, what="replayed", remedies=LEFT_OUT)
    if d.has("offload"):
        raise d.error("offload", "is not replayed", "leave it out")
    pools = d.sections("pools", "give one pool of role colocated")
    if len(pools) > 1:
        raise d.error("pools", f"are {len(pools)}, of which a closed load replays one", "give one of role colocated")
    [pool] = pools
    pool.only(POOL)
    if (role := pool.name("role", "give colocated")) != "colocated":
        raise pool.error("role", f"is {shown(role)}, which a closed load does not replay", "give colocated")
    return pool


def _parallel(pool: Section, cluster: Section) -> JsonObject:
    """The degrees of parallelism. Raises InputError for an engine that spans nodes."""
    p = pool.section("parallel", "give tp, pp and dp")
    p.only((*DEGREES, "dp_local", "enable_expert_parallel", "pcp", "dcp"))
    degrees: JsonObject = {ours: p.whole(key, "give a number of GPUs", least=1) for key, ours in DEGREES.items()}
    for key in ("pcp", "dcp"):
        if p.has(key) and p.whole(key, "give 1") > 1:
            raise p.error(key, f"is {p.raw[key]}, which is not replayed", "give 1, or leave it out")
    gpus = degrees["tensor_parallel"] * degrees["pipeline_parallel"] * degrees["data_parallel"]
    node = cluster.whole("gpus_per_node", "give the GPUs of a node", least=1)
    if gpus > node:
        problem = f"and the others make {gpus} GPUs of an engine, and a node has {node}"
        raise p.error("tp", problem, "give less: an engine over several nodes is not replayed")
    if p.flag("enable_expert_parallel", False):
        degrees["expert_parallel"] = degrees["tensor_parallel"] * degrees["data_parallel"]
    return degrees


def _engine(e: Section) -> JsonObject:
    """The engine's settings, without those of weights and drafts."""
    e.only((*SETTINGS, *REPLAYED, *IDLE, "quantization", "speculative"))
    for key, values in REPLAYED.items():
        if _given(e, key) and e.raw[key] not in values:
            problem = f"is {shown(e.raw[key])}, which is not replayed"
            raise e.error(key, problem, f"give {shown(values[0])}, or leave it out")
    return {ours: e.raw[key] for key, ours in SETTINGS.items() if _given(e, key)}


def _given(s: Section, key: str) -> bool:
    """True for a key that says something: the host writes settings that are left to the engine as 0 or ""."""
    return s.has(key) and (isinstance(s.raw[key], bool) or s.raw[key] not in (0, ""))


def _speculative(e: Section, acceptance: float | None) -> JsonObject:
    if not e.has("speculative"):
        return {}
    s = e.section("speculative", "give method and num_spec_tokens")
    s.only(("method", "num_spec_tokens"))
    if acceptance is None:
        problem = "needs the share of drafted tokens that are accepted, which no scenario says"
        raise e.error("speculative", problem, "give --speculative-acceptance-rate, or leave it out")
    tokens = s.whole("num_spec_tokens", "give the drafted tokens of a step", least=1)
    config = {"method": s.name("method"), "num_speculative_tokens": tokens}
    return {"speculative_config": config, "speculative_acceptance": acceptance}


def _hardware(cluster: Section) -> str:
    """Our name of the scenario's GPU, which the host writes in small letters."""
    asked, names = cluster.name("hardware", "name a GPU"), {name.casefold(): name for name in hardware_table()}
    if asked.casefold() not in names:
        hint = nearest_listed(asked, sorted(hardware_table()), "choose another GPU")
        raise cluster.error("hardware", f"{shown(asked)} is not a known GPU", hint)
    return names[asked.casefold()]


def _model(s: Section, catalog: Path | None) -> JsonObject:
    """The keys `model` and `model_config` of an experiment. Requests are greedy, as the scorer's points are."""
    asked = s.name("model", "name a model")
    if catalog is not None and not catalog.is_dir():
        raise InputError(f"cannot read the catalog {catalog}: it is no folder. Give --catalog, or leave it out")
    known = {alias.casefold(): name for name in known_models() for alias in (name, name.rsplit("/", 1)[-1])}
    ours = known.get(asked.casefold())
    config = catalog / "models" / asked / "config.json" if catalog else None
    terms: JsonObject = {}
    if config is not None and "/" not in asked and config.exists():
        terms = read_config(config)
    elif ours is None:
        place = f"{config} does not exist" if config else "there is no --catalog"
        hint = nearest_listed(asked, sorted(known), "give a --catalog that has it")
        raise s.error("model", f"{shown(asked)} is not a known model, and {place}", hint)
    return {"model": ours or asked, "model_config": {**terms, "generation_config": {}}}


def _serve(e: Section, entry: JsonObject) -> None:
    """Serve an entry's model in the scenario's type of weights, whatever type its checkpoint has, as the host does.

    A checkpoint of that type, in one variety of it or another (fp8 by tensors or blocks, nvfp4 or mxfp4), is served as
    it is. Of one of another type, the quantized parts have that type: `model_config` is changed. A note tells of both.
    """
    config = flat_config(_terms(entry))
    c = Section(e.where, "model_config", config)
    asked = e.name("quantization")
    name = WEIGHT_NAMES.get(asked, asked)
    if asked == quantization(c).get("quant_method"):
        return
    if name not in WEIGHTS:
        raise e.error("quantization", f"{shown(asked)} is not known here", nearest(asked, (*WEIGHTS, *WEIGHT_NAMES)))
    if not is_quantized(config):
        entry["engine"]["quantization"] = name
        return
    stored: Format = quantized(c)
    if stored.name == name:
        return
    told = f"quantization {asked}: the checkpoint is stored in {stored.name}"
    if any(stored.name in family and name in family for family in FAMILIES):
        entry[NOTE] = f"{told}, and is served so"
        return
    if name not in ALGORITHMS:
        remedy = "leave it out, or give a catalog with such a checkpoint"
        raise e.error("quantization", f"is {name}, and the checkpoint is stored in {stored.name}", remedy)
    kept = {key: value for key, value in quantization(c).items() if key in LISTS}
    plain = {key: value for key, value in config.items() if key not in CONFIGS}
    entry["model_config"] = {**plain, "quantization_config": {"quant_algo": ALGORITHMS[name], **kept}}
    entry[NOTE] = f"{told}, whose quantized weights count as {name}"


def _terms(entry: JsonObject) -> Mapping[str, Any]:
    """The terms of the config.json of an entry's model."""
    given: Mapping[str, Any] = entry["model_config"]
    return given if len(given) > 1 else known_models()[entry["model"]]["config"]


def read_load(path: Path) -> tuple[Workload, int]:
    """The closed load of a workload spec of the host, and its seed. Raises InputError for any other load."""
    load, seed = read_workload_spec(path)
    if not load.closed:
        raise InputError(f"{path}: aggregate_rate is not replayed on a scenario: give one client with concurrency")
    return load, seed

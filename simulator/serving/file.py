"""Experiments as files: `Experiment` values from the mapping that a YAML parser returns, checked key by key.

Every InputError is one line with file, experiment, key and remedy. Keys that begin with `source`, `published`,
`reported`, `harness` or `x_`, and the keys `completed` and `failed`, are allowed everywhere. `x_note` (a text or a list
of texts) goes into the experiment's notes, `x_components_ms` into its components.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from simulator.common.errors import InputError, Section, nearest_listed, shown
from simulator.common.json import JsonObject
from simulator.model.architecture import architecture
from simulator.model.names import note_on_model
from simulator.model.omissions import affecting
from simulator.serving import limits
from simulator.serving.deployment import deployment_facts, max_model_len
from simulator.serving.experiment import CLEAN, Engine, Experiment, Observed, Profile, Workload, unsplit_tokens
from simulator.serving.hardware import gpu_of, mfu_of
from simulator.serving.keys import ENGINE, EXPERIMENT, FREE, TOP, only
from simulator.serving.observations import doubts, measured, read_components, read_observed
from simulator.serving.trace import Trace
from simulator.serving.workload import longest_request, offered_requests
from simulator.serving.workload_entry import NO_FILES, Files, check_size, read_workload

EXTRA_WEIGHTS = "extra_weights_gib"
FLAGS = ("chunked_prefill", "prefix_caching", "kv_cpu_offload")
REPLICAS = "one replica is replayed: give it its share of the rate (docs/experiments.md), and leave this out"
UNMODELLED = "it is not modelled, and docs/scope.md says which figures are off without it: leave it out"
UNMODELLED_SETTINGS = (
    *("pipeline_parallel", "pipeline_parallel_size", "enable_expert_parallel", "enforce_eager", "kv_cache_dtype"),
    *("speculative_config", "num_speculative_tokens", "enable_lora"),
)
# vLLM's settings that an engine has no key for -> what to do instead
OTHER_SETTINGS = {
    **dict.fromkeys(("data_parallel", "data_parallel_size", "replicas"), REPLICAS),
    **dict.fromkeys(UNMODELLED_SETTINGS, UNMODELLED),
    **dict.fromkeys(("tensor_parallel_size", "tp"), "it is called tensor_parallel here"),
}
BATCH_LIMITS = ("max_num_seqs", "max_num_batched_tokens")
OPTIONAL = ("max_model_len", "total_kv_blocks", "version")
LONGEST_NOTES = 20_000  # characters of x_note: they are printed with results
BEGIN = "begin with `version: 1` and `experiments:`"

Table = Mapping[str, Mapping[str, Any]]
"""Entries of configs/models.yaml or configs/hardware.yaml, by id or name and by every alias."""
Reader = Callable[[Mapping[str, Any], str, Table, Table, Files], Experiment]


def experiments_from_mapping(
    raw: object, file: str, models: Table, hardware: Table, files: Files = NO_FILES, read: Reader | None = None
) -> list[Experiment]:
    """All experiments of a file; `file` is its name in messages. Ids must be unique. `files` reads what it names,
    `read` an entry, by default `experiment_from_mapping`."""
    if not isinstance(raw, Mapping):
        raise InputError(f"{file}: must be a mapping, got {shown(raw)}: {BEGIN}")
    top = Section(file, "", raw)
    only(top, TOP)
    if top.required("version", "write version: 1") != 1 or isinstance(raw["version"], bool):
        raise top.error("version", f"must be 1, got {shown(raw['version'])}", "write version: 1")
    experiments: list[Experiment] = []
    seen: set[str] = set()
    for i, entry in enumerate(top.sections("experiments", "list at least one experiment, each a mapping")):
        ident = entry.raw.get("id")
        named = isinstance(ident, str) and bool(ident.strip())
        where = f"{file}: experiment {shown(ident)}" if named else f"{file}: experiments[{i}]"
        experiment = (read or experiment_from_mapping)(entry.raw, where, models, hardware, files)
        if experiment.id in seen:
            raise InputError(f"{where}: id is used twice: give every experiment a different id")
        seen.add(experiment.id)
        experiments.append(experiment)
    return experiments


def _quality(top: Section) -> str:
    """A word for how the run went. Raises InputError for one that is nearly `clean`, which would not be fitted."""
    quality = top.name("quality")
    if quality != CLEAN and get_close_matches(quality.lower(), [CLEAN], 1, 0.7):
        raise top.error("quality", f"is {shown(quality)}, which is not fitted", f"did you mean {CLEAN!r}?")
    return quality


def experiment_from_mapping(
    raw: Mapping[str, Any], where: str, models: Table, hardware: Table, files: Files = NO_FILES
) -> Experiment:
    """One experiment. Every message begins with `where`, for example `my.yaml: experiment 'x'`."""
    top = Section(where, "", raw)
    only(top, EXPERIMENT)
    ident = _id(top)
    model, config = _model(top, models)
    gpu_name, gpu = _hardware(top, hardware)
    engine = _with_room(top, _engine(top), config)
    workload = read_workload(top, files)
    observed = _observed(top, workload)
    facts = deployment_facts(config, gpu, engine, where)
    _fits(top, engine, workload, facts)
    return Experiment(
        id=ident,
        model=model,
        hardware=gpu_name,
        engine=engine,
        workload=workload,
        observed=observed,
        quality=_quality(top) if "quality" in raw else CLEAN,
        facts=facts,
        notes=(
            *(o.text for o in affecting(facts.omitted, longest_request(workload))),
            *_measured_on(workload, (raw["model"], model, str(config["_name_or_path"])), models),
            *_notes(workload, "generation_config" in config, top.has("model_config")),
            *doubts(observed, workload),
            *(_assumed(engine, raw.get("engine") or {}) if observed is None else ()),
            *_free_notes(top),
        ),
        components=read_components(top),
        mfu=mfu_of(Section(where, "hardware", gpu)),
        weight_bits=architecture(config, where).weight_bits,
    )


def experiment_under(experiment: Experiment, workload: Workload, where: str) -> Experiment:
    """The experiment under another load, without measurements.

    Raises InputError as for an experiment of a file; every message begins with `where`.
    """
    check_size(Section(where, "workload", {}), workload)
    _fits(Section(where, "", {}), experiment.engine, workload, experiment.facts)
    return replace(experiment, workload=workload, observed=None, components=None)


def _id(top: Section) -> str:
    """The id. It has no comma, because the command line separates ids by commas."""
    ident = top.name("id")
    if "," in ident:
        raise top.error("id", f"must not contain a comma, got {shown(ident)}", "rename it: `--id A,B` names two ids")
    return ident


def _model(top: Section, models: Table) -> tuple[str, JsonObject]:
    """The canonical id and the config.json terms, including generation_config and `_name_or_path`."""
    name = top.name("model", "give a Hugging Face id or an alias of the model table")
    entry = models.get(name)
    ident = str(entry["id"]) if entry else name
    if top.has("model_config"):
        config = dict(top.section("model_config", "give the terms of the model's config.json").raw)
        if entry and config.keys() == {"generation_config"}:  # only its sampling differs from the known model's
            config = {**entry["config"], **config}
        elif entry:
            if "generation_config" in entry:
                config.setdefault("generation_config", entry["generation_config"])
            if EXTRA_WEIGHTS in entry["config"]:  # not a term of config.json, but a fact of the model's checkpoint
                config.setdefault(EXTRA_WEIGHTS, entry["config"][EXTRA_WEIGHTS])
    elif entry:
        config = dict(entry["config"])
        if "generation_config" in entry:
            config["generation_config"] = entry["generation_config"]
    else:
        own = "give model_config in config.json terms, or keep the model with `evolve model add`"
        hint = nearest_listed(name, tuple(models), own)
        raise top.error("model", f"{shown(name)} is not in the model table", hint)
    config["_name_or_path"] = config.get("_name_or_path") or ident
    return ident, config


def _hardware(top: Section, hardware: Table) -> tuple[str, Mapping[str, Any]]:
    """The canonical GPU name and its figures. For the forms of a mapping see simulator.serving.hardware."""
    remedy = "name a GPU of configs/hardware.yaml or give a mapping with the same keys"
    given = top.required("hardware", remedy)
    if isinstance(given, Mapping):
        gpu = gpu_of(top.section("hardware", remedy), FREE)
        return str(gpu["name"]), gpu
    name = top.name("hardware", remedy)
    if name not in hardware:
        hint = nearest_listed(name, tuple(hardware), "give a mapping with the keys of configs/hardware.yaml")
        raise top.error("hardware", f"{shown(name)} is not in the hardware table", hint)
    return str(hardware[name]["name"]), hardware[name]


def _engine(top: Section) -> Engine:
    if not top.has("engine"):
        return Engine()
    return engine_of(top.section("engine", "give a mapping of engine settings"))


def engine_of(e: Section) -> Engine:
    """The engine settings in a mapping. Raises InputError at an unknown key or a value of the wrong type."""
    only(e, ENGINE, OTHER_SETTINGS)
    given: JsonObject = {}
    for key in ENGINE:
        if key not in e.raw or (key in OPTIONAL and not e.has(key)):
            continue
        if key in FLAGS:
            given[key] = e.flag(key, False)
        elif key in ("name", "version"):
            given[key] = e.name(key)
        elif key == "gpu_memory_utilization":
            given[key] = e.number(key, "give a fraction of the GPU's memory, as 0.9", above=0, most=1)
        else:
            least = 0 if key == "long_prefill_token_threshold" else 1
            given[key] = e.whole(key, "give a whole number", least=least, most=limits.ENGINE[key])
    return Engine(**given)


def _with_room(top: Section, engine: Engine, config: Mapping[str, Any]) -> Engine:
    """The engine, with room for whole prompts in a step if it does not split them.

    As in vLLM (vllm/engine/arg_utils.py, vllm/config/scheduler.py): without chunked prefill, max_num_batched_tokens is
    at least max_model_len if it is not given, and must be if it is. Raises InputError otherwise.
    """
    if engine.chunked_prefill:
        return engine
    longest = max_model_len(architecture(config, top.where), engine, top.where)
    budget = engine.max_num_batched_tokens
    e = top.section("engine", "give a mapping of engine settings")
    if not e.has("max_num_batched_tokens"):
        return replace(engine, max_num_batched_tokens=unsplit_tokens(longest))
    if budget < longest:
        problem = f"must be at least max_model_len, {longest}, with chunked_prefill: false, got {budget}"
        raise e.error("max_num_batched_tokens", problem, "raise it, or lower max_model_len, as vLLM demands")
    return engine


def _observed(top: Section, workload: Workload) -> Observed | None:
    """The measurements as they are written, or else those that a trace has of its requests."""
    if top.has("observed"):
        return read_observed(top, workload)
    return measured(workload.source, len(workload.stages)) if isinstance(workload.source, Trace) else None


def _fits(top: Section, engine: Engine, workload: Workload, facts: Mapping[str, float]) -> None:
    """Check that the KV cache can hold a request, one that does not fit would be preempted for ever, and that the sums
    over a batch stay exact."""
    longest = min(longest_request(workload), int(facts["max_model_len"]))  # a longer one is refused
    together = min(engine.max_num_seqs, round(offered_requests(workload)))
    if together * longest > limits.MOST_CONTEXT:
        problem = f"of {together} requests of {longest} tokens makes {together * longest:.3g} tokens in a batch, "
        problem += f"at most {limits.MOST_CONTEXT:.0e} are exact"
        raise Section(top.where, "engine", {}).error("max_num_seqs", problem, "give fewer or shorter requests")
    room = facts["kv_blocks"] * engine.block_size
    if room < longest - 1:
        problem = f"= {facts['kv_blocks']:.0f} holds {room:.0f} tokens, and one request needs {longest}"
        remedy = "give more blocks or shorter requests"
        if engine.total_kv_blocks is None:
            problem, remedy = f"computed from memory {problem}", "use more or larger GPUs, or shorter requests"
        raise Section(top.where, "engine", {}).error("total_kv_blocks", problem, remedy)


def _measured_on(workload: Workload, names: Collection[str], models: Table) -> tuple[str, ...]:
    """A note if the file of a trace names another model than the experiment, whose names `names` are."""
    if not isinstance(workload.source, Trace):
        return ()
    note = note_on_model(workload.source.file, workload.source.model, names, models)
    return (note,) if note else ()


def _notes(workload: Workload, sampling_known: bool, given: bool) -> tuple[str, ...]:
    """Notes on what the replay assumes or leaves out for this experiment. given: it has a model_config."""
    notes = list(workload.source.notes) if isinstance(workload.source, Trace) else []
    if not sampling_known:
        # A shipped model has one, so without a model_config this is a model of the user's own.
        again = "keep the model again with `evolve model add CONFIG --generation-config FILE --replace`"
        remedy = "give it inside model_config" if given else again
        notes.append(f"generation_config is unknown: taken as without top_p, top_k and repetition penalty; {remedy}")
    match workload.source:
        case Profile(groups=groups, prompt_len_mean=None, session=None, question_len=question):
            assumed = groups > 0 and question.fixed is not None
        case _:
            assumed = False
    if assumed:
        notes.append("prompt length taken as system_prompt_len + question_len")
    if not workload.ignore_eos:
        notes.append("ignore_eos: false is not replayed: every request generates output_len tokens")
    return tuple(notes)


def _assumed(engine: Engine, given: Mapping[str, Any]) -> list[str]:
    """A note on the limits of the batch that a plan does not give: they decide when a queue grows."""
    values = [f"{key} {getattr(engine, key)}" for key in BATCH_LIMITS if key not in given]
    if not values:
        return []
    return [f"assumed, as `engine` does not say: {', '.join(values)} (vLLM's own defaults depend on its version and on "
            "the GPU)"]  # fmt: skip


def _free_notes(top: Section) -> tuple[str, ...]:
    given = top.raw.get("x_note", [])
    notes = given if isinstance(given, list) else [given]
    if not all(isinstance(note, str) for note in notes):
        raise top.error("x_note", f"must be text or a list of texts, got {shown(given)}", "write it as text")
    if sum(map(len, notes)) > LONGEST_NOTES:
        raise top.error("x_note", f"has more than {LONGEST_NOTES:,} characters", "shorten it")
    return tuple(" ".join(note.split()) for note in notes)

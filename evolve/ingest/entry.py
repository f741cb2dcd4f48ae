"""One folder as one experiment of an experiments file, with what had to be assumed said in its notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evaluator.experiments import hardware_table, model_table
from evolve.ingest.engine import make_engine
from evolve.ingest.quality import Quality
from evolve.ingest.sources.findings import Finding, warning
from evolve.ingest.sources.folder import Folder
from evolve.ingest.sources.log import Log
from evolve.ingest.sources.manifest import FILE
from evolve.ingest.sources.reports import Reports, observation
from evolve.ingest.sources.settings import Load, Settings
from evolve.ingest.sources.values import plain
from simulator.errors import InputError, nearest
from simulator.experiment.file import experiment_from_mapping

WIDE = ("FP16", "BF16")  # precisions of weights that need no quantization_config


@dataclass(frozen=True, slots=True)
class Given:
    """What the user says by option: the GPU's name, settings of the engine (parse_overrides), and models' terms of
    config.json by name (parse_models)."""

    hardware: str | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """The experiment's mapping, None where the folder does not hold enough for one; `findings` say why."""

    mapping: dict[str, Any] | None
    findings: tuple[Finding, ...]


def check_hardware(name: str | None) -> None:
    """Raises InputError for a GPU given by option that is not in the hardware table."""
    if name is not None and name not in hardware_table():
        raise InputError(
            f"--hardware {plain(name)}: is not in the hardware table: {nearest(name, tuple(hardware_table()))}"
        )


def make_entry(
    folder: Folder,
    settings: Settings,
    log: Log,
    reports: Reports,
    quality: Quality,
    given: Given,
    traced_kv_blocks: int | None = None,
    traced_prompt_len: float | None = None,
) -> Entry:
    """The experiment of a folder, its keys in the order of the files that ship. `traced_kv_blocks` and
    `traced_prompt_len` (mean tokens of a prompt) are the server's own figures, from traces.

    It has been read back as `evolve fit` reads it. Raises InputError where neither an option nor the manifest names the
    GPU.
    """
    hardware, findings = _hardware(folder, given)
    engine, said = make_engine(settings, log, folder.listed, given.engine, traced_kv_blocks)
    model = settings.model or folder.listed.model
    known = model_table().get(model or "")
    findings += said
    missing = _missing(model, engine, settings.load)
    if missing or model is None or settings.load is None:
        text = f"no experiment is written: {', '.join(missing)} not known"
        return Entry(None, (*findings, warning(folder.name, text, len(missing))))
    observed, more = _observed(reports, settings.load)
    findings += more
    findings += _about_model(known, folder.listed.precision)
    own = given.models.get(model)
    mapping: dict[str, Any] = {
        "id": _ident(folder, known),
        "source_run": folder.name,
        "model": known["id"] if known else model,
        **({"model_config": dict(own)} if own else {}),
        "hardware": hardware,
        "engine": engine,
        "workload": _workload(folder, settings.load, reports, quality, traced_prompt_len),
    }
    if observed:
        mapping["observed"] = observed
    mapping["quality"] = quality.label
    told = [*quality.reasons, *_told(settings)]
    if told:
        mapping["x_note"] = told
    if known is None and own is None:
        text = (
            f"{model} is not in the model table: no experiment is written; --model-config {model}=config.json gives it"
        )
        return Entry(None, (*findings, warning("exp-config.yaml", text)))
    try:
        experiment_from_mapping(mapping, folder.name, model_table(), hardware_table())
    except InputError as e:
        return Entry(None, (*findings, warning(folder.name, f"no experiment is written: {e}")))
    return Entry(mapping, tuple(findings))


def unique_ids(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The experiments, with the folder's whole name as id wherever two share one."""
    ids = [e["id"] for e in entries]
    return [{**e, "id": e["source_run"] if ids.count(e["id"]) > 1 else e["id"]} for e in entries]


def _hardware(folder: Folder, given: Given) -> tuple[str, list[Finding]]:
    listed = folder.listed.hardware
    name = given.hardware or listed
    if name is None:
        raise InputError(f"{folder.name}: nothing in it names the GPU: name the GPU with --hardware")
    table = hardware_table()
    if name not in table:
        return name, [warning(FILE, f"GPU {name} is not in the hardware table: --hardware names one that is")]
    canonical = str(table[name]["name"])
    if given.hardware and listed and table.get(listed, {}).get("name") != canonical:
        return canonical, [warning(FILE, f"says GPU {listed}, --hardware {canonical}: the option counts")]
    return canonical, []


def _missing(model: str | None, engine: Mapping[str, Any], load: Load | None) -> list[str]:
    missing = [] if model else ["model"]
    if "tensor_parallel" not in engine:
        missing.append("tensor_parallel (--engine tensor_parallel=N gives it)")
    return missing + [k for k in ("stages", "shared_prefix", "output_len") if load is None or getattr(load, k) is None]


def _ident(folder: Folder, known: Mapping[str, Any] | None) -> str:
    """`<model>-tp<N>-<workload>` for folders named by time; ids of the other scheme are in the name already."""
    parts = folder.parts
    if parts.stamp is None or parts.group is None:
        return folder.name
    model = known["aliases"][0] if known and known["aliases"] else parts.group
    return f"{model}-tp{parts.tensor_parallel}-{parts.workload}"


def _workload(
    folder: Folder, load: Load, reports: Reports, quality: Quality, prompt_len: float | None
) -> dict[str, Any]:
    assert load.shared_prefix is not None, "_missing has looked"
    out: dict[str, Any] = {
        "name": folder.parts.workload or folder.name,
        "arrival": load.arrival or "constant",
        "stages": load.stages,
        "shared_prefix": load.shared_prefix,
    }
    prompts = load.shared_prefix["groups"] * load.shared_prefix["prompts_per_group"]
    if (mean := prompt_len or _prompt_len_mean(reports)) is not None:
        # as many decimals as tell the prompts' total length in tokens, at least those of the files that ship
        out["prompt_len_mean"] = round(mean, max(2, len(str(prompts)) - 1))
    out["output_len"] = load.output_len
    if load.ignore_eos is not None:
        out["ignore_eos"] = load.ignore_eos
    if quality.timeout_s is not None:
        out["timeout_s"] = quality.timeout_s
    return out


def _prompt_len_mean(reports: Reports) -> float | None:
    """Of the requests that completed, in tokens; the replay cannot use one below 1."""
    counted = [reports.summary] if reports.summary else list(reports.stages.values())
    pairs = [(r.completed, r.prompt_len["mean"]) for r in counted if r.completed and "mean" in r.prompt_len]
    total = sum(n for n, _ in pairs)
    mean = sum(n * length for n, length in pairs) / total if total else 0.0
    if len(pairs) == 1:
        mean = pairs[0][1]
    return mean if mean >= 1 else None


def _observed(reports: Reports, load: Load) -> tuple[dict[str, Any], list[Finding]]:
    """summary and one mapping per stage of the workload: an empty one where a stage's report is missing."""
    observed: dict[str, Any] = {}
    findings: list[Finding] = []
    count = len(load.stages or ())
    if reports.summary:
        observed["summary"] = observation(reports.summary, load.output_len)
    stages = dict(reports.stages)
    if reports.summary and count == 1 and not stages:
        stages = {0: reports.summary}
        findings.append(Finding(reports.summary.source, 1, "stands for the only stage too"))
    beyond = [k for k in stages if k >= count]
    if beyond:
        text = f"stage {', '.join(map(str, beyond[:8]))}: {load.source} has {count} stages: left out"
        findings.append(warning("reports", text, len(beyond)))
    if any(k < count for k in stages):
        observed["stages"] = [observation(stages[k], load.output_len) if k in stages else {} for k in range(count)]
        absent = [k for k in range(count) if k not in stages]
        if absent:
            text = f"stage {', '.join(map(str, absent[:8]))} of {count} has no report: nothing observed of it"
            findings.append(warning("reports", text, len(absent)))
    elif reports.summary:
        findings.append(warning("reports", "none of the stages: the run can be predicted, but not fitted", count))
    if not observed:
        findings.append(warning("reports", "nothing was observed: the run can only be predicted"))
    return observed, findings


def _about_model(known: Mapping[str, Any] | None, precision: str | None) -> list[Finding]:
    if known is None:
        return []
    bare = {"quantization", "quantization_config"}.isdisjoint(known["config"])
    if precision and precision.upper() not in WIDE and bare:
        text = f"the weights are not {' or '.join(WIDE)}, but {known['id']} is not quantized: name the one served"
        return [warning(FILE, text)]
    return []


def _told(settings: Settings) -> list[str]:
    """What a reader of the experiment must know."""
    told = []
    if settings.asked:
        told.append("the load is what profile.yaml asked for, not what ran: no config.yaml of the run says that")
    if settings.load and settings.load.multi_turn:
        told.append("a chat of several turns ran, replayed as single turns")
    return told

"""The deployment in exp-config.yaml and the load in the load generator's results/config.yaml.

profile.yaml is the requested load. The load generator drops unknown keys, so its resolved config.yaml has the load that
ran. The profile is only used if config.yaml is missing; otherwise the two are compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from evolve.ingest.read.sources import MANIFEST, Folder
from evolve.ingest.read.values import FolderFindings, Values, plain
from simulator.common.errors import shown
from simulator.common.json import JsonObject
from simulator.common.text import listed
from simulator.serving.workload import Stage

ENGINE_KEYS = {
    "tensor_parallelism": "tensor_parallel",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_model_len": "max_model_len",
}
"""Keys of exp-config.yaml, and the engine keys of an experiments file that they become."""

PROMPT_KEYS = {
    "groups": ("num_groups", "num_unique_system_prompts"),
    "prompts_per_group": ("num_prompts_per_group", "num_users_per_system_prompt"),
    "system_prompt_len": ("system_prompt_len",),
    "question_len": ("question_len",),
}
"""Keys of an experiments file's shared_prefix, and the load generator's names for them: the first one and aliases."""

ARRIVALS = ("constant", "poisson")
CONCURRENT = "concurrent"  # a load.type whose stages have a concurrency_level and num_requests, and follow each other
DRAWN = ("synthetic", "random")  # data whose lengths have the distributions of the file
Length = int | JsonObject  # tokens, or a distribution of them, as an experiments file has it
LONGEST_TIMEOUT_S = 1e6  # eleven days: a longer one is a mistake


THEIR_LENGTHS = {"prompt": "input", "output": "output"}


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """`groups` * `prompts_per_group` distinct prompts of `system_prompt_len` tokens, shared in a group, and
    `question_len` tokens."""

    groups: int
    prompts_per_group: int
    system_prompt_len: int
    question_len: int


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """A load as one file describes it; None for values that the file lacks or gives in no usable form.

    Prompts are of `shared_prefix` or, with nothing in common, of `prompt_len`. Lengths are as in an experiments file.
    """

    source: str
    model: str | None
    arrival: str | None
    stages: tuple[Stage, ...] | None
    shared_prefix: SharedPrefix | None
    prompt_len: Length | None
    output_len: Length | None
    ignore_eos: bool | None
    multi_turn: bool
    streaming: bool | None
    request_timeout_s: float | None
    shared_prefix_data: bool = True  # whether its data are of shared_prefix, which gives no other lengths


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The model's Hugging Face id, the engine settings by their keys in an experiments file, and the load.

    `requested` is true for the load of profile.yaml, which may differ from the load that ran.
    """

    model: str | None
    engine: Mapping[str, int]
    load: LoadSettings | None
    requested: bool


def read_settings(folder: Folder, findings: FolderFindings) -> ServerSettings:
    """The settings of a folder. Anything wrong or missing is added to `findings`."""
    deployed = Values.of(folder.files.get("exp-config.yaml"), "exp-config.yaml", findings)
    engine: dict[str, int] = {}
    model = data_parallel = None
    if deployed:
        values = {ours: deployed.whole(key, least=1) for key, ours in ENGINE_KEYS.items()}
        engine = {key: value for key, value in values.items() if value is not None}
        model, data_parallel = deployed.model("model"), deployed.whole("data_parallelism", least=1)
    named = folder.parts.tensor_parallel
    if named and "tensor_parallel" not in engine:
        engine["tensor_parallel"] = named
        findings.warn("exp-config.yaml", f"gives no tensor_parallelism: using {named} from the folder's name")
    elif named and named != engine["tensor_parallel"]:
        text = f"tensor_parallelism is {engine['tensor_parallel']}, the folder's name says {named}: using the file"
        findings.warn("exp-config.yaml", text)
    ran_source = f"{folder.results}/config.yaml"
    ran = _load(Values.of(folder.files.get("config.yaml"), ran_source, findings))
    requested = _load(Values.of(folder.files.get("profile.yaml"), "profile.yaml", findings))
    if ran and requested:
        _compare(ran, requested, findings)
    elif requested:
        text = f"is the requested load, not necessarily the one that ran: {ran_source} gives none"
        findings.warn("profile.yaml", text)
    load = ran or requested
    if load:
        _check_load(load, findings)
        if model is None and load.model:
            model = load.model
            findings.warn(load.source, "names the model, exp-config.yaml does not")
        elif load.model and model != load.model:
            text = f"served model {load.model}, exp-config.yaml says {model}: using exp-config.yaml"
            findings.warn(load.source, text)
    for source, replicas in (("exp-config.yaml", data_parallel), (MANIFEST, folder.listed.data_parallel)):
        if replicas and replicas > 1:
            findings.warn(source, f"{replicas} data-parallel replicas: replayed as one engine", replicas)
    return ServerSettings(model, engine, load, bool(load and not ran))


def _load(v: Values | None) -> LoadSettings | None:
    if v is None:
        return None
    kind = v.text("data.type")
    shared = kind in (None, "shared_prefix")
    lengths: dict[str, Length | None] = {"prompt_len": None, "output_len": None}
    if shared:
        lengths["output_len"] = v.whole("data.shared_prefix.output_len", least=1)
    elif kind in DRAWN:
        lengths = {f"{ours}_len": _length(v, f"data.{theirs}_distribution") for ours, theirs in THEIR_LENGTHS.items()}
    arrival = v.text("load.type")
    known = arrival in (None, CONCURRENT, *ARRIVALS)
    if not known:
        text = "load.type is neither constant nor poisson nor concurrent: its load cannot be replayed"
        v.findings.warn(v.source, text)
    return LoadSettings(
        source=v.source,
        model=v.model("server.model_name"),
        arrival=arrival,
        stages=_stages(v) if known else None,
        shared_prefix=_prompts(v) if shared else None,
        **lengths,
        ignore_eos=v.flag("server.ignore_eos"),
        multi_turn=bool(v.flag("data.shared_prefix.enable_multi_turn_chat")),
        streaming=v.flag("api.streaming"),
        request_timeout_s=v.number("load.request_timeout", above=0, most=LONGEST_TIMEOUT_S),
        shared_prefix_data=shared,
    )


def _length(v: Values, key: str) -> Length | None:
    """A distribution of lengths: normal unless it names another, and cut at min and max."""
    mean, low, high = (v.number(f"{key}.{name}", least=1) for name in ("mean", "min", "max"))
    if mean is None or low is None or high is None:
        return None
    kind, sd, variance = (
        v.text(f"{key}.type") or "normal",
        *(v.number(f"{key}.{k}", least=0) for k in ("std_dev", "variance")),
    )
    sd = math.sqrt(variance) if variance is not None else sd
    if kind == "uniform":
        return {"uniform": {"min": round(low), "max": round(high)}}
    if kind == "fixed" or sd == 0 or low == high:
        return round(mean)
    if kind in ("normal", "lognormal") and sd and low <= mean <= high:
        return {kind: {"mean": mean, "sd": sd, "min": round(low), "max": round(high)}}
    v.findings.warn(v.source, f"{key} is of a kind that is not replayed: the mean length of the reports is used")
    return None


def _prompts(v: Values) -> SharedPrefix | None:
    prompts: dict[str, int] = {}
    for ours, names in PROMPT_KEYS.items():
        least = 0 if ours == "system_prompt_len" else 1
        for name in names:
            value = v.whole(f"data.shared_prefix.{name}", least=least)
            if value is not None:
                prompts.setdefault(ours, value)
    return SharedPrefix(**prompts) if len(prompts) == len(PROMPT_KEYS) else None


def _stages(v: Values) -> tuple[Stage, ...] | None:
    """The load's stages; None if one is unknown, because the others would take its place."""
    wanted = "a list of stages that is not empty"
    raw = v.checked("load.stages", wanted, lambda raw: isinstance(raw, list) and bool(raw))
    if raw is None:
        return None
    stages = []
    for k, entry in enumerate(raw):
        stage = Values(v.source, entry if isinstance(entry, Mapping) else {}, v.findings)
        if v.text("load.type") == CONCURRENT:
            users, requests = (stage.whole(key, least=1) for key in ("concurrency_level", "num_requests"))
            if users is None or requests is None:
                text = f"stage {k} has no usable concurrency_level and num_requests: the load cannot be replayed"
                v.findings.warn(v.source, text)
                return None
            stages.append(Stage(0.0, 0.0, users=users, requests=requests))
            continue
        rate, duration = stage.number("rate", above=0), stage.number("duration", above=0)
        if rate is None or duration is None:
            v.findings.warn(v.source, f"stage {k} has no usable rate and duration: the load cannot be replayed")
            return None
        stages.append(Stage(rate, duration))
    return tuple(stages)


def _compare(ran: LoadSettings, requested: LoadSettings, findings: FolderFindings) -> None:
    asked, done = _described(requested), _described(ran)
    if all(value is None for value in asked.values()):
        findings.warn("profile.yaml", "does not describe the requested load")
        return
    unlike = [f"{key} {_word(a)}, ran {_word(done[key])}" for key, a in asked.items() if a not in (None, done[key])]
    if requested.multi_turn != ran.multi_turn:
        turns = "several turns, ran a single turn" if requested.multi_turn else "a single turn, ran several turns"
        unlike.append(turns)
    text = f"requested {'; '.join(unlike)}: using {ran.source}, which describes the load that ran"
    findings.note("profile.yaml", text, len(unlike))


def _described(load: LoadSettings) -> dict[str, object]:
    """The settings to compare, by name; None where the file does not say."""
    prompts = asdict(load.shared_prefix) if load.shared_prefix else dict.fromkeys(PROMPT_KEYS)
    stages = load.stages and listed([_words(stage) for stage in load.stages], 6)
    keys = ("prompt_len", "output_len", "ignore_eos", "arrival", "streaming", "model")
    return {**prompts, **{key: getattr(load, key) for key in keys}, "stages": stages}


def _words(stage: Stage) -> str:
    if stage.users is None:
        return f"{stage.rate:g}/s x {stage.duration_s:g} s"
    return f"{stage.requests:,} requests of {stage.label}"


def undescribed(load: LoadSettings | None) -> list[str]:
    """What a load lacks to be replayed, by its keys."""
    if load is None:
        return ["stages", "prompt_len", "output_len"]
    prompts = load.shared_prefix or load.prompt_len
    given = {"stages": load.stages, "shared_prefix or prompt_len": prompts, "output_len": load.output_len}
    return [key for key, value in given.items() if value is None]


def _word(value: object) -> str:
    return shown(value) if value is None or isinstance(value, bool) else plain(str(value))


def _check_load(load: LoadSettings, findings: FolderFindings) -> None:
    if load.multi_turn:
        findings.warn(load.source, "a chat with several turns ran: replayed as single turns")
    if load.streaming is False:
        findings.warn(load.source, "answers were not streamed: the client's TTFT is not a time to first token")
    if load.ignore_eos is not True:
        findings.warn(load.source, "ignore_eos is not true: answers may be shorter than output_len, and ITL wrong")
    missing = undescribed(load)
    findings.warn(load.source, f"does not give {', '.join(missing)}", len(missing))
    if load.arrival is None:
        findings.note(load.source, "gives no load.type: assuming constant, the load generator's default")

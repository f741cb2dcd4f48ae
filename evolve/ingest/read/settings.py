"""What was deployed and what load ran: exp-config.yaml and the load generator's results/config.yaml.

profile.yaml is the load that was requested. The load generator drops keys it does not know, so its resolved config.yaml
is what ran. The profile is only used if config.yaml is missing; otherwise the two are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from evolve.ingest.read.files import read_yaml
from evolve.ingest.read.sources import Folder
from evolve.ingest.read.values import Finding, FolderFindings, Values, plain
from simulator.common.errors import InputError, shown
from simulator.serving.experiment import Stage

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
LONGEST_TIMEOUT_S = 1e6  # eleven days: a longer one is a mistake


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
    """A load as one file describes it; None for what the file does not give in a usable form."""

    source: str
    model: str | None
    arrival: str | None
    stages: tuple[Stage, ...] | None
    shared_prefix: SharedPrefix | None
    output_len: int | None
    ignore_eos: bool | None
    multi_turn: bool
    streaming: bool | None
    request_timeout_s: float | None


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The model's Hugging Face id, the engine settings by their keys in an experiments file, and the load.

    `requested` is true if the load is what profile.yaml requested, not what ran.
    """

    model: str | None
    engine: Mapping[str, int]
    load: LoadSettings | None
    requested: bool
    findings: tuple[Finding, ...]


def read_settings(folder: Folder) -> ServerSettings:
    """The settings of a folder; everything wrong or missing becomes a finding."""
    findings = FolderFindings()
    deployed = _values(folder.exp_config, "exp-config.yaml", findings)
    engine: dict[str, int] = {}
    model = data_parallel = None
    if deployed:
        for key, ours in ENGINE_KEYS.items():
            if (value := deployed.whole(key, least=1)) is not None:
                engine[ours] = value
        model = deployed.model("model")
        data_parallel = deployed.whole("data_parallelism", least=1)
    named = folder.parts.tensor_parallel
    if "tensor_parallel" not in engine and named:
        engine["tensor_parallel"] = named
        findings.warn("exp-config.yaml", f"gives no tensor_parallelism: using {named} from the folder's name")
    elif named and named != engine["tensor_parallel"]:
        text = f"tensor_parallelism is {engine['tensor_parallel']}, the folder's name says {named}: the file is used"
        findings.warn("exp-config.yaml", text)
    ran_source = f"{folder.results}/config.yaml"
    ran, requested = (
        _load(_values(path, source, findings), findings)
        for path, source in ((folder.config, ran_source), (folder.profile, "profile.yaml"))
    )
    if ran and requested:
        _compare(ran, requested, findings)
    elif requested:
        findings.warn("profile.yaml", f"is what was requested, not necessarily what ran: {ran_source} gives no load")
    load = ran or requested
    if load:
        _check_load(load, findings)
        if model is None and load.model:
            model = load.model
            findings.warn(load.source, "names the model, exp-config.yaml does not")
        elif load.model and model != load.model:
            text = f"served model {load.model}, exp-config.yaml says {model}: exp-config.yaml is used"
            findings.warn(load.source, text)
    for source, dp in (("exp-config.yaml", data_parallel), ("experiments.json", folder.listed.data_parallel)):
        if dp and dp > 1:
            findings.warn(source, f"{dp} data-parallel replicas: replayed as one engine", dp)
    return ServerSettings(model, engine, load, bool(load and not ran), tuple(findings))


def _values(path: Path | None, source: str, findings: FolderFindings) -> Values | None:
    """The file's mapping, or None: with a finding if the file is unusable, without one if it is missing."""
    if path is None:
        return None
    try:
        raw = read_yaml(path, source)
    except InputError as e:
        findings.warn(source, f"left out: {e}")
        return None
    if not isinstance(raw, Mapping) or not raw:
        findings.warn(source, "is not a mapping of settings: left out")
        return None
    return Values(source, raw, findings)


def _load(v: Values | None, findings: FolderFindings) -> LoadSettings | None:
    if v is None:
        return None
    kind = v.text("data.type")
    prompts = _prompts(v)
    if kind not in (None, "shared_prefix"):
        text = "data.type is not shared_prefix: its prompts cannot be described; an entry can be written by hand"
        findings.warn(v.source, text)
        prompts = None
    arrival = v.text("load.type")
    if arrival not in (None, *ARRIVALS):
        findings.warn(v.source, "load.type is neither constant nor poisson: its load cannot be replayed")
    return LoadSettings(
        source=v.source,
        model=v.model("server.model_name"),
        arrival=arrival,
        stages=_stages(v) if arrival in (None, *ARRIVALS) else None,
        shared_prefix=prompts,
        output_len=v.whole("data.shared_prefix.output_len", least=1),
        ignore_eos=v.flag("server.ignore_eos"),
        multi_turn=bool(v.flag("data.shared_prefix.enable_multi_turn_chat")),
        streaming=v.flag("api.streaming"),
        request_timeout_s=v.number("load.request_timeout", above=0, most=LONGEST_TIMEOUT_S),
    )


def _prompts(v: Values) -> SharedPrefix | None:
    prompts: dict[str, int] = {}
    for ours, theirs in PROMPT_KEYS.items():
        least = 0 if ours == "system_prompt_len" else 1
        for key in theirs:
            value = v.whole(f"data.shared_prefix.{key}", least=least)
            if value is not None:
                prompts.setdefault(ours, value)
    return SharedPrefix(**prompts) if len(prompts) == len(PROMPT_KEYS) else None


def _stages(v: Values) -> tuple[Stage, ...] | None:
    """All stages or None: if one is unknown, the others would take its place."""
    raw = v.get("load.stages")
    if raw is None:
        return None
    if not isinstance(raw, list) or not raw:
        v.wrong("load.stages", "a list of stages that is not empty", raw)
        return None
    stages = []
    for k, entry in enumerate(raw):
        stage = Values(v.source, entry if isinstance(entry, Mapping) else {}, v.findings)
        rate, duration = stage.number("rate", above=0), stage.number("duration", above=0)
        if rate is None or duration is None:
            text = f"stage {k} has no usable rate and duration: the load cannot be replayed"
            v.findings.warn(v.source, text)
            return None
        stages.append(Stage(rate, duration))
    return tuple(stages)


def _compare(ran: LoadSettings, requested: LoadSettings, findings: FolderFindings) -> None:
    """A finding about everything that the profile requested and the load generator did not do."""
    prompts = [asdict(load.shared_prefix) if load.shared_prefix else {} for load in (requested, ran)]
    pairs = {
        **{key: (prompts[0].get(key), prompts[1].get(key)) for key in PROMPT_KEYS},
        "output_len": (requested.output_len, ran.output_len),
        "ignore_eos": (requested.ignore_eos, ran.ignore_eos),
        "arrival": (requested.arrival, ran.arrival),
        "stages": (_brief(requested.stages), _brief(ran.stages)),
        "streaming": (requested.streaming, ran.streaming),
        "model": (requested.model, ran.model),
    }
    if all(a is None for a, _ in pairs.values()):
        findings.warn("profile.yaml", "does not describe the requested load")
        return
    unlike = [f"{key} {_word(a)}, ran {_word(b)}" for key, (a, b) in pairs.items() if a is not None and a != b]
    if requested.multi_turn != ran.multi_turn:
        turns = {True: "several turns", False: "a single turn"}
        unlike.append(f"{turns[requested.multi_turn]}, ran {turns[ran.multi_turn]}")
    if unlike:
        text = f"requested {'; '.join(unlike)}: {ran.source} is what ran, and is used"
        findings.note("profile.yaml", text, len(unlike))


def _brief(stages: Sequence[Stage] | None) -> str | None:
    """`8/s x 600 s, 20/s x 600 s`; long lists are cut."""
    if stages is None:
        return None
    few = ", ".join(f"{stage.rate:g}/s x {stage.duration_s:g} s" for stage in stages[:6])
    return few + (", ..." if len(stages) > 6 else "")


def _word(value: object) -> str:
    if value is None or isinstance(value, bool):
        return shown(value)
    return plain(str(value))


def _check_load(load: LoadSettings, findings: FolderFindings) -> None:
    """Findings about what of the load cannot be replayed or was not measured."""
    if load.multi_turn:
        findings.warn(load.source, "a chat with several turns ran: replayed as single turns")
    if load.streaming is False:
        findings.warn(load.source, "answers were not streamed: the client's TTFT is not a time to first token")
    if load.ignore_eos is not True:
        state = "is false" if load.ignore_eos is False else "is not given"
        findings.warn(load.source, f"ignore_eos {state}: answers may be shorter than output_len, and ITL wrong")
    missing = [key for key in ("stages", "shared_prefix", "output_len") if getattr(load, key) is None]
    if missing:
        findings.warn(load.source, f"does not give {', '.join(missing)}", len(missing))
    if load.arrival is None:
        findings.note(load.source, "gives no load.type: assuming constant, the load generator's default")

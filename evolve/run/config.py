"""Settings of a run: frozen dataclasses that mirror the YAML files in configs/. Unknown keys are errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from operator import attrgetter
from pathlib import Path
from typing import Any

from archive.champion import Rule
from evolve.run.llm_settings import LlmSettings, check
from simulator.documents import parse_yaml, read_bytes
from simulator.errors import InputError, nearest, shown, unreadable
from simulator.language.measure import Caps

SELECTIONS = ("nsga2", "lexicographic")
FIELD_SETS = ("all", "datasheet", "paper18", "components", "phases")
RULES = ("joint", "transfer")
METHODS = ("step", "queueing", "both")
STAGES = ("all", "but_last", "train")
FOLDS = ("models", "workloads", "tp", "architectures", "hardware", "files", "stages")
FITS = ("auto", "linear", "lbfgsb", "neldermead", "cma")  # as in evaluator.fit.methods, which takes long to import
LEFT_OUT = ("models", "tp", "architectures", "hardware")  # as in evaluator.transfer, which takes long to import
# Offline operators and their default weights. As in other symbolic regression tools, most of the weight goes to growing
# programs, some to pruning, and little to exchanging whole methods.
OPERATORS = {
    "add": 0.18,
    "drop": 0.12,
    "swap": 0.12,
    "wrap": 0.12,
    "interact": 0.10,
    "threshold": 0.08,
    "cross": 0.10,
    "exchange": 0.03,
    "ground": 0.06,
    "explain": 0.20,
    "prune": 0.06,
}
BEGIN = "write a setting such as `budget: 800`"
PROPOSERS = ("offline", "llm", "mixed")


@dataclass(frozen=True, slots=True)
class DataSettings:
    """Which experiments are fitted, and which are only predicted. Files are bundled names or paths."""

    files: tuple[str, ...] = ("experiments_h100.yaml",)  # to fit
    predict_files: tuple[str, ...] = ("experiments_h100_further.yaml",)  # to predict only
    models: tuple[str, ...] = ()  # fit these only; empty: all
    workloads: tuple[str, ...] = ()  # fit these only; empty: all
    exclude: tuple[str, ...] = ()  # ids of experiments that are not fitted
    # but_last: without the last load stage of every experiment with several; train: the first 60 % of traces
    stages: str = "all"


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How to search. A search ends at its budget, after `generations`, or when it no longer improves (`patience`)."""

    batch: int = 8  # proposals per island and generation
    tournament: int = 3  # elites that compete to become a parent
    generations: int = 100_000
    # Generations in which the champion's merit must improve by `patience_gain`: 1,600 proposals, as many as in 200
    # generations of one island, for which the original proposal waits.
    patience: int = 50
    patience_gain: float = 0.005  # relative
    proposer: str = "offline"  # operators, language models (llm), or both under one bandit (mixed)
    selection: str = "nsga2"  # ranks on the four objectives; lexicographic: worst3, ITL error, complexity
    islands: int = 4  # populations that evolve separately
    migrate_every: int = 10  # generations between migrations
    migrants: int = 2  # fittest elites that each island copies to the next one
    fit: str = "auto"  # the method that fits the constants of every candidate, one of FITS
    hopeless: float = 1.25  # times the joint error of its cell's best: refused if more by the mean field; 0: never
    limit_s: float = 600.0  # of an assessment, tried twice; what takes longer is rejected; 0: none
    transfer_within: float = 1.5  # times the lowest transfer error: not computed to the end if it is more; 0: always
    finalists: int = 2  # best programs whose constants CMA-ES polishes on the replays at the end; 0: none
    grid: bool = True  # parents come from the MAP-Elites cells too, not only from the survivors of NSGA-II
    bandit: bool = True  # chances of the operators follow what they improved
    evolve: str = "both"  # which methods may change: step, queueing or both
    fields: str = "all"  # which fields step_time may read, one of FIELD_SETS
    operation_bins: int = 10  # columns of the grid
    feature_bins: int = 5  # rows of the grid
    start: tuple[str, ...] = ()  # programs to start from besides the shipped ones, as --start names them
    only_start: bool = False  # start from these alone
    operators: dict[str, float] = field(default_factory=dict)  # name: weight; others get 0; empty: OPERATORS


@dataclass(frozen=True, slots=True)
class ScoreSettings:
    """How programs are scored, and how a champion is chosen (see archive.champion.Rule)."""

    seeds: int = 1  # arrival seeds that a score is averaged over during a search; reports use 3
    moe_weight: float = 1.0  # weight of mixture-of-experts experiments in worst3
    physics: bool = True  # programs that contradict datasheets or measured kernels rank last
    champion: str = "transfer"  # merit: the joint error (joint), or its mean with the transfer error (transfer)
    within: float = 0.05  # the simplest program within this relative distance of the lowest merit wins
    worst_pct: float = 10.0  # largest E2E error, in percent, that a champion may have on any experiment
    nearer: float = 0.5  # share of those programs that compete: the nearest to other near-optimal ones; 1: all
    left_out: tuple[str, ...] = LEFT_OUT  # what the transfer error leaves out in turn (see evaluator.transfer)
    tail: float = 0.25  # share of the left-out runs that count in it: those with the largest errors

    @property
    def rule(self) -> Rule:
        """The rule by which a champion is chosen."""
        return Rule(self.champion, self.within, self.worst_pct, self.nearer)

    @property
    def arrival_seeds(self) -> list[int]:
        """The arrival seeds of a search."""
        return list(range(1, self.seeds + 1))


@dataclass(frozen=True, slots=True)
class ValidateSettings:
    """How `evolve validate` validates a run: part of its configuration, so that the protocol is fixed before the first
    held-out figure is seen."""

    budget: int = 500  # candidates of the search in every fold
    folds: tuple[str, ...] = ()  # kinds of folds (see evolve.study.folds); empty: all that apply


@dataclass(frozen=True, slots=True)
class Config:
    """A complete configuration."""

    name: str = "default"  # shown in reports
    budget: int = 1500  # distinct candidates that reach fitting, seed programs included
    seed: int = 0  # the same seed gives the same archive
    data: DataSettings = field(default_factory=DataSettings)
    caps: Caps = field(default_factory=Caps)
    search: SearchSettings = field(default_factory=SearchSettings)
    score: ScoreSettings = field(default_factory=ScoreSettings)
    validate: ValidateSettings = field(default_factory=ValidateSettings)
    llm: LlmSettings = field(default_factory=LlmSettings)


def load_config(name: str) -> Config:
    """The configuration of this bundled name (`default`, `smoke`, ...) or path.

    Raises InputError, naming the file and the key, if it cannot be read or a setting is wrong.
    """
    bundled = resources.files("configs").joinpath(f"{name}.yaml")
    path = Path(name)
    if "/" not in name and not name.endswith((".yaml", ".yml")) and bundled.is_file():
        return config_from(parse_yaml(bundled.read_bytes(), f"configs/{name}.yaml", BEGIN), f"configs/{name}.yaml")
    if name.startswith("configs/") and not path.exists() and resources.files("configs").joinpath(path.name).is_file():
        return load_config(path.stem)
    try:
        raw = read_bytes(path)
    except OSError as e:
        names = ", ".join(bundled_configs())
        raise unreadable(name, e, f"name a file, or one of {names}") from None
    values = parse_yaml(raw, name, BEGIN)
    return config_from({"name": path.stem} | values if isinstance(values, dict) else values, name)


def bundled_configs() -> list[str]:
    """Names of the shipped configurations."""
    files = (f.name for f in resources.files("configs").iterdir() if f.name.endswith(".yaml"))
    data = ("experiments_", "models.", "hardware.", "llm_prices.", "leaderboard.")
    return sorted(f.removesuffix(".yaml") for f in files if not f.startswith(data))


def _renewed(raw: object) -> object:
    """The values of an older release's file under today's names: `llm.repair` was a second round, or none."""
    llm = raw.get("llm") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(llm, dict) or not isinstance(llm.get("repair"), bool):
        return raw
    rest = {name: value for name, value in llm.items() if name != "repair"}
    return raw | {"llm": rest if llm["repair"] else {"rounds": 1} | rest}


CHOICES: Mapping[str, Sequence[str]] = {
    "search.proposer": PROPOSERS,
    "search.selection": SELECTIONS,
    "search.fields": FIELD_SETS,
    "search.evolve": METHODS,
    "search.fit": FITS,
    "score.champion": RULES,
    "data.stages": STAGES,
    "validate.folds": FOLDS,
    "score.left_out": LEFT_OUT,
}
POSITIVE = (
    "budget", "search.batch", "search.tournament", "search.generations", "search.patience", "search.islands",
    "search.migrate_every", "search.operation_bins", "search.feature_bins", "score.seeds", "caps.operations",
    "caps.constants", "score.moe_weight", "score.worst_pct", "validate.budget", "llm.programs", "llm.parents",
    "llm.attempts", "llm.rounds", "llm.patience", "llm.answer_tokens", "llm.timeout_s", "llm.concurrency",
)  # fmt: skip
NOT_NEGATIVE = (
    "seed", "search.patience_gain", "score.within", "search.migrants", "search.finalists", "search.limit_s",
    "caps.conditionals", "llm.max_usd", "llm.max_calls", "llm.max_tokens", "llm.rpm", "llm.backoff_s",
    "llm.notes_every",
)  # fmt: skip
LIMITS = ("search.hopeless", "search.transfer_within")  # 0, or at least 1
SHARES = ("score.tail", "score.nearer")


def config_from(raw: object, where: str) -> Config:
    """The configuration that YAML values describe; `where` names their source in messages.

    Raises InputError for an unknown key, a wrong type or a value out of range.
    """
    config: Config = _build(Config, _renewed(raw), where, "")
    for key, allowed in CHOICES.items():
        value = attrgetter(key)(config)
        for one in value if isinstance(value, tuple) else (value,):
            if one not in allowed:
                raise InputError(f"{where}: {key} must be one of {', '.join(allowed)}, got {shown(one)}: choose one")
    for key in POSITIVE:
        if not (number := attrgetter(key)(config)) > 0:
            raise InputError(f"{where}: {key} must be > 0, got {number}: give a positive number")
    for key in NOT_NEGATIVE:
        if not (number := attrgetter(key)(config)) >= 0:
            raise InputError(f"{where}: {key} must be >= 0, got {number}: give 0 or more")
    for key in LIMITS:
        if (number := attrgetter(key)(config)) != 0 and not number >= 1:
            raise InputError(f"{where}: {key} must be 0 or at least 1, got {number}: give 0 for no limit")
    for key in SHARES:
        if not 0 < (share := attrgetter(key)(config)) <= 1:
            raise InputError(f"{where}: {key} must be in (0, 1], got {share}: give a share, 1 for all")
    if config.score.seeds > 100:
        raise InputError(f"{where}: score.seeds must be at most 100, got {config.score.seeds}: give fewer")

    for name, weight in config.search.operators.items():
        if name not in OPERATORS:
            raise InputError(
                f"{where}: search.operators has no {shown(name)}: the operators are {', '.join(OPERATORS)}"
            )
        if not isinstance(weight, (int, float)) or not 0 <= weight < float("inf"):
            raise InputError(f"{where}: search.operators.{name} must be a weight >= 0, got {shown(weight)}")
    if config.search.only_start and not config.search.start:
        raise InputError(f"{where}: search.only_start leaves no program to start from: name one in search.start")
    if config.search.operators and not any(config.search.operators.values()):
        raise InputError(f"{where}: search.operators are all 0: give at least one a weight")
    check(config.llm, where)
    return config


def _build(kind: type, raw: object, where: str, prefix: str) -> Any:
    """The settings dataclass `kind` with the values of `raw`; `prefix` is its place in the file, such as "search."."""
    if not isinstance(raw, dict):
        raise InputError(
            f"{where}: {prefix.rstrip('.') or 'the file'} must be a mapping of settings, got {type(raw).__name__}"
        )
    names = [f.name for f in fields(kind)]
    default = kind()
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in names:
            remedy = _place(str(key)) if not prefix else ""
            remedy = remedy or nearest(str(key), names) or "remove it"
            raise InputError(f"{where}: unknown key {prefix}{str(key)[:60]}: {remedy}")
        current = getattr(default, key)
        if dataclasses.is_dataclass(current):
            values[key] = _build(type(current), value, where, f"{prefix}{key}.")
        else:
            values[key] = _value(current, value, where, f"{prefix}{key}")
    return kind(**values)


def _place(key: str) -> str:
    """How to write a setting that is named without its mapping, or with a dot; "" if there is none of this name."""
    mapping, _, name = key.rpartition(".")
    for f in fields(Config):
        settings = getattr(Config(), f.name)
        known = [each.name for each in fields(settings)] if dataclasses.is_dataclass(settings) else []
        if name in known and mapping in ("", f.name):
            return f"write `{f.name}: {{{name}: ...}}`"
    return ""


def _value(default: Any, value: object, where: str, key: str) -> Any:
    """`value`, if it has the type of the setting's default. Raises InputError if it has not."""
    match default:
        case tuple():
            if isinstance(value, list) and all(isinstance(v, str) for v in value):
                return tuple(value)
            wanted = "a list of names"
        case dict():
            if isinstance(value, dict):
                return value
            wanted = "a mapping"
        case str():
            if isinstance(value, str):
                return value
            wanted = "text"
        case bool():
            if isinstance(value, bool):
                return value
            wanted = "true or false"
        case int():
            if isinstance(value, int) and not isinstance(value, bool):
                return value
            wanted = "a whole number"
        case _:
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:
                return float(value)
            wanted = "a number"
    raise InputError(f"{where}: {key} must be {wanted}, got {shown(value)}: correct the value")


def to_mapping(config: Config) -> dict[str, Any]:
    """The configuration as plain YAML values, which `config_from` reads back."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        return list(value) if isinstance(value, tuple) else value

    return plain(dataclasses.asdict(config))  # type: ignore[no-any-return]

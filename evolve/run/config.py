"""Settings of a run: frozen dataclasses that mirror the YAML of configs/; an unknown key is an error."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

from archive.champion import Rule
from evaluator.experiments import parse_yaml
from evolve.run.llm_settings import LlmSettings, check
from simulator.errors import InputError, nearest
from simulator.language.measure import Caps

SELECTIONS = ("nsga2", "lexicographic")
FIELD_SETS = ("all", "datasheet", "paper18", "components")
RULES = ("joint", "transfer")
METHODS = ("step", "queueing", "both")
STAGES = ("all", "but_last")
FOLDS = ("models", "workloads", "tp", "files", "stages")
# Offline operators and their default weights. Symbolic regression tools spend most on growing, some on pruning, little
# on whole-module exchange.
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
PROPOSERS = ("offline", "llm", "mixed")


@dataclass(frozen=True, slots=True)
class DataSettings:
    """Which experiments are fitted. `files`: bundled names or paths of experiments files. Empty lists: no limit.
    `stages`: all load stages, or but_last: without the last stage of every experiment of `files` that has several."""

    files: tuple[str, ...] = ("experiments_h100.yaml",)
    predict_files: tuple[str, ...] = ("experiments_h100_further.yaml",)
    models: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    stages: str = "all"


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """The loop. `batch` proposals a generation; `tournament` elites compete to be a parent.

    Stops at the budget, after `generations`, or when the best joint error improved by less than `patience_gain`
    (relative) in `patience` generations. `selection`: nsga2 ranks on (worst3, joint, complexity), lexicographic
    compares worst3, then ITL error (the error per step), then complexity. `islands` populations evolve apart, `batch`
    proposals each; every `migrate_every` generations each sends copies of its `migrants` fittest to the next one.
    At the end the `finalists` best have their constants polished by CMA-ES on the replays (0: none).
    `proposer`: offline operators, language models (llm, see llm/settings.py), or both under one bandit (mixed).
    `start` names programs (files, RUN:ID or shipped ones) that the search starts from besides the shipped ones, or with
    `only_start` instead of them.
    Parts that can be left out: `grid` (parents from the MAP-Elites cells, not from the front alone), `bandit` (the
    operators' chances follow what they improved).
    """

    batch: int = 8
    tournament: int = 3
    generations: int = 100_000
    patience: int = 200
    patience_gain: float = 0.005
    proposer: str = "offline"
    selection: str = "nsga2"
    islands: int = 4
    migrate_every: int = 10
    migrants: int = 2
    finalists: int = 2
    grid: bool = True
    bandit: bool = True
    evolve: str = "both"
    fields: str = "all"
    operation_bins: int = 10
    feature_bins: int = 5
    start: tuple[str, ...] = ()
    only_start: bool = False
    operators: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScoreSettings:
    """Scores: `seeds` arrival seeds a statistic is averaged over while searching (reports use 3), `moe_weight` the
    weight of MoE experiments in worst3. `champion` (joint, transfer), `within` and `worst_pct` are the rule by which a
    champion is chosen (see archive.Rule). `physics`: programs that contradict datasheets come last."""

    seeds: int = 1
    moe_weight: float = 1.0
    physics: bool = True
    champion: str = "transfer"
    within: float = 0.05
    worst_pct: float = 10.0

    @property
    def rule(self) -> Rule:
        """The rule by which a champion is chosen."""
        return Rule(self.champion, self.within, self.worst_pct)

    @property
    def arrival_seeds(self) -> list[int]:
        """The arrival seeds that a search scores with."""
        return list(range(1, self.seeds + 1))


@dataclass(frozen=True, slots=True)
class ValidateSettings:
    """`evolve validate`: `budget` of the search in every fold, and the kinds of `folds` (see validation/folds.py), none
    named: all that apply. They stand here so that the protocol is fixed before the first held-out figure is seen."""

    budget: int = 500
    folds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Config:
    """A resolved configuration. `budget`: distinct candidates that reach fitting, seeds included."""

    name: str = "default"
    budget: int = 1500
    seed: int = 0
    data: DataSettings = field(default_factory=DataSettings)
    caps: Caps = field(default_factory=Caps)
    search: SearchSettings = field(default_factory=SearchSettings)
    score: ScoreSettings = field(default_factory=ScoreSettings)
    validate: ValidateSettings = field(default_factory=ValidateSettings)
    llm: LlmSettings = field(default_factory=LlmSettings)


def load_config(name: str) -> Config:
    """A configuration by bundled name (`default`, `smoke`, ...) or path. Raises InputError naming file and key."""
    bundled = resources.files("configs").joinpath(f"{name}.yaml")
    path = Path(name)
    if "/" not in name and not name.endswith((".yaml", ".yml")) and bundled.is_file():
        return config_from(parse_yaml(bundled.read_bytes(), f"configs/{name}.yaml"), f"configs/{name}.yaml")
    if name.startswith("configs/") and not path.exists() and resources.files("configs").joinpath(path.name).is_file():
        return load_config(path.stem)
    try:
        raw = path.read_bytes()
    except OSError as e:
        known = ", ".join(bundled_configs())
        raise InputError(f"{name}: cannot be read ({e.strerror}): name a file, or one of {known}") from None
    return config_from(parse_yaml(raw, name, "write a setting such as `budget: 800`"), name)


def bundled_configs() -> list[str]:
    """Names of the configurations that the project ships."""
    files = (f.name for f in resources.files("configs").iterdir() if f.name.endswith(".yaml"))
    data = ("experiments_", "models.", "hardware.", "llm_prices.")
    return sorted(f.removesuffix(".yaml") for f in files if not f.startswith(data))


def config_from(raw: object, where: str) -> Config:
    """A Config from YAML values. Raises InputError for an unknown key, a wrong type or a value out of range."""
    config: Config = _build(Config, raw, where, "")
    choices = (
        ("search.proposer", config.search.proposer, PROPOSERS),
        ("search.selection", config.search.selection, SELECTIONS),
        ("search.fields", config.search.fields, FIELD_SETS),
        ("search.evolve", config.search.evolve, METHODS),
        ("score.champion", config.score.champion, RULES),
        ("data.stages", config.data.stages, STAGES),
        *(("validate.folds", kind, FOLDS) for kind in config.validate.folds),
    )
    for key, value, allowed in choices:
        if value not in allowed:
            raise InputError(f"{where}: {key} must be one of {', '.join(allowed)}, got {value!r}: choose one")
    positive = {
        "budget": config.budget, "search.batch": config.search.batch, "search.tournament": config.search.tournament,
        "search.generations": config.search.generations, "search.patience": config.search.patience,
        "search.islands": config.search.islands, "search.migrate_every": config.search.migrate_every,
        "search.operation_bins": config.search.operation_bins, "search.feature_bins": config.search.feature_bins,
        "score.seeds": config.score.seeds, "caps.operations": config.caps.operations,
        "caps.constants": config.caps.constants, "score.moe_weight": config.score.moe_weight,
        "score.worst_pct": config.score.worst_pct, "validate.budget": config.validate.budget,
        "llm.programs": config.llm.programs, "llm.parents": config.llm.parents, "llm.attempts": config.llm.attempts,
        "llm.answer_tokens": config.llm.answer_tokens, "llm.timeout_s": config.llm.timeout_s,
        "llm.concurrency": config.llm.concurrency,
    }  # fmt: skip
    for key, number in positive.items():
        if not number > 0:
            raise InputError(f"{where}: {key} must be > 0, got {number}: give a positive number")
    least = {
        "seed": config.seed,
        "search.patience_gain": config.search.patience_gain,
        "score.within": config.score.within,
        "search.migrants": config.search.migrants,
        "search.finalists": config.search.finalists,
        "caps.conditionals": config.caps.conditionals,
        "llm.max_usd": config.llm.max_usd,
        "llm.max_calls": config.llm.max_calls,
        "llm.max_tokens": config.llm.max_tokens,
        "llm.rpm": config.llm.rpm,
        "llm.backoff_s": config.llm.backoff_s,
        "llm.notes_every": config.llm.notes_every,
    }
    for key, number in least.items():
        if not number >= 0:
            raise InputError(f"{where}: {key} must be >= 0, got {number}: give 0 or more")
    if config.score.seeds > 100:
        raise InputError(f"{where}: score.seeds must be at most 100, got {config.score.seeds}: give fewer")

    for name, weight in config.search.operators.items():
        if name not in OPERATORS:
            raise InputError(f"{where}: search.operators has no {name!r}: the operators are {', '.join(OPERATORS)}")
        if not isinstance(weight, (int, float)) or not 0 <= weight < float("inf"):
            raise InputError(f"{where}: search.operators.{name} must be a weight >= 0, got {weight!r}")
    if config.search.only_start and not config.search.start:
        raise InputError(f"{where}: search.only_start leaves no program to start from: name some in search.start")
    if config.search.operators and not any(config.search.operators.values()):
        raise InputError(f"{where}: search.operators are all 0: give at least one a weight")
    check(config.llm, where)
    return config


def _build(kind: type, raw: object, where: str, prefix: str) -> Any:
    if not isinstance(raw, dict):
        raise InputError(
            f"{where}: {prefix.rstrip('.') or 'the file'} must be a mapping of settings, got {type(raw).__name__}"
        )
    known = {f.name: f for f in fields(kind)}
    default = kind()
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in known:
            raise InputError(f"{where}: unknown key {prefix}{key}: {nearest(str(key), list(known)) or 'remove it'}")
        current = getattr(default, key)
        if dataclasses.is_dataclass(current):
            values[key] = _build(type(current), value, where, f"{prefix}{key}.")
        else:
            values[key] = _value(current, value, where, f"{prefix}{key}")
    return kind(**values)


def _value(default: Any, value: object, where: str, key: str) -> Any:
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
    raise InputError(f"{where}: {key} must be {wanted}, got {value!r}: correct the value")


def to_mapping(config: Config) -> dict[str, Any]:
    """The configuration as plain YAML values; `config_from` reads it back."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        return list(value) if isinstance(value, tuple) else value

    return plain(dataclasses.asdict(config))  # type: ignore[no-any-return]

"""Settings of a run: frozen dataclasses that mirror the YAML files in configs/."""

from __future__ import annotations

from dataclasses import dataclass, field

from archive.champion import Rule
from evolve.run.llm_settings import LlmSettings
from simulator.language.measure import Caps

SELECTIONS = ("nsga2", "lexicographic")
FIELD_SETS = ("all", "datasheet", "paper18", "components", "phases")
RULES = ("mean_error", "group_out")
METHODS = ("step", "queueing", "both")
STAGES = ("all", "but_last", "train")
FOLDS = (
    *("models", "workloads", "tp", "architectures", "hardware", "precisions", "parallelism", "versions", "cells"),
    *("files", "stages"),
)
FITS = ("auto", "linear", "lbfgsb", "neldermead", "cma")  # as in evaluator.fit.methods, which takes long to import
LEFT_OUT = (
    "models",
    "tp",
    "architectures",
    "hardware",
    "precisions",
    "parallelism",
    "versions",
    "sources",
)  # as in evaluator.group_out, which takes long to import
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
AUTO = "auto"
PROPOSERS = ("offline", "llm", AUTO)


@dataclass(frozen=True, slots=True)
class DataSettings:
    """The experiments to fit and to predict. Files are bundled names or paths."""

    files: tuple[str, ...] = ("experiments_h100.yaml",)  # to fit
    predict_files: tuple[str, ...] = ("experiments_h100_further.yaml",)  # to predict only
    models: tuple[str, ...] = ()  # fit these only; empty: all
    workloads: tuple[str, ...] = ()  # fit these only; empty: all
    exclude: tuple[str, ...] = ()  # ids of experiments that are not fitted
    # but_last: without the last load stage of every experiment with several; train: the first 60 % of traces
    stages: str = "all"


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """The search. It ends at its budget, after `generations`, or when it no longer improves (`patience`)."""

    batch: int = 8  # proposals per island and generation
    tournament: int = 3  # elites that compete to become a parent
    generations: int = 100_000
    # Generations in which the champion's selection score must improve by `patience_gain`: 1,600 proposals, as many as
    # in 200 generations of one island, for which the original proposal waits.
    patience: int = 50
    patience_gain: float = 0.005  # relative
    proposer: str = "offline"  # operators, language models (llm), or both under one bandit (auto)
    selection: str = "nsga2"  # ranks on the five objectives; lexicographic: worst3, ITL error, complexity
    islands: int = 4  # populations that evolve separately
    migrate_every: int = 10  # generations between migrations
    migrants: int = 2  # fittest elites that each island copies to the next one
    fit: str = "auto"  # the method that fits the constants of every candidate, one of FITS
    prune_above: float = 1.25  # times the mean error of its cell's best: refused if more by the mean field; 0: never
    limit_s: float = 600.0  # of an assessment, tried twice; what takes longer is rejected; 0: none
    trim: bool = True  # drop terms of the champion that do not earn their place on runs left out, at the end
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
    """The scoring of programs and the choice of a champion (see archive.champion.Rule)."""

    seeds: int = 1  # arrival seeds that a score is averaged over during a search; reports use 3
    moe_weight: float = 1.0  # weight of mixture-of-experts experiments in worst3
    physics: bool = True  # programs that contradict datasheets or measured kernels rank last
    # selection score: the mean error (mean_error), or the leave-group-out error (group_out)
    champion: str = "group_out"
    within: float = 0.05  # relative distance of the lowest selection score within which the simplest program wins
    worst_pct: float = 10.0  # largest E2E error, in percent, that a champion may have on any experiment
    left_out: tuple[str, ...] = LEFT_OUT  # groups left out in turn (see evaluator.group_out)

    @property
    def rule(self) -> Rule:
        return Rule(self.champion, self.within, self.worst_pct)

    @property
    def arrival_seeds(self) -> list[int]:
        return list(range(1, self.seeds + 1))


@dataclass(frozen=True, slots=True)
class ValidateSettings:
    """Settings of `evolve validate`, part of a run so that they are fixed before the first held-out figure is seen."""

    budget: int = 500  # candidates of the search in every fold
    folds: tuple[str, ...] = ()  # kinds of folds (see evolve.validate.folds); empty: all that apply


@dataclass(frozen=True, slots=True)
class Config:
    name: str = "default"  # shown in reports
    budget: int = 1500  # distinct candidates that reach fitting, seed programs included
    seed: int = 0  # the same seed gives the same archive
    data: DataSettings = field(default_factory=DataSettings)
    caps: Caps = field(default_factory=Caps)
    search: SearchSettings = field(default_factory=SearchSettings)
    score: ScoreSettings = field(default_factory=ScoreSettings)
    validate: ValidateSettings = field(default_factory=ValidateSettings)
    llm: LlmSettings = field(default_factory=LlmSettings)

"""The engines that can be compared: the proposer of each, and the settings of the search that it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evolve.run.config import OPERATORS, Config
from evolve.search.offline import PROBING
from evolve.search.proposer import Operators, Proposer
from research.engines.bench import Bench
from research.engines.gp import Genetic
from research.engines.plain import HillClimbing, RandomSearch
from simulator.common.errors import InputError, nearest

OURS = "evolution"
NO_MODELS = "no-models"  # the same as OURS where no language models are configured
BLIND = {name: 0.0 if name in PROBING else weight for name, weight in OPERATORS.items()}
# One population, and no end but the budget.
UNMANAGED = {"islands": 1, "generations": 10**9, "patience": 10**9}


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine of a comparison."""

    what: str  # in words
    proposer: Callable[[Bench], Proposer]
    settings: Mapping[str, Any] = field(default_factory=dict)  # replace those of the configuration's search

    def asks(self, config: Config) -> bool:
        """True if its search asks the language models of the configuration."""
        return self.proposer is _operators and self.config(config).search.proposer != "offline"

    def config(self, config: Config) -> Config:
        """The configuration of this engine's search. No finalists are polished, since that is not part of a search."""
        return replace(config, search=replace(config.search, finalists=0, **self.settings))


def _operators(bench: Bench) -> Proposer:
    return Operators(bench.config, bench.workers)


ENGINES = {
    OURS: Engine("our engine as configured", _operators),
    "random": Engine("our operators on the seed programs, no selection", RandomSearch, UNMANAGED),
    "climb": Engine("our operators on the best so far", HillClimbing, UNMANAGED),
    "gp": Engine("plain genetic programming, typed trees (deap)", Genetic, UNMANAGED),
    "no-islands": Engine("ours with one population", _operators, {"islands": 1}),
    "no-grid": Engine("ours with parents from the front alone", _operators, {"grid": False}),
    "no-probe": Engine("ours without the operators that look at errors", _operators, {"operators": BLIND}),
    "no-bandit": Engine("ours with fixed chances of the operators", _operators, {"bandit": False}),
    NO_MODELS: Engine("ours with operators alone", _operators, {"proposer": "offline"}),
}


def engine_names(wanted: Sequence[str], models: bool = False) -> list[str]:
    """The wanted engines, in the order of ENGINES; none wanted stands for all.

    `models`: True if language models propose. Raises InputError for an unknown engine.
    """
    for name in wanted:
        if name not in ENGINES:
            hint = nearest(name, list(ENGINES)) or f"there are {', '.join(ENGINES)}"
            raise InputError(f"--only {name}: no such engine: {hint}")
    if NO_MODELS in wanted and not models:
        raise InputError(f"--only {NO_MODELS}: equals {OURS} without language models. Give --proposer and --llm.")
    if wanted:
        return [name for name in ENGINES if name in wanted]
    return [name for name in ENGINES if models or name != NO_MODELS]

"""What the loop knows: proposals, and the state that is rebuilt from the journal by committing its entries."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from archive.champion import Archive, champion
from archive.elite import Elite
from archive.grid import Added
from archive.island import Island
from evaluator.assess import Rejected
from evolve.propose.offline import operator_weights
from evolve.run.config import Config
from evolve.run.folder import empty_archive
from evolve.run.llm_settings import weighted
from evolve.search.bandit import Bandit
from simulator.language.complete import complete
from simulator.language.key import key
from simulator.language.parse import parse

Entry = dict[str, Any]
SURVIVORS = 48  # of an island, beside the cells of its grid
REMEMBERED = 64  # rejections
MODEL = "llm:"  # before the name of a language model among operators
JUDGES = "judges"  # the stage of one that judges refused


@dataclass(frozen=True, slots=True)
class Proposal:
    """A text on its way: its number, the island it is for (None: all), what made it, and from which elites.

    Of a language model: the call that it answers, its idea in a sentence, what judges said, and why it is not to be
    assessed, if so.
    """

    id: int
    island: int | None
    text: str
    operator: str
    parents: tuple[int, ...]
    call: str = ""
    idea: str = ""
    reviews: tuple[Entry, ...] = ()
    refused: Rejected | None = None


@dataclass
class State:
    """What the loop knows: rebuilt from the journal, changed by `commit` and migration only.

    fitted: candidates that reached fitting. numbered: ids that are given away, also to empty places.
    stages: verdicts by stage of the cascade. seconds: CPU time by stage, of what was assessed since the start or the
    resumption; no choice depends on it. best: the champion's joint and transfer error (None: not measured) after every
    generation.
    rejects: the last ones. reached: (proposer, what) -> count, of proposals, fits and gains.
    """

    config: Config
    archive: Archive
    islands: list[Island]
    bandit: Bandit
    fitted: int = 0
    proposals: int = 0
    numbered: int = 0
    stages: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    best: list[tuple[float, float | None]] = field(default_factory=list)
    rejects: deque[Entry] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    reached: Counter[tuple[str, str]] = field(default_factory=Counter)

    def champion(self) -> Elite | None:
        """The best so far, by the configuration's rule."""
        return champion(self.archive.members(), self.config.score.rule)


def first_state(config: Config) -> State:
    """Nothing proposed yet."""
    search = config.search
    islands = [Island(empty_archive(config).grid, SURVIVORS, search.grid) for _ in range(search.islands)]
    return State(config, empty_archive(config), islands, Bandit(arms(config)))


def arms(config: Config) -> dict[str, float]:
    """What the bandit chooses among, with prior weights: operators, and in a mixed search the language models."""
    operators = operator_weights(config.search.operators)
    if config.search.proposer != "mixed":
        return operators
    models = ensemble(config)
    mass = sum(operators.values()) * config.llm.share / (1.0 - config.llm.share)
    return operators | {MODEL + name: mass * weight for name, weight in models.items()}


def ensemble(config: Config) -> dict[str, float]:
    """The chance of every language model; they add up to 1."""
    models = dict(weighted(name, "llm.models") for name in config.llm.models)
    total = sum(models.values())
    return {name: weight / total for name, weight in models.items()}


def commit(state: State, entry: Entry) -> None:
    """Take one journal entry into the state."""
    state.proposals += 1
    scored = entry["verdict"] == "scored"
    state.stages["scored" if scored else entry["stage"]] += 1
    if entry.get("key"):
        state.fitted += 1
        state.archive.keys.add(entry["key"])
    gained = False
    if scored:
        elite = Elite.from_json(entry["elite"])
        state.archive.add(elite)
        homes = state.islands if entry["island"] is None else [state.islands[entry["island"]]]
        gained = [island.add(elite) for island in homes] != [Added.NOT] * len(homes)
    else:
        state.rejects.append(entry)
        if entry["stage"] == JUDGES:  # what judges refused need not be proposed, and judged, again
            state.archive.keys.add(key(complete(parse(entry["text"]))))
    model = entry["operator"].startswith(MODEL)
    tried = model or entry.get("key")
    for name in [entry["operator"]] if model else entry["operator"].split("+"):
        state.reached.update({(name, "proposals"): 1, (name, "fitted"): bool(entry.get("key")), (name, "kept"): gained})
        if tried and entry["island"] is not None:
            state.bandit.learn(name, gained)

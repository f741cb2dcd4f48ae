"""The result of a comparison of engines: figures over the seeds, verdicts on our engine, and learning curves."""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from archive.journal import read_journal
from archive.population import Population
from archive.proposal import DUPLICATE, SCORED
from evolve import __version__
from evolve.output.files import REMEDY
from evolve.output.terminal import research
from evolve.run.config import Config
from evolve.search.search import Appended
from evolve.validate.costs import Costs, costs_of
from evolve.validate.shares import limits_of
from evolve.validate.statistics import Spread, spread
from research.engines.engines import ENGINES, OURS
from simulator.common.documents import read_json
from simulator.common.files import draft_of
from simulator.common.json import JsonObject, renamed
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment

# The files of a search, in its folder.
CURVE = "curve.jsonl"  # the best figures after every candidate
DONE = "done.json"  # written when the search is finished
SHARES = (0.25, 0.5, 1.0)  # shares of the budget at which figures are compared
FIGURES = ("mean_error", "worst3", "selection_score")


@dataclass(frozen=True)
class Comparison:
    """The engines and searches of a comparison, and its folder."""

    path: Path
    config: Config
    engines: tuple[str, ...]
    seeds: int  # searches of each engine
    asking: int = 0  # searches in the folder that ask language models, which share the limits of `config`

    @property
    def search_seeds(self) -> list[int]:
        """The seeds of the searches: `config.seed` and those after it."""
        return list(range(self.config.seed, self.config.seed + self.seeds))

    def folder(self, engine: str, seed: int) -> Path:
        return self.path / f"{engine}-{seed}"


def read_curve(folder: Path) -> list[JsonObject]:
    """The lines of a search's learning curve, those of older releases under today's names."""
    old = {"joint": "mean_error", "merit": "selection_score"}
    return [renamed(line, old) for line in read_journal(folder / CURVE)]


class Curve:
    """The learning curve of a search, which `file` keeps with a line per candidate, after the `lines` that it has.

    A line has the lowest mean error, worst3 and selection score of a consistent program so far, in percent, null if
    there is none yet. It also has the CPU seconds of all work so far.
    """

    def __init__(self, lines: Sequence[JsonObject], file: Appended) -> None:
        self._count, self._cpu_s = len(lines), lines[-1]["cpu_s"] if lines else 0.0
        self._file = file
        self._since = time.process_time()

    def update(self, population: Population) -> None:
        """Add a line if there is a new candidate. Time spent on candidates from the journal does not count."""
        if population.fitted <= self._count:
            self._since = time.process_time()
            return
        now = time.process_time()
        self._cpu_s, self._since = self._cpu_s + now - self._since, now
        self._count = population.fitted
        self._file.append([point(population, self._cpu_s)])


def point(population: Population, cpu_s: float) -> JsonObject:
    """The line of a learning curve after this many CPU seconds."""
    elites = population.archive.by_id.values()
    return {
        "candidate": population.fitted,
        "mean_error": min((e.mean_error for e in elites), default=None),
        "worst3": min((e.worst3 for e in elites), default=None),
        "selection_score": min((population.rule.selection_score(e) for e in elites if e.consistent), default=None),
        "cpu_s": round(cpu_s, 4),
    }


def ended(engine: str, seed: int, population: Population) -> JsonObject:
    """The content of a finished search's done.json: counts, rejections by stage with duplicates, and the champion."""
    best = population.champion()
    return {
        "engine": engine,
        "seed": seed,
        "candidates": population.fitted,
        "proposals": population.proposals,
        "rejected": {stage: n for stage, n in sorted(population.stages.items()) if stage != SCORED},
        "champion": best.to_json() if best else None,
    }


@dataclass(frozen=True, slots=True)
class EngineResult:
    """The results of an engine over the seeds."""

    what: str  # the engine, in words
    figures: Mapping[str, Mapping[str, Spread]]  # of FIGURES, then by percent of the budget used: "25", "50", "100"
    champion: Mapping[str, Spread]  # errors of the champions by the configuration's rule
    cpu_s: Spread
    candidates: Sequence[int]  # of each search
    proposals: int  # of all searches
    rejected: Mapping[str, int]  # proposals by the stage that refused them
    rejected_share: float  # of the proposals that are not duplicates
    duplicate_share: float  # of all proposals
    champions: Sequence[Mapping[str, Any] | None]  # elites as JSON, None for a search without one

    def to_json(self) -> JsonObject:
        return {
            "what": self.what,
            **{name: {share: asdict(s) for share, s in shares.items()} for name, shares in self.figures.items()},
            "champion": {name: asdict(s) for name, s in self.champion.items()},
            "cpu_s": asdict(self.cpu_s),
            "candidates": list(self.candidates),
            "proposals": self.proposals,
            "rejected": dict(self.rejected),
            "rejected_share": self.rejected_share,
            "duplicate_share": self.duplicate_share,
            "champions": list(self.champions),
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of our engine's final figure with that of another engine."""

    against: str  # the other engine
    figure: str  # one of FIGURES
    outcome: str  # better, worse, not (no difference beyond the spread) or unknown
    text: str  # the verdict in words


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """How the engines compare. All errors are in sample."""

    comparison: Comparison
    data: str  # hash of the fitted experiments
    fitted: Sequence[str]  # ids of the fitted experiments
    engines: Mapping[str, EngineResult]
    verdicts: Sequence[Verdict]
    costs: Costs | None = None  # of language models, if any are asked

    @property
    def any_scored(self) -> bool:
        """True if an engine has a median mean error at the full budget."""
        return any(engine.figures["mean_error"]["100"].median is not None for engine in self.engines.values())

    def to_json(self) -> JsonObject:
        config = self.comparison.config
        return {
            "engine": __version__,
            "data": self.data,
            "seeds": self.comparison.search_seeds,
            "arrival_seeds": config.score.arrival_seeds,
            "path": str(self.comparison.path),
            "config": config.name,
            "budget": config.budget,
            "fitted": list(self.fitted),
            "in_sample": True,
            "engines": {name: engine.to_json() for name, engine in self.engines.items()},
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            **({"llm": self.costs.to_json()} if self.costs else {}),
        }


def report_of(comparison: Comparison, fitted: Sequence[Experiment]) -> ComparisonReport:
    """The report of a comparison whose searches are all finished."""
    engines = {name: _engine(comparison, name) for name in comparison.engines}
    ours = engines.get(OURS)
    verdicts = [
        verdict(ours.figures[figure]["100"], other.figures[figure]["100"], name, figure)
        for name, other in engines.items()
        if ours and name != OURS
        for figure in ("mean_error", "selection_score")
    ]
    costs = costs_of(comparison.path, limits_of(comparison.config.llm)) if comparison.asking else None
    return ComparisonReport(comparison, data_hash(fitted), [e.id for e in fitted], engines, verdicts, costs)


def _engine(comparison: Comparison, name: str) -> EngineResult:
    folders = [comparison.folder(name, seed) for seed in comparison.search_seeds]
    ends = [read_json(folder / DONE, REMEDY) for folder in folders]
    curves = [read_curve(folder) for folder in folders]
    budget = comparison.config.budget
    rejected: Counter[str] = sum((Counter(end["rejected"]) for end in ends), Counter())
    proposals, duplicates = sum(end["proposals"] for end in ends), rejected[DUPLICATE]
    champions = [end["champion"] for end in ends]
    return EngineResult(
        what=ENGINES[name].what,
        figures={
            figure: {
                f"{share:.0%}".rstrip("%"): spread([_read_at(curve, share * budget, figure) for curve in curves])
                for share in SHARES
            }
            for figure in FIGURES
        },
        champion={
            figure: spread([c[figure] if c else None for c in champions])
            for figure in ("mean_error", "worst3", "e2e", "ttft", "itl")
        },
        cpu_s=spread([curve[-1]["cpu_s"] if curve else 0.0 for curve in curves]),
        candidates=[end["candidates"] for end in ends],
        proposals=proposals,
        rejected=dict(sorted(rejected.items())),
        rejected_share=(rejected.total() - duplicates) / max(proposals - duplicates, 1),
        duplicate_share=duplicates / max(proposals, 1),
        champions=champions,
    )


def _read_at(curve: Sequence[Mapping[str, Any]], candidates: float, figure: str) -> float | None:
    """The figure after this many candidates, or at the end of a search that ended earlier."""
    if not curve:
        return None
    value: float | None = curve[min(max(int(candidates), 1), len(curve)) - 1][figure]
    return value


def verdict(ours: Spread, theirs: Spread, name: str, figure: str = "mean_error") -> Verdict:
    """The verdict on our `figure` against that of the engine `name`.

    It is better or worse if the medians are further apart than the larger of the two interquartile ranges, and unknown
    with one seed or without a figure.
    """
    if ours.median is None or theirs.median is None:
        outcome, why = "unknown", "no verdict, since a search scored nothing"
    elif len(ours.values) < 2:
        outcome, why = "unknown", "no verdict: one seed has no spread"
    else:
        apart = max((s.high or 0.0) - (s.low or 0.0) for s in (ours, theirs))
        gain = theirs.median - ours.median
        outcome = "not" if abs(gain) <= apart else "better" if gain > 0 else "worse"
        why = "no difference beyond the spread" if outcome == "not" else f"{outcome} by more than the spread"
    return Verdict(name, figure, outcome, f"{figure.replace('_', ' ')}: {OURS} {ours} against {name} {theirs}: {why}")


def write_curves(comparison: Comparison) -> None:
    """Write curves.csv: a row for every candidate of every search, with the figures and CPU seconds so far."""
    columns = ("candidate", "cpu_s", *FIGURES)
    with draft_of(comparison.path / "curves.csv", kept=True) as draft, draft.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("engine", "seed", *columns))
        for name in comparison.engines:
            for seed in comparison.search_seeds:
                for entry in read_curve(comparison.folder(name, seed)):
                    writer.writerow((name, seed, *(entry[c] for c in columns)))


def again(path: Path) -> str:
    """The command line that continues the comparison in a folder."""
    return research("resume", path)

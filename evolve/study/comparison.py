"""What came of a comparison: figures of every engine over its seeds, verdicts on ours, and learning curves."""

from __future__ import annotations

import csv
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archive.journal import Journal, read_journal
from archive.population import Population
from evaluator.experiments import data_hash
from evolve import __version__
from evolve.run.config import Config
from evolve.study.engines.engines import ENGINES, OURS
from evolve.study.spread import spelled, spread
from simulator.experiment.experiment import Experiment

JOURNAL = "journal.jsonl"  # of a search, in its folder
CURVE = "curve.jsonl"  # its best figures after every candidate
DONE = "done.json"  # written when it has come to its end
SHARES = (0.25, 0.5, 1.0)  # of the budget, where the figures are read
FIGURES = ("joint", "worst3", "merit")


@dataclass(frozen=True)
class Comparison:
    """What is compared, and where. The seeds of the searches are `config.seed` and those after it."""

    path: Path
    config: Config
    engines: tuple[str, ...]
    seeds: int

    @property
    def search_seeds(self) -> list[int]:
        return list(range(self.config.seed, self.config.seed + self.seeds))

    def folder(self, engine: str, seed: int) -> Path:
        return self.path / f"{engine}-{seed}"


class Curve:
    """The learning curve of a search: the lowest joint error, worst3 and merit of a sound program (percent, null before
    there is one) after every candidate, and the CPU seconds of all work so far. Kept in CURVE, a line per candidate."""

    def __init__(self, folder: Path) -> None:
        lines = read_journal(folder / CURVE)
        self._count, self._cpu_s = len(lines), lines[-1]["cpu_s"] if lines else 0.0
        self._file = Journal(folder / CURVE)
        self._since = time.process_time()

    def update(self, population: Population) -> None:
        """Add a line if there is a new candidate; time spent on remembered ones does not count."""
        if population.fitted <= self._count:
            self._since = time.process_time()
            return
        now = time.process_time()
        self._cpu_s, self._since = self._cpu_s + now - self._since, now
        self._count = population.fitted
        elites = population.archive.by_id.values()
        line = {
            "candidate": self._count,
            "joint": min((e.joint for e in elites), default=None),
            "worst3": min((e.worst3 for e in elites), default=None),
            "merit": min((population.rule.merit(e) for e in elites if e.sound), default=None),
            "cpu_s": round(self._cpu_s, 4),
        }
        self._file.append([line])

    def close(self) -> None:
        self._file.close()


def summarise(made: Comparison, fitted: Sequence[Experiment]) -> dict[str, Any]:
    """The report of a comparison whose searches have all ended, as plain values."""
    engines = {name: _engine(made, name) for name in made.engines}
    ours = engines.get(OURS)
    return {
        "engine": __version__,
        "data": data_hash(fitted),
        "seeds": made.search_seeds,
        "arrival_seeds": made.config.score.arrival_seeds,
        "path": str(made.path),
        "config": made.config.name,
        "budget": made.config.budget,
        "fitted": [e.id for e in fitted],
        "in_sample": True,
        "engines": engines,
        "verdicts": [
            verdict(ours, other, name, figure)
            for name, other in engines.items()
            if ours and name != OURS
            for figure in ("joint", "merit")
        ],
    }


def _engine(made: Comparison, name: str) -> dict[str, Any]:
    folders = [made.folder(name, seed) for seed in made.search_seeds]
    ends = [json.loads((folder / DONE).read_text()) for folder in folders]
    curves = [read_journal(folder / CURVE) for folder in folders]
    at = {f"{share:.0%}".rstrip("%"): share for share in SHARES}
    figures = {
        figure: {
            label: spread([_read_at(curve, share * made.config.budget, figure) for curve in curves])
            for label, share in at.items()
        }
        for figure in FIGURES
    }
    rejected: Counter[str] = sum((Counter(end["rejected"]) for end in ends), Counter())
    proposals, duplicates = sum(end["proposals"] for end in ends), rejected["duplicate"]
    champions = [end["champion"] for end in ends]
    return {
        "what": ENGINES[name].what,
        **figures,
        "champion": {
            figure: spread([c[figure] if c else None for c in champions])
            for figure in ("joint", "worst3", "e2e", "ttft", "itl")
        },
        "cpu_s": spread([curve[-1]["cpu_s"] if curve else 0.0 for curve in curves]),
        "candidates": [end["candidates"] for end in ends],
        "proposals": proposals,
        "rejected": dict(sorted(rejected.items())),
        "rejected_share": (rejected.total() - duplicates) / max(proposals - duplicates, 1),
        "duplicate_share": duplicates / max(proposals, 1),
        "champions": champions,
    }


def _read_at(curve: Sequence[dict[str, Any]], candidates: float, figure: str) -> float | None:
    """The figure after so many candidates; an engine that came to its end before keeps what it had."""
    if not curve:
        return None
    value: float | None = curve[min(max(int(candidates), 1), len(curve)) - 1][figure]
    return value


def verdict(ours: dict[str, Any], other: dict[str, Any], name: str, figure: str = "joint") -> dict[str, Any]:
    """Whether ours ends with a lower `figure`: `better` or `worse` where the medians are further apart than the
    larger of the two interquartile ranges, `not` where they are not, `unknown` with one seed or without a figure."""
    a, b = ours[figure]["100"], other[figure]["100"]
    if a["median"] is None or b["median"] is None:
        outcome, says = "unknown", "no verdict, since a search scored nothing"
    elif len(a["values"]) < 2:
        outcome, says = "unknown", "no verdict: one seed has no spread"
    else:
        apart = max(a["high"] - a["low"], b["high"] - b["low"])
        gain = b["median"] - a["median"]
        outcome = "not" if abs(gain) <= apart else "better" if gain > 0 else "worse"
        says = "no difference beyond the spread" if outcome == "not" else f"{outcome} by more than the spread"
    text = f"{figure}: {OURS} {spelled(a)} against {name} {spelled(b)}: {says}"
    return {"against": name, "figure": figure, "outcome": outcome, "text": text}


def write_curves(made: Comparison) -> None:
    """curves.csv: the figures after every candidate of every search, and the CPU seconds they took."""
    columns = ("candidate", "cpu_s", *FIGURES)
    with (made.path / "curves.csv").open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("engine", "seed", *columns))
        for name in made.engines:
            for seed in made.search_seeds:
                for entry in read_journal(made.folder(name, seed) / CURVE):
                    out.writerow((name, seed, *(entry[c] for c in columns)))

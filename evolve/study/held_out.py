"""Held-out errors: a row for every experiment that a fold holds out, and what the fold comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator import baselines
from evaluator.fit.fit import fit, fit_set
from evaluator.judge import gates
from evaluator.metrics import error_pct, mean
from evaluator.score import errors, predictions, score_set
from evaluator.statistics import bias, mean_abs
from evolve.run.program import Source
from evolve.study.folds import Fold, Winner
from simulator.experiment.experiment import Experiment, Observation, Observed
from simulator.language.ir import Program
from simulator.language.measure import constants, features, operations
from simulator.language.parse import parse

# figure -> (latency, statistic); ITL is observed in its mean only
STATISTICS = {
    "e2e": ("e2e_ms", "mean"), "ttft": ("ttft_ms", "mean"), "itl": ("itl_ms", "mean"),
    "e2e_p90": ("e2e_ms", "p90"), "e2e_p99": ("e2e_ms", "p99"),
    "ttft_p90": ("ttft_ms", "p90"), "ttft_p99": ("ttft_ms", "p99"),
}  # fmt: skip
MEANS = ("e2e", "ttft", "itl")
LATER = "_later"  # suffix: the average over the stages after the first, where cold starts are over
FIGURES = (*STATISTICS, *(name + LATER for name in STATISTICS))
Figures = Mapping[str, float | None]  # signed errors in percent; None where nothing was observed, or nothing completes


@dataclass(frozen=True, slots=True)
class Rival:
    """A program that is compared with ours, its constants refitted in every fold, and its errors on one experiment."""

    label: str
    errors: Figures


@dataclass(frozen=True, slots=True)
class Row:
    """A held-out experiment: what it is, our errors (FIGURES), and those of the known answers fitted on the same
    training experiments (MEANS). `champion` is the key of the fold's program, None where nothing could be scored."""

    kind: str
    fold: str
    experiment: str
    model: str
    workload: str
    tp: int
    moe: bool
    champion: str | None
    observed: bool
    errors: Figures
    known: Mapping[str, Figures]
    against: Rival | None = None

    def to_json(self) -> dict[str, Any]:
        """The row as validate.json has it."""
        names = ("kind", "fold", "experiment", "model", "workload", "tp", "moe", "champion", "observed")
        row = {name: getattr(self, name) for name in names} | dict(self.errors)
        row["known"] = {name: dict(figures) for name, figures in self.known.items()}
        return row | ({"against": {"label": self.against.label, **self.against.errors}} if self.against else {})


@dataclass(frozen=True, slots=True)
class Broken:
    """An invariant, whether the fold's program keeps it on the held-out deployments, and what was measured."""

    name: str
    passes: bool
    measured: str


@dataclass(frozen=True, slots=True)
class FoldResult:
    """A fold: what it held out and fitted, its winner and the gates on the held-out deployments, and mean errors."""

    fold: Fold
    fitted: Sequence[str]
    mean_abs_error_pct: Figures
    bias_pct: Figures
    winner: Winner | None
    gates: Sequence[Broken]

    def to_json(self) -> dict[str, Any]:
        """The fold as validate.json has it."""
        champion = None
        if self.winner:
            program = parse(self.winner.text)
            champion = {
                "key": self.winner.key, "id": self.winner.id, "text": self.winner.text,
                "candidates": self.winner.candidates, "operations": operations(program),
                "constants": constants(program), "fields": list(features(program)),
                "fitted_mean_abs_error_pct": dict(self.winner.trained),
            }  # fmt: skip
        return {
            "kind": self.fold.kind,
            "name": self.fold.name,
            "folder": self.fold.folder,
            "held_out": [e.id for e in self.fold.held],
            "last_stage_only": self.fold.last_stage,
            "fitted": list(self.fitted),
            "mean_abs_error_pct": dict(self.mean_abs_error_pct),
            "bias_pct": dict(self.bias_pct),
            "champion": champion,
            "gates": [{"name": g.name, "passes": g.passes, "measured": g.measured} for g in self.gates],
        }


@dataclass(frozen=True, slots=True)
class Unfitted:
    """An experiment that no run fits (overloaded ones above all), as the run's champion predicts it; counts of requests
    as (predicted, observed)."""

    experiment: str
    quality: str
    completed: tuple[int | None, int | None]
    failed: tuple[int | None, int | None]
    errors: Figures

    def to_json(self) -> dict[str, Any]:
        """The row as validate.json has it."""
        counts = {
            name: {"predicted": predicted, "observed": observed}
            for name, (predicted, observed) in (("completed", self.completed), ("failed", self.failed))
        }
        return {"experiment": self.experiment, "quality": self.quality, **counts, **self.errors}


def held_out_errors(program: Program, held: Sequence[Experiment], last_stage: bool) -> list[dict[str, float | None]]:
    """Errors in percent, (predicted - observed)/observed, of every figure of FIGURES and every experiment.

    Predictions are averaged over the arrival seeds of reports. `last_stage`: the whole run is replayed, and only its
    last stage compared.
    """
    found = []
    for made, e in zip(predictions(program, score_set(held)), held, strict=True):
        seen = e.observed or Observed(None, ())
        if last_stage:
            later: dict[str, float | None] = {name: None for name in FIGURES if name.endswith(LATER)}
            found.append(_errors([made.predicted.stages[-1]], list(seen.stages[-1:])) | later)
            continue
        whole = _errors([s for s in (made.predicted.summary,) if s], [s for s in (seen.summary,) if s])
        after_first = _errors(made.predicted.stages[1:], seen.stages[1:])
        found.append(whole | {name + LATER: value for name, value in after_first.items()})
    return found


def _errors(predicted: Sequence[Observation], observed: Sequence[Observation]) -> dict[str, float | None]:
    """The error of each statistic averaged over these sets of figures; None where there are none, or one is missing."""

    def average(sets: Sequence[Observation], latency: str, statistic: str) -> float | None:
        return mean([getattr(getattr(o, latency), statistic) for o in sets]) if sets else None

    return {
        name: error_pct(average(predicted, *where), average(observed, *where)) for name, where in STATISTICS.items()
    }


def rows_of(fold: Fold, winner: Winner | None, train: Sequence[Experiment], against: Source | None) -> list[Row]:
    """One row for every held-out experiment of a fold."""
    nothing = [dict.fromkeys(FIGURES)] * len(fold.held)
    ours = held_out_errors(parse(winner.text), fold.held, fold.last_stage) if winner else nothing
    answers: dict[str, dict[str, Figures]] = {e.id: {} for e in fold.held}
    for task in baselines.tasks(train, fold.held):
        for name, figures in _means(baselines.program_of(task), task.predicted, fold.last_stage).items():
            answers[name][task.name] = figures
    theirs: dict[str, Rival] = {}
    if against is not None:
        program = fit(against.complete, fit_set(train), allow_hostile=True).program
        label = f"{against.name}, form refitted"
        theirs = {id: Rival(label, means) for id, means in _means(program, fold.held, fold.last_stage).items()}
    return [
        Row(
            fold.kind, fold.name, e.id, e.model, e.workload.name, e.engine.tensor_parallel, bool(e.facts["is_moe"]),
            winner.key if winner else None, bool(e.observed and e.observed.summary and e.observed.summary.e2e_ms.mean),
            figures, answers[e.id], theirs.get(e.id),
        )
        for e, figures in zip(fold.held, ours, strict=True)
    ]  # fmt: skip


def _means(program: Program, experiments: Sequence[Experiment], last_stage: bool) -> dict[str, Figures]:
    """experiment -> errors of its means."""
    found = held_out_errors(program, experiments, last_stage) if experiments else []
    return {e.id: {x: row[x] for x in MEANS} for e, row in zip(experiments, found, strict=True)}


def result_of(fold: Fold, winner: Winner | None, train: Sequence[Experiment], rows: Sequence[Row]) -> FoldResult:
    """What a fold comes to, given its rows."""
    judged = gates.judge(parse(winner.text), gates.deployments_of(fold.held)) if winner else []
    return FoldResult(
        fold,
        [e.id for e in train],
        {name: mean_abs([r.errors[name] for r in rows]) for name in FIGURES},
        {name: bias([r.errors[name] for r in rows]) for name in FIGURES},
        winner,
        [Broken(g.name, g.passes, g.measured or g.complaint) for g in judged],
    )


def never_fitted(champion: str, experiments: Sequence[Experiment]) -> list[Unfitted]:
    """The experiments that a run leaves out, predicted with its champion."""
    found = []
    for made, e in zip(predictions(parse(champion), score_set(experiments)), experiments, strict=True):
        ours, seen = made.predicted.summary, e.observed.summary if e.observed else None
        completed = ours.completed if ours else None, seen.completed if seen else None
        failed = ours.failed if ours else None, seen.failed if seen else None
        figures = {name: getattr(errors(made, e), name) for name in MEANS}
        found.append(Unfitted(e.id, e.quality, completed, failed, figures))
    return found

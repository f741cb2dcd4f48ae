"""What one fold of a validation has to say, as plain values: a row per held-out experiment, its champion, its gates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evaluator import baselines as known
from evaluator.fit.fit import fit, fit_set
from evaluator.judge import gates
from evaluator.metrics import mean_abs
from evaluator.score import errors, predictions, score_set
from evaluator.statistics import bias
from evolve.run.program import Source
from evolve.study.fold_search import Winner
from evolve.study.folds import Fold
from evolve.study.held_out import FIGURES, Figures, held_out_errors
from evolve.study.statistics import MEANS
from simulator.experiment.experiment import Experiment
from simulator.language.ir import Program
from simulator.language.measure import constants, features, operations
from simulator.language.parse import parse


def rows_of(
    fold: Fold, winner: Winner | None, train: Sequence[Experiment], against: Source | None
) -> list[dict[str, Any]]:
    """One row for every held-out experiment: our errors, and those of the known answers fitted on the same training."""
    nothing: Figures = dict.fromkeys(FIGURES)
    ours = held_out_errors(parse(winner.text), fold.held, fold.last_stage) if winner else [nothing] * len(fold.held)
    answers: dict[str, dict[str, Figures]] = {e.id: {} for e in fold.held}
    for task in known.tasks(train, fold.held):
        for name, figures in _means(known.program_of(task), task.predicted, fold.last_stage).items():
            answers[name][task.name] = figures
    theirs = {}
    if against is not None:
        program = fit(against.complete, fit_set(train), allow_hostile=True).program
        theirs = _means(program, fold.held, fold.last_stage)
    return [
        {
            "kind": fold.kind,
            "fold": fold.name,
            "experiment": e.id,
            "model": e.model,
            "workload": e.workload.name,
            "tp": e.engine.tensor_parallel,
            "moe": bool(e.facts["is_moe"]),
            "champion": winner.key if winner else None,
            "observed": bool(e.observed and e.observed.summary and e.observed.summary.e2e_ms.mean),
            **figures,
            "known": answers[e.id],
            **({"against": {"label": f"{against.name}, form refitted", **theirs[e.id]}} if against else {}),
        }
        for e, figures in zip(fold.held, ours, strict=True)
    ]


def _means(program: Program, experiments: Sequence[Experiment], last_stage: bool) -> dict[str, Figures]:
    """experiment -> errors of its means."""
    found = held_out_errors(program, experiments, last_stage) if experiments else []
    return {e.id: {x: row[x] for x in MEANS} for e, row in zip(experiments, found, strict=True)}


def fold_json(
    fold: Fold, winner: Winner | None, train: Sequence[Experiment], rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """A fold as plain values: what it held out and fitted, its champion and what the gates say of it on the held-out
    deployments, and what `rows` add up to."""
    about: dict[str, Any] = {
        "kind": fold.kind,
        "name": fold.name,
        "folder": fold.folder,
        "held_out": [e.id for e in fold.held],
        "last_stage_only": fold.last_stage,
        "fitted": [e.id for e in train],
        "mean_abs_error_pct": {name: mean_abs([r[name] for r in rows]) for name in FIGURES},
        "bias_pct": {name: bias([r[name] for r in rows]) for name in FIGURES},
        "champion": None,
        "gates": [],
    }
    if winner is None:
        return about
    program = parse(winner.text)
    judged = gates.judge(program, gates.deployments_of(fold.held))
    return about | {
        "champion": {
            "key": winner.key, "id": winner.id, "text": winner.text, "candidates": winner.candidates,
            "operations": operations(program), "constants": constants(program), "fields": list(features(program)),
            "fitted_mean_abs_error_pct": winner.trained,
        },
        "gates": [{"name": g.name, "passes": g.passes, "measured": g.measured or g.complaint} for g in judged],
    }  # fmt: skip


def never_fitted(champion: str, experiments: Sequence[Experiment]) -> list[dict[str, Any]]:
    """What the run leaves out (overloaded runs above all), predicted with the run's champion."""
    out = []
    for made, e in zip(predictions(parse(champion), score_set(experiments)), experiments, strict=True):
        mine, seen = made.predicted.summary, e.observed.summary if e.observed else None
        out.append({
            "experiment": e.id, "quality": e.quality,
            "completed": {"predicted": mine.completed if mine else None, "observed": seen.completed if seen else None},
            "failed": {"predicted": mine.failed if mine else None, "observed": seen.failed if seen else None},
            **{name: getattr(errors(made, e), name) for name in MEANS},
        })  # fmt: skip
    return out

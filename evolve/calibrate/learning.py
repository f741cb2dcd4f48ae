"""`evolve fit --learning-curve`: the errors on runs that were not fitted, by how many runs were.

Each model is left out in turn; of a single model, each run. The constants are fitted to seeded random choices of the
other runs, and predict those left out by replay. The form of the program stays: a curve shows how many runs its
constants need, not how many a search for a form needs.

The fits are those of `evolve fit`. They start from the program's own constants and stay near those of an earlier fit.
Where these may come from the runs at hand they would leak: there the fits reset them to the prior.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from statistics import median

import numpy as np

from archive.score import Errors
from evaluator.fit.fit import fit_set
from evaluator.fit.loss import FitSet
from evaluator.group_out import fitted_without, left_out
from evaluator.metrics import mean_abs, present
from evaluator.score import MEANS, SCORE_SEEDS, ScoreSet, error_rows, score_set
from evolve import __version__
from evolve.calibrate.fit import usual_fit
from evolve.output.columns import figures, words
from evolve.output.printing import note, prose, show
from evolve.output.table import Table
from evolve.run.data import fittable, nothing_to_fit
from evolve.run.measurements import refuse_absurd
from evolve.run.program import Source
from evolve.run.use import known_before
from evolve.search.pool.pool import Pool
from evolve.search.pool.process import WorkerCall, parcel_of
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.common.records import fields_to_json
from simulator.common.streams import stream
from simulator.common.text import counted
from simulator.language.key import key
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment

DRAWS = 3  # choices of as many runs, for each group of runs that is left out; fewer if there are not as many
SEED = 40  # of the choices
PERCENTILE = 90  # of the E2E errors, which the table has too


@dataclass(frozen=True)
class CurvePoint:
    """Errors after a fit to `runs` runs (None: all that are not left out), in percent, absolute.

    fits: how many there were. predictions: of a run by a fit; without: those in which no request completes, which no
    figure has. median, mean: by latency of MEANS, None where nothing was observed. e2e_p90: the 90th percentile.
    """

    runs: int | None
    fits: int
    predictions: int
    without: int
    median: Mapping[str, float | None]
    mean: Mapping[str, float | None]
    e2e_p90: float | None


@dataclass(frozen=True)
class LearningCurve:
    """The learning curve of a program of this name and key.

    left_out: what is left out in turn, `model` or `run`; groups: the ids of the runs that are, by its name. least,
    most: how many runs are not left out. fitted_before: the ids of the runs that the program, or one that it was fitted
    from, was fitted on; None where that is not known. points: by the number of fitted runs, all of them last.
    """

    name: str
    key: str
    data: str
    left_out: str
    groups: Mapping[str, tuple[str, ...]]
    least: int
    most: int
    fitted_before: tuple[str, ...] | None
    points: tuple[CurvePoint, ...]

    @property
    def forgets(self) -> bool:
        return self.fitted_before is None or bool(self.fitted_before)

    def to_json(self) -> JsonObject:
        about = {"engine": __version__, "seeds": list(SCORE_SEEDS), "draws": DRAWS}
        return {**about, **fields_to_json(self), "start_values": "forgotten" if self.forgets else "kept"}


@dataclass(frozen=True)
class _Task:
    """A fit to the runs at the positions `fitted`, which predicts those at `held`. runs: as in Point."""

    runs: int | None
    fitted: tuple[int, ...]
    held: tuple[int, ...]


def learning_curve(source: Source, experiments: Sequence[Experiment], pool: Pool) -> LearningCurve:
    """The learning curve of the program on these experiments, by the workers of `pool`.

    Raises InputError if there are fewer than two runs to fit.
    """
    fitted = fittable(experiments)
    if not fitted:
        raise InputError(nothing_to_fit(experiments))
    if len(fitted) < 2:
        raise InputError(
            f"--learning-curve: {fitted[0].id} is the only run that can be fitted, and there is none to "
            "predict: give experiments with several"
        )
    refuse_absurd(fitted)
    models = [e.model for e in fitted]
    by = "model" if len(set(models)) > 1 else "run"
    names = models if by == "model" else [e.id for e in fitted]
    groups = left_out(names)
    tasks = list(_tasks(groups, len(fitted)))
    rest = [len(fitted) - len(group) for group in groups]
    known = None if source.record is None else tuple(e.id for e in fitted if known_before(source.record, e))
    by_name = {names[group[0]]: tuple(fitted[i].id for i in group) for group in groups}
    about = source.name, key(source.complete), data_hash(fitted)
    curve = LearningCurve(*about, by, by_name, min(rest), max(rest), known, points=())
    errors = _carried_out(source, curve.forgets, fitted, tasks, pool)
    return replace(curve, points=tuple(_points(tasks, errors, fitted)))


def choices(runs: Sequence[int], count: int, fold: int) -> list[tuple[int, ...]]:
    """DRAWS different choices of `count` of the runs, each in order; all there are if they are fewer.

    They are the same whatever else is drawn: `fold` is the number of the group that is left out.
    """
    if comb(len(runs), count) <= DRAWS:
        return list(combinations(runs, count))
    rng, drawn = stream(SEED, fold, count), dict[tuple[int, ...], None]()
    while len(drawn) < DRAWS:
        drawn[tuple(sorted(rng.choice(np.array(runs), count, replace=False).tolist()))] = None
    return list(drawn)


def _tasks(groups: Sequence[Sequence[int]], total: int) -> Iterator[_Task]:
    """The fits: to 1, 2, 4, ... runs as far as every group that is left out leaves more, and to all that it leaves."""
    least = total - max(map(len, groups))
    counts = [2**k for k in range(total.bit_length()) if 2**k < least]
    for count in (*counts, None):
        for fold, held in enumerate(groups):
            rest = [i for i in range(total) if i not in held]
            for chosen in choices(rest, count or len(rest), fold):
                yield _Task(count, chosen, tuple(held))


def _carried_out(
    source: Source, reset_to_prior: bool, fitted: Sequence[Experiment], tasks: Sequence[_Task], pool: Pool
) -> list[list[Errors]]:
    pool.line.show(f"{counted(len(fitted), 'run')} are prepared for {counted(len(tasks), 'fit')} ...")
    data = parcel_of(source, reset_to_prior, fit_set(fitted), score_set(fitted))
    return pool.all_of([WorkerCall(_errors, (task,), parcel=data) for task in tasks], "fits")


_Data = tuple[Source, bool, FitSet, ScoreSet]


def _errors(prepared: _Data, task: _Task) -> list[Errors]:
    """The errors on the runs that a task leaves out, of which nothing enters the fit."""
    source, reset_to_prior, data, score = prepared
    train, of_train = data.subset(task.fitted), score.subset(task.fitted)
    program = fitted_without(source.complete, train) if reset_to_prior else usual_fit(source, train, of_train)
    return error_rows(program, score.subset(task.held))


def _points(
    tasks: Sequence[_Task], errors: Sequence[Sequence[Errors]], fitted: Sequence[Experiment]
) -> Iterator[CurvePoint]:
    observed = {e.id: e.observed.summary if e.observed else None for e in fitted}
    for runs in dict.fromkeys(task.runs for task in tasks):
        of_runs = [rows for task, rows in zip(tasks, errors, strict=True) if task.runs == runs]
        rows = [r for of_fit in of_runs for r in of_fit]
        known = {name: [abs(x) for x in present([getattr(r, name) for r in rows])] for name in MEANS}
        lost = [r for r in rows if r.e2e is None and (o := observed[r.experiment]) and o.e2e_ms.mean]
        yield CurvePoint(
            runs=runs,
            fits=len(of_runs),
            predictions=len(rows),
            without=len(lost),
            median={name: median(values) if values else None for name, values in known.items()},
            mean={name: mean_abs(values) for name, values in known.items()},
            e2e_p90=float(np.percentile(known["e2e"], PERCENTILE)) if known["e2e"] else None,
        )


def print_curve(curve: LearningCurve, explain: bool = False) -> None:
    """Print a row for each number of fitted runs."""
    every = f"all ({curve.least})" if curve.least == curve.most else f"all ({curve.least} to {curve.most})"
    rows = []
    for p in curve.points:
        errors = [of[name] for of in (p.median, p.mean) for name in MEANS]
        rows.append((every if p.runs is None else str(p.runs), p.fits, p.predictions, *errors, p.e2e_p90))
    heads = [f"{figure} {name}" for figure in ("median", "mean") for name in ("E2E", "TTFT", "ITL")]
    columns = [words("fitted runs"), figures("d", "fits", "predictions"), figures(".2f", *heads, f"p{PERCENTILE} E2E")]
    title = f"Absolute errors of {curve.name} in percent on runs left out of the fit, each {curve.left_out} in turn"
    show(Table.of(title, columns, rows))
    if explain:
        note(f"fitted runs: of those not left out, {DRAWS} random choices each time; predictions: of a run by a fit")
    lost = sum(p.without for p in curve.points)
    if lost:
        prose(f"- In {counted(lost, 'prediction')} no request completes: no figure has these.")
    prose(f"- {_of_start_values(curve)}")
    prose(
        "- Every error is of a run that its fit had not seen. The form of the program is the same in all fits. If it "
        "was chosen with these runs in sight, its constants need this many runs, and its search may need more."
    )


def _of_start_values(curve: LearningCurve) -> str:
    if not curve.forgets:
        return (
            f"The fits are those of `evolve fit`. They stay near the constants of {curve.name}, which was fitted on "
            "none of these runs."
        )
    why = f"what {curve.name} was fitted on is not known"
    if curve.fitted_before:
        total = sum(map(len, curve.groups.values()))
        why = f"{curve.name} was fitted on {len(curve.fitted_before)} of these {total} runs"
    return (
        f"The fits forget the program's own constants, because {why}: they know nothing of what their runs do not "
        "show. `evolve fit` does not forget."
    )

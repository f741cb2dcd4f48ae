"""`evolve fit`: the same form with constants from other experiments, and what that changed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluator.experiments import data_hash
from evaluator.fit.fit import fit_set
from evaluator.fit.loss import FitSet
from evaluator.fit.per_model import fit_scoped, models_of, scoped
from evaluator.fit.problem import Problem, problem_of
from evaluator.fit.steps import step_positions
from evaluator.fit.uncertainty import certainties, effective
from evaluator.score import Errors, ScoreSet, error_rows, score_set
from evolve.program.fit.first_stage import first_stage, stage_figures
from evolve.program.fit.result import Calibration, Freedom, Try, changes, files_for, save
from evolve.program.steps.sources import Run
from evolve.run.data import fittable, nothing_to_fit
from evolve.run.program import Source
from evolve.run.selectors import known_constants, positions
from simulator.clock.run import HostileStep
from simulator.errors import InputError
from simulator.experiment.experiment import Experiment
from simulator.language.ir import Program
from simulator.language.key import key


@dataclass(frozen=True)
class Settings:
    """How to fit.

    methods: tried in turn, the best result is kept. per_model: words for the constants with a value for each model
    (None: all of them). only: words for the constants that may change (empty: all of them). For words see
    `evolve.run.selectors.positions`. steps: runs whose measured steps are fitted first.
    """

    methods: tuple[str, ...] = ("auto",)
    per_model: tuple[str, ...] | None = ()
    only: tuple[str, ...] = ()
    steps: tuple[Run, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether all models share all constants."""
        return self.per_model == ()


def calibrate(
    source: Source, experiments: Sequence[Experiment], out: Path | None, settings: Settings | None = None
) -> Calibration:
    """Fit the program's constants on `experiments`, and write it and its record to `out` if given.

    Raises InputError if nothing can be fitted, if no constants make the program usable, or if `out` cannot be written.
    """
    settings = settings or Settings()
    fitted = fittable(experiments)
    if not fitted:
        raise InputError(nothing_to_fit(experiments))
    if settings.steps and not settings.shared:
        raise InputError("--steps fits one value for all models: leave --scope per-model and --per-model out")
    program, known = source.complete, source.record is not None
    own, held = _chosen(program, settings)
    data, score = fit_set(fitted), score_set(fitted)
    files = files_for(out, source.name, None if settings.shared else models_of(data))
    stage = first_stage(program, settings.steps, fitted, held, known) if settings.steps else None
    problem = _problem(stage.program if stage else program, data, own, held, known, settings)
    tries = tuple(_try(source, problem, method, score) for method in settings.methods)
    best = min(tries, key=lambda t: t.fit.loss)
    certainty = certainties(best.fit.problem, best.fit.phi)
    old = known_constants(source.record, program)
    ids = tuple(e.id for e in fitted)
    return Calibration(
        name=source.name,
        key=key(program),
        data=data_hash(fitted),
        shared=settings.shared,
        programs=save(source, best, certainty, data, old, files, settings.shared, stage),
        fitted=ids,
        left_out=tuple(e.id for e in experiments if e.id not in ids),
        best=best,
        tries=tries,
        freedom=Freedom(len(problem.free), effective(certainty), int((data.weights > 0).sum())),
        constants=changes(program, best.fit, certainty, old, stage),
        steps=stage_figures(stage, program, best.fit.programs[0]) if stage else None,
        before=tuple(error_rows(program, score)),
        warnings={e.id: e.notes for e in fitted},
    )


def _chosen(program: Program, settings: Settings) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Positions in theta of the constants with a value per model, and of those that are held."""
    every = tuple(range(len(program.theta)))
    free = positions(program, settings.only, "--only") if settings.only else every
    held = tuple(j for j in every if j not in free)
    if settings.per_model is None:
        return free, held
    own = positions(program, settings.per_model, "--per-model")
    if not set(own) <= set(free):
        raise InputError("--per-model names a constant that --only holds: name it in both")
    return own, held


def _problem(
    program: Program, data: FitSet, own: Sequence[int], held: Sequence[int], known: bool, settings: Settings
) -> Problem:
    if settings.shared:
        return problem_of(program, data, held, known, step_positions(program) if settings.steps else ())
    return scoped(program, data, own, held, known)


def _try(source: Source, problem: Problem, method: str, score: ScoreSet) -> Try:
    begun = time.monotonic()
    try:
        fit = fit_scoped(problem, method)
    except HostileStep as e:
        raise InputError(f"{source.name}: cannot be fitted on these experiments ({e}): change the program") from None
    seconds = time.monotonic() - begun
    errors: dict[int, Errors] = {}
    for group, program in zip(problem.groups, fit.programs, strict=True):
        rows = error_rows(program, score.subset(group.experiments))
        errors.update(zip(group.experiments, rows, strict=True))
    return Try(method, fit, tuple(errors[i] for i in range(len(score.experiments))), seconds)

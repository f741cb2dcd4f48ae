"""`evolve fit`: the same form with constants from other experiments, and what that changed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evaluator.experiments import data_hash
from evaluator.fit.fit import fit_set
from evaluator.fit.loss import FitSet
from evaluator.fit.per_model import fit_scoped, scoped
from evaluator.fit.problem import Problem, problem_of
from evaluator.fit.steps import step_positions
from evaluator.fit.uncertainty import certainties, effective
from evaluator.score import SCORE_SEEDS, Errors, ScoreSet, error_rows, score_set
from evolve import __version__
from evolve.program.fit.files import check_out, paths
from evolve.program.fit.first_stage import first_stage, stage_json
from evolve.program.fit.result import Try, constant_rows, programs, side
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
    """methods: routes to try, the best is kept. per_model: words for constants with a value for each model (None: all
    of them). only: words for what may change (none: everything). Words: see `constants.positions`. steps: runs whose
    measured steps are fitted first."""

    methods: tuple[str, ...] = ("auto",)
    per_model: tuple[str, ...] | None = ()
    only: tuple[str, ...] = ()
    steps: tuple[Run, ...] = ()


def calibrate(
    source: Source, experiments: Sequence[Experiment], out: Path | None, settings: Settings | None = None
) -> dict[str, Any]:
    """Fit the program's constants on `experiments`; write it to `out` (and its record beside) if given.

    Raises InputError when nothing can be fitted, when no constants make the program usable, or `out` cannot be
    written.
    """
    settings = settings or Settings()
    check_out(out)
    fitted = fittable(experiments)
    if not fitted:
        raise InputError(nothing_to_fit(experiments))
    if settings.steps and settings.per_model != ():
        raise InputError("--steps fits one value for all models: leave --scope per-model and --per-model out")
    program, known = source.complete, source.record is not None
    own, held = _chosen(program, settings)
    stage = first_stage(program, settings.steps, fitted, held, known) if settings.steps else None
    data, score = fit_set(fitted), score_set(fitted)
    problem = _problem(stage.program if stage else program, data, own, held, known, settings)
    tries = [_try(source, problem, method, score) for method in settings.methods]
    best = min(tries, key=lambda t: t.fit.loss)
    found = certainties(best.fit.problem, best.fit.phi)
    old = known_constants(source.record, program) if settings.only or known else None
    before = error_rows(program, score)
    files = paths(out, source.name, best.fit.models if settings.per_model != () else None)
    made = programs(source, best, found, data, old, files, settings.per_model == (), stage)
    whole = settings.per_model == ()
    return {
        "engine": __version__,
        "data": data_hash(fitted),
        "seeds": list(SCORE_SEEDS),
        "name": source.name,
        "program": made[0]["program"] if whole else None,
        "key": key(program),
        "programs": made,
        "fitted": [e.id for e in fitted],
        "left_out": [e.id for e in experiments if e.id not in {f.id for f in fitted}],
        "method": best.method,
        "loss": best.fit.loss,
        "methods": [side(t) for t in tries],
        "degrees_of_freedom": {
            "constants": len(problem.free),
            "effective": effective(found),
            "observations": int((data.weights > 0).sum()),
        },
        "constants": constant_rows(program, best.fit, found, old, stage),
        "steps": stage_json(stage, program, best.fit.programs[0]) if stage else None,
        "before": [asdict(r) for r in before],
        "after": [asdict(r) for r in best.rows],
        "out": [p["out"] for p in made if p["out"]],
    }


def _chosen(program: Program, settings: Settings) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Positions in theta of the constants per model, and of those that are held."""
    every = tuple(range(len(program.theta)))
    free = positions(program, settings.only, "--only") if settings.only else every
    if settings.per_model is None:
        return free, tuple(j for j in every if j not in free)
    own = positions(program, settings.per_model, "--per-model")
    if not set(own) <= set(free):
        raise InputError("--per-model names a constant that --only holds: name it in both")
    return own, tuple(j for j in every if j not in free)


def _problem(
    program: Program, data: FitSet, own: Sequence[int], held: Sequence[int], known: bool, settings: Settings
) -> Problem:
    if settings.per_model == ():
        return problem_of(program, data, held, known, step_positions(program) if settings.steps else ())
    return scoped(program, data, own, held, known)


def _try(source: Source, problem: Problem, method: str, score: ScoreSet) -> Try:
    begun = time.monotonic()
    try:
        found = fit_scoped(problem, method)
    except HostileStep as e:
        raise InputError(f"{source.name}: cannot be fitted on these experiments ({e}): change the program") from None
    seconds = time.monotonic() - begun
    rows: dict[int, Errors] = {}
    for group, program in zip(problem.groups, found.programs, strict=True):
        errors = error_rows(program, score.subset(group.experiments))
        rows.update(zip(group.experiments, errors, strict=True))
    return Try(method, found, tuple(rows[i] for i in range(len(score.experiments))), seconds)

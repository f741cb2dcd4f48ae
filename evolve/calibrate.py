"""`evolve fit`: the same form with constants from other experiments, and what that changed."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from evaluator.experiments import data_hash
from evaluator.fit import FitSet, fit_set
from evaluator.problem import Problem, problem_of
from evaluator.scope import ScopedFit, fit_scoped, scoped
from evaluator.score import SCORE_SEEDS, Errors, ScoreSet, error_rows, score_set, subset, summarise
from evaluator.uncertainty import Certainty, certainties, effective
from evolve import __version__
from evolve.choose import fittable, nothing_to_fit
from evolve.constants import certain, known_constants, positions
from evolve.fit_out import check_out, paths, write
from evolve.programs import Source
from evolve.records import record
from simulator.clock.run import HostileStep
from simulator.errors import InputError
from simulator.experiment import Experiment
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.language.unparse import unparse


@dataclass(frozen=True)
class Settings:
    """methods: routes to try, the best is kept. per_model: words for constants with a value for each model (None: all
    of them). only: words for what may change (none: everything). Words: see `constants.positions`."""

    methods: tuple[str, ...] = ("auto",)
    per_model: tuple[str, ...] | None = ()
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Try:
    method: str
    fit: ScopedFit
    rows: tuple[Errors, ...]
    seconds: float


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
    program = source.complete
    own, held = _chosen(program, settings)
    data, score = fit_set(fitted), score_set(fitted)
    problem = _problem(program, data, own, held, source.record is not None, settings)
    tries = [_try(source, problem, method, score) for method in settings.methods]
    best = min(tries, key=lambda t: t.fit.loss)
    found = certainties(best.fit.problem, best.fit.phi)
    old = known_constants(source.record, program) if settings.only or source.record is not None else None
    before = error_rows(program, score)
    files = paths(out, source.name, best.fit.models if settings.per_model != () else None)
    programs = _programs(source, best, found, data, old, files, settings)
    whole = len(programs) == 1 and settings.per_model == ()
    return {
        "engine": __version__,
        "data": data_hash(fitted),
        "seeds": list(SCORE_SEEDS),
        "name": source.name,
        "program": programs[0]["program"] if whole else None,
        "key": key(program),
        "programs": programs,
        "fitted": [e.id for e in fitted],
        "left_out": [e.id for e in experiments if e.id not in {f.id for f in fitted}],
        "method": best.method,
        "loss": best.fit.loss,
        "methods": [_side(t) for t in tries],
        "degrees_of_freedom": {
            "constants": len(problem.free),
            "effective": effective(found),
            "observations": int((data.weights > 0).sum()),
        },
        "constants": _rows(program, best.fit, found, old),
        "before": [asdict(r) for r in before],
        "after": [asdict(r) for r in best.rows],
        "out": [p["out"] for p in programs if p["out"]],
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
        return problem_of(program, data, held, known)
    return scoped(program, data, own, held, known)


def _try(source: Source, problem: Problem, method: str, score: ScoreSet) -> _Try:
    begun = time.monotonic()
    try:
        found = fit_scoped(problem, method=method)
    except HostileStep as e:
        raise InputError(f"{source.name}: cannot be fitted on these experiments ({e}): change the program") from None
    seconds = time.monotonic() - begun
    rows: dict[int, Errors] = {}
    for group, program in zip(problem.groups, found.programs, strict=True):
        some = subset(score, group.experiments)
        rows.update(zip(group.experiments, error_rows(program, some), strict=True))
    return _Try(method, found, tuple(rows[i] for i in range(len(score.experiments))), seconds)


def _side(t: _Try) -> dict[str, Any]:
    score = summarise(t.rows)
    return {"method": t.method, "loss": t.fit.loss, "e2e": score.e2e, "ttft": score.ttft, "itl": score.itl,
            "seconds": t.seconds}  # fmt: skip


def _programs(
    source: Source, best: _Try, found: Sequence[Certainty], data: FitSet, old: Any, files: Sequence[Path | None],
    settings: Settings,
) -> list[dict[str, Any]]:  # fmt: skip
    """The program of every group, written to its file if it has one."""
    out: list[dict[str, Any]] = []
    shared = settings.per_model == ()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    for i, (group, path) in enumerate(zip(best.fit.problem.groups, files, strict=True)):
        members = [data.experiments[j] for j in group.experiments]
        program = replace(best.fit.programs[i], doc=_doc(source, members if not shared else data.experiments))
        text, rows = unparse(program), [best.rows[j] for j in group.experiments]
        if path is not None:
            kept = _known([found[j] for j in group.index], old)
            others = {} if shared else {"scope": "per-model", "fitted_with": [e.id for e in data.experiments]}
            write(path, text, record(
                key(program), members, rows, SCORE_SEEDS, today, fitted_from=source.name, constants=kept, **others
            ))  # fmt: skip
        out.append({
            "model": None if shared else best.fit.models[i],
            "fitted": [e.id for e in members],
            "program": text,
            "out": str(path) if path else None,
        })  # fmt: skip
    return out


def _known(found: Sequence[Certainty], old: Any) -> dict[str, dict[str, Any]]:
    """What is known after the fit: of constants that were held, what was known before."""
    out = certain(found)
    for c in found:
        name = f"{c.method}.{c.name}"
        if c.held and old and name in old:
            out[name] = old[name]
    return out


def _rows(program: Program, fit: ScopedFit, found: Sequence[Certainty], old: Any) -> list[dict[str, Any]]:
    """Each constant before and after; `moved` in standard errors, old and new together where both are known."""
    out = []
    for j, c in enumerate(found):
        before = program.theta[fit.problem.position[j]]
        known = (old or {}).get(f"{c.method}.{c.name}", {}).get("standard_error")
        error = math.hypot(c.standard_error, known or 0.0)
        moved = (c.value - before) / error if np.isfinite(error) and error > 0.0 else None
        out.append({
            "model": None if c.group is None else fit.models[c.group],
            "method": c.method, "name": c.name, "before": before, "after": c.value,
            "standard_error": c.standard_error if math.isfinite(c.standard_error) else None,
            "standard_error_before": known, "moved": moved, "bound": c.bound, "determined": c.determined,
            "identified": c.identified, "held": c.held,
        })  # fmt: skip
    return out


def _doc(source: Source, fitted: Sequence[Experiment]) -> str:
    return f"The form of {source.name}, its constants fitted on {', '.join(e.id for e in fitted)}."

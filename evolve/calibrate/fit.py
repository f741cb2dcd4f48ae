"""`evolve fit`: the same form with constants from other experiments, and what that changed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from archive.score import Errors
from evaluator.fit.delays import delays_ms, with_delays
from evaluator.fit.fit import ScopedFit, fit_scoped, fit_set, models_of, scoped
from evaluator.fit.loss import FitSet
from evaluator.fit.problem import Problem, problem_of
from evaluator.fit.replayed import observations
from evaluator.fit.steps import step_positions
from evaluator.fit.uncertainty import certainties, effective
from evaluator.score import ScoreSet, error_rows, score_set
from evolve.calibrate.first_stage import RELATIVE, FirstStage, Loss, first_stage, stage_figures
from evolve.calibrate.held_out import HeldOut, held_out
from evolve.calibrate.result import Calibration, Freedom, Try, changes, save
from evolve.calibrate.steps.sources import TableRun
from evolve.output.progress import Line
from evolve.run.data import fittable, nothing_to_fit, part, why_not_fitted
from evolve.run.measurements import counted_before, counted_twice, refuse_absurd, too_fast
from evolve.run.program import Source
from evolve.run.program_files import files_for, not_ours
from evolve.run.selectors import known_constants, positions
from evolve.run.trust import Trust, trust_of
from evolve.search.pool.local import Here
from evolve.search.pool.pool import Pool
from evolve.search.pool.process import WorkerCall, parcel_of
from simulator.clock.run import HostileStep
from simulator.common.errors import InputError
from simulator.language.complete import complete
from simulator.language.ir import Call, Choose, Function, Guard, Program, roots, walk
from simulator.language.key import key
from simulator.language.opcodes import assemble
from simulator.language.simplify import brief
from simulator.language.unparse import unparse
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment, simulated
from simulator.serving.facts import has_curves
from simulator.serving.splits import TEST, TRAIN, VALID

# With a max, a min or a condition, descent may end in a local optimum: a fit then has other starts.
FACTORS = (0.25, 4.0, 16.0)  # by which one constant is larger or smaller than in the program
METHOD = "linear"  # Gauss-Newton: the others are slow, or do not stop at a branch
GAIN = 0.01  # so much lower must a loss be to be taken instead, as a share


@dataclass(frozen=True)
class FitSettings:
    """How to fit.

    methods: tried in turn, the best result is kept. per_model: words for the constants with a value for each model
    (None: all of them). only: words for the constants that may change (empty: all of them). For words see
    `evolve.run.selectors.positions`. steps: runs whose measured steps are fitted first, under `loss`. split: fit the
    first 60 % of every trace, and keep the errors on the next and the last 20 %.
    """

    methods: tuple[str, ...] = ("auto",)
    per_model: tuple[str, ...] | None = ()
    only: tuple[str, ...] = ()
    steps: tuple[TableRun, ...] = ()
    split: bool = False
    loss: Loss = RELATIVE

    @property
    def shared(self) -> bool:
        return self.per_model == ()


def calibrate(
    source: Source,
    experiments: Sequence[Experiment],
    out: Path | None,
    settings: FitSettings | None = None,
    pool: Pool | None = None,
) -> Calibration:
    """Fit the program's constants on `experiments`, and write it and its record to `out` if given.

    The methods are tried by the workers of `pool`, one after the other in this process without it.
    Raises InputError if nothing can be fitted, if no constants make the program usable, or if `out` cannot be written.
    """
    settings = settings or FitSettings()
    later = {name: [part(e, name) for e in experiments] for name in (VALID, TEST)} if settings.split else {}
    if settings.split:
        experiments = [part(e, TRAIN) for e in experiments]
    fitted = fittable(experiments)
    if not fitted:
        raise InputError(nothing_to_fit(experiments))
    bounds, twice = refuse_absurd(fitted), counted_twice(fitted)
    if settings.steps and not settings.shared:
        raise InputError("--steps fits one value for all models: leave --scope per-model and --per-model out")
    program, fitted_before = source.complete, source.fitted_before
    data, score = fit_set(fitted), score_set(fitted)
    files = files_for(out, source.name, None if settings.shared else models_of(data))
    existing = [file for file in files if file and file.exists()]
    replaced = tuple(str(file) for file in existing if not not_ours(file))
    problem, first = _problem(program, data, fitted_before, settings)
    if first:
        program = first.fit.start  # the form that is fitted, which may have one more constant
    pool = pool or Here(Line(quiet=True))
    tries = _tries(source, problem, settings.methods, score, pool)
    best, start = _from_elsewhere(source, problem, _best(tries), score, pool)
    trust, no_trust = _trust(source, data, best, settings, pool)
    certainty = certainties(best.fit.problem, best.fit.phi)
    old = known_constants(source.record, source.complete)
    kept = old if settings.loss.is_mean else {n: c for n, c in (old or {}).items() if not n.startswith("step_time.")}
    ids = tuple(e.id for e in fitted)
    of_later = _errors_later(later, best, data)
    before = counted_before(source.record, fitted, [f"{c.method}.{c.name}" for c in certainty if not c.held])
    return Calibration(
        name=source.name,
        key=key(program),
        data=data_hash(fitted),
        shared=settings.shared,
        programs=save(source, best, certainty, data, kept, files, settings.shared, first, trust, settings.split),
        fitted=ids,
        left_out={e.id: why_not_fitted(e) for e in experiments if e.id not in ids},
        best=best,
        replaced=replaced,
        rewritten=len(replaced) < len(existing),
        started=start,
        tries=tries,
        freedom=Freedom(len(problem.free), effective(certainty), observations(data)),
        constants=changes(program, best.fit, certainty, old, first),
        steps=stage_figures(first, best.fit.programs[0]) if first else None,
        before=tuple(error_rows(program, score)),
        simulated=bool(simulated(fitted)),
        warnings={
            e.id: (*e.notes, *too_fast(e, bound), *twice.get(e.id, ()), *before.get(e.id, ()))
            for e, bound in zip(fitted, bounds, strict=True)
        },
        trust=trust,
        no_trust=no_trust,
        later=of_later,
        held_out=HeldOut(of_later[TEST], which="the last 20 % of the requests of each")
        if settings.split
        else held_out(source, best.fit, best.errors, bool(settings.steps)),
        delays=tuple(delays_ms(best.fit.problem, best.fit.phi).values()),
    )


def usual_fit(source: Source, data: FitSet, score: ScoreSet) -> Program:
    """The program that `evolve fit` makes of the source on these runs without options, for all models.

    Raises InputError if no constants make the program usable.
    """
    settings, here = FitSettings(), Here(Line(quiet=True))
    problem, _ = _problem(source.complete, data, source.fitted_before, settings)
    best = _best(_tries(source, problem, settings.methods, score, here))
    return _from_elsewhere(source, problem, best, score, here)[0].fit.programs[0]


def _best(tries: Sequence[Try]) -> Try:
    return min(tries, key=lambda t: t.fit.loss)


def _errors_later(later: Mapping[str, Sequence[Experiment]], best: Try, data: FitSet) -> dict[str, tuple[Errors, ...]]:
    of_groups = zip(best.fit.problem.groups, best.fit.programs, strict=True)
    program_of = {data.experiments[i].id: program for group, program in of_groups for i in group.experiments}
    return {
        name: tuple(row for e in parts if e.id in program_of for row in error_rows(program_of[e.id], score_set([e])))
        for name, parts in later.items()
    }


def _chosen(program: Program, settings: FitSettings) -> tuple[tuple[int, ...], tuple[int, ...]]:
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
    program: Program, data: FitSet, fitted_before: bool, settings: FitSettings
) -> tuple[Problem, FirstStage | None]:
    """What is fitted, and the first stage from which it starts. `fitted_before`: the constants come from a fit."""
    own, held = _chosen(program, settings)
    if not settings.shared:
        return scoped(program, data, own, held, fitted_before), None
    if not settings.steps:
        return problem_of(program, data, held, fitted_before), None
    first = first_stage(program, settings.steps, data.experiments, held, fitted_before, settings.loss)
    program = first.program
    _, held = _chosen(program, settings)  # again, because the form may have grown
    in_steps = step_positions(program)
    if not settings.loss.is_mean:  # load stages show means, which would undo a quantile
        held = tuple(sorted({*held, *in_steps}))
    return problem_of(program, data, held, fitted_before, in_steps), first


def _trust(
    source: Source, data: FitSet, best: Try, settings: FitSettings, pool: Pool
) -> tuple[Trust | None, str | None]:
    """What intervals of the fitted program are made of, and why not, if those of the source have something.

    The ensemble is fitted as the program is: from its own constants, on the same runs. A member that cannot be is left
    out: it reads measured kernels where there are none, or meets step times out of range.
    """
    trust = trust_of(source)
    if trust is None:
        return None, None
    if not settings.loss.is_mean:
        return None, "the step times are a quantile, and intervals are those of means"
    if not settings.shared:
        return None, "near-optimal programs are fitted with constants for all models: leave --scope and --per-model out"
    measured = all(has_curves(e.facts) for e in data.experiments)
    members = [m for m in map(complete, trust.programs) if measured or not assemble(m).curves]
    prepared = parcel_of(data, settings, best.method)
    calls = [WorkerCall(_fitted_member, (member,), parcel=prepared) for member in members]
    try:
        fitted = pool.all_of(calls, "near-optimal programs fitted, for intervals")
    except InputError:
        return None, "--only names constants that near-optimal programs lack: name alpha, beta or methods"
    texts = tuple(unparse(brief(program)) for program in fitted if program)
    own = data_hash(data.experiments)
    return replace(trust, key=key(best.fit.programs[0]), ensemble=texts, data=own), None


def _fitted_member(data: tuple[FitSet, FitSettings, str], member: Program) -> Program | None:
    fitted, settings, method = data
    problem, _ = _problem(member, fitted, True, settings)
    with suppress(HostileStep):
        return fit_scoped(problem, method).programs[0]
    return None


def _tries(source: Source, problem: Problem, methods: Sequence[str], score: ScoreSet, pool: Pool) -> tuple[Try, ...]:
    """The fits by these methods. The problem, which is large, goes to the workers once and does not come back."""
    data = parcel_of(source.name, problem, score)
    calls = [WorkerCall(_fitted, (method,), parcel=data) for method in methods]
    waiting = [pool.submit(call, number) for number, call in enumerate(calls)]
    return tuple(
        Try(method, replace(fit, problem=with_delays(problem, fit.phi)), errors, seconds)
        for method, (fit, errors, seconds) in zip(methods, (task.result() for task in waiting), strict=True)
    )


def _from_elsewhere(source: Source, problem: Problem, best: Try, score: ScoreSet, pool: Pool) -> tuple[Try, str | None]:
    """The best fit from other starts, and that start in words; `best` itself, and None, unless that is better."""
    data, starts = parcel_of(source.name, problem, score), list(_other_starts(problem))
    calls = [WorkerCall(_fitted_from, (phi,), parcel=data) for _, phi in starts]
    waiting = [pool.submit(call, number) for number, call in enumerate(calls)]
    words_of_best = None
    for (words, _), task in zip(starts, waiting, strict=True):
        if (ended := task.result()) and ended[0].loss < (1.0 - GAIN) * best.fit.loss:
            fit, errors, seconds = ended
            fit = replace(fit, problem=with_delays(problem, fit.phi))
            best, words_of_best = Try(METHOD, fit, errors, seconds), words
    return best, words_of_best


def _other_starts(problem: Problem) -> Iterator[tuple[str, np.ndarray]]:
    """Starts (words, float64[phi]) with one constant larger or smaller by FACTORS: each that is fitted in a method
    with a branch; none where no method has one."""
    names = [(f, c.name) for f in problem.program.functions for c in f.constants]
    free = set(problem.free)
    for j, (function, name) in enumerate(names):
        entries = [i for i in np.flatnonzero(problem.position == j) if i in free]  # one for each model, or one for all
        if not entries or not _branches(function):
            continue
        for factor in FACTORS:
            phi = problem.start.copy()
            phi[entries] = np.clip(factor * phi[entries], problem.low[entries], problem.high[entries])
            if (phi != problem.start).any():
                i = entries[0]
                yield f"{function.name}.{name} = {phi[i]:.4g} instead of {problem.start[i]:.4g}", phi


def _branches(function: Function) -> bool:
    """True if the formula of a method depends on its arguments: by max, min or a condition."""
    nodes = (node for root in roots(function) for node in walk(root))
    return any(isinstance(s, Guard) for s in function.body) or any(
        isinstance(node, Choose) or (isinstance(node, Call) and node.name in ("max", "min")) for node in nodes
    )


_Fitted = tuple[ScopedFit, tuple[Errors, ...], float]  # without its problem; errors; seconds that it took


def _fitted(data: tuple[str, Problem, ScoreSet], method: str) -> _Fitted:
    name, problem, score = data
    begun = time.monotonic()
    try:
        fit = fit_scoped(problem, method)
    except HostileStep as e:
        raise InputError(f"{name}: cannot be fitted on these experiments ({e}): change the program") from None
    seconds = time.monotonic() - begun
    errors: dict[int, Errors] = {}
    for group, program in zip(problem.groups, fit.programs, strict=True):
        rows = error_rows(program, score.subset(group.experiments))
        errors.update(zip(group.experiments, rows, strict=True))
    bare: Any = None
    return replace(fit, problem=bare), tuple(errors[i] for i in range(len(score.experiments))), seconds


def _fitted_from(data: tuple[str, Problem, ScoreSet], start: np.ndarray) -> _Fitted | None:
    """As `_fitted`, by METHOD from a start; None where step times from there are out of range."""
    name, problem, score = data
    with suppress(InputError):
        return _fitted((name, replace(problem, start=start), score), METHOD)
    return None

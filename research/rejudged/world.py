"""The data of the experiments: the clean shipped runs, measured cycles of some of them, and trainings of the bench."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from evaluator.fit.fit import fit, fit_set
from evaluator.fit.loss import FitSet
from evolve.calibrate.steps.sources import sources
from evolve.calibrate.steps.targets import Targets, cycle_targets
from evolve.run.data import fittable
from evolve.search.pool.pool import Pool
from evolve.validate.held_out import held_out_errors
from research.methods.bench import Bench, measure
from research.methods.entries import shipped_methods
from research.methods.result import Result
from research.methods.samples import Sample, samples_of
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments
from simulator.serving.experiment import Experiment

CAP_PCT = 100.0  # an error beyond it counts as this much, so that one run with a growing queue is not the whole mean
BENCH = (
    *("overhead-floor", "overhead-additive", "regimes-2-raw", "regimes-2-standardised", "regimes-2-us"),
    *("regimes-2-log", "regimes-3-us", "components-9", "components-9-per-model", "jams"),
    *("direct", "direct-published", "bayesian"),
)
Errors = Mapping[str, Mapping[str, float | None]]  # signed, percent, by run and then by figure


@dataclass(frozen=True)
class World:
    """The data of all experiments; what takes long is computed when it is first needed.

    targets: the cycles of the runs whose steps were recorded, those against a neighbour's batch included.
    """

    bench: Bench
    targets: tuple[Targets, ...]
    pool: Pool

    @cached_property
    def experiments(self) -> tuple[Experiment, ...]:
        """The clean runs."""
        return tuple(self.bench.experiments)

    @cached_property
    def data(self) -> FitSet:
        """The clean runs, prepared for fits."""
        return fit_set(self.experiments)

    @cached_property
    def results(self) -> tuple[Result, ...]:
        """The trainings of BENCH: by both protocols, in sample and held out."""
        return tuple(measure(self.bench, self.pool))

    @cached_property
    def cycles(self) -> tuple[Sample, ...]:
        """The cycles to fit on, by run: a prefill counts only in the batch that the cycle measures."""
        recorded = {t.run.experiment.id for t in self.targets}
        keep = [i for i, e in enumerate(self.data.experiments) if e.id in recorded]
        return tuple(samples_of(self.data.subset(keep), self.targets))

    def model_of(self, run: str) -> str:
        return next(e.model for e in self.experiments if e.id == run)

    def errors(self, method: str, protocol: str, kind: str) -> dict[str, Mapping[str, float | None]]:
        """The errors of a method of the bench on every run that it predicts; empty if it has no such training."""
        tasks = [r for r in self.results if (r.task.name, r.task.protocol, r.task.kind) == (method, protocol, kind)]
        return {run: errors for r in tasks for run, errors in r.errors.items()}


def world(steps: Sequence[Path], out: Path, pool: Pool) -> World:
    """The world of the shipped runs and of these step tables; trainings are kept in the folder `out`.

    Raises InputError for a table that cannot be read or belongs to no shipped run.
    """
    data = bundled_experiments()
    runs = sources(steps, None, (), False).runs
    fitted = {e.id for e in fittable(data)}
    methods = tuple(entry for entry in shipped_methods() if entry.name in BENCH)
    targets = tuple(cycle_targets(run) for run in runs if run.experiment.id in fitted)
    return World(Bench(out, methods, tuple(data), runs, short_circuit=False), targets, pool)


def capped(error_pct: float | None) -> float:
    """The absolute error in percent, at most CAP_PCT, which is also that of a run that never completes."""
    return CAP_PCT if error_pct is None else min(abs(error_pct), CAP_PCT)


def program(text: str) -> Program:
    """The program of this text, with every timed function written out."""
    return complete(parse(text, "rejudged"))


def predicted(world: World, form: Program) -> Errors:
    """The errors of a program as it is, on every run."""
    return {e.id: held_out_errors(form, [e], False)[0].errors for e in world.experiments}


def held_out(
    world: World,
    form: Program,
    by: Callable[[Experiment], str],
    alone: Callable[[Experiment], str] = lambda e: "",
    reset_to_prior: bool = True,
) -> Errors:
    """The errors on every run of a program that was fitted without the runs that share the value `by` with it.

    Runs with the same value `alone` share constants; a run that is then left with none to fit on is not predicted.
    `reset_to_prior`: what the runs leave open goes to its lowest value, as in a search, and does not stay at its start.
    """
    every = world.experiments
    errors = dict[str, Mapping[str, float | None]]()
    for value, group in dict.fromkeys((by(e), alone(e)) for e in every):
        seen = [i for i, e in enumerate(every) if by(e) != value and alone(e) == group]
        held = [e for e in every if (by(e), alone(e)) == (value, group)]
        if seen:
            fitted = fit(form, world.data.subset(seen), allow_hostile=True, reset_to_prior=reset_to_prior).program
            errors |= {e.id: held_out_errors(fitted, [e], False)[0].errors for e in held}
    return errors


def model_names(world: World, runs: Iterable[str]) -> list[str]:
    """The model of each of these runs: what a bootstrap resamples, because runs of a model share their errors."""
    return [world.model_of(run) for run in runs]

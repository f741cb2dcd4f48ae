"""The data of several dimensions, computed on first use by the workers of a pool."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from archive.proposal import Outcome
from archive.score import Errors
from evaluator import baselines
from evaluator.acceptance import with_acceptance
from evaluator.fit.fit import fit_set
from evaluator.score import error_rows, score_set
from evolve.calibrate.fit import calibrate
from evolve.calibrate.result import ConstantChange, Freedom
from evolve.plan.forecast import Forecast
from evolve.plan.predict import predict
from evolve.plan.sensitivity import sensitivities
from evolve.plan.sensitivity_result import Sensitivity
from evolve.report.held_out import BaselineHeldOut, HeldOutRuns, baselines_held_out, held_out
from evolve.report.subject import Subject
from evolve.run.program import Source
from evolve.run.use import saw
from evolve.search.pool.pool import Pool
from evolve.search.pool.process import WorkerCall
from simulator.serving.bundled import load_specs
from simulator.serving.experiment import Experiment

IN_SAMPLE, NEW = "in sample", "on runs that it was not fitted on"


@dataclass(frozen=True, slots=True)
class EvidenceRefit:
    """A fit of the program's constants to its clean experiments, from their values.

    before, after: errors there. cpu_s: of all that `evolve fit` does: it prepares the runs, and fits near-optimal
    programs for intervals, too. fit_s: of the program's own constants, once the runs are prepared.
    """

    freedom: Freedom
    constants: tuple[ConstantChange, ...]
    before: tuple[Errors, ...]
    after: tuple[Errors, ...]
    cpu_s: float
    fit_s: float


@dataclass(frozen=True)
class Evidence:
    """The measurements of a subject, by the workers of `pool`."""

    subject: Subject
    pool: Pool

    @cached_property
    def errors(self) -> Mapping[str, Errors]:
        """By id, the program's signed errors on every experiment, replayed here and now: seconds."""
        program, seeds = self.subject.source.complete, self.subject.seeds
        experiments = [with_acceptance(program, e, seeds) for e in self.subject.experiments]
        return {row.experiment: row for row in error_rows(program, score_set(experiments, seeds))}

    @cached_property
    def samples(self) -> Mapping[str, tuple[Experiment, ...]]:
        """The clean experiments by whether the program was fitted on them, in words."""
        record = self.subject.source.record
        unknown = "that it was fitted on in part" if record else "of which no record says whether it was fitted on them"
        names = {True: IN_SAMPLE, False: NEW, None: f"on runs {unknown}"}
        saw_it = [(saw(record, e), e) for e in self.subject.clean]
        runs = {text: tuple(e for seen, e in saw_it if seen is fitted) for fitted, text in names.items()}
        return {text: of_sample for text, of_sample in runs.items() if of_sample}

    def errors_of(self, experiments: Iterable[Experiment], latency: str) -> list[float | None]:
        """The signed errors on these, in percent, of the mean of a latency (e2e, ttft or itl)."""
        return [getattr(self.errors[e.id], latency) for e in experiments]

    @cached_property
    def forecasts(self) -> Mapping[str, Forecast]:
        """By id, the program's prediction of every experiment, as by `evolve predict`."""
        source, seeds = self.subject.source, self.subject.seeds
        calls = [WorkerCall(predict, (source, [e], seeds)) for e in self.subject.experiments]
        parts = self.carried_out("predictions", calls)
        return {forecast.id: forecast for part in parts for forecast in part.experiments}

    @cached_property
    def baselines(self) -> Mapping[str, Sequence[Errors]]:
        """The baselines of one set of constants or none, fitted to the clean experiments, and their errors on these."""
        clean = self.subject.clean
        tasks = [task for task in baselines.tasks(clean, clean) if task.name in baselines.SHARED] if clean else []
        calls = [WorkerCall(baselines.solve, (task,)) for task in tasks]
        rows: list[list[Errors]] = self.carried_out("baselines", calls)
        by_name: dict[str, list[Errors]] = {}
        for task, of_task in zip(tasks, rows, strict=True):
            by_name.setdefault(task.name, []).extend(of_task)
        return by_name

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcomes of the run's proposals; none without a run."""
        return tuple(self.subject.run.outcomes()) if self.subject.run else ()

    @cached_property
    def held_out(self) -> tuple[HeldOutRuns, ...]:
        """The held-out predictions; none if the program was never validated."""
        return held_out(self.subject.trust, self.subject.known)

    @cached_property
    def baselines_held_out(self) -> tuple[BaselineHeldOut, ...]:
        """The baselines in the same folds, as far as they were kept."""
        return baselines_held_out(self.subject)

    @cached_property
    def refit(self) -> EvidenceRefit:
        """A fit to the clean experiments. Raises InputError if there are none, or the program cannot be fitted."""
        refit: EvidenceRefit = self.carried_out("a fit", [WorkerCall(_refit, (self.subject,))])[0]
        return refit

    @cached_property
    def sensitivities(self) -> tuple[Sensitivity, ...]:
        """The effect of each engine setting on a few clean experiments, under one arrival seed."""
        subject = self.subject
        ids = tuple(e.id for e in subject.few)
        calls = [WorkerCall(_sensitivities, (subject.source, file, ids, subject.seeds[:1])) for file in subject.files]
        return tuple(found for of_file in self.carried_out("engine settings", calls) for found in of_file)

    def carried_out(self, what: str, calls: Sequence[WorkerCall]) -> list[Any]:
        """The results of the calls, with a progress line about `what` they compute."""
        self.pool.line.show(f"{what} ...")
        return self.pool.all_of(calls, what)


def _sensitivities(source: Source, file: str, ids: Sequence[str], seeds: Sequence[int]) -> list[Sensitivity]:
    return sensitivities(source, [spec for spec in load_specs(file) if spec.id in ids], seeds)


def _refit(subject: Subject) -> EvidenceRefit:
    clean = subject.clean
    fit_set(clean[:1])  # compiles what is not cached
    begun = time.process_time()
    c = calibrate(subject.source, clean, None)
    cpu_s = time.process_time() - begun
    return EvidenceRefit(c.freedom, c.constants, c.before, c.best.errors, cpu_s, c.best.seconds)

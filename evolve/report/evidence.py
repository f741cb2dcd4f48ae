"""The data of several dimensions, computed on first use by the workers of a pool."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from archive.proposal import Outcome
from archive.score import Errors
from evaluator import baselines
from evaluator.fit.fit import fit_set
from evaluator.score import MEANS, summarise
from evolve.calibrate.fit import calibrate
from evolve.calibrate.result import ConstantChange, Freedom
from evolve.inspect.ablation import Ablation, ablate
from evolve.plan.forecast import Forecast, Forecasts
from evolve.plan.predict import predict
from evolve.plan.sensitivity import sensitivities
from evolve.plan.sensitivity_result import Sensitivity
from evolve.report.held_out import BaselineHeldOut, HeldOutRuns, baselines_held_out, held_out
from evolve.report.subject import Subject
from evolve.run.program import Source
from evolve.search.pool.pool import Pool
from evolve.search.pool.process import WorkerCall
from simulator.serving.bundled import load_specs


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
    def forecasts(self) -> Forecasts:
        """The program's prediction of every experiment, as by `evolve predict`."""
        source, seeds = self.subject.source, self.subject.seeds
        calls = [WorkerCall(predict, (source, [e], seeds)) for e in self.subject.experiments]
        parts: list[Forecasts] = self.carried_out("predictions", calls)
        every = tuple(forecast for part in parts for forecast in part.experiments)
        total = summarise([_errors(forecast) for forecast in every])
        return replace(
            parts[0],
            data=self.subject.data,
            experiments=every,
            mean_abs_error_pct={name: getattr(total, name) for name in MEANS},
            drawn=any(part.drawn for part in parts),
        )

    @cached_property
    def baselines(self) -> Mapping[str, Sequence[Errors]]:
        """The baselines, fitted to the clean experiments, and their errors on these."""
        clean = self.subject.clean
        tasks = baselines.tasks(clean, clean) if clean else []
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
    def ablation(self) -> Ablation:
        """The program without each of its parts. Raises InputError with fewer than two clean experiments."""
        return ablate(self.subject.source, self.subject.few, self.pool)

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


def of_means(forecasts: Sequence[Forecast], latency: str, statistic: str = "mean") -> list[float | None]:
    """The signed errors of these forecasts, in percent, of a statistic of a latency (e2e, ttft or itl)."""
    return [((f.summary.error_pct or {}).get(f"{latency}_ms") or {}).get(statistic) for f in forecasts]


def _errors(forecast: Forecast) -> Errors:
    return Errors(forecast.id, *(of_means([forecast], name)[0] for name in MEANS))


def _sensitivities(source: Source, file: str, ids: Sequence[str], seeds: Sequence[int]) -> list[Sensitivity]:
    return sensitivities(source, [spec for spec in load_specs(file) if spec.id in ids], seeds)


def _refit(subject: Subject) -> EvidenceRefit:
    clean = subject.clean
    fit_set(clean[:1])  # compiles what is not cached
    begun = time.process_time()
    c = calibrate(subject.source, clean, None)
    cpu_s = time.process_time() - begun
    return EvidenceRefit(c.freedom, c.constants, c.before, c.best.errors, cpu_s, c.best.seconds)

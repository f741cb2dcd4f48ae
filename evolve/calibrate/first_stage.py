"""The first stage of `evolve fit --steps`: the constants of step_time from measured steps, before load stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.fit.steps import LOSSES, QUANTILE, StepFit, StepRun, fit_steps, share_within, step_positions
from evolve.calibrate.steps.figures import StepFigures, figures, phases
from evolve.calibrate.steps.score import predicted_us
from evolve.calibrate.steps.sources import TableRun
from evolve.calibrate.steps.targets import OWN, Targets, cycle_targets, together
from evolve.run.records import StepsRecord
from simulator.common.errors import InputError
from simulator.language.ir import Program
from simulator.serving.experiment import Experiment
from simulator.serving.splits import TEST, TRAIN

FITTED, JUDGED = TRAIN, TEST


@dataclass(frozen=True)
class Loss:
    """The loss of the first stage: one of `evaluator.fit.steps.LOSSES`, with the quantile for a quantile loss."""

    name: str = LOSSES[0]
    quantile: float | None = None

    @property
    def is_mean(self) -> bool:
        """True if the stage predicts about the mean of step times, as a fit on mean latencies needs."""
        return self.quantile is None


RELATIVE: Loss = Loss()


@dataclass(frozen=True)
class FirstStage:
    """The fit of the first stage, and the usable cycles of every run that took part.

    fitted: by experiment id, to how many of its cycles. coverage: by split, the share of cycles that took no longer
    than predicted. left_out: the runs whose steps were not used, because their experiments are not fitted.
    """

    fit: StepFit
    loss: Loss
    targets: tuple[Targets, ...]
    fitted: Mapping[str, int]
    coverage: Mapping[str, float | None]
    left_out: tuple[str, ...]

    @property
    def program(self) -> Program:
        return self.fit.program

    def record(self) -> StepsRecord:
        runs = {t.run.experiment.id: t.run.steps.digest() for t in self.targets}
        loss, fit = self.loss, self.fit
        return StepsRecord(FITTED, runs, loss.name, loss.quantile, fit.strength, fit.smearing, self.coverage)


@dataclass(frozen=True)
class StagedRun:
    """A run of the first stage: its table, its usable cycles, and those that the program was fitted to. assumed: of
    the run; None: nothing."""

    id: str
    file: str
    usable: int
    fitted: int
    assumed: str | None


@dataclass(frozen=True)
class StageFigures:
    """The result of the first stage. per_step: the figures per step on the splits FITTED and JUDGED, over all runs.
    They are those of the program `before`, `after_steps` and `after` the whole fit.

    loss, quantile, strength, smearing, coverage: see StepsRecord. operations: how many the form has gained.
    """

    runs: tuple[StagedRun, ...]
    left_out: tuple[str, ...]
    per_step: Mapping[str, Mapping[str, StepFigures]]
    loss: str
    quantile: float | None
    strength: float | None
    smearing: float | None
    operations: int
    coverage: Mapping[str, float | None]


def first_stage(
    program: Program,
    runs: Sequence[TableRun],
    fitted: Sequence[Experiment],
    held: Sequence[int],
    fitted_before: bool,
    loss: Loss,
) -> FirstStage:
    """Fit the constants of step_time, except those at `held`, to the train split of the runs of `fitted`.

    `fitted_before`: the constants come from a fit. A cycle with a neighbour's batch is used only if that batch has no
    prefill: a prefill is in one step and not in the next. Raises InputError if no cycle is left.
    """
    if set(step_positions(program)) <= set(held):
        raise InputError("--steps: --only holds every constant of step_time: name some of them in it, or leave one out")
    ids = {e.id for e in fitted}
    targets = tuple(cycle_targets(run) for run in runs if run.experiment.id in ids)
    parts = [_usable(t.of(FITTED)) for t in targets]
    counts = {t.run.experiment.id: len(part.observed_us) for t, part in zip(targets, parts, strict=True)}
    parts = [part for part in parts if len(part.observed_us)]
    if not parts:
        raise InputError(
            f"--steps: no usable cycle of the fitted experiments ({', '.join(sorted(ids))}): "
            "name their step tables, or leave --steps out"
        )
    left_out = tuple(run.experiment.id for run in runs if run.experiment.id not in ids)
    fit = fit_steps(program, parts, held, fitted_before, loss.name, loss.quantile or QUANTILE)
    covered = {s: share_within(fit.program, [_usable(t.of(s)) for t in targets]) for s in (FITTED, JUDGED)}
    return FirstStage(fit, loss, targets, counts, covered, left_out)


def _usable(t: Targets) -> StepRun:
    keep = (t.batch == OWN) | (phases(t.raw) == "pure decode")
    return StepRun(t.run.experiment.facts, t.raw[keep], t.observed_us[keep])


def stage_figures(first: FirstStage, after: Program) -> StageFigures:
    """Cycles per run, and the figures per step before the stage, after it, and after the whole fit."""
    runs = []
    for t in first.targets:
        run, ident = t.run, t.run.experiment.id
        runs.append(StagedRun(ident, run.steps.file, len(t.step), first.fitted[ident], run.assumed or None))
    fit, loss = first.fit, first.loss
    programs = {"before": fit.start, "after_steps": fit.program, "after": after}
    per_step = {name: _by_split(first.targets, program) for name, program in programs.items()}
    found = fit.strength, fit.smearing, fit.grown, first.coverage
    return StageFigures(tuple(runs), first.left_out, per_step, loss.name, loss.quantile, *found)


def _by_split(targets: Sequence[Targets], program: Program) -> dict[str, StepFigures]:
    by_split = {}
    for split in (FITTED, JUDGED):
        rows = [t.of(split) for t in targets]
        predicted = np.concatenate([predicted_us(program, t) for t in rows])
        by_split[split] = figures(predicted, together(rows, "observed_us"))
    return by_split

"""The first stage of `evolve fit --steps`: constants of step_time from single steps, before load stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluator.fit.steps import StepRun, fit_steps, step_positions
from evolve.program.steps.figures import figures, phases
from evolve.program.steps.score import predicted_us
from evolve.program.steps.sources import Run
from evolve.program.steps.targets import OWN, Targets, cycle_targets, together
from simulator.errors import InputError
from simulator.experiment.experiment import Experiment
from simulator.language.ir import Program

FITTED, JUDGED = "train", "test"  # splits


@dataclass(frozen=True)
class FirstStage:
    """The program after it; the usable cycles of every run that took part; how many of them it was fitted to; and the
    runs whose steps were not used, as their experiments are not fitted."""

    program: Program
    targets: tuple[Targets, ...]
    fitted: Mapping[str, int]
    left_out: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """What a record says of it; `evolve.program.steps.score.fitted` reads it."""
        return {"split": FITTED, "runs": {t.run.experiment.id: t.run.steps.digest() for t in self.targets}}


def first_stage(
    program: Program, runs: Sequence[Run], fitted: Sequence[Experiment], held: Sequence[int], known: bool
) -> FirstStage:
    """Fits the constants of step_time but those at `held` to the train split of the runs whose experiments are fitted.

    A cycle for which a neighbour's batch stands in takes part only if there is no prefill in it: a prefill is in one
    step and not in the next. Raises InputError where no cycle is left.
    """
    if set(step_positions(program)) <= set(held):
        raise InputError("--steps: --only holds every constant of step_time: name some of them in it, or leave one out")
    ids = {e.id for e in fitted}
    mine = [run for run in runs if run.experiment.id in ids]
    targets = tuple(cycle_targets(run) for run in mine)
    parts = [_fit_to(t.of(FITTED)) for t in targets]
    counts = {t.run.experiment.id: len(part.observed_us) for t, part in zip(targets, parts, strict=True)}
    parts = [part for part in parts if len(part.observed_us)]
    if not parts:
        raise InputError(f"--steps: no usable cycle of the fitted experiments ({', '.join(sorted(ids))}): "
                         "name their step tables, or leave --steps out")  # fmt: skip
    left_out = tuple(run.experiment.id for run in runs if run.experiment.id not in ids)
    return FirstStage(fit_steps(program, parts, held, known), targets, counts, left_out)


def _fit_to(t: Targets) -> StepRun:
    keep = (t.batch == OWN) | (phases(t.raw) == "pure decode")
    return StepRun(t.run.experiment.facts, t.raw[keep], t.observed_us[keep])


def stage_json(stage: FirstStage, before: Program, after: Program) -> dict[str, Any]:
    """What came of it: cycles per run, and the figures per step before, after it, and after the whole fit."""
    programs = {"before": before, "after_steps": stage.program, "after": after}
    return {
        "runs": [
            {"id": t.run.experiment.id, "file": t.run.steps.file, "usable": len(t.step),
             "fitted": stage.fitted[t.run.experiment.id], "assumed": t.run.assumed or None}
            for t in stage.targets
        ],
        "left_out": list(stage.left_out),
        "per_step": {name: _figures(stage.targets, program) for name, program in programs.items()},
    }  # fmt: skip


def _figures(targets: Sequence[Targets], program: Program) -> dict[str, Any]:
    """By split, over all runs together."""
    out = {}
    for split in (FITTED, JUDGED):
        some = [t.of(split) for t in targets]
        predicted = np.concatenate([predicted_us(program, t) for t in some])
        out[split] = figures(predicted, together(some, "observed_us"))
    return out

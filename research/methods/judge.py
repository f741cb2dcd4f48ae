"""One training of an entry in a worker, and what it is judged by: single steps, whole loads, features, and time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evaluator.fit.fit import fit_set
from evaluator.intervals import FIGURES
from evolve.calibrate.steps.figures import StepFigures, figures
from evolve.calibrate.steps.score import predicted_us
from evolve.calibrate.steps.sources import TableRun
from evolve.calibrate.steps.targets import Targets, cycle_targets
from evolve.validate.held_out import held_out_errors
from research.methods.closed_form import Means
from research.methods.entries import SEARCH, Entry, Errors
from research.methods.features import mape_by_run, paired, raw_counts
from research.methods.protocol import protocol
from research.methods.result import IN_SAMPLE, Result, Task
from research.methods.samples import Sample, samples_of
from research.methods.train import Trained, Training, Untrainable, basis_of, trained
from simulator.clock.bind import bind
from simulator.language.opcodes import assemble
from simulator.language.simplify import brief
from simulator.language.unparse import unparse
from simulator.serving.experiment import Experiment
from simulator.serving.splits import SPLITS

TIMED_STEPS, REPEATS = 4096, 5  # of a measurement of how long a step time takes


@dataclass(frozen=True)
class Prepared:
    """All that a worker needs for any training. counts: by run, the error of the ridge on raw counts in percent."""

    training: Training
    targets: tuple[Targets, ...]
    counts: Mapping[str, float]


def prepared(fitted: tuple[Experiment, ...], published: tuple[Means, ...], runs: tuple[TableRun, ...]) -> Prepared:
    """The data of a bench, prepared once in every process."""
    ids = {e.id for e in fitted}
    targets = tuple(cycle_targets(run) for run in runs if run.experiment.id in ids)
    data = fit_set(fitted)
    samples = tuple(samples_of(data, targets))
    counts = mape_by_run(raw_counts, samples, protocol().h1.strengths)
    return Prepared(Training(data, samples, published), targets, counts)


def judged(given: Prepared, entry: Entry, task: Task, limit_pct: float) -> Result:
    """One training, and what it predicts; without replays if its error on test cycles is above the limit."""
    whole, in_sample = given.training, task.kind == IN_SAMPLE
    every = whole.data.experiments
    predicted = [e for e in every if e.id in task.predicted]
    seen = [i for i, e in enumerate(every) if in_sample or e.id not in task.predicted]
    ids = {every[i].id for i in seen}
    samples = tuple(s for s in whole.samples if s.experiment in ids)
    begun = time.process_time()
    try:
        if _foreign(entry, predicted, [every[i] for i in seen]):
            raise Untrainable("constants of each model alone say nothing of another one")
        result = trained(entry, task.protocol, Training(whole.data.subset(seen), samples, whole.published), predicted)
    except Untrainable as e:
        return Result(task, 0, 0, time.process_time() - begun, {}, {}, {}, failure=str(e))
    cpu_s = 0.0 if task.protocol == SEARCH else round(time.process_time() - begun, 3)
    steps = _step_figures(result, predicted, given.targets, SPLITS if in_sample else ("all",))
    texts = {of: unparse(brief(program)) for of, program in result.programs.items()}
    made = Result(task, result.constants, result.times, cpu_s, {}, steps, texts)
    if in_sample:
        made = replace(
            made,
            forest=result.shared.forest.to_json() if result.shared and result.shared.forest else None,
            features=paired(mape_by_run(basis_of(entry), samples, protocol().h1.strengths), given.counts),
            ns_a_step=_ns_a_step(result, predicted, samples),
            skipped=made.misses_by_more_than(limit_pct),
        )
    return made if made.skipped else replace(made, errors=_errors(result, predicted))


def _foreign(entry: Entry, predicted: Sequence[Experiment], seen: Sequence[Experiment]) -> bool:
    """True if a method with constants of each model is to predict unseen models."""
    alone = entry.method is not None and entry.method.per_model
    return alone and not {e.model for e in predicted} & {e.model for e in seen}


def _errors(result: Trained, predicted: Sequence[Experiment]) -> dict[str, Errors]:
    errors: dict[str, Errors] = {}
    for e in predicted:
        program = result.program_for(e)
        if program is not None:
            (row,) = held_out_errors(program, [e], False)
            errors[e.id] = {name: row.errors[name] for name in FIGURES}
    return errors


def _step_figures(
    result: Trained, predicted: Sequence[Experiment], targets: Sequence[Targets], splits: Sequence[str]
) -> dict[str, StepFigures]:
    ids = {e.id for e in predicted}
    recorded = [t for t in targets if t.run.experiment.id in ids]
    steps = {}
    for split in splits:
        parts = [(program, t.of(split)) for t in recorded if (program := result.program_for(t.run.experiment))]
        if parts:
            predicted_times = np.concatenate([predicted_us(program, t) for program, t in parts])
            steps[split] = figures(np.nan_to_num(predicted_times), np.concatenate([t.observed_us for _, t in parts]))
    return steps


def _ns_a_step(result: Trained, predicted: Sequence[Experiment], samples: Sequence[Sample]) -> float | None:
    """Nanoseconds that a step time takes to compute from the sums of a batch, the fastest of REPEATS; None without
    measured times."""
    e = next((e for e in predicted if result.program_for(e)), None)
    sample = next((s for s in samples if e and s.experiment == e.id), None)
    program = result.program_for(e) if e else None
    if e is None or sample is None or program is None:
        return None
    rows = np.resize(sample.raw, (TIMED_STEPS, sample.raw.shape[1]))
    bound = bind(assemble(program), program.theta, e.facts)
    seconds = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        bound.steps_us(rows)
        seconds.append(time.perf_counter() - begun)
    return round(min(seconds) / TIMED_STEPS * 1e9, 1)

"""Changed engines: the runs as under one, the errors of the program there, and those after a refit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace

import numpy as np

from evaluator.fit.fit import fit_set
from evaluator.fit.loss import FitSet
from evaluator.metrics import LATENCIES, mean_abs
from evaluator.requests import predicted_ms
from evaluator.score import MEANS, SCORE_SEEDS, ScoreSet, error_rows, predictions, score_set
from evolve.calibrate.drift import drift, refitted
from evolve.report.evidence import Evidence
from evolve.run.program import Source
from evolve.run.selectors import positions
from evolve.search.pool.process import WorkerCall
from simulator.clock.replay import replay
from simulator.clock.run import HostileStep
from simulator.common.errors import InputError
from simulator.language.ir import Expr, Field, Number, Op, Program, rebuilt, with_step_times
from simulator.schema import KERNELS
from simulator.serving.experiment import Experiment
from simulator.serving.observations import Observation, Observed, Statistic, measured
from simulator.serving.trace import Recorded, Trace

ALL = "all"
REFITS = ("alpha", "beta", ALL)  # words for constants, as of `evolve fit --only`
Means = Mapping[str, float | None]  # of MEANS, in percent


@dataclass(frozen=True, slots=True)
class Stressed:
    """The clean runs under a changed engine: the program's mean absolute errors there, in percent.

    refitted: those after a fit of alpha, beta or all constants, by word; a word is missing if there are no such
    constants, or no fit. drift: the verdict of `evolve drift` on these runs; None if it can say nothing.
    """

    name: str
    errors: Means
    refitted: Mapping[str, Means]
    drift: str | None


def kernels_times(program: Program, factor: float) -> Program:
    """The program with every measured kernel's time times `factor`."""

    def scaled(node: Expr) -> Expr:
        is_kernel = isinstance(node, Field) and node.scope == "b" and node.name in KERNELS
        return Op("*", Number(factor), node) if is_kernel else node

    return replace(program, functions=tuple(rebuilt(f, scaled) for f in program.functions))


def steps_longer(program: Program, us: float) -> Program:
    """The program with every step longer by `us` microseconds."""
    return with_step_times(program, lambda time: Op("+", time, Number(us)))


def constants_times(program: Program, positions: Sequence[int], factor: float) -> Program:
    """The program with the constants at these positions of `theta` times `factor`."""
    return program.with_theta(tuple(v * factor if i in positions else v for i, v in enumerate(program.theta)))


def changes(evidence: Evidence, variants: Mapping[str, Program]) -> dict[str, Means]:
    """By variant, the difference of its means from the program's in percent, mean over a few clean runs."""
    clean = evidence.subject.few
    programs = [evidence.subject.source.complete, *variants.values()]
    means = evidence.carried_out("changed constants", [WorkerCall(_means_ms, (p, clean)) for p in programs])
    return {name: _change(means[0], theirs) for name, theirs in zip(variants, means[1:], strict=True)}


def _means_ms(program: Program, experiments: Sequence[Experiment]) -> list[tuple[float | None, ...]]:
    """Predicted mean E2E, TTFT and ITL of each experiment in ms, under one arrival seed."""
    every = predictions(program, score_set(experiments, SCORE_SEEDS[:1]))
    summaries = [p.predicted.summary for p in every]
    return [tuple(getattr(s, name).mean if s else None for name in LATENCIES) for s in summaries]


def _change(ours: Sequence[tuple[float | None, ...]], theirs: Sequence[tuple[float | None, ...]]) -> Means:
    columns = [
        [100.0 * (b / a - 1.0) for a, b in ((x[i], y[i]) for x, y in zip(ours, theirs, strict=True)) if a and b]
        for i in range(len(MEANS))
    ]
    return {name: sum(c) / len(c) if c else None for name, c in zip(MEANS, columns, strict=True)}


def under(experiments: Sequence[Experiment], program: Program, changed: Program) -> list[Experiment]:
    """The experiments as they would have been measured under another engine.

    Each observed figure is multiplied by a ratio of predictions: of `changed`, the program with the engine's change,
    to `program`. Where a trace recorded its requests, so is each of these.
    """
    moved = [_retimed(e, program, changed) for e in experiments]
    written = [e for e in moved if e.observed and not _of_requests(e)]
    before, after = (predictions(p, score_set(written)) for p in (program, changed))
    times = {
        e.id: replace(e, observed=_times(e.observed, a.predicted, b.predicted))
        for e, b, a in zip(written, before, after, strict=True)
        if e.observed
    }
    return [times.get(e.id, e) for e in moved]


def _of_requests(experiment: Experiment) -> bool:
    source = experiment.workload.source
    return isinstance(source, Trace) and experiment.observed == measured(source, len(experiment.workload.stages))


def _retimed(experiment: Experiment, program: Program, changed: Program) -> Experiment:
    """The experiment with the requests that its trace recorded as under another engine, and with their figures.

    Without recorded requests it is the experiment itself. A request's TTFT and the rest of its E2E are each multiplied
    by their own ratio: so neither exceeds the E2E. Requests that do not complete under one program stay as they are.
    """
    source = experiment.workload.source
    if not isinstance(source, Trace) or source.recorded is None:
        return experiment
    before, after = (predicted_ms(replay(experiment, p, SCORE_SEEDS[0])) for p in (program, changed))
    e2e_ms, ttft_ms = source.recorded.e2e_ms, source.recorded.ttft_ms
    whole, first = (_ratio(after[i], before[i]) for i in range(2))
    rest = _ratio(after[0] - after[1], before[0] - before[1])
    later_ms = ttft_ms * first
    recorded = Recorded(np.where(np.isnan(ttft_ms), e2e_ms * whole, later_ms + (e2e_ms - ttft_ms) * rest), later_ms)
    trace = replace(source, recorded=recorded, digest=f"{source.digest}:changed")
    observed = experiment.observed
    if _of_requests(experiment):
        observed = measured(trace, len(experiment.workload.stages))
    return replace(experiment, workload=replace(experiment.workload, source=trace), observed=observed)


def _ratio(after: np.ndarray, before: np.ndarray) -> np.ndarray:
    """after / before, 1 where either is unknown or 0."""
    ratio, known = np.ones_like(after), (after > 0.0) & (before > 0.0)
    ratio[known] = after[known] / before[known]
    return ratio


def _times(observed: Observed, after: Observed, before: Observed) -> Observed:
    summary = observed.summary
    if summary and after.summary and before.summary:
        summary = _observation(summary, after.summary, before.summary)
    stages = zip(observed.stages, after.stages, before.stages, strict=False)
    return Observed(summary, tuple(_observation(*of_stage) for of_stage in stages))


def _observation(observed: Observation, after: Observation, before: Observation) -> Observation:
    def scaled(name: str) -> Statistic:
        ours, numerator, denominator = (getattr(o, name) for o in (observed, after, before))
        values = {}
        for f in fields(Statistic):
            x, a, b = (getattr(s, f.name) for s in (ours, numerator, denominator))
            values[f.name] = x * (a / b) if x is not None and a and b else x
        return Statistic(**values)

    e2e, ttft, itl = map(scaled, LATENCIES)
    return Observation(e2e, ttft, itl, observed.completed, observed.failed)


def stressed(evidence: Evidence, variants: Mapping[str, Program]) -> list[Stressed]:
    """A few clean runs under each changed engine, a variant of the program."""
    subject = evidence.subject
    calls = [WorkerCall(_stressed, (subject.source, subject.few, name, changed)) for name, changed in variants.items()]
    return evidence.carried_out("changed engines", calls)


def _stressed(source: Source, clean: Sequence[Experiment], name: str, changed: Program) -> Stressed:
    program = source.complete
    runs = under(clean, program, changed)
    score, fit = score_set(runs), fit_set(runs)
    refitted = {word: means for word in REFITS if (means := _refitted(program, fit, score, word)) is not None}
    drifted = drift(source, runs).verdict if source.record else None
    return Stressed(name, _errors(program, score), refitted, drifted)


def _refitted(program: Program, fit: FitSet, score: ScoreSet, word: str) -> Means | None:
    """The errors after a fit of the constants that `word` selects; None without such constants, or a usable program."""
    with suppress(InputError, HostileStep):
        free = range(len(program.theta)) if word == ALL else positions(program, (word,), word)
        return _errors(refitted(program, fit, free), score) if free else None
    return None


def _errors(program: Program, score: ScoreSet) -> Means:
    rows = error_rows(program, score)
    return {name: mean_abs([getattr(row, name) for row in rows]) for name in MEANS}

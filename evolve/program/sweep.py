"""`evolve predict --sweep`: what a program predicts at every rate, GPU and engine setting, and where limits stop
holding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from evaluator.experiments import Written, data_hash
from evaluator.judge.gates import complaints, deployments_of
from evaluator.score import prediction_of
from evolve.program.axes import ENGINE, Axes, Setting
from evolve.program.beware import warnings
from evolve.program.loads import redeployed
from evolve.program.slo import Limit, meeting
from evolve.program.sweep_result import Block, Figures, Row, Sweep
from evolve.report.progress import Line
from evolve.run.program import Source
from evolve.run.records import Record
from evolve.run.trust import stale
from simulator.bind import Bound, bind
from simulator.clock.steps import steps_of
from simulator.errors import InputError
from simulator.experiment.experiment import Experiment, Workload
from simulator.experiment.file import experiment_at_rate
from simulator.experiment.load import limits_of, load_of
from simulator.experiment.workload import duration_s, is_recorded, late_requests, seeds_of
from simulator.language.ir import Program
from simulator.language.opcodes import Code, assemble
from simulator.replay import Replay, replay_bound


@dataclass(frozen=True)
class _Question:
    """What is predicted for every deployment."""

    source: Source
    program: Program
    code: Code
    seeds: Sequence[int]
    axes: Axes
    limits: Sequence[Limit]


@dataclass(frozen=True)
class _Deployment:
    """An experiment on another GPU or with other engine settings, and the program bound to it; None where that is
    impossible."""

    written: Written
    setting: Setting
    built: Experiment | None = None
    bound: Bound | None = None
    impossible: str | None = None


def sweep(
    source: Source, written: Sequence[Written], seeds: Sequence[int], axes: Axes, limits: Sequence[Limit], line: Line
) -> Sweep:
    """Replay every experiment at every combination under every arrival seed."""
    program = source.complete
    question = _Question(source, program, assemble(program), seeds, axes, limits)
    deployments = [
        _deployment(question, w, setting)
        for w in written
        for setting in axes.settings(w.experiment.hardware, w.experiment.engine)
    ]
    built = [d.built for d in deployments if d.built]
    about = [*(complaints(program, deployments_of(built)) if built else ()), *source.cautions, *stale(source)]
    total = len(deployments) * max(len(axes.rate), 1)
    blocks: list[Block] = []
    done = 0
    try:
        for d in deployments:
            ident = d.written.experiment.id
            rows = []
            for row in _rows(question, d):
                rows.append(row)
                done += 1
                line.update(partial("{}: {} of {} combinations".format, ident, done, total))
            blocks.append(Block(ident, d.setting, tuple(rows)))
    finally:
        line.close()
    experiments = [w.experiment for w in written]
    return Sweep(
        name=source.name,
        program=program,
        data=data_hash(experiments),
        seeds=tuple(seeds),
        drawn=any(not is_recorded(e.workload) for e in experiments),
        axes=axes,
        limits=tuple(limits),
        blocks=tuple(blocks),
        warnings=tuple(about),
    )


def _deployment(question: _Question, written: Written, setting: Setting) -> _Deployment:
    """The experiment as if its file had this GPU and these settings of the engine, without what was measured."""
    axes = question.axes
    varied = {name: getattr(setting, key) for key, name in ENGINE.items() if getattr(axes, key)}
    where = setting.label(written.experiment.id, axes.others)
    try:
        built = redeployed(written, varied, where, setting.hardware if axes.hardware else None)
    except InputError as error:
        return _Deployment(written, setting, impossible=str(error))
    try:
        bound = bind(question.code, question.program.theta, built.facts)
    except InputError as error:  # a program that reads measured kernels, on a GPU that has none
        return _Deployment(written, setting, impossible=f"{where}: {error}")
    return _Deployment(written, setting, built, bound)


def _rows(question: _Question, d: _Deployment) -> Iterator[Row]:
    """The row of each rate on a deployment. All replays share the bound program and its remembered step times."""
    rates = question.axes.rate or (None,)
    if d.built is None or d.bound is None:
        yield from (Row(replace(d.setting, rate=rate), impossible=d.impossible) for rate in rates)
        return
    steps = steps_of(d.bound, limits_of(d.built))
    keys = (*question.axes.others, "rate")
    for rate in rates:
        setting = replace(d.setting, rate=rate)
        try:
            e = d.built if rate is None else experiment_at_rate(d.built, rate, setting.label(d.built.id, keys))
        except InputError as error:
            yield Row(setting, impossible=str(error))
            continue
        seeds = seeds_of(e.workload, question.seeds)
        replays = [replay_bound(load_of(e, seed), d.bound, steps=steps) for seed in seeds]
        yield Row(setting, figures_of(question.source.record, e, replays, question.limits))


def figures_of(
    record: Record | None, e: Experiment, replays: Sequence[Replay], limits: Sequence[Limit] = ()
) -> Figures:
    """The figures of an experiment from its replays, one for each arrival seed, under `limits`. `record`: what the
    program was fitted on."""
    prediction = prediction_of(e, replays)
    run = prediction.predicted.summary
    lasting_s = [_lasting_s(replay, e.workload) for replay in replays]
    in_time = [len(r.requests) - late_requests(e.workload, r.requests) for r in replays]

    def per_s(counts: Sequence[float]) -> float:
        return float(np.mean([count / s for count, s in zip(counts, lasting_s, strict=True)]))

    goodput = per_s([int(meeting(r, limits).sum()) for r in replays]) if limits else None
    return Figures(
        prediction=prediction,
        offered_rps=float(np.mean(in_time)) / duration_s(e.workload),
        completed_rps=per_s([int(r.completed.sum()) for r in replays]),
        output_tokens_per_s=per_s([int(r.requests.output_len[r.completed].sum(dtype=np.int64)) for r in replays]),
        goodput_rps=goodput,
        holds={limit.name: limit.holds(run) for limit in limits},
        warnings=tuple(warnings(record, e, prediction)),
    )


def _lasting_s(replay: Replay, workload: Workload) -> float:
    """Seconds until no more requests arrive, and all have completed or been given up."""
    r = replay.requests
    completed_us = (r.arrival_us + replay.e2e_us)[replay.completed]
    given_up_us = r.deadline_us[replay.spread(replay.run.gave_up)]
    last_us = max(int(completed_us.max(initial=0)), int(given_up_us.max(initial=0)))
    return max(duration_s(workload), last_us / 1e6)

"""`evolve predict --sweep`: what a program predicts at every rate, GPU and engine setting, and where limits stop
holding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, takewhile

import numpy as np

from evaluator.experiments import Written, data_hash
from evaluator.intervals import LEVELS, WAITING, disagreements, scales, waiting_share
from evaluator.judge.gates import complaints, deployments_of
from evaluator.score import Prediction, prediction_of
from evolve.program.axes import ENGINE, Axes, Setting
from evolve.program.bands import bands_of, class_of, too_narrow
from evolve.program.beware import hurried, too_late, warnings
from evolve.program.loads import redeployed
from evolve.program.replicas import shared
from evolve.program.slo import Limit, few_requests, meeting
from evolve.program.sweep_result import LONGER, LOST, MOST_LOST, NOTHING, QUEUE, Block, Figures, Row, Sweep
from evolve.report.progress import Line
from evolve.run.program import Source
from evolve.run.records import Record
from evolve.run.trust import Trust, stale, trust_of
from simulator.bind import Bound, bind
from simulator.clock.steps import steps_of
from simulator.errors import InputError
from simulator.experiment.experiment import Experiment, Workload
from simulator.experiment.file import experiment_under
from simulator.experiment.load import limits_of, load_of
from simulator.experiment.workload import (
    at_rate,
    duration_s,
    is_recorded,
    late_requests,
    offered_requests,
    seeds_of,
    share_of,
)
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
    load_rps: float | None
    trust: Trust | None
    committee: Sequence[Program]


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
    source: Source,
    written: Sequence[Written],
    seeds: Sequence[int],
    axes: Axes,
    limits: Sequence[Limit],
    line: Line,
    load_rps: float | None = None,
) -> Sweep:
    """Replay every experiment at every combination under every arrival seed.

    load_rps: a load that replicas share equally, if the axes have no rates: the rates are the shares of one, two, three
    ... replicas, as many as it takes to find the fewest.
    """
    program, trust = source.complete, trust_of(source)
    committee = trust.programs if trust else ()
    question = _Question(source, program, assemble(program), seeds, axes, limits, load_rps, trust, committee)
    deployments = [
        _deployment(question, w, setting)
        for w in written
        for setting in axes.settings(w.experiment.hardware, w.experiment.engine)
    ]
    built = [d.built for d in deployments if d.built]
    about = [*(complaints(program, deployments_of(built)) if built else ()), *source.cautions, *stale(source)]
    blocks: list[Block] = []
    done = count()

    def tick() -> None:
        line.update(partial("{}: {} combinations".format, d.written.experiment.id, next(done) + 1))

    try:
        for d in deployments:
            rows = tuple(_rows(question, d, tick))
            blocks.append(Block(d.written.experiment.id, d.written.experiment.model, d.setting, rows))
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
        load_rps=load_rps,
        intervals=trust is not None,
        uneven=any(len(e.workload.stages) > 1 for e in experiments),
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


def _rows(question: _Question, d: _Deployment, tick: Callable[[], None]) -> list[Row]:
    """The rows of a deployment in ascending order of rate. All replays share the bound program and its remembered step
    times."""
    rates = question.axes.rate or (None,)
    if d.built is None or d.bound is None:
        return [Row(replace(d.setting, rate=rate), impossible=d.impossible) for rate in rates]
    built, bound, others = d.built, d.bound, question.axes.others
    steps = steps_of(bound, limits_of(built))

    def experiment(rate: float | None, where: str) -> Experiment:
        if rate is None:
            return built
        load = share_of(built.workload, rate) if question.load_rps else at_rate(built.workload, rate)
        return experiment_under(built, load, where)

    def at(rate: float | None) -> Row:
        setting = replace(d.setting, rate=rate)
        where = setting.label(built.id, others if rate is None else (*others, "rate"))
        try:
            e = experiment(rate, where)
        except InputError as error:
            return Row(setting, impossible=str(error))
        replays = [replay_bound(load_of(e, seed), bound, steps=steps) for seed in seeds_of(e.workload, question.seeds)]
        tick()
        figures = figures_of(question.source.record, e, replays, question.limits)
        if question.load_rps and (late := too_late(figures.prediction)):  # a replica would have more to do
            return Row(setting, impossible=f"{where}: {late[0]}")
        lines = [*hurried(e, built), *([] if question.axes.rate else few_requests(question.limits, replays))]
        return Row(setting, replace(figures, warnings=(*figures.warnings, *lines)))

    def judged(row: Row) -> Row:
        f = row.figures
        if f is None or question.trust is None or question.source.record is None:
            return row
        e = experiment(row.setting.rate, built.id)
        return replace(row, figures=_judged(question, question.trust, question.source.record, e, f))

    if question.load_rps:
        return shared(question.load_rps, offered_requests(built.workload) / duration_s(built.workload), at, judged)
    rows = [at(rate) for rate in rates]
    # intervals cost a dozen replays: from the last rate that holds downwards, until one holds at their upper ends, too
    for i in reversed(range(len(list(takewhile(lambda row: row.figures and not row.figures.fails, rows))))):
        rows[i] = judged(rows[i])
        if (f := rows[i].figures) and f.likely:
            break
    return rows


def _judged(question: _Question, trust: Trust, record: Record, e: Experiment, f: Figures) -> Figures:
    """The figures with whether everything holds at the upper ends of the 80 % intervals, for 80 % of the arrival seeds
    alone, and no queue grows for 80 % of the committee; as they are without intervals."""
    [doubt] = disagreements(question.program, question.committee, [e], question.seeds[0])
    which = class_of(trust, record, e, f.prediction, doubt)
    bands = bands_of(f.prediction, doubt, scales(trust.residuals(which)))
    if not bands:
        return f
    level = LEVELS[0]
    # where requests wait long without a queue that grows, the committee says nothing of one either
    calm = doubt.saturated <= 1.0 - level or f.waiting_share > WAITING
    tops = [(bands[limit.figure][level][1], limit.most_ms) for limit in question.limits if limit.figure in bands]
    seeds = f.seeds_holding >= level * f.seeds
    likely = not f.fails and seeds and calm and all(top_ms <= most_ms for top_ms, most_ms in tops)
    return replace(f, likely=likely, narrow=tuple(too_narrow(trust, record, e, f.prediction, which)))


def figures_of(
    record: Record | None, e: Experiment, replays: Sequence[Replay], limits: Sequence[Limit] = ()
) -> Figures:
    """The figures of an experiment from its replays, one for each arrival seed, under `limits`. `record`: what the
    program was fitted on."""
    prediction = prediction_of(e, replays)
    lasting_s = [_lasting_s(replay, e.workload) for replay in replays]
    in_time = [len(r.requests) - late_requests(e.workload, r.requests) for r in replays]

    def per_s(counts: Sequence[float]) -> float:
        return float(np.mean([count / s for count, s in zip(counts, lasting_s, strict=True)]))

    goodput = per_s([int(meeting(r, limits).sum()) for r in replays]) if limits else None
    most_running = max(map(_most_running, replays))
    full = [f"max_num_seqs {most_running} is reached: a larger one may serve more"]
    return Figures(
        prediction=prediction,
        offered_rps=float(np.mean(in_time)) / duration_s(e.workload),
        completed_rps=per_s([int(r.completed.sum()) for r in replays]),
        output_tokens_per_s=per_s([int(r.requests.output_len[r.completed].sum(dtype=np.int64)) for r in replays]),
        goodput_rps=goodput,
        most_running=most_running,
        holds={limit.name: limit.holds(prediction.predicted.summary) for limit in limits},
        fails=_fails(prediction, replays, limits),
        seeds=len(replays),
        seeds_holding=sum(not _fails(prediction_of(e, [r]), [r], limits) for r in replays),
        warnings=(*warnings(record, e, prediction), *full * (most_running == e.engine.max_num_seqs)),
    )


def _fails(prediction: Prediction, replays: Sequence[Replay], limits: Sequence[Limit]) -> tuple[str, ...]:
    """The limits that do not hold, and QUEUE, LOST or NOTHING. `prediction`: of these replays."""
    run = prediction.predicted.summary
    missed = tuple(limit.name for limit in limits if limit.holds(run) is False)
    if run is None or run.e2e_ms.mean is None:
        return (*missed, NOTHING)
    completed, failed = run.completed or 0, run.failed or 0
    grows = waiting_share(prediction) > WAITING and _waits_longer(replays)
    lost = failed > MOST_LOST * (completed + failed)
    return (*missed, *[QUEUE] * grows, *[LOST] * lost)


def _waits_longer(replays: Sequence[Replay]) -> bool:
    """Whether the second half of the requests waits longer than the first: in a queue that grows steadily from an empty
    one it waits three times as long, in one that is merely long as long."""
    halves = [np.array_split(replay.waiting_us[replay.completed], 2) for replay in replays]
    first, second = map(np.concatenate, zip(*halves, strict=True))
    return bool(len(second) and second.mean() > LONGER * first.mean())


def _most_running(replay: Replay) -> int:
    """The most requests in a batch at once."""
    done = replay.completed
    began_us = (replay.requests.arrival_us + replay.queueing_us + replay.waiting_us)[done]
    ended_us = began_us + (replay.prefill_us + replay.decode_us)[done]
    # of a step that ends one request and begins another, the end counts first
    times = np.concatenate([ended_us, began_us])
    steps = np.repeat([-1, 1], [len(ended_us), len(began_us)])
    return int(np.cumsum(steps[np.lexsort((steps, times))]).max(initial=0))


def _lasting_s(replay: Replay, workload: Workload) -> float:
    """Seconds until no more requests arrive, and all have completed or been given up."""
    r = replay.requests
    completed_us = (r.arrival_us + replay.e2e_us)[replay.completed]
    given_up_us = r.deadline_us[replay.spread(replay.run.gave_up)]
    last_us = max(int(completed_us.max(initial=0)), int(given_up_us.max(initial=0)))
    return max(duration_s(workload), last_us / 1e6)

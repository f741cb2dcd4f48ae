"""`evolve predict --sweep` and `--load`: predictions at every load, GPU and engine setting, the limits that they keep,
and the fewest replicas for a load that they share equally."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, takewhile

from evaluator.intervals import LEVELS, disagreements, scales
from evaluator.metrics import WAITING
from evolve.output.progress import Line
from evolve.plan.axes import ENGINE, Axes, Setting
from evolve.plan.by_stage import ByStage
from evolve.plan.prediction_intervals import (
    class_of,
    not_calibrated,
    prediction_intervals,
    too_narrow,
    unsure_constants,
    widened,
)
from evolve.plan.replicas import fewest_replicas
from evolve.plan.slo import SloLimit, few_requests
from evolve.plan.sweep_figures import figures_of
from evolve.plan.sweep_result import Block, Sweep, SweepRow
from evolve.plan.warnings import about, hurried, never_starts, too_late
from evolve.run.program import Source
from evolve.run.trust import Trust, trust_of
from simulator.clock.bind import Bound, bind
from simulator.clock.replay import replay_all
from simulator.clock.steps import KnownSteps, steps_of
from simulator.common.errors import InputError
from simulator.common.text import counted
from simulator.language.ir import Program
from simulator.language.opcodes import Code, assemble
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment, deploy, under
from simulator.serving.load import limits_of, load_of
from simulator.serving.spec import Spec
from simulator.serving.trace import Trace
from simulator.serving.workload import Workload, at_rate, at_users, is_recorded, mean_rate, seeds_of, share_of

FLAT = (
    "each rate is constant over the whole load, which has no stages then: `--load`, or predict without rates, keeps "
    "the peaks of stages"
)


def _loses_stages(workload: Workload, rate: float) -> bool:
    """True if the load has stages that it lacks at another rate: traces, and stages of several lengths, keep theirs."""
    return len(workload.stages) > len(at_rate(workload, rate).stages)


@dataclass(frozen=True)
class _Question:
    """A sweep's program, arrival seeds, axes and limits, the same for every deployment."""

    source: Source
    program: Program
    code: Code
    seeds: Sequence[int]
    axes: Axes
    limits: Sequence[SloLimit]
    load_rps: float | None
    trust: Trust | None
    ensemble: Sequence[Program]


@dataclass(frozen=True)
class _Deployment:
    """An experiment on another GPU or with other engine settings, and the program bound to it."""

    built: Experiment
    setting: Setting
    bound: Bound

    def under(self, question: _Question, setting: Setting, where: str) -> Experiment:
        """The experiment under the load of a setting: all of it, or with a load to be shared a replica's share."""
        own = self.built.workload
        if setting.concurrency is not None:
            return under(self.built, at_users(own, setting.concurrency), where)
        if setting.rate is None:
            return self.built
        return under(self.built, (share_of if question.load_rps else at_rate)(own, setting.rate), where)

    def row(self, question: _Question, steps: KnownSteps, level: float | None) -> SweepRow:
        """The figures under a load, or why it is impossible. `steps`: the remembered ones, which all loads share."""
        axes = question.axes
        setting = axes.at(self.setting, level)
        where = setting.label(self.built.id, axes.others if level is None else (*axes.others, axes.load))
        try:
            e = self.under(question, setting, where)
            loads = (load_of(e, seed) for seed in seeds_of(e.workload, question.seeds))
            replays = replay_all(loads, self.bound, steps)
        except InputError as error:  # also of a decode pool that requests which wait fill
            return SweepRow(setting, impossible=str(error))
        figures = figures_of(question.source.record, e, replays, question.limits)
        if question.load_rps and (late := too_late(figures.prediction)):  # a replica would have more to do
            return SweepRow(setting, impossible=f"{where}: {late[0]}")
        lines = [*hurried(e, self.built), *([] if axes.levels else few_requests(question.limits, replays))]
        return SweepRow(setting, replace(figures, warnings=(*figures.warnings, *lines)))

    def judged(self, question: _Question, row: SweepRow) -> SweepRow:
        """The row, `likely` if everything holds at the upper ends of the 80 % intervals and for 80 % of the arrival
        seeds alone, and no queue grows for 80 % of the ensemble; as it is without intervals."""
        f, trust, record = row.figures, question.trust, question.source.record
        if f is None or trust is None or record is None or self.built.pools:  # pools were never measured
            return row
        e = self.under(question, row.setting, self.built.id)
        [doubt] = disagreements(question.program, question.ensemble, [e], question.seeds[0])
        which = class_of(trust, record, e, f.prediction, doubt)
        by_figure = scales(trust.residuals(which, e.workload.closed), e.workload.closed)
        wide = widened(record, e, question.program, f.prediction, doubt)
        intervals = prediction_intervals(f.prediction, wide, by_figure)
        if not intervals:
            return row
        level = LEVELS[0]
        # where requests wait long without a queue that grows, the ensemble says nothing of one either
        calm = doubt.saturated <= 1.0 - level or f.waiting_share > WAITING
        limited = [limit for limit in question.limits if limit.figure in intervals]
        tops = [(intervals[limit.figure].at[level][1], limit.most_ms) for limit in limited]
        within = all(top_ms <= most_ms for top_ms, most_ms in tops) and f.seeds_holding >= level * f.seeds
        narrow = too_narrow(trust, record, e, f.prediction, which)
        narrow += not_calibrated(intervals, [limit.figure for limit in limited])
        if "e2e" in intervals:
            narrow += unsure_constants(question.program, record, e, question.seeds[0], by_figure["e2e"], doubt)
        return replace(row, figures=replace(f, likely=within and calm and not f.fails, narrow=tuple(narrow)))


def sweep(
    source: Source,
    specs: Sequence[Spec],
    seeds: Sequence[int],
    axes: Axes,
    limits: Sequence[SloLimit],
    line: Line,
    load_rps: float | None = None,
) -> Sweep:
    """Replay every experiment at every combination under every arrival seed.

    load_rps: a load that replicas share equally, if the axes have no rates: the rates are the shares of one, two, three
    ... replicas, as many as it takes to find the fewest. Raises InputError for a trace that has no rate.
    """
    _check_loads(specs, axes, load_rps)
    program, trust = source.complete, trust_of(source)
    ensemble = trust.programs if trust else ()
    question = _Question(source, program, assemble(program), seeds, axes, limits, load_rps, trust, ensemble)
    asked = [_as_asked(spec) for spec in specs]
    each = zip(specs, asked, strict=True)
    pairs = [
        (s, replace(setting, replicas=s.replicas))
        for s, e in each
        for setting in axes.settings(s.gpu.name, e.engine, e.pools)
    ]
    deployments = [_deployment(question, *pair) for pair in pairs]
    built = [d.built for d in deployments if isinstance(d, _Deployment)]
    loads = [spec.workload for spec in specs]
    levelled = axes.rate and any(_loses_stages(load, axes.rate[0]) for load in loads)
    known = [*about(source, built), *([FLAT] if levelled else [])]
    blocks: list[Block] = []
    done = count(1)
    try:
        for (spec, setting), d in zip(pairs, deployments, strict=True):
            rows, stages = _rows(question, setting, d, partial(_tick, line, spec.id, done))
            drawn = not is_recorded(spec.workload)
            blocks.append(Block(spec.id, spec.model.name, setting, tuple(rows), drawn, stages))
    finally:
        line.close()
    if axes.gpus:
        order = [spec.id for spec in specs]
        blocks.sort(key=lambda block: (order.index(block.experiment), *block.rank))
    return Sweep(
        name=source.name,
        program=program,
        data=data_hash(asked),
        seeds=tuple(seeds),
        drawn=any(not is_recorded(load) for load in loads),
        axes=axes,
        limits=tuple(limits),
        blocks=tuple(blocks),
        warnings=tuple(known),
        load_rps=load_rps,
        intervals=trust is not None,
        uneven=any(len(load.stages) > 1 for load in loads),
    )


def _as_asked(spec: Spec) -> Experiment | Spec:
    """The experiment; the spec itself if no engine runs it without other settings, which a sweep may give it."""
    try:
        return deploy(spec)
    except InputError:
        return spec


def _check_loads(specs: Sequence[Spec], axes: Axes, load_rps: float | None) -> None:
    """Raises InputError for a load that has no rate or no clients to vary, and for a trace whose requests all arrive at
    once: played slower or faster, it is the same."""
    rates = axes.rate or load_rps is not None
    for spec in specs:
        source, closed, where = spec.workload.source, spec.workload.closed, f"experiment {spec.id!r}"
        if rates and closed:
            remedy = "vary concurrency" if axes.rate else "--load shares a rate: give the experiment one"
            raise InputError(f"{where}: its clients wait for answers, so it has no rate: {remedy}")
        if load_rps is not None and spec.replicas > 1:
            raise InputError(f"{where}: has {spec.replicas} replicas, and --load counts them: leave replicas out")
        if (axes.prefill or axes.decode or axes.gpus) and not (spec.pools and all(spec.pools.instances)):
            raise InputError(f"{where}: has no separate pools: give it prefill and decode, or vary other keys")
        if axes.concurrency and not closed:
            raise InputError(f"{where}: has a rate and no concurrency: give it concurrency and requests, or vary rate")
        if not rates:
            continue
        if isinstance(source, Trace) and not source.requests.arrival_us.any():
            problem = "all requests of its trace arrive at once, so it has no rate that could be another"
            remedy = "leave out rates and --load, or choose others with --id"
            raise InputError(f"{where}: {problem}: {remedy}")


def _tick(line: Line, experiment: str, done: Iterator[int]) -> None:
    number = next(done)
    line.update(lambda: f"{experiment}: {counted(number, 'combination')}")


def _deployment(question: _Question, spec: Spec, setting: Setting) -> _Deployment | str:
    """The spec on this GPU and with these settings of the engine; or why that is impossible."""
    axes = question.axes
    varied = {name: getattr(setting, key) for key, name in ENGINE.items() if getattr(axes, key)}
    if axes.weights:
        varied["quantization"] = setting.weights
    where = setting.label(spec.id, axes.others)
    try:
        labelled = replace(spec, where=where)
        if spec.pools and setting.prefill is not None and setting.decode is not None:
            labelled = replace(labelled, pools=spec.pools.of(setting.prefill, setting.decode))
        built = deploy(labelled.vary(hardware=setting.hardware if axes.hardware else None, **varied))
        bound = bind(question.code, question.program.theta, built.facts)
    except InputError as error:  # no engine runs it, or the program reads measured kernels that its GPU does not have
        return str(error)
    if lines := never_starts(built.facts):
        return f"{where}: {lines[0]}"
    return _Deployment(built, setting, bound)


def _rows(
    question: _Question, setting: Setting, d: _Deployment | str, tick: Callable[[], None]
) -> tuple[list[SweepRow], ByStage | None]:
    """The rows of a deployment in ascending order of load, and what the stages of a load that replicas share need.
    `tick` is called after each prediction."""
    axes = question.axes
    levels = axes.levels or (None,)
    if isinstance(d, str):
        return [SweepRow(axes.at(setting, level), impossible=d) for level in levels], None

    steps = steps_of(d.bound, limits_of(d.built))

    def at(level: float | None) -> SweepRow:
        row = d.row(question, steps, level)
        tick()
        return row

    if question.load_rps:
        workload = d.built.workload
        start_rps = mean_rate(workload) or question.load_rps
        return fewest_replicas(question.load_rps, start_rps, workload.stages, at, partial(d.judged, question))
    rows = [at(level) for level in levels]
    # intervals cost a dozen replays: from the last rate that holds downwards, until one holds at their upper ends, too
    for i in reversed(range(len(list(takewhile(lambda row: row.figures and not row.figures.fails, rows))))):
        rows[i] = d.judged(question, rows[i])
        if (f := rows[i].figures) and f.likely:
            break
    return rows, None

"""`evolve predict --sweep`: predictions at every load, GPU and engine setting, and the limits that they keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, takewhile

from evolve.output.progress import Line
from evolve.plan.axes import Axes, Setting
from evolve.plan.deployment import Deployment, Question, deployed
from evolve.plan.slo import SloLimit, few_requests
from evolve.plan.sweep_result import Block, Sweep, SweepRow
from evolve.plan.warnings import about, hurried
from evolve.run.program import Source
from simulator.common.errors import InputError
from simulator.common.text import counted
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment, deploy
from simulator.serving.spec import Spec
from simulator.serving.trace import Trace
from simulator.serving.workload import Workload, at_rate, at_users, is_recorded

FLAT = (
    "each rate is constant over the whole load, which has no stages then: `evolve plan`, or predict without rates, "
    "keeps the peaks of stages"
)


def _loses_stages(workload: Workload, rate: float) -> bool:
    """True if the load has stages that it lacks at another rate: traces, and stages of several lengths, keep theirs."""
    return len(workload.stages) > len(at_rate(workload, rate).stages)


def sweep(
    source: Source,
    specs: Sequence[Spec],
    seeds: Sequence[int],
    axes: Axes,
    limits: Sequence[SloLimit],
    line: Line,
) -> Sweep:
    """Replay every experiment at every combination under every arrival seed.

    Raises InputError for a trace that has no rate.
    """
    _check_loads(specs, axes)
    question = Question.of(source, seeds, limits)
    asked = [as_asked(spec) for spec in specs]
    pairs = [
        (s, replace(setting, replicas=s.replicas))
        for s, e in zip(specs, asked, strict=True)
        for setting in axes.settings(s.gpu.name, e.engine, e.pools)
    ]
    deployments = [deployed(question, spec, setting, axes) for spec, setting in pairs]
    built = [d.built for d in deployments if isinstance(d, Deployment)]
    loads = [spec.workload for spec in specs]
    levelled = axes.rate and any(_loses_stages(load, axes.rate[0]) for load in loads)
    known = [*about(source, built), *([FLAT] if levelled else [])]
    blocks: list[Block] = []
    done = count(1)
    try:
        for (spec, setting), d in zip(pairs, deployments, strict=True):
            rows = _rows(question, axes, setting, d, partial(_tick, line, spec.id, done))
            blocks.append(Block(spec.id, spec.model.name, setting, tuple(rows), not is_recorded(spec.workload)))
    finally:
        line.close()
    if axes.gpus:
        order = [spec.id for spec in specs]
        blocks.sort(key=lambda block: (order.index(block.experiment), *block.rank))
    return Sweep(
        name=source.name,
        program=question.program,
        data=data_hash(asked),
        seeds=tuple(seeds),
        drawn=any(not is_recorded(load) for load in loads),
        axes=axes,
        limits=tuple(limits),
        blocks=tuple(blocks),
        warnings=tuple(known),
        intervals=question.trust is not None,
    )


def as_asked(spec: Spec) -> Experiment | Spec:
    """The experiment; the spec itself if no engine runs it without other settings, which a sweep may give it."""
    try:
        return deploy(spec)
    except InputError:
        return spec


def _check_loads(specs: Sequence[Spec], axes: Axes) -> None:
    """Raises InputError for a load that has no rate or no clients to vary."""
    for spec in specs:
        closed, where = spec.workload.closed, f"experiment {spec.id!r}"
        if axes.rate and closed:
            raise InputError(f"{where}: its clients wait for answers, so it has no rate: vary concurrency")
        check_pools(spec, axes)
        if axes.concurrency and not closed:
            raise InputError(f"{where}: has a rate and no concurrency: give it concurrency and requests, or vary rate")
        if axes.rate:
            check_rate(spec)


def check_pools(spec: Spec, axes: Axes) -> None:
    """Raises InputError if instances of pools vary that are not there."""
    if (axes.prefill or axes.decode or axes.gpus) and not (spec.pools and all(spec.pools.instances)):
        problem = "has no separate pools: give it prefill and decode, or vary other keys"
        raise InputError(f"experiment {spec.id!r}: {problem}")


def check_rate(spec: Spec) -> None:
    """Raises InputError for a trace whose requests all arrive at once: played slower or faster, it is the same."""
    source = spec.workload.source
    if isinstance(source, Trace) and not source.requests.arrival_us.any():
        problem = "all requests of its trace arrive at once, so it has no rate that could be another"
        raise InputError(f"experiment {spec.id!r}: {problem}: leave out rates, or choose others with --id")


def _tick(line: Line, experiment: str, done: Iterator[int]) -> None:
    number = next(done)
    line.update(lambda: f"{experiment}: {counted(number, 'combination')}")


def _rows(
    question: Question, axes: Axes, setting: Setting, d: Deployment | str, tick: Callable[[], None]
) -> list[SweepRow]:
    """The rows of a deployment in ascending order of load. `tick` is called after each prediction."""
    levels = axes.levels or (None,)
    if isinstance(d, str):
        return [SweepRow(axes.at(setting, level), impossible=d) for level in levels]

    def load(setting: Setting) -> Workload | None:
        if setting.concurrency is not None:
            return at_users(d.built.workload, setting.concurrency)
        return None if setting.rate is None else at_rate(d.built.workload, setting.rate)

    def at(level: float | None) -> SweepRow:
        setting = axes.at(d.setting, level)
        where = setting.label(d.built.id, axes.others if level is None else (*axes.others, axes.load))
        try:
            e = d.under(load(setting), where)
            f = d.figures(question, e)
        except InputError as error:
            return SweepRow(setting, impossible=str(error))
        finally:
            tick()
        lines = [*hurried(e, d.built), *([] if axes.levels else few_requests(question.limits, f.run))]
        return SweepRow(setting, replace(f, warnings=(*f.warnings, *lines)))

    rows = [at(level) for level in levels]
    # intervals cost a dozen replays: from the last load that holds downwards, until one holds at their upper ends, too
    for i in reversed(range(len(list(takewhile(lambda row: row.figures and not row.figures.fails, rows))))):
        if f := rows[i].figures:
            f = d.judged(question, d.under(load(rows[i].setting), d.built.id), f)
            rows[i] = replace(rows[i], figures=f)
            if f.likely:
                break
    return rows
